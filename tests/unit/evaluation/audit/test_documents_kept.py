"""What an audit keeps of documents beside their ids: titles of examples, and texts if asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fairqr.base.errors import IndexUnavailableError
from fairqr.evaluation.audit.bundle import AuditFolder
from fairqr.evaluation.audit.finishing import Audit, make_again, read_audit
from fairqr.evaluation.audit.queries import Queries
from fairqr.evaluation.audit.running import audit_engine
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.evaluation.experiments.verifying import verify
from fairqr.retrieval.engines.tantivy.engine import TantivyEngine
from fairqr.retrieval.sources.documents import Document
from tests.unit.engines import WatchedEngine
from tests.unit.evaluation.audit.examples import words_of
from tests.unit.evaluation.audit.test_verifying import change_manifest, rewrite
from tests.unit.evaluation.watching import Watcher

SPEC = {"k": 4, "depth": 12, "mend": 5, "target": "uniform:1"}
TITLES = "raw/titles.json"


class Reading(WatchedEngine):
    """An engine that may be away when documents are read, after so many times."""

    away_after: int | None = None

    async def documents(self, ids: Sequence[str]) -> list[Document]:
        if self.away_after is not None and len(self.reads) > self.away_after:
            raise IndexUnavailableError("The server does not answer; start it.")
        return await super().documents(ids)


@pytest.fixture
def engine(people: TantivyEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reading:
    """Without MiniLM, so that there are no estimates."""
    monkeypatch.setenv("FAIRQR_CACHE_DIR", str(tmp_path / "cache"))
    return Reading(people)


async def audited(
    engine: Reading, folder: Path, asked: Queries | None = None, **how: Any
) -> tuple[Audit, list[str]]:
    spec = AuditSpec.model_validate({**SPEC, **how.pop("spec", {})})
    watcher, asked = Watcher(), asked or words_of()
    audit = await audit_engine(
        spec, engine, asked, AuditFolder(folder), concurrency=3, watcher=watcher, **how
    )
    return audit, watcher.notes


def report_of(folder: Path) -> str:
    return (folder / "report.md").read_text()


async def test_the_report_names_its_examples_by_their_titles(
    engine: Reading, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    audit, _ = await audited(engine, folder)
    (read,) = engine.reads
    assert set(read) == set(audit.titles)
    assert all(f"Title of {id_.replace('-', ' ')}" == title for id_, title in audit.titles.items())
    text = report_of(folder)
    assert "Title of" in text
    assert not any(f") {id_}" in text for id_ in read)
    assert json.loads((folder / TITLES).read_text()) == audit.titles
    assert (folder / TITLES).stat().st_mode & 0o777 == 0o600
    assert TITLES in audit.manifest.files
    assert verify(AuditFolder(folder), audit.digest, make_again).problems == ()
    assert read_audit(AuditFolder(folder)).titles == audit.titles
    assert not any(b"body" in it.read_bytes() for it in folder.glob("raw/*"))


@pytest.mark.parametrize(
    ("forge", "where"),
    [
        (rewrite("report.html", b"of the exposure", b"of all the exposure"), "report.html"),
        (rewrite(TITLES, b"Title of", b"Name of"), "report.html"),
        (rewrite("figures/exposure.svg", b"width", b"height"), "figures/exposure.svg"),
        (rewrite("manifest.json", b'"layout": "plain"', b'"layout": "dsa"'), "report.html"),
    ],
    ids=["headline", "titles", "picture", "layout"],
)
async def test_forgeries_show_although_their_hashes_fit(
    engine: Reading, tmp_path: Path, forge: Callable[[Path], None], where: str
) -> None:
    folder = tmp_path / "out"
    audit, _ = await audited(engine, folder)
    forge(folder)
    change_manifest(folder)
    assert verify(AuditFolder(folder)).problems == ()
    told = verify(AuditFolder(folder), make_again=make_again).problems
    assert any(it.startswith(f"{where}, line ") for it in told)
    (first, *_) = verify(AuditFolder(folder), audit.digest).problems
    assert first.startswith("The digest of the audit is ")


async def test_redaction_leaves_titles_out(engine: Reading, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    await audited(engine, folder, redact=True)
    assert engine.reads == []
    assert json.loads((folder / TITLES).read_text()) == {}
    assert "Title of" not in report_of(folder)
    assert "-00" in report_of(folder)


async def test_titles_do_not_tell_what_was_asked_rarely(engine: Reading, tmp_path: Path) -> None:
    """A query that is not printed is not given away by the titles of what it found."""
    often = words_of(asks=[200, 200])
    audit, _ = await audited(engine, tmp_path / "out", often, spec={"rare": 150})
    text = report_of(tmp_path / "out")
    assert "asked fewer than 150 times" in text
    assert "word02-00" in text
    assert {id_[:6] for id_ in audit.titles} == {"word00", "word01"}


async def test_an_engine_that_goes_away_at_the_end_costs_the_titles_alone(
    engine: Reading, tmp_path: Path
) -> None:
    engine.away_after = -1
    audit, notes = await audited(engine, tmp_path / "out")
    assert audit.titles == {}
    assert any(note.startswith("The report shows ids in place of titles: The s") for note in notes)
    assert verify(AuditFolder(tmp_path / "out"), audit.digest, make_again).problems == ()
