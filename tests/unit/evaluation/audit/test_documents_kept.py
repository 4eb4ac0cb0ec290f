"""What an audit keeps of documents beside their ids: titles of examples, and texts if asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fairqr.base.errors import IndexUnavailableError
from fairqr.evaluation.audit.bundle import AuditFolder
from fairqr.evaluation.audit.finishing import make_again, read_audit
from fairqr.evaluation.experiments.verifying import verify
from fairqr.retrieval.sources.documents import Document
from tests.unit.evaluation.audit.examples import words_of
from tests.unit.evaluation.audit.test_running import UNIFORM, Breaking, audited, engine
from tests.unit.evaluation.audit.test_verifying import change_manifest, rewrite
from tests.unit.evaluation.watching import Watcher

__all__ = ["engine"]

TITLES = "raw/titles.json"


def report_of(folder: Path) -> str:
    return (folder / "report.md").read_text()


async def test_the_report_names_its_examples_by_their_titles(
    engine: Breaking, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    audit = await audited(engine, folder, spec=UNIFORM)
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
    engine: Breaking, tmp_path: Path, forge: Callable[[Path], None], where: str
) -> None:
    folder = tmp_path / "out"
    audit = await audited(engine, folder, spec=UNIFORM)
    forge(folder)
    change_manifest(folder)
    assert verify(AuditFolder(folder)).problems == ()
    told = verify(AuditFolder(folder), make_again=make_again).problems
    assert any(it.startswith(f"{where}, line ") for it in told)
    (first, *_) = verify(AuditFolder(folder), audit.digest).problems
    assert first.startswith("The digest of the audit is ")


async def test_redaction_leaves_titles_out(engine: Breaking, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    await audited(engine, folder, spec=UNIFORM, redact=True)
    assert engine.reads == []
    assert json.loads((folder / TITLES).read_text()) == {}
    assert "Title of" not in report_of(folder)
    assert "-00" in report_of(folder)


async def test_titles_do_not_tell_what_was_asked_rarely(engine: Breaking, tmp_path: Path) -> None:
    """A query that is not printed is not given away by the titles of what it found."""
    often = words_of(asks=[200, 200])
    spec = UNIFORM.model_copy(update={"rare": 150})
    audit = await audited(engine, tmp_path / "out", often, spec)
    text = report_of(tmp_path / "out")
    assert "asked fewer than 150 times" in text
    assert "word02-00" in text
    assert {id_[:6] for id_ in audit.titles} == {"word00", "word01"}


async def test_an_engine_that_goes_away_at_the_end_costs_the_titles_alone(
    engine: Breaking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(_: Sequence[str]) -> list[Document]:
        raise IndexUnavailableError("The server does not answer; start it.")

    monkeypatch.setattr(engine, "documents", away)
    watcher = Watcher()
    audit = await audited(engine, tmp_path / "out", spec=UNIFORM, watcher=watcher)
    assert audit.titles == {}
    said = "The report shows ids in place of titles: The s"
    assert any(note.startswith(said) for note in watcher.notes)
    assert verify(AuditFolder(tmp_path / "out"), audit.digest, make_again).problems == ()
