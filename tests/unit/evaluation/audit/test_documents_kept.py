"""What an audit keeps of documents beside their ids: titles of examples, and texts if asked."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fairqr.base.errors import IndexUnavailableError
from fairqr.evaluation.audit.bundle import AuditFolder, AuditManifest
from fairqr.evaluation.audit.finishing import Audit, carry_out, make_again, read_audit
from fairqr.evaluation.audit.queries import Queries
from fairqr.evaluation.audit.running import make_plan
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.evaluation.audit.verifying import verify
from fairqr.retrieval.documents import Document
from fairqr.retrieval.engines.tantivy import TantivyEngine
from tests.unit.engines import WatchedEngine
from tests.unit.evaluation.audit.examples import words_of
from tests.unit.evaluation.watching import Watcher

SPEC = {"k": 4, "depth": 12, "again": 0, "mend": 5, "target": "uniform:1"}
TITLES = "raw/titles.json.gz"


class Reading(WatchedEngine):
    """An engine that may be away when documents are read, after so many times."""

    away_after: int | None = None

    async def documents(self, ids: Sequence[str]) -> list[Document]:
        if self.away_after is not None and len(self.reads) > self.away_after:
            raise IndexUnavailableError("The server does not answer; start it.")
        return await super().documents(ids)


@pytest.fixture
def engine(people: TantivyEngine) -> Reading:
    return Reading(people)


async def carried_out(
    engine: Reading, folder: Path, asked: Queries | None = None, **how: Any
) -> tuple[Audit, list[str]]:
    spec = AuditSpec.model_validate({**SPEC, **how.pop("spec", {})})
    plan = await make_plan(spec, engine, asked or words_of())
    watcher = Watcher()
    audit = await carry_out(plan, AuditFolder(folder), concurrency=3, watcher=watcher, **how)
    return audit, watcher.notes


def lines_of(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path) as stream:
        return [json.loads(line) for line in stream]


def report_of(folder: Path) -> str:
    return (folder / "report.md").read_text()


async def test_the_report_names_its_examples_by_their_titles(
    engine: Reading, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    audit, _ = await carried_out(engine, folder)
    (read,) = engine.reads
    assert set(read) == set(audit.titles)
    assert all(f"Title of {id_.replace('-', ' ')}" == title for id_, title in audit.titles.items())
    text = report_of(folder)
    assert "Title of" in text
    assert not any(f") {id_}" in text for id_ in read)
    with gzip.open(folder / TITLES) as stream:
        assert json.load(stream) == audit.titles
    assert (folder / TITLES).stat().st_mode & 0o777 == 0o600
    assert TITLES in audit.manifest.files
    assert verify(folder, audit.digest, make_again).problems == ()
    assert read_audit(AuditFolder(folder)).titles == audit.titles
    assert not any(b"body" in gzip.decompress(it.read_bytes()) for it in folder.glob("raw/*"))
    (folder / TITLES).write_bytes(gzip.compress(b'{"word00-00": "Another"}'))
    told = verify(folder, audit.digest, make_again).problems
    assert told[0] == f"The file {TITLES} was changed."
    assert "(1) Another; " in told[1]


def headline(folder: Path) -> None:
    for name in ("report.md", "report.html"):
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace("of the exposure", "of all the exposure", 1))


def titles(folder: Path) -> None:
    (folder / TITLES).write_bytes(gzip.compress(b'{"word00-00": "Another"}', mtime=0))


def picture(folder: Path) -> None:
    path = folder / "figures/exposure.svg"
    path.write_text(path.read_text().replace("width", "height", 1))


def layout(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"layout": "plain"', '"layout": "dsa"'))


@pytest.mark.parametrize(
    ("forge", "where"),
    [
        (headline, "report.html, line "),
        (titles, "report.html, line "),
        (picture, "figures/exposure.svg, line "),
        (layout, "report.html, line "),
    ],
)
async def test_forgeries_show_although_their_hashes_fit(
    engine: Reading, tmp_path: Path, forge: Callable[[Path], None], where: str
) -> None:
    folder = tmp_path / "out"
    audit, _ = await carried_out(engine, folder)
    forge(folder)
    data = json.loads((folder / "manifest.json").read_text())
    for name in data["files"]:
        data["files"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(AuditManifest.model_validate(data).text)
    assert verify(folder).problems == ()
    told = verify(folder, make_again=make_again).problems
    assert any(it.startswith(where) for it in told)
    assert verify(folder, audit.digest).problems[0].startswith("The digest of the audit is ")


@pytest.mark.parametrize("how", [{"spec": {"titles": False}}, {"redact": True}])
async def test_titles_can_be_left_out_and_redaction_leaves_them_out(
    engine: Reading, tmp_path: Path, how: dict[str, Any]
) -> None:
    folder = tmp_path / "out"
    await carried_out(engine, folder, **how)
    assert engine.reads == []
    assert not (folder / TITLES).exists()
    assert "Title of" not in report_of(folder)
    assert "-00" in report_of(folder)


async def test_titles_do_not_tell_what_was_asked_rarely(engine: Reading, tmp_path: Path) -> None:
    """A query that is not printed is not given away by the titles of what it found."""
    often = words_of(asks=[200, 200])
    audit, _ = await carried_out(engine, tmp_path / "out", often, spec={"rare": 150})
    text = report_of(tmp_path / "out")
    assert "asked fewer than 150 times" in text
    assert "word02-00" in text
    assert {id_[:6] for id_ in audit.titles} == {"word00", "word01"}


async def test_an_engine_that_goes_away_at_the_end_costs_the_titles_alone(
    engine: Reading, tmp_path: Path
) -> None:
    engine.away_after = -1
    audit, notes = await carried_out(engine, tmp_path / "out")
    assert audit.titles == {}
    assert any(note.startswith("The report shows ids in place of titles: The s") for note in notes)
    assert verify(tmp_path / "out", audit.digest, make_again).problems == ()
