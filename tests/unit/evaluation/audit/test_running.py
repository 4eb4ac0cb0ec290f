"""Running an audit: what is asked of an engine, what it survives, and what ends it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fairqr.base.errors import IndexUnavailableError, QueryError, SourceError
from fairqr.evaluation.audit.asking import Pace
from fairqr.evaluation.audit.bundle import AuditFolder
from fairqr.evaluation.audit.finishing import Audit, carry_out
from fairqr.evaluation.audit.queries import Queries, collect_queries
from fairqr.evaluation.audit.running import AuditPlan, make_plan
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.retrieval.documents import Document
from fairqr.retrieval.engines.engine import Hits, Query
from fairqr.retrieval.engines.tantivy import TantivyEngine
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.query_files import QueryRow
from fairqr.retrieval.target import Target
from tests.unit.engines import WatchedEngine
from tests.unit.evaluation.watching import Watcher
from tests.unit.retrieval.embedded import built

WORDS = tuple(f"word{number:02}" for number in range(30))
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
def embedded(tmp_path: Path) -> TantivyEngine:
    """For each word, ten documents of women behind ten of men."""
    return built(
        tmp_path / "v1",
        [
            Document(f"{word}-{n:02}", "", " ".join([word] * (2 + (n < 10))), {"gender": who})
            for word in WORDS
            for n, who in enumerate(["male"] * 10 + ["female"] * 10)
        ],
    )


@pytest.fixture
def engine(embedded: TantivyEngine) -> Breaking:
    return Breaking(embedded)


def queries(words: Sequence[str] = WORDS) -> Queries:
    return collect_queries([QueryRow(n, word, word) for n, word in enumerate(words, start=1)])


async def carried_out(
    plan: AuditPlan, folder: Path, watcher: Watcher | None = None, concurrency: int = 3
) -> Audit:
    return await carry_out(
        plan, AuditFolder(folder), concurrency=concurrency, watcher=watcher or Watcher()
    )


async def test_each_query_is_asked_once_and_some_again(engine: Breaking, tmp_path: Path) -> None:
    plan = await make_plan(SPEC, engine, queries())
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
    plan = await make_plan(SPEC, engine, queries(WORDS[:6]), texts=texts)
    assert plan.manifest.relevance == "estimated"
    await carried_out(plan, tmp_path / "out", concurrency=1)
    widened = [search for search in engine.searches if search[0].within]
    assert len(widened) == 6
    assert [query.within for query in widened[0]] == [("gender", "female"), ("gender", "male")]
    # The engine answers ten men and two women; the others are found within their group.
    first = AuditFolder(tmp_path / "out").observations()
    observation = next(first)
    assert len(observation.ids) == 12
    assert sorted(observation.pool) == [f"word00-{n:02}" for n in range(20)]
    assert observation.pool[:12] == observation.ids
    assert list(observation.pool) in texts.pools
    assert observation.relevance == (0.5,) * 20


async def test_nothing_is_widened_where_it_cannot_be(
    embedded: TantivyEngine, tmp_path: Path
) -> None:
    without = Breaking(embedded, without=["within_group"])
    not_wanted = SPEC.model_copy(update={"widen": False})
    for engine, spec in ((without, SPEC), (Breaking(embedded), not_wanted)):
        plan = await make_plan(spec, engine, queries(WORDS[:3]), texts=Halves())
        assert plan.asker.widened == ()


async def test_judged_documents_are_looked_up_by_id(engine: Breaking, tmp_path: Path) -> None:
    qrels = {word: {f"{word}-00": 1, f"{word}-19": 2, f"{word}-18": 0} for word in WORDS[:8]}
    plan = await make_plan(SPEC, engine, queries(WORDS[:9]), qrels=qrels)
    audit = await carried_out(plan, tmp_path / "out")
    assert (audit.figures.counts.with_relevance, audit.figures.counts.relevance) == (8, "judged")
    found = {it.query: it for it in AuditFolder(tmp_path / "out").observations()}
    assert found["word00"].pool[12:] == ("word00-19",)
    assert found["word00"].relevance == (1.0, *[0.0] * 11, 1.0)
    assert found["word08"].relevance is None
    female, _ = audit.figures.groups
    assert female.target.value == 0.5
    assert female.target.queries == 8


async def test_judged_documents_without_known_groups_are_spoken_of(
    embedded: TantivyEngine, tmp_path: Path
) -> None:
    """An index lacks them; an engine that reads nothing by id may only hide them."""
    qrels = {word: {f"{word}-00": 1, "nowhere": 1} for word in WORDS[:3]}
    by_words = Breaking(embedded, without=["read_by_id"])
    for engine, is_said in ((Breaking(embedded), False), (by_words, True)):
        watcher = Watcher()
        plan = await make_plan(SPEC, engine, queries(WORDS[:3]), qrels=qrels)
        await carried_out(plan, tmp_path / str(is_said), watcher)
        said = [note for note in watcher.notes if "what it hides is not seen" in note]
        assert len(said) == is_said


async def test_a_refused_query_is_counted(engine: Breaking, tmp_path: Path) -> None:
    engine.refused = frozenset(WORDS[:3])
    audit = await carried_out(await make_plan(SPEC, engine, queries()), tmp_path / "out")
    counts = audit.figures.counts
    assert (counts.asked, counts.answered, counts.failed) == (30, 27, 3)
    assert not audit.figures.too_many_failed
    messages = {it.query: it.message for it in audit.figures.unanswered}
    assert messages["word00"] == "The query is too long; shorten it."


async def test_too_many_refused_queries_leave_no_verdict(engine: Breaking, tmp_path: Path) -> None:
    engine.refused = frozenset(WORDS[:4])
    plan = await make_plan(SPEC.model_copy(update={"target": UNIFORM}), engine, queries())
    audit = await carried_out(plan, tmp_path / "out")
    assert audit.figures.too_many_failed
    assert {it.verdict for it in audit.figures.groups} == {"cannot_tell"}


async def test_an_engine_that_goes_away_ends_the_audit_and_leaves_no_failures(
    engine: Breaking, tmp_path: Path
) -> None:
    """What was observed before is kept, and the rest is asked when it is back."""
    engine.away = frozenset(WORDS[8:])
    plan = await make_plan(SPEC.model_copy(update={"again": 0}), engine, queries())
    with pytest.raises(IndexUnavailableError, match=r"20 times in a row.*does not answer"):
        await carried_out(plan, tmp_path / "out", concurrency=1)
    kept = AuditFolder(tmp_path / "out").lines.read()
    assert {it.query for it in kept} == set(WORDS[:8])
    engine.away = frozenset()
    engine.searches.clear()
    audit = await carried_out(plan, tmp_path / "out")
    assert {query.text for search in engine.searches for query in search} == set(WORDS[8:])
    assert (audit.figures.counts.answered, audit.figures.counts.failed) == (30, 0)


async def test_an_engine_that_is_never_there_is_an_error_for_few_queries(
    engine: Breaking, tmp_path: Path
) -> None:
    engine.away = frozenset(WORDS)
    plan = await make_plan(SPEC, engine, queries(WORDS[:4]))
    with pytest.raises(IndexUnavailableError, match="answered none of 4 questions"):
        await carried_out(plan, tmp_path / "out")


async def test_an_attribute_without_labels_ends_the_audit_early(tmp_path: Path) -> None:
    bare = built(tmp_path / "v2", [Document(f"{word}-1", "", word) for word in WORDS])
    engine = Breaking(bare)
    plan = await make_plan(SPEC.model_copy(update={"again": 0}), engine, queries())
    with pytest.raises(SourceError, match="to 20 queries has a label of 'gender'"):
        await carried_out(plan, tmp_path / "out", concurrency=1)
    few = await make_plan(SPEC, engine, queries(WORDS[:3]))
    with pytest.raises(SourceError, match="to 3 queries has a label of 'gender'"):
        await carried_out(few, tmp_path / "few")


async def test_an_audit_says_first_what_it_will_ask(engine: Breaking, tmp_path: Path) -> None:
    watcher = Watcher()
    plan = await make_plan(SPEC, engine, queries(WORDS[:4]), rate=1000)
    await carried_out(plan, tmp_path / "out", watcher)
    said = "4 queries for 'v1', up to 8 requests, at most 1000 a second"
    assert any(said in note for note in watcher.notes)
    assert watcher.steps == 4


async def test_requests_begin_at_a_steady_rate() -> None:
    pace = Pace(200)
    begun = time.monotonic()
    for _ in range(21):
        await pace.wait()
    assert time.monotonic() - begun >= 0.1


async def test_the_order_of_answers_changes_no_figure(engine: Breaking, tmp_path: Path) -> None:
    plan = await make_plan(SPEC, engine, queries(), texts=Halves())
    one = await carried_out(plan, tmp_path / "one", concurrency=1)
    many = await carried_out(plan, tmp_path / "many", concurrency=7)
    kept, again = ((audit.folder / "audit.json").read_bytes() for audit in (one, many))
    assert kept == again
