"""What a run comes to: the best round, re-ranked by the original intent, near the target."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairqr.base.errors import InputError
from fairqr.graph.search.context import Context
from fairqr.graph.search.decisions import best_iteration
from fairqr.graph.search.measurement import Measurement, measure, rank_key, vector_of
from fairqr.graph.search.model_ranking import ModelRanking
from fairqr.graph.search.pool_and_order import pooled, reranked, scores_by_original_query
from fairqr.graph.search.state import State
from fairqr.retrieval.dimension import Dimension
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.ranking import Ranking
from fairqr.retrieval.rerankers.base import Reranker, candidates_of
from fairqr.retrieval.rerankers.registry import open_reranker
from fairqr.retrieval.table import DocumentTable

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
    engine: SearchEngine,
    table: DocumentTable,
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
    step = await final_step(engine, context)
    rankings, strategy = state["rankings"], context.strategy
    pools = {number: pooled(table, dimensions, rankings, number, strategy) for number in rounds}
    original_scores: Mapping[str, float] = {}
    if strategy.rerank == "original_query":
        ids = list(dict.fromkeys(id_ for pool in pools.values() for id_ in pool))
        original_scores = await scores_by_original_query(engine, state["query"], ids, rankings[0])
    finals: list[Final] = []
    for number in rounds:
        order = reranked(
            table, dimensions, pools[number], rankings, number, context, original_scores
        )
        final = await _final(table, dimensions, state, context, number, order, step, by_model)
        if final is None:
            break
        finals.append(final)
        if rank_key(finals[-1].measured.divergences) <= (0, context.threshold):
            return finals[-1]
    return min(finals, key=lambda final: rank_key(final.measured.divergences))


async def _final(
    table: DocumentTable,
    dimensions: Sequence[Dimension],
    state: State,
    context: Context,
    number: int,
    order: Ranking,
    step: Reranker | None,
    by_model: ModelRanking | None,
) -> Final | None:
    """Let a model re-rank the order that a round comes to, if one does, and take the final step.

    Returns:
        None where a model re-ranked the lists of other rounds, and cannot be asked about this one.
    """
    if by_model is not None:
        found = await by_model.reranked(order)
        if found is None and by_model.lists:
            return None
        order = found or order
    ranking = order.top(context.k)
    warnings: tuple[str, ...] = ()
    if step is not None:
        targets = [vector_of(d, state["target"][d.name]) for d in dimensions]
        candidates = candidates_of(table, order, dimensions, targets, context.discount)
        last = await step.rerank(state["query"], candidates, context.k)
        scores = dict(zip(order.ids, order.scores, strict=True))
        ranking = Ranking(last.ranking.ids, [scores[id_] for id_ in last.ranking.ids])
        warnings = last.warnings
    measured = measure(table, dimensions, state["target"], ranking.ids, context)
    return Final(number, ranking, measured, warnings)


async def final_step(engine: SearchEngine, context: Context) -> Reranker | None:
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
    return await asyncio.to_thread(open_reranker, name, options, engine=engine)
