"""What an audit keeps of documents beside their ids: titles of examples, and texts if asked."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fairqr.base.errors import IndexUnavailableError, InputError
from fairqr.evaluation.audit.bundle import AuditFolder
from fairqr.evaluation.audit.finishing import Audit, carry_out, read_audit, recompute
from fairqr.evaluation.audit.queries import Queries
from fairqr.evaluation.audit.running import make_plan
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.evaluation.audit.verifying import verify
from fairqr.retrieval.documents import Document
from fairqr.retrieval.engines.tantivy import TantivyEngine
from tests.unit.engines import WatchedEngine
from tests.unit.evaluation.audit.examples import WORDS, words_of
from tests.unit.evaluation.watching import Watcher
from tests.unit.retrieval.embedded import built

SPEC = {"k": 4, "depth": 12, "again": 0, "mend": 5, "target": "uniform:1"}
TITLES = "raw/titles.json.gz"
TEXTS = "raw/texts.jsonl.gz"


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
    assert verify(folder, audit.digest, recompute).problems == ()
    assert read_audit(AuditFolder(folder)).titles == audit.titles
    assert not any(b"body" in gzip.decompress(it.read_bytes()) for it in folder.glob("raw/*"))
    (folder / TITLES).write_bytes(gzip.compress(b'{"word00-00": "Another"}'))
    assert verify(folder, audit.digest, recompute).problems == (f"The file {TITLES} was changed.",)


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
    assert verify(tmp_path / "out", audit.digest, recompute).problems == ()


async def test_texts_are_kept_once_each_if_somebody_asks_for_it(
    engine: Reading, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    plan = await make_plan(
        AuditSpec.model_validate({**SPEC, "keep_texts": True}), engine, words_of()
    )
    assert plan.requests() == 2 * len(WORDS)
    engine.reads.clear()
    audit, _ = await carried_out(engine, folder, spec={"keep_texts": True})
    kept = lines_of(folder / TEXTS)
    seen = {id_ for it in AuditFolder(folder).observations.read() for id_ in it.pool}
    assert [it["id"] for it in kept] == sorted(seen)
    assert kept[0] == {
        "id": "word00-00",
        "title": "Title of word00 00",
        "text": "body word00 word00 word00",
    }
    assert (folder / TEXTS).stat().st_mode & 0o777 == 0o600
    assert TEXTS in audit.manifest.files
    assert not (folder / "raw/texts.jsonl").exists()
    assert verify(folder, audit.digest, recompute).problems == ()
    (folder / TEXTS).write_bytes(gzip.compress(b"{}\n"))
    assert verify(folder, audit.digest, recompute).problems == (f"The file {TEXTS} was changed.",)


async def test_an_audit_that_goes_on_reads_only_the_texts_that_are_missing(
    engine: Reading, tmp_path: Path
) -> None:
    """A query whose texts could not be read is asked again, so that none is missing."""
    folder, spec = tmp_path / "out", {"keep_texts": True}
    plan = await make_plan(AuditSpec.model_validate({**SPEC, **spec}), engine, words_of())
    engine.away_after = 5
    with pytest.raises(IndexUnavailableError, match=r"20 times in a row.*does not answer"):
        await carry_out(plan, AuditFolder(folder), concurrency=1, watcher=Watcher())
    assert len(AuditFolder(folder).observations.lines.read()) == 5
    assert (folder / "raw/texts.jsonl").stat().st_mode & 0o777 == 0o600
    engine.away_after = None
    engine.reads.clear()
    audit, _ = await carried_out(engine, folder, spec=spec)
    assert audit.figures.counts.answered == len(WORDS)
    assert len(lines_of(folder / TEXTS)) == 12 * len(WORDS)
    # The first read looks whether there are texts, and the last is for titles.
    again = [id_ for ids in engine.reads[1:-1] for id_ in ids]
    assert len(again) == len(set(again)) == 12 * (len(WORDS) - 5)


async def test_texts_and_redaction_exclude_each_other(engine: Reading, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"leave out either --redact or --keep-texts\."):
        await carried_out(engine, tmp_path / "out", spec={"keep_texts": True}, redact=True)
    assert not (tmp_path / "out").exists()


async def test_an_engine_without_texts_has_none_to_keep(tmp_path: Path) -> None:
    bare = [Document(f"{word}-{n}", "", "", {"gender": "male"}) for word in WORDS for n in range(3)]
    engine = Reading(built(tmp_path / "v1", bare))
    with pytest.raises(InputError, match="gives no texts that could be kept; leave out --keep-t"):
        await carried_out(engine, tmp_path / "out", spec={"keep_texts": True})
