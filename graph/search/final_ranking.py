"""Chooses the list of a run: the list of the best round, re-ranked by query and target."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from fairqr.graph.search.context import Context
from fairqr.graph.search.pages import Page, next_page
from fairqr.graph.search.pool import Pool
from fairqr.graph.search.rankers import ModelRanking
from fairqr.graph.search.result import FairList, Round
from fairqr.graph.search.stopping import kept_of
from fairqr.retrieval.engines.engine import Query, require, searched
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.rerankers.base import Reranker
from fairqr.retrieval.rerankers.registry import open_reranker

IDS_AT_ONCE = 10_000
"""How many documents one query scores, since servers limit the hits of a search."""

_NOT_NEARER = "This is the baseline ranking: it is nearer to the target than the model's ranking."


Ranks = Callable[[Pool, Ranking], Awaitable[ModelRanking]]
"""Returns how a model re-ranks a list."""


def queries_about(text: str, ids: Sequence[str]) -> list[Query]:
    """Return the queries that ask about given documents, in lists that servers can return."""
    queries = []
    for start in range(0, len(ids), IDS_AT_ONCE):
        batch = tuple(ids[start : start + IDS_AT_ONCE])
        queries.append(Query(text, len(batch), only=batch))
    return queries


async def final_step(context: Context) -> Reranker | None:
    """Return the re-ranker of the final step; None for the fair step, which rounds take.

    Raises:
        InputError: Its options are wrong, or its weights are missing.
    """
    name = context.strategy.final_step
    if name in ("none", "fair"):
        return None
    # Opening may read weights from a file.
    return await asyncio.to_thread(open_reranker, name, context.options)


async def choose(pool: Pool, ranks: Ranks | None) -> Page:
    """Return the first page of the final list: of the best round, or of the baseline ranking.

    A method that refines returns the baseline ranking if its own ranking would be farther from the
    target, unless it keeps the last round, or if the model failed before its first reply.

    Args:
        pool: What the run has found.
        ranks: Re-ranks the list, if the method names a model for that.
    """
    rounds = pool.rounds
    fair = pool.best_fair
    failed_at_once = pool.state["stop_reason"] == "model_failed" and len(rounds) == 1
    has_no_list = failed_at_once and fair is None
    if not pool.baseline.ids or has_no_list:
        return baseline_page(pool)

    page = await _best_page(pool, ranks)
    strategy = pool.context.strategy
    is_nearer = page.measured.distance <= rounds[0].distance
    may_be_farther = strategy.final_round == "last" or not strategy.refines
    if fair or is_nearer or may_be_farther:
        return page

    baseline = baseline_page(pool)
    by_model = page.by_model
    if by_model is None or by_model.report is None:
        return baseline
    warnings = [*by_model.warnings]
    if by_model.report.lists:
        warnings.append(_NOT_NEARER)
    return replace(baseline, warnings=warnings, by_model=by_model)


def baseline_page(pool: Pool) -> Page:
    """Return the first page of the engine's own ranking."""
    baseline = pool.baseline
    remaining = pool.engine_ranking.without(set(baseline.ids))
    return Page(0, baseline, pool.rounds[0], remaining)


async def _best_page(pool: Pool, ranks: Ranks | None) -> Page:
    """Return the first page of the list of the best round, or of the last one.

    The fair step has already run while the rounds were measured. Otherwise we make the list of each
    round that may be best, until one reaches the target.
    """
    fair = pool.best_fair
    if ranks is None and fair:
        return _page_of(pool, fair)

    rounds = _rounds_to_try(pool)
    if ranks is not None:
        rounds = rounds[:1]  # A model re-ranks one list only.
    pages: list[Page] = []
    for round_ in rounds:
        page = await _first_page(pool, ranks, round_.index)
        pages.append(page)
        if page.measured.distance <= (0, pool.context.threshold):
            break
    return min(pages, key=lambda page: page.measured.distance)


def _page_of(pool: Pool, fair: FairList) -> Page:
    """Return the first page of a list of the fair step."""
    last_order = pool.order(len(pool.rounds) - 1)
    return Page(
        fair.iteration,
        Ranking(fair.ids, fair.scores),
        fair,
        last_order.without(set(fair.ids)),
        step=pool.context.fair_step,
        weight=fair.objective.weight,
        missed=fair.objective.missed,
    )


def _rounds_to_try(pool: Pool) -> list[Round]:
    """Return the rounds whose lists may be the result, those to prefer first.

    Normally that is the round of the lowest divergence alone, or the last one. But the
    exposure-aware step can bring the lists of many rounds to the target, even the list of the
    original query. Then we prefer the best refined round that reaches it, because its list is based
    on more evidence.
    """
    strategy = pool.context.strategy
    if strategy.final_round == "best" and strategy.final_step == "exposure-aware":
        original, *refined = pool.rounds
        return [*sorted(refined, key=lambda round_: round_.distance), original]
    return [kept_of(pool.rounds, strategy.final_round)]


async def _first_page(pool: Pool, ranks: Ranks | None, iteration: int) -> Page:
    """Return the first page of the list of a round, after the ranker and the last step."""
    order = await _order_of_pool(pool, iteration)
    by_model = None
    if ranks is not None:
        by_model = await ranks(pool, order)
        order = by_model.ranking
    step = await final_step(pool.context)
    empty_page = Page(
        iteration, Ranking([], []), pool.measured([]), order, step=step, by_model=by_model
    )
    return await next_page(pool, empty_page)


async def _order_of_pool(pool: Pool, iteration: int) -> Ranking:
    """Return the documents to re-rank after a round, by their scores in the method's order."""
    ids = pool.ids(iteration)
    if pool.context.strategy.rerank == "original_query":
        scores = await _original_scores(pool, ids)
    else:
        order = pool.order(iteration)
        scores = dict(zip(order.ids, order.scores, strict=True))
    return Ranking.of({id_: scores[id_] for id_ in ids if id_ in scores})


async def _original_scores(pool: Pool, ids: Sequence[str]) -> dict[str, float]:
    """Return the scores of documents by the original query; without those deleted meanwhile."""
    original = pool.state["rankings"][0]
    scores = dict(zip(original["ids"], original["scores"], strict=True))
    missing = [id_ for id_ in ids if id_ not in scores]
    if missing:
        require(pool.engine, "rescore", "The order 'original_query'")
        queries = queries_about(pool.state["query"], missing)
        for hits in await searched(pool.engine, queries):
            scores.update(zip(hits.ids, hits.scores, strict=True))
    return scores
