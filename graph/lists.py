"""The lists of a run: what a round is measured on, what is re-ranked, and in what order.

Which pool and which re-ranker are used decides the result. A pool that contains the original top k,
re-ranked by the original query, is the original ranking again.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairqr.graph.context import Context, Strategy
from fairqr.graph.state import RankingRecord, ranking_of
from fairqr.retrieval.dimension import Dimension
from fairqr.retrieval.index import Index
from fairqr.retrieval.ranking import Ranking
from fairqr.retrieval.rerank import reciprocal_rank_fusion

__all__ = ["measured_list", "pooled", "reranked"]


def fused(records: Sequence[RankingRecord], context: Context) -> Ranking:
    """Fuse rankings; the refined queries together weigh as much as the original one."""
    depth = context.strategy.depth
    refined = sum(record["query"]["group"] is not None for record in records)
    weights = [1.0 if r["query"]["group"] is None else 1.0 / refined for r in records]
    rankings = [ranking_of(record, depth) for record in records]
    if len(rankings) == 1:
        return rankings[0]
    return reciprocal_rank_fusion(rankings, weights, context.rrf_k)


def measured_list(rankings: Sequence[RankingRecord], iteration: int, context: Context) -> Ranking:
    """Return the list that a round has before any re-ranking.

    With ``fusion`` it is the fusion of all rankings so far, otherwise what the queries of the round
    retrieved.
    """
    if context.strategy.rerank == "fusion":
        return fused([r for r in rankings if r["iteration"] <= iteration], context)
    return fused([r for r in rankings if r["iteration"] == iteration], context)


async def pooled(
    index: Index,
    dimensions: Sequence[Dimension],
    rankings: Sequence[RankingRecord],
    iteration: int,
    strategy: Strategy,
) -> list[str]:
    """Return the ids of the documents to re-rank after a round, each once."""
    seen = [r for r in rankings if r["iteration"] <= iteration]
    if strategy.pool == "last":
        seen = [r for r in seen if r["iteration"] == iteration]
    if strategy.pool != "per_group":
        return list(dict.fromkeys(id_ for r in seen for id_ in r["ids"][: strategy.depth]))
    pool: dict[str, None] = {}
    for dimension in dimensions:
        quota = -(-(strategy.depth or 0) // len(dimension.groups))
        for position, group in enumerate(dimension.groups):
            # The group's last refined query, or the original query where it has none.
            own = [r for r in seen if r["query"]["group"] in (None, group)]
            own = [r for r in own if r["query"]["attribute"] in (None, dimension.name)]
            ids = own[-1]["ids"]
            members = await dimension.memberships(index, ids)
            best = [id_ for id_, share in zip(ids, members[:, position], strict=True) if share > 0]
            pool.update(dict.fromkeys(best[:quota]))
    return list(pool)


async def reranked(
    index: Index,
    query: str,
    pool: Sequence[str],
    rankings: Sequence[RankingRecord],
    iteration: int,
    context: Context,
) -> Ranking:
    """Order the documents of a pool by the strategy's re-ranker, before the exposure-aware step."""
    match context.strategy.rerank:
        case "original_query":
            return await index.rescore(query, pool)
        case "fusion":
            order = fused([r for r in rankings if r["iteration"] <= iteration], context)
        case "none":
            order = measured_list(rankings, iteration, context)
    wanted = set(pool)
    return Ranking.of((i, s) for i, s in zip(order.ids, order.scores, strict=True) if i in wanted)
