"""Running an audit: what is asked of an engine, what it survives, and what ends it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fairqr.base.errors import (
    IndexUnavailableError,
    InputError,
    QueryError,
    SourceError,
    TargetError,
)
from fairqr.evaluation.audit.asking import Pace, paced
from fairqr.evaluation.audit.bundle import AuditFolder
from fairqr.evaluation.audit.finishing import Audit, carry_out
from fairqr.evaluation.audit.running import AuditPlan, make_plan
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.retrieval.documents import Document
from fairqr.retrieval.engines.engine import Hits, Query
from fairqr.retrieval.engines.tantivy import TantivyEngine
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.schema import Schema
from fairqr.retrieval.target import Target
from tests.unit.engines import WatchedEngine
from tests.unit.evaluation.audit.examples import WORDS, words_of
from tests.unit.evaluation.watching import Watcher
from tests.unit.retrieval.embedded import built

UNIFORM = Target(parts={"uniform": 1.0})
SPEC = AuditSpec(k=4, depth=12, again=5, mend=5)


class Breaking(WatchedEngine):
    """An engine that cannot answer some words.

    Attributes:
        away: The words for which it cannot be reached.
        refused: The words that it refuses.
    """

    away: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        for query in queries:
            if query.text in self.away:
                self.searches.append(list(queries))
                raise IndexUnavailableError("The server does not answer; start it.")
            if query.text in self.refused:
                raise QueryError("The query is too long; shorten it.")
        return await super().search(queries)


class Halves:
    """Says that each document is as likely relevant as not, and notes what it is asked."""

    def __init__(self) -> None:
        self.pools: list[list[str]] = []

    async def estimate_ids(self, query: str, ids: Sequence[str]) -> FloatArray | None:
        self.pools.append(list(ids))
        return np.full(len(ids), 0.5)


@pytest.fixture
def engine(people: TantivyEngine) -> Breaking:
    return Breaking(people)


async def carried_out(
    plan: AuditPlan, folder: Path, watcher: Watcher | None = None, concurrency: int = 3
) -> Audit:
    return await carry_out(
        plan, AuditFolder(folder), concurrency=concurrency, watcher=watcher or Watcher()
    )


async def test_each_query_is_asked_once_and_some_again(engine: Breaking, tmp_path: Path) -> None:
    plan = await make_plan(SPEC, engine, words_of())
    assert plan.requests() == 35
    audit = await carried_out(plan, tmp_path / "out")
    asked = [query.text for search in engine.searches for query in search]
    assert len(asked) == 35
    assert set(asked) == set(WORDS)
    assert audit.figures.stability is not None
    assert (audit.figures.stability.queries, audit.figures.stability.same) == (5, 1.0)
    assert audit.figures.counts.answered == 30


async def test_the_pool_is_widened_by_one_request_for_all_groups(
    engine: Breaking, tmp_path: Path
) -> None:
    texts = Halves()
    plan = await make_plan(SPEC, engine, words_of(WORDS[:6]), texts=texts)
    assert plan.manifest.relevance == "estimated"
    await carried_out(plan, tmp_path / "out", concurrency=1)
    widened = [search for search in engine.searches if search[0].within]
    assert len(widened) == 6
    assert [query.within for query in widened[0]] == [("gender", "female"), ("gender", "male")]
    # The engine answers ten men and two women; the others are found within their group.
    first = AuditFolder(tmp_path / "out").observations.read()
    observation = next(first)
    assert len(observation.ids) == 12
    assert sorted(observation.pool) == [f"word00-{n:02}" for n in range(20)]
    assert observation.pool[:12] == observation.ids
    assert list(observation.pool) in texts.pools
    assert observation.relevance == (0.5,) * 20


async def test_nothing_is_widened_where_it_cannot_be(people: TantivyEngine, tmp_path: Path) -> None:
    without = Breaking(people, without=["within_group"])
    not_wanted = SPEC.model_copy(update={"widen": False})
    for engine, spec in ((without, SPEC), (Breaking(people), not_wanted)):
        plan = await make_plan(spec, engine, words_of(WORDS[:3]), texts=Halves())
        assert plan.asker.widened == ()


async def test_judged_documents_are_looked_up_by_id(engine: Breaking, tmp_path: Path) -> None:
    qrels = {word: {f"{word}-00": 1, f"{word}-19": 2, f"{word}-18": 0} for word in WORDS[:8]}
    plan = await make_plan(SPEC, engine, words_of(WORDS[:9]), qrels=qrels)
    audit = await carried_out(plan, tmp_path / "out")
    assert (audit.figures.counts.with_relevance, audit.figures.counts.relevance) == (8, "judged")
    found = {it.query: it for it in AuditFolder(tmp_path / "out").observations.read()}
    assert found["word00"].pool[12:] == ("word00-19",)
    assert found["word00"].relevance == (1.0, *[0.0] * 11, 1.0)
    assert found["word08"].relevance is None
    female, _ = audit.figures.groups
    assert female.target.value == 0.5
    assert female.target.queries == 8


async def test_judged_documents_without_known_groups_are_spoken_of(
    people: TantivyEngine, tmp_path: Path
) -> None:
    """An index lacks them; an engine that reads nothing by id may only hide them."""
    qrels = {word: {f"{word}-00": 1, "nowhere": 1} for word in WORDS[:3]}
    by_words = Breaking(people, without=["read_by_id"])
    for engine, is_said in ((Breaking(people), False), (by_words, True)):
        watcher = Watcher()
        plan = await make_plan(SPEC, engine, words_of(WORDS[:3]), qrels=qrels)
        audit = await carried_out(plan, tmp_path / str(is_said), watcher)
        said = [note for note in watcher.notes if "what it hides is not seen" in note]
        assert len(said) == is_said
        counts = audit.figures.counts
        assert (counts.hidden, counts.with_hidden) == ((3, 3) if is_said else (0, 0))
        told = "3 judged relevant documents of 3 queries are left out"
        assert any(told in finding for finding in audit.findings) == is_said


async def test_a_refused_query_is_counted(engine: Breaking, tmp_path: Path) -> None:
    engine.refused = frozenset(WORDS[:3])
    audit = await carried_out(await make_plan(SPEC, engine, words_of()), tmp_path / "out")
    counts = audit.figures.counts
    assert (counts.asked, counts.answered, counts.failed) == (30, 27, 3)
    assert not audit.figures.too_many_failed
    messages = {it.query: it.message for it in audit.figures.unanswered}
    assert messages["word00"] == "The query is too long; shorten it."


async def test_too_many_refused_queries_leave_no_verdict(engine: Breaking, tmp_path: Path) -> None:
    engine.refused = frozenset(WORDS[:4])
    plan = await make_plan(SPEC.model_copy(update={"target": UNIFORM}), engine, words_of())
    audit = await carried_out(plan, tmp_path / "out")
    assert audit.figures.too_many_failed
    assert {it.verdict for it in audit.figures.groups} == {"cannot_tell"}


async def test_an_engine_that_goes_away_ends_the_audit_and_leaves_no_failures(
    engine: Breaking, tmp_path: Path
) -> None:
    """What was observed before is kept, and the rest is asked when it is back."""
    engine.away = frozenset(WORDS[8:])
    plan = await make_plan(SPEC.model_copy(update={"again": 0}), engine, words_of())
    with pytest.raises(IndexUnavailableError, match=r"20 times in a row.*does not answer"):
        await carried_out(plan, tmp_path / "out", concurrency=1)
    kept = AuditFolder(tmp_path / "out").observations.lines.read()
    assert {it.query for it in kept} == set(WORDS[:8])
    engine.away = frozenset()
    engine.searches.clear()
    audit = await carried_out(plan, tmp_path / "out")
    assert {query.text for search in engine.searches for query in search} == set(WORDS[8:])
    assert (audit.figures.counts.answered, audit.figures.counts.failed) == (30, 0)


async def test_an_engine_that_is_never_there_is_an_error_for_few_words_of(
    engine: Breaking, tmp_path: Path
) -> None:
    engine.away = frozenset(WORDS)
    plan = await make_plan(SPEC, engine, words_of(WORDS[:4]))
    with pytest.raises(IndexUnavailableError, match="answered none of 4 questions"):
        await carried_out(plan, tmp_path / "out")


async def test_an_attribute_without_labels_ends_the_audit_early(tmp_path: Path) -> None:
    bare = built(tmp_path / "v2", [Document(f"{word}-1", "", word) for word in WORDS])
    engine = Breaking(bare)
    plan = await make_plan(SPEC.model_copy(update={"again": 0}), engine, words_of())
    with pytest.raises(SourceError, match="to 20 queries has a label of 'gender'"):
        await carried_out(plan, tmp_path / "out", concurrency=1)
    few = await make_plan(SPEC, engine, words_of(WORDS[:3]))
    with pytest.raises(SourceError, match="to 3 queries has a label of 'gender'"):
        await carried_out(few, tmp_path / "few")


async def test_an_audit_says_first_what_it_will_ask(engine: Breaking, tmp_path: Path) -> None:
    watcher = Watcher()
    plan = await make_plan(SPEC, engine, words_of(WORDS[:4]), rate=1000)
    await carried_out(plan, tmp_path / "out", watcher)
    said = "4 queries for 'v1', up to 8 requests, at most 1000 a second"
    assert any(said in note for note in watcher.notes)
    assert watcher.steps == 4


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("population:1", "gives no population for 'kind'"),
        ("relevance:0.5,population:0.5", "gives no population for 'kind'"),
        (["population:1", "kind=a:0.5,b:0.5"], "no population for a part of 'gender×kind'"),
        ("gendre=female:0.5,male:0.5", "names the attribute 'gendre', which is not measured"),
        ("gender=female:0.5,men:0.5", "names the group 'men', which 'gender' does not have"),
    ],
)
async def test_a_target_that_cannot_be_computed_is_refused_before_anything_is_asked(
    tmp_path: Path, target: str | list[str], problem: str
) -> None:
    described = {
        "gender": {
            "field": "gender",
            "groups": ["female", "male"],
            "population": {"female": 0.5, "male": 0.5},
        },
        "kind": {"field": "kind", "groups": ["a", "b"]},
    }
    schema = Schema.model_validate({"attributes": described})
    documents = [Document("1", "", "word00", {"gender": "female", "kind": "a"})]
    engine = Breaking(built(tmp_path / "v1", documents, schema))
    spec = AuditSpec.model_validate({"target": target})
    with pytest.raises(TargetError, match=problem):
        await make_plan(spec, engine, words_of(), texts=Halves())
    assert engine.searches == []


async def test_a_reference_that_no_group_is_is_refused(engine: Breaking) -> None:
    for attribute, group in (("gender", "nothing"), ("nothing", "female")):
        spec = AuditSpec(reference={attribute: group})
        with pytest.raises(InputError, match=f"'{attribute}={group}' is no group of this audit"):
            await make_plan(spec, engine, words_of(), texts=Halves())


async def test_requests_begin_at_a_steady_rate() -> None:
    pace = Pace(200)
    begun = time.monotonic()
    for _ in range(21):
        await pace.wait()
    assert time.monotonic() - begun >= 0.1


async def test_many_queries_at_once_keep_to_the_rate(engine: Breaking) -> None:
    asked = [Query(word, 3) for word in WORDS[:21]]
    together = await paced(engine, Pace()).search(asked)
    assert [len(batch) for batch in engine.searches] == [21]
    begun = time.monotonic()
    apart = await paced(engine, Pace(200)).search(asked)
    assert time.monotonic() - begun >= 0.1
    assert [len(batch) for batch in engine.searches] == [21, *[1] * 21]
    assert [hits.ids for hits in apart] == [hits.ids for hits in together]


async def test_the_order_of_answers_changes_no_figure(engine: Breaking, tmp_path: Path) -> None:
    plan = await make_plan(SPEC, engine, words_of(), texts=Halves())
    one = await carried_out(plan, tmp_path / "one", concurrency=1)
    many = await carried_out(plan, tmp_path / "many", concurrency=7)
    kept, again = ((audit.folder / "audit.json").read_bytes() for audit in (one, many))
    assert kept == again
