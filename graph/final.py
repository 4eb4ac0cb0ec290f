"""What a run comes to: the best round, re-ranked by the original intent, near the target."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from fairqr.errors import InputError
from fairqr.graph.context import Context
from fairqr.graph.decisions import best_iteration
from fairqr.graph.lists import pooled, reranked
from fairqr.graph.measurement import Measurement, measure, rank_key, vector_of
from fairqr.graph.model_ranking import ModelRanking
from fairqr.graph.state import State
from fairqr.retrieval.dimension import Dimension
from fairqr.retrieval.index import Index
from fairqr.retrieval.ranking import Ranking
from fairqr.retrieval.rerankers.base import Reranker, gather_candidates
from fairqr.retrieval.rerankers.registry import open_reranker

__all__ = ["Final", "best_final", "final_step"]


@dataclass(frozen=True, slots=True)
class Final:
    """What a round comes to in the end.

    Attributes:
        iteration: The round.
        ranking: The first k, with the scores they had before the final step.
        measured: How it is exposed.
        warnings: Of the final step.
    """

    iteration: int
    ranking: Ranking
    measured: Measurement
    warnings: tuple[str, ...] = ()


async def best_final(
    index: Index,
    dimensions: Sequence[Dimension],
    state: State,
    context: Context,
    by_model: ModelRanking | None = None,
) -> Final:
    """Return what the best round comes to.

    That is the round that was measured best. But the exposure-aware step can bring the lists of
    many rounds equally near to the target, that of the original query too. Then the best refined
    round that it brings there is the best one, because its list rests on more evidence.

    A model that re-ranks is asked about the list of each round that is tried; once it was asked, no
    round is tried that the budget has no room for.
    """
    first, *refined = state["iterations"]
    rounds = [best_iteration(state["iterations"])]
    if context.strategy.final_step == "exposure-aware":
        refined.sort(key=lambda record: rank_key(record["divergences"]))
        rounds = [record["index"] for record in [*refined, first]]
    step = await final_step(index, context)
    finals: list[Final] = []
    for number in rounds:
        final = await _final(index, dimensions, state, context, number, step, by_model)
        if final is None:
            break
        finals.append(final)
        if rank_key(finals[-1].measured.divergences) <= (0, context.threshold):
            return finals[-1]
    return min(finals, key=lambda final: rank_key(final.measured.divergences))


async def _final(
    index: Index,
    dimensions: Sequence[Dimension],
    state: State,
    context: Context,
    number: int,
    step: Reranker | None,
    by_model: ModelRanking | None,
) -> Final | None:
    """Re-rank what a round had by the original intent, and take the final step.

    Returns:
        None where a model re-ranked the lists of other rounds, and cannot be asked about this one.
    """
    rankings = state["rankings"]
    pool = await pooled(index, dimensions, rankings, number, context.strategy)
    order = await reranked(index, dimensions, state["query"], pool, rankings, number, context)
    if by_model is not None:
        found = await by_model.reranked(order)
        if found is None and by_model.lists:
            return None
        order = found or order
    ranking = order.top(context.k)
    warnings: tuple[str, ...] = ()
    if step is not None:
        targets = [vector_of(d, state["target"][d.name]) for d in dimensions]
        candidates = await gather_candidates(index, order, dimensions, targets, context.discount)
        last = await step.rerank(state["query"], candidates, context.k)
        scores = dict(zip(order.ids, order.scores, strict=True))
        ranking = Ranking(last.ranking.ids, [scores[id_] for id_ in last.ranking.ids])
        warnings = last.warnings
    measured = await measure(index, dimensions, state["target"], ranking.ids, context)
    return Final(number, ranking, measured, warnings)


async def final_step(index: Index, context: Context) -> Reranker | None:
    """Return the re-ranker of the final step, if there is one.

    Raises:
        InputError: Its options are wrong, or its weights are missing.
    """
    name = context.strategy.final_step
    if name == "none":
        if context.options:
            raise InputError("Options are for a final step, and there is none; leave them out.")
        return None
    options = context.options
    if name == "exposure-aware":
        # It goes as far as the loop asks for, by the loop's own measure.
        measure = {"smoothing": context.smoothing, "direction": context.direction}
        options = {"tolerance": context.threshold, **measure, **options}
    # It may read weights from a file.
    return await asyncio.to_thread(open_reranker, name, options, index=index)
