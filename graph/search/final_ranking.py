"""Makes the final ranking of a run: the best round, re-ranked by the original query and target."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairqr.base.errors import InputError
from fairqr.graph.search.context import Context, FinalStep
from fairqr.graph.search.decisions import best_iteration
from fairqr.graph.search.measurement import (
    Measurement,
    by_group,
    discounted_mean,
    rank_key,
    vector_of,
)
from fairqr.graph.search.model_ranking import ModelRanking
from fairqr.graph.search.round_lists import RoundLists, scores_of, scores_of_given
from fairqr.graph.search.state import ReachedRecord
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.ranking import Ranking
from fairqr.retrieval.rerankers.base import Candidates, Reranker, candidates_of, read_options
from fairqr.retrieval.rerankers.registry import open_reranker
from fairqr.retrieval.rerankers.relevance_aware import RelevanceAwareOptions, take_step

__all__ = ["Final", "best_final", "final_step", "nearer", "reached_by"]


@dataclass(frozen=True, slots=True)
class Final:
    """The final ranking of a round.

    Attributes:
        iteration: The index of the round.
        ranking: The first k documents, with their scores before the final step.
        measured: The exposure in the ranking.
        warnings: The warnings of the final step.
    """

    iteration: int
    ranking: Ranking
    measured: Measurement
    warnings: tuple[str, ...] = ()


async def best_final(
    engine: SearchEngine, lists: RoundLists, by_model: ModelRanking | None = None
) -> Final:
    """Return the final ranking of the best round.

    The relevance-aware step has already run while the rounds were measured. Otherwise the best
    round is the one with the lowest divergence. But the exposure-aware step can bring the lists of
    many rounds to the target, even the list of the original query. Then we use the best refined
    round that reaches it, because its list is based on more evidence.

    A model that re-ranks is asked about each round that we try. After its first list, rounds are
    skipped if the budget has no room for them.
    """
    state, context = lists.state, lists.context
    first, *refined = state["iterations"]
    rounds = [best_iteration(state["iterations"])]
    if context.strategy.final_step == "exposure-aware":
        refined.sort(key=lambda record: rank_key(record["divergences"]))
        rounds = [record["index"] for record in [*refined, first]]
    reached = state.get("reached")
    if by_model is None and reached:
        ranking = Ranking(reached["ids"], reached["scores"])
        return Final(reached["iteration"], ranking, lists.measured(ranking.ids))
    step = await final_step(engine, context)
    original_scores: Mapping[str, float] = {}
    if context.strategy.rerank == "original_query":
        ids = list(dict.fromkeys(id_ for number in rounds for id_ in lists.pool(number)))
        known = scores_of(state["rankings"][0])
        missing = [id_ for id_ in ids if id_ not in known]
        original_scores = known | await scores_of_given(engine, state["query"], missing)
    finals: list[Final] = []
    for number in rounds:
        order = lists.ordered_pool(number, original_scores)
        if by_model is not None:
            by_its_order = await by_model.reranked(order)
            if by_its_order is None and by_model.lists:
                break  # it re-ranked other rounds, and the budget has no room for this one
            order = by_its_order or order
        finals.append(await _final(lists, number, order, step))
        if rank_key(finals[-1].measured.divergences) <= (0, context.threshold):
            return finals[-1]
    return min(finals, key=lambda final: rank_key(final.measured.divergences))


async def _final(lists: RoundLists, number: int, order: Ranking, step: Reranker | None) -> Final:
    """Apply the final step, if there is one, to the ordered pool of a round."""
    state, context = lists.state, lists.context
    if step is None:
        ranking = order.top(context.k)
        return Final(number, ranking, lists.measured(ranking.ids))
    last = await step.rerank(state["query"], _candidates(lists, order), context.k)
    scores = dict(zip(order.ids, order.scores, strict=True))
    ranking = Ranking(last.ranking.ids, [scores[id_] for id_ in last.ranking.ids])
    return Final(number, ranking, lists.measured(ranking.ids), last.warnings)


def _candidates(lists: RoundLists, order: Ranking, *, estimated: bool = False) -> Candidates:
    """Return an order's documents with their groups and the target."""
    targets = [vector_of(d, lists.state["target"][d.name]) for d in lists.dimensions]
    discount = lists.context.discount
    return candidates_of(
        lists.table, order, lists.dimensions, targets, discount, estimated=estimated
    )


def reached_by(lists: RoundLists, number: int) -> ReachedRecord:
    """Apply the relevance-aware step to all documents that were found up to a round."""
    context, order = lists.context, lists.retrieved(number)
    candidates = _candidates(lists, order, estimated=lists.estimated)
    options = read_options(
        "relevance-aware", RelevanceAwareOptions, step_options(context, "relevance-aware")
    )
    step = take_step(candidates, options, context.k)
    taken = order.reordered(step.positions.tolist())
    measured = lists.measured(taken)
    scores = dict(zip(order.ids, order.scores, strict=True))
    relevance = None
    if lists.estimated:
        relevance = discounted_mean([scores[id_] for id_ in taken], context.discount)
    supply = zip(lists.dimensions, step.supply, strict=True)
    return ReachedRecord(
        iteration=number,
        ids=taken,
        scores=[scores[id_] for id_ in taken],
        exposure=measured.exposure,
        divergences=measured.divergences,
        relevance=relevance,
        supply={dimension.name: by_group(dimension, could) for dimension, could in supply},
    )


def nearer(one: ReachedRecord | None, other: ReachedRecord, threshold: float) -> ReachedRecord:
    """Return the one nearer to the target; if both are within the threshold, the more relevant."""
    if one is None:
        return other

    def badness(record: ReachedRecord) -> tuple[int, float, float]:
        undefined, divergence = rank_key(record["divergences"])
        return undefined, max(divergence, threshold), -(record["relevance"] or 0.0)

    return min(one, other, key=badness)


async def final_step(engine: SearchEngine, context: Context) -> Reranker | None:
    """Return the re-ranker of the final step, if there is one.

    Raises:
        InputError: Its options are wrong, or its weights are missing.
    """
    name = context.strategy.final_step
    if name == "none":
        if context.options:
            raise InputError("Options need a final step, but there is none; leave them out.")
        return None
    # Opening may read weights from a file.
    options = step_options(context, name)
    return await asyncio.to_thread(open_reranker, name, options, engine=engine)


def step_options(context: Context, name: FinalStep) -> dict[str, Any]:
    """Return the options of a final step; the relevance-aware one gets the loop's divergence."""
    if name != "relevance-aware":
        return dict(context.options)
    return {
        "tolerance": context.threshold,
        "smoothing": context.smoothing,
        "direction": context.direction,
        "min_relevance": context.least_relevance,
        "capped": context.target is None,
        **context.options,
    }
