"""Running an audit: what is asked of an engine, what it survives, what ends it, what it keeps."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fairqr.base.errors import IndexUnavailableError, InputError, SourceError
from fairqr.evaluation.audit import running
from fairqr.evaluation.audit.bundle import AuditFolder
from fairqr.evaluation.audit.finishing import Audit, make_again
from fairqr.evaluation.audit.queries import Queries
from fairqr.evaluation.audit.running import LOOKED_UP
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.evaluation.experiments.verifying import verify
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.engines.limits import at_rate
from fairqr.retrieval.engines.tantivy.engine import TantivyEngine
from fairqr.retrieval.fairness.target import Target
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.sources.schema import Attribute, Schema
from tests.unit.evaluation.audit.examples import SCHEMA, WORDS, Breaking, words_of
from tests.unit.evaluation.watching import Watcher
from tests.unit.retrieval.embedded import built

SPEC = AuditSpec(k=4, depth=12, mend=5)
UNIFORM = SPEC.model_copy(update={"target": Target(parts={"uniform": 1.0})})


async def audited(
    engine: Breaking,
    folder: Path,
    words: Sequence[str] | Queries = WORDS,
    spec: AuditSpec = SPEC,
    watcher: Watcher | None = None,
    concurrency: int = 3,
    **how: Any,
) -> Audit:
    return await running.audit_engine(
        spec,
        engine,
        words if isinstance(words, Queries) else words_of(words),
        AuditFolder(folder),
        watcher=watcher or Watcher(),
        concurrency=concurrency,
        **how,
    )


@pytest.mark.usefixtures("by_rank")
async def test_an_audit_says_first_what_it_will_ask_and_widens_only_what_it_can(
    people: TantivyEngine, tmp_path: Path
) -> None:
    """Searches that go together are counted one by one."""
    narrow, said = SPEC.model_copy(update={"widen": False}), "4 queries for 'v1', up to"
    paced = "64 requests, at most 1000 a second, so at least 0 s"
    for name, engine, spec, rate, asked in (
        ("plain", Breaking(people), SPEC, None, "64 requests"),
        ("paced", Breaking(people), SPEC, 1000, paced),
        ("narrow", Breaking(people), narrow, None, "20 requests"),
        ("unable", Breaking(people, without=["within_group"]), SPEC, None, "44 requests"),
    ):
        watcher = Watcher()
        await audited(engine, tmp_path / name, WORDS[:4], spec, watcher, rate=rate)
        assert (watcher.notes[0], watcher.steps) == (f"{said} {asked}", 4)
        at_once = {len(search) for search in engine.searches}
        assert (at_once == {1}) == (rate is not None or name in ("narrow", "unable"))
        is_wide = any(query.within for search in engine.searches for query in search)
        assert is_wide == (name in ("plain", "paced"))


async def test_judged_documents_are_looked_up_by_id_before_the_questions(
    engine: Breaking, tmp_path: Path
) -> None:
    """Many at a time; an audit that goes on looks up those of the queries that are left."""
    few = {word: {f"{word}-00": 1, f"{word}-19": 2, f"{word}-18": 0} for word in WORDS[:8]}
    qrels = few | {"word00": few["word00"] | {f"nowhere{n}": 1 for n in range(LOOKED_UP)}}
    engine.away = frozenset(WORDS[4:])
    with pytest.raises(IndexUnavailableError):
        await audited(engine, tmp_path / "out", qrels=qrels, concurrency=1)
    engine.away, first = frozenset(), len(engine.searches)
    audit = await audited(engine, tmp_path / "out", qrels=qrels)
    looked_up = [[len(query.only or ()) for query in search] for search in engine.searches]
    assert looked_up[:2] == [[LOOKED_UP], [16]]
    assert looked_up[first] == [8]
    assert sum(map(sum, looked_up)) == LOOKED_UP + 16 + 8
    assert (audit.figures.counts.with_relevance, audit.figures.counts.relevance) == (8, "judged")
    female, _ = audit.figures.groups
    assert (female.target.value, female.target.queries) == (0.5, 8)


@pytest.mark.parametrize("failed", [3, 4])
async def test_refused_queries_are_counted_and_too_many_leave_no_verdict(
    engine: Breaking, tmp_path: Path, failed: int
) -> None:
    engine.refused = frozenset(WORDS[:failed])
    audit = await audited(engine, tmp_path / "out", spec=UNIFORM)
    counts = audit.figures.counts
    assert (counts.asked, counts.answered, counts.failed) == (30, 30 - failed, failed)
    assert audit.figures.unanswered == dict.fromkeys(WORDS[:failed], "failed")
    (kept,) = AuditFolder(tmp_path / "out").observed(WORDS[:1])
    assert kept.message == "The query is too long; shorten it."
    assert audit.figures.too_many_failed == (failed == 4)
    assert ({it.verdict for it in audit.figures.groups} == {"cannot_tell"}) == (failed == 4)


async def test_an_engine_that_goes_away_ends_the_audit_and_leaves_no_failures(
    engine: Breaking, tmp_path: Path
) -> None:
    """What was observed before is kept, and the rest is asked when it is back."""
    engine.away = frozenset(WORDS[8:])
    with pytest.raises(IndexUnavailableError, match=r"20 times in a row.*does not answer"):
        await audited(engine, tmp_path / "out", concurrency=1)
    kept = AuditFolder(tmp_path / "out").observations.read()
    assert {it.query for it in kept if it.is_final} == set(WORDS[:8])
    engine.away = frozenset()
    engine.searches.clear()
    audit = await audited(engine, tmp_path / "out")
    assert {query.text for search in engine.searches for query in search} == set(WORDS[8:])
    assert (audit.figures.counts.answered, audit.figures.counts.failed) == (30, 0)
    engine.away = frozenset(WORDS)
    with pytest.raises(IndexUnavailableError, match="did not answer any question"):
        await audited(engine, tmp_path / "few", WORDS[:4])


class Killed(BaseException):
    """What ends a test's run at once."""


@pytest.mark.parametrize("redact", [False, True])
async def test_an_audit_that_is_killed_at_any_file_goes_on_and_asks_nothing_twice(
    engine: Breaking, tmp_path: Path, redact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run is killed one file later than the one before; half written files go."""
    spec, real = SPEC.model_copy(update={"mend": 0}), Path.replace
    folder = tmp_path / "out"
    engine.refused = frozenset(WORDS[:1])
    for files in range(50):
        left = files

        def replace(path: Path, target: Path) -> Path:
            nonlocal left
            if left == 0:
                Path(f"{target.parent}/.{target.name}.0123456789abcdef").write_bytes(b"half")
                raise Killed
            left -= 1
            return real(path, target)

        with monkeypatch.context() as patched, contextlib.suppress(Killed):
            patched.setattr(Path, "replace", replace)
            audit = await audited(engine, folder, WORDS[:6], spec, redact=redact)
            break
    assert files > 6
    asked = [query.text for search in engine.searches for query in search]
    assert sorted(asked) == sorted(WORDS[1:6])
    assert (audit.manifest.redacted, audit.figures.counts.answered) == (redact, 5)
    assert verify(AuditFolder(folder), audit.digest, make_again).problems == ()
    assert not list((folder).rglob(".*.0123456789abcdef"))
    lines = (folder / "raw/observations.jsonl").read_text().splitlines()
    assert len(lines) == 6, "the failed query was asked again, and has one line"
    assert (WORDS[0] in "".join(lines)) != redact
    for how in ({"redact": True}, {"layout": "dsa"}):
        with pytest.raises(InputError, match="is finished with another --redact or --layout"):
            await audited(engine, folder, WORDS[:6], spec, **how)


async def test_an_attribute_without_labels_ends_the_audit_early_and_each_time(
    tmp_path: Path,
) -> None:
    """The last queries alone may show none: labels of an earlier run are labels, too."""
    documents = [Document(f"{word}-1", "", word) for word in WORDS]
    bare = built(tmp_path / "v2", documents)
    for words, answered in ((WORDS, 20), (WORDS[:3], 3), (WORDS[:3], 3)):
        with pytest.raises(SourceError, match=f"to {answered} queries has a label of 'gender'"):
            await audited(Breaking(bare), tmp_path / str(answered), words, concurrency=1)
    labelled = Document(f"{WORDS[0]}-1", "", WORDS[0], {"gender": "male"})
    engine = Breaking(built(tmp_path / "v3", [labelled, *documents[1:]]))
    engine.away = frozenset(WORDS[1:])
    with pytest.raises(IndexUnavailableError):
        await audited(engine, tmp_path / "out", concurrency=1)
    engine.away = frozenset()
    assert (await audited(engine, tmp_path / "out")).figures.counts.answered == 30


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"target": "relevance:0.5,population:0.5"}, "gives no population for 'kind'"),
        (
            {"target": ["population:1", "kind=a:0.5,b:0.5"]},
            "no population for 'gender×kind'; add one, measure no combinations",
        ),
        ({"target": "sex=f:0.5,m:0.5"}, "the group 'f' of 'sex', which is not measured"),
        ({"reference": {"gender": "nothing"}}, "'gender=nothing' is no group of this audit"),
        ({"reference": {"nothing": "female"}}, "'nothing=female' is no group of this audit"),
    ],
)
async def test_what_cannot_be_computed_is_refused_before_anything_is_asked(
    tmp_path: Path, spec: dict[str, Any], problem: str
) -> None:
    kind = Attribute(name="kind", field="kind", groups=("a", "b"))
    schema = Schema(attributes={"gender": SCHEMA.attribute("gender"), "kind": kind})
    documents = [Document("1", "", "word00", {"gender": "female", "kind": "a"})]
    engine = Breaking(built(tmp_path / "v1", documents, schema))
    with pytest.raises(InputError, match=problem):
        await audited(engine, tmp_path / "out", spec=AuditSpec.model_validate(spec))
    assert engine.searches == []


async def test_many_queries_at_once_keep_to_the_rate(engine: Breaking) -> None:
    begun = time.monotonic()
    await at_rate(engine, 200).search([Query(word, 3) for word in WORDS[:21]])
    assert time.monotonic() - begun >= 0.1
    assert [len(batch) for batch in engine.searches] == [1] * 21


@pytest.mark.usefixtures("by_rank")
async def test_the_order_of_answers_changes_no_file(engine: Breaking, tmp_path: Path) -> None:
    made = []
    for concurrency in (1, 7):
        audit = await audited(engine, tmp_path / str(concurrency), concurrency=concurrency)
        found = AuditFolder(audit.folder).observations.read()
        assert [it.query for it in found] == list(WORDS)
        made.append(audit.manifest.files)
    assert made[0] == made[1]
    assert {"audit.json", "results.csv", "queries.csv", "report.md", "report.html"} < made[0].keys()
    assert {"raw/observations.jsonl", "raw/queries.json", "figures/exposure.svg"} < made[0].keys()


async def test_the_report_names_its_examples_by_their_titles(
    engine: Breaking, tmp_path: Path
) -> None:
    """But where they would tell what was asked: a redacted query, or one that was asked rarely."""

    async def titled(
        name: str, words: Queries | None = None, rare: int = 5, **how: Any
    ) -> tuple[dict[str, str], str]:
        spec = UNIFORM.model_copy(update={"rare": rare})
        audit = await audited(engine, tmp_path / name, words or WORDS, spec, **how)
        assert json.loads((audit.folder / "raw/titles.json").read_text()) == audit.titles
        assert not any(b"body" in it.read_bytes() for it in audit.folder.glob("raw/*"))
        assert verify(AuditFolder(audit.folder), audit.digest, make_again).problems == ()
        return dict(audit.titles), (audit.folder / "report.md").read_text()

    titles, text = await titled("redacted", redact=True)
    assert (engine.reads, titles) == ([], {})
    assert "Title of" not in text
    assert "-00" in text
    titles, text = await titled("plain")
    assert titles == {id_: f"Title of {id_.replace('-', ' ')}" for id_ in engine.reads[0]}
    assert "Title of" in text
    assert not any(f") {id_}" in text for id_ in titles)
    assert (tmp_path / "plain/raw/titles.json").stat().st_mode & 0o777 == 0o600
    titles, text = await titled("rare", words_of(asks=[200, 200]), rare=150)
    assert {id_[:6] for id_ in titles} == {"word00", "word01"}
    assert "asked fewer than 150 times" in text
