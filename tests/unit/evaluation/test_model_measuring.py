"""What a measurement takes for the list of some weights is the list of a search with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from fairqr import Context, build_search_graph
from fairqr.agents.refiners.refiner import Refinement
from fairqr.evaluation.model_measuring import EVERY_KIND, lists_by_weights
from fairqr.graph.search.builder import as_node
from fairqr.graph.search.pool import Pool
from fairqr.graph.search.state import SearchState
from fairqr.retrieval.fairness.relevance import EvidenceWeights
from tests.unit.graph.corpora import KnownTopicRefiner, indexed

PEOPLE = [
    {"id": f"m{i:02}", "title": f"Man {i}", "text": f"science physics atom f{i}", "g": "male"}
    for i in range(30)
] + [
    {"id": f"w{i:02}", "title": f"Woman {i}", "text": f"science laboratory g{i}", "g": "female"}
    for i in range(6)
]
TRIED = [
    EvidenceWeights(),
    EvidenceWeights(group=1),
    EvidenceWeights(topic=1),
    EvidenceWeights(topic=0.5, queries=1, group=1),
    EVERY_KIND,
]


@pytest.mark.parametrize("order", ["engine", "estimated"])
async def test_lists_are_those_that_searches_give(tmp_path: Path, order: Any) -> None:
    topic = Refinement("ok", topic=("laboratory",), queries=("who split atoms",), passage="She did")
    women = Refinement("ok", names=("Woman 1", "Woman 4"), passage="She had a laboratory.")
    men = Refinement("ok", phrases=("atom physics",), names=("Man 20",))
    refiner = KnownTopicRefiner(topic, {"female": women, "male": men})
    context = Context(
        attributes=("gender",),
        k=10,
        ask="always",
        max_iterations=1,
        order=order,
        word_weights=EVERY_KIND,
    )
    engine = await indexed(tmp_path, PEOPLE)
    graph = as_node(build_search_graph(engine, refiner))
    state = await graph.ainvoke({"query": "science physics"}, context=context)
    lists = lists_by_weights(Pool(engine, context, cast("SearchState", state)), TRIED)
    assert len({tuple(ids) for ids in lists}) > 2
    for weights, ids in zip(TRIED, lists, strict=True):
        one_round = context.model_copy(update={"word_weights": weights})
        final_state = await graph.ainvoke({"query": "science physics"}, context=one_round)
        rounds = final_state["fair_lists"]
        assert ids == rounds[-1]["ids"], weights
    await engine.aclose()
