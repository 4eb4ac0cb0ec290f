"""Models that re-rank in the graph: what they read, what they may cost, what came of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fairqr import FairSearch, StepData
from fairqr.agents.models.replies import Usage
from fairqr.agents.ranking.rankers import Cost, ItemRanking, RankItem
from fairqr.base.errors import InputError
from fairqr.base.telemetry import record_to
from fairqr.graph.search.context import READS
from fairqr.retrieval.engines.engine import SearchEngine
from tests.unit.engines import ranked
from tests.unit.graph.corpora import KnownRefiner


def number_of(id_: str) -> int:
    """A number that says nothing of the place in baseline ranking."""
    return int(id_[1:]) * 37 % 60


class ByNumber:
    """A ranker that puts the greatest number first, by a call for each ten items."""

    name = "by-number"

    def __init__(self, answer: ItemRanking | None = None) -> None:
        self.answer = answer
        self.asked: list[tuple[str, list[str], float | None]] = []
        self.started = 0

    async def start(self) -> None:
        self.started += 1

    def cost(self, query: str, items: Sequence[RankItem], group: str = "") -> Cost:
        calls = -(-len(items) // 10)
        return Cost(calls, 100 * calls)

    async def rank(
        self, query: str, items: Sequence[RankItem], group: str = "", deadline: float | None = None
    ) -> ItemRanking:
        self.asked.append((query, [item.id for item in items], deadline))
        if self.answer is not None:
            return self.answer
        calls = self.cost(query, items).calls
        order = sorted(range(len(items)), key=lambda at: -number_of(items[at].id))
        usage = Usage(model_calls=calls, prompt_tokens=50 * calls, completion_tokens=calls)
        return ItemRanking(tuple(order), asked=calls, usage=usage)


REFINING = {"female": ["scholar", "filler"], "male": ["filler"]}
"""Words of a refiner; the women's texts have the first."""


async def test_a_ranker_orders_the_first_documents_only(
    engine: SearchEngine, tmp_path: Path
) -> None:
    """Its span says which ranker it was, and nothing of the documents."""
    ranker = ByNumber()
    search = FairSearch(engine, "feedback", ranker=ranker)
    plain = (await ranked(engine, "science", 60)).ids
    trace = tmp_path / "trace.jsonl"
    with record_to(trace):
        result = await search.search(
            "science", method="listwise", k=40, final_step="none", ranking={"depth": 30}
        )
    assert '"fairqr.ranker": "by-number"' in trace.read_text()
    assert not re.search("Man|filler filler", trace.read_text())
    assert ranker.asked == [("science", plain[:30], None)]
    ids = [place.id for place in result.ranking]
    assert ids == [*sorted(plain[:30], key=number_of, reverse=True), *plain[30:40]]
    assert [place.score for place in result.ranking] == [1 / rank for rank in range(1, 41)]
    counts = {"lists": 1, "documents": 30, "asked": 3, "failures": {}, "repairs": {}}
    assert result.reranking.model_dump() == {"ranker": "by-number", **counts}
    assert (result.usage.model_calls, result.usage.prompt_tokens) == (3, 150)
    assert (result.ranker, result.model, result.warnings) == ("by-number", None, [])
    assert result.stop_reason == "not_refining"
    assert [place.id for place in result.baseline.ranking] == plain[:40]
    assert ranker.started == 1


async def test_the_fair_step_keeps_a_rankers_order_within_a_group(
    engine: SearchEngine,
) -> None:
    search = FairSearch(engine, "feedback", ranker=ByNumber())
    options = {"method": "pairwise", "k": 10, "target": "population:1", "depth": 60}
    result = await search.search("science", **options)
    own = await search.search("science", **options, final_step="none")
    assert result.divergence <= own.divergence
    for label in ("female", "male"):
        numbers = [number_of(p.id) for p in result.ranking if label in p.groups["gender"]]
        assert numbers == sorted(numbers, reverse=True)


@pytest.mark.parametrize("method", READS)
async def test_each_ranker_is_a_method(engine: SearchEngine, method: Any) -> None:
    """The one that is given ranks, whatever is named."""
    search = FairSearch(engine, "feedback", ranker=ByNumber())
    result = await search.search("science", method=method, k=10)

    assert result.ranker == "by-number"
    assert result.reranking.documents == min(READS[method], 60)


@pytest.mark.parametrize(
    ("method", "rerank", "ranker"),
    [("mmr", "pairwise", "by-number"), ("listwise", "fusion", None)],
    ids=["model", "fusion"],
)
async def test_what_reranks_decides_whether_a_model_ranks(
    engine: SearchEngine, method: str, rerank: str, ranker: str | None
) -> None:
    search = FairSearch(engine, "feedback", ranker=ByNumber())
    result = await search.search("science", method=method, rerank=rerank, k=10)

    assert result.ranker == ranker


@pytest.mark.promise("graph")
async def test_a_rankers_cost_must_fit_the_budget(
    engine: SearchEngine,
) -> None:
    """What a model that ranks costs is said before anything is asked, and has to fit the budget."""
    ranker = ByNumber()
    search = FairSearch(engine, "feedback", ranker=ranker)
    options: Any = {"method": "listwise", "k": 10, "depth": 50}
    steps = [step async for step in search.stream("science", **options)]
    (cost,) = [step.cost for step in steps if isinstance(step, StepData) and step.cost]
    assert (cost.documents, cost.calls, cost.tokens) == (50, 5, 500)
    ranker.asked.clear()
    for budget, amount in (({"model_calls": 4}, "5 model calls"), ({"tokens": 499}, "500 tokens")):
        with pytest.raises(InputError, match=f"may take {amount} to re-rank 50 documents"):
            await search.search("science", **options, budget=budget)
    assert ranker.asked == []


async def test_a_ranker_works_within_a_sufficient_budget(engine: SearchEngine) -> None:
    ranker = ByNumber()
    search = FairSearch(engine, "feedback", ranker=ranker)
    limits = {"model_calls": 5, "tokens": 500, "seconds": 30}
    result = await search.search("science", method="listwise", k=10, depth=50, budget=limits)

    assert result.usage.model_calls == 5
    ((_, _, deadline),) = ranker.asked
    assert deadline is not None
    assert 0 < deadline <= 30


async def test_failures_and_repairs_are_counted_in_words(engine: SearchEngine) -> None:
    counts_by_kind = {
        "failures": {"refused": 3, "timeout": 2},
        "repairs": {"missing": 4, "duplicate": 0},
    }
    silent = ItemRanking(
        tuple(range(50)),
        asked=5,
        usage=Usage(5),
        warnings=("The window was shrunk.",),
        **counts_by_kind,
    )
    search = FairSearch(engine, "feedback", ranker=ByNumber(silent))
    options: Any = {"method": "listwise", "k": 10, "depth": 50, "final_step": "none"}
    result = await search.search("science", **options)
    assert result.ranking == result.baseline.ranking
    assert result.usage.model_calls == 5
    counted = (result.reranking.failures, result.reranking.repairs)
    assert counted == ({"refused": 3, "timeout": 2}, {"missing": 4})
    shrunk, failed, repaired = result.warnings
    assert shrunk == "The window was shrunk."
    assert failed.startswith("by-number failed on 5 of 5 questions (3 refused, 2 timeout); ")
    assert repaired == "Replies to by-number were repaired, in documents: 4 missing."


LOOP: dict[str, Any] = {
    "attribute": "gender",
    "ask": "always",
    "groups": "all",
    "target": "population:1",
    "k": 10,
    "max_iterations": 3,
    "patience": 9,
}


async def test_after_refinement_one_list_is_ranked(engine: SearchEngine) -> None:
    """That of the best refined round, though it does not reach the threshold."""
    ranker = ByNumber()
    search = FairSearch(engine, KnownRefiner(REFINING), ranker=ranker)
    tried = {"rerank": "listwise", "depth": 60, "final_step": "exposure-aware", "threshold": 0.0}
    *steps, result = [s async for s in search.stream("science", **LOOP, **tried)]
    (cost,) = [step.cost for step in steps if step.cost]
    assert len(result.iterations) > 1
    ((_, ids, _),) = ranker.asked
    ranked = -(-len(ids) // 10)
    assert result.reranking.asked == ranked <= cost.calls
    assert result.best_iteration > 0
    refined = sum(step.step == "refine" for step in steps) * 2
    assert result.usage.model_calls == ranked + refined
    assert steps[-1].usage["model_calls"] == ranked + refined


async def test_a_tight_budget_keeps_one_ranking_and_is_never_exceeded(engine: SearchEngine) -> None:
    tried = {"rerank": "listwise", "depth": 60, "final_step": "exposure-aware"}
    for calls in range(6, 16):
        ranker = ByNumber()
        refiner = KnownRefiner(REFINING)
        search = FairSearch(engine, refiner, ranker=ranker)
        budget = {"model_calls": calls}
        result = await search.search("science", **tried, **LOOP, budget=budget)
        assert result.usage.model_calls <= calls
        assert len(ranker.asked) >= 1
        if calls == 6:
            assert refiner.asked == []
            assert result.stop_reason == "budget"
