"""Putting the result of a run together: the final ranking beside the plain one."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fairqr.agents.refiner import Refiner
from fairqr.graph.context import Context
from fairqr.graph.decisions import best_iteration
from fairqr.graph.lists import pooled, reranked
from fairqr.graph.measurement import Measurement, measure, rank_key, vector_of
from fairqr.graph.result import (
    Baseline,
    Iteration,
    RankedDocument,
    RefinedGroup,
    SearchResult,
    UsageReport,
)
from fairqr.graph.state import RefinementRecord, State, ranking_of
from fairqr.retrieval.dimension import Dimension
from fairqr.retrieval.documents import Document
from fairqr.retrieval.index import Index
from fairqr.retrieval.ranking import Ranking
from fairqr.retrieval.rerank import exposure_aware

__all__ = ["assemble"]


async def assemble(
    index: Index,
    dimensions: Sequence[Dimension],
    state: State,
    context: Context,
    refiner: Refiner | None,
) -> SearchResult:
    """Re-rank what the best round retrieved, and report it beside the plain retrieval.

    The plain retrieval itself is returned where re-ranking would raise the divergence, and where
    the model failed before it gave anything.
    """
    original = ranking_of(state["rankings"][0]).top(context.k)
    plain = await measure(index, dimensions, state["target"], original.ids, context)
    best, final, measured = 0, original, plain
    # A model that failed before it gave anything leaves the plain retrieval.
    if state["stop_reason"] != "model_failed" or len(state["iterations"]) > 1:
        found = await _best_ranking(index, dimensions, state, context)
        if rank_key(found[2].divergences) <= rank_key(plain.divergences):
            best, final, measured = found
    documents = {
        document.id: document
        for document in await index.documents(list(dict.fromkeys([*final.ids, *original.ids])))
    }
    warnings = list(state.get("warnings", []))
    if gone := sum(id_ not in documents for id_ in {*final.ids, *original.ids}):
        warnings.append(f"{gone} documents were deleted from the index during the search.")
    attributes = [factor.name for dimension in dimensions for factor in dimension.factors]
    # The last refinements stand in no round if no query came of them.
    was_in_vain = state["refinements"] != state["iterations"][-1]["refinements"]
    if not state["refinements"]:
        refiner = None  # it was not needed
    return SearchResult(
        query=state["query"],
        corpus=index.name,
        method=context.method,
        model=refiner.name if refiner else None,
        prompt=refiner.prompt if refiner else None,
        unused_refinements=_refined_groups(state["refinements"] if was_in_vain else []),
        attributes=attributes,
        target=state["target"],
        iterations=[
            Iteration(
                index=record["index"],
                queries=record["queries"],
                refinements=_refined_groups(record["refinements"]),
                exposure=record["exposure"],
                divergence=record["divergence"],
                divergences=record["divergences"],
            )
            for record in state["iterations"]
        ],
        best_iteration=best,
        stop_reason=state["stop_reason"] or "max_iterations",
        ranking=_places(final, documents, index, attributes),
        exposure=measured.exposure,
        divergence=measured.divergence,
        divergences=measured.divergences,
        unknown=measured.unknown,
        baseline=_baseline(original, plain, documents, index, attributes),
        usage=UsageReport(
            **state["usage"], milliseconds=round((time.time() - state["started"]) * 1000, 1)
        ),
        warnings=warnings,
    )


def _refined_groups(records: Sequence[RefinementRecord]) -> list[RefinedGroup]:
    return [RefinedGroup(**record) for record in records]


async def _best_ranking(
    index: Index, dimensions: Sequence[Dimension], state: State, context: Context
) -> tuple[int, Ranking, Measurement]:
    """Return the best round, its ranking after re-ranking, and how that is exposed.

    The best round is the one that was measured best. But the exposure-aware step can bring the
    lists of many rounds equally near to the target. Then the last round that it brings there is the
    best one, because its list rests on all that was retrieved.
    """
    rounds = [best_iteration(state["iterations"])]
    if context.strategy.exposure_aware:
        rounds = [record["index"] for record in reversed(state["iterations"])]
    candidates: list[tuple[int, Ranking, Measurement]] = []
    for number in rounds:
        ranking = await _final_ranking(index, dimensions, state, context, number)
        found = await measure(index, dimensions, state["target"], ranking.ids, context)
        candidates.append((number, ranking, found))
        if rank_key(found.divergences) <= (0, context.threshold):
            return candidates[-1]
    return min(candidates, key=lambda candidate: rank_key(candidate[2].divergences))


async def _final_ranking(
    index: Index, dimensions: Sequence[Dimension], state: State, context: Context, best: int
) -> Ranking:
    rankings = state["rankings"]
    pool = await pooled(index, dimensions, rankings, best, context.strategy)
    order = await reranked(index, state["query"], pool, rankings, best, context)
    if not context.strategy.exposure_aware:
        return order.top(context.k)
    positions = exposure_aware(
        [await dimension.memberships(index, order.ids) for dimension in dimensions],
        [vector_of(dimension, state["target"][dimension.name]) for dimension in dimensions],
        discount=context.discount,
        length=context.k,
    ).tolist()
    return Ranking(order.reordered(positions), [order.scores[p] for p in positions])


def _baseline(
    ranking: Ranking,
    measured: Measurement,
    documents: dict[str, Document],
    index: Index,
    attributes: Sequence[str],
) -> Baseline:
    return Baseline(
        ranking=_places(ranking, documents, index, attributes),
        exposure=measured.exposure,
        divergence=measured.divergence,
        divergences=measured.divergences,
    )


def _places(
    ranking: Ranking, documents: dict[str, Document], index: Index, attributes: Sequence[str]
) -> list[RankedDocument]:
    places = []
    scored = [
        pair for pair in zip(ranking.ids, ranking.scores, strict=True) if pair[0] in documents
    ]
    for rank, (id_, score) in enumerate(scored, start=1):
        document = documents[id_]
        groups: dict[str, dict[str, float]] = {}
        for name in attributes:
            attribute = index.schema.attribute(name)
            shares = zip(attribute.universe, document.membership(attribute), strict=True)
            groups[name] = {group: share for group, share in shares if share > 0}
        places.append(
            RankedDocument(rank=rank, id=id_, title=document.title, score=score, groups=groups)
        )
    return places
