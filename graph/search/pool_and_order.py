"""The lists of a run: what a round is measured on, what is re-ranked, and in what order.

Which pool and which re-ranker are used decides the result. A pool that contains the original top k,
re-ranked by the original query, is the original ranking again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fairqr.graph.search.context import Context, Strategy
from fairqr.graph.search.state import QueryRecord, RankingRecord, ranking_of
from fairqr.retrieval.dimension import Dimension
from fairqr.retrieval.engines.engine import Hits, Query, SearchEngine, require
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.ranking import Ranking
from fairqr.retrieval.rerank import reciprocal_rank_fusion
from fairqr.retrieval.table import DocumentTable, decoded

__all__ = [
    "hits_of",
    "measured_list",
    "pooled",
    "reranked",
    "scores_by_original_query",
    "table_of",
    "usual_shares",
]

IDS_AT_ONCE = 10_000
"""Servers bound how many hits one search may have."""

REFINED_WEIGHT = 0.5
"""Of a refined ranking in the fusion. With one attribute a document can gain from two of them, by
the words of the topic and by those of its group; these weigh as much as the original ranking."""


def fused(
    table: DocumentTable,
    dimensions: Sequence[Dimension],
    records: Sequence[RankingRecord],
    context: Context,
) -> Ranking:
    """Fuse the original ranking with the refined ones.

    A query that was refined toward a group finds documents of others too, which it says nothing
    about. So its ranking speaks for the documents of the group alone, in the share that they belong
    to it; that of a query refined by words of the topic speaks for all.
    """
    depth = context.strategy.depth
    rankings = [ranking_of(record, depth) for record in records]
    if len(rankings) == 1:
        return rankings[0]
    if all(record["iteration"] for record in records):
        return reciprocal_rank_fusion(rankings, k=context.rrf_k)
    weights = [REFINED_WEIGHT if record["iteration"] else 1.0 for record in records]
    shares = [
        _shares_of_group(table, dimensions, record["query"], ranking)
        for record, ranking in zip(records, rankings, strict=True)
    ]
    return reciprocal_rank_fusion(rankings, weights, context.rrf_k, shares=shares)


def _shares_of_group(
    table: DocumentTable, dimensions: Sequence[Dimension], query: QueryRecord, ranking: Ranking
) -> FloatArray | None:
    """Return the share of the group that a query was refined toward in each document, or None."""
    if query["group"] is None:
        return None
    dimension = next(d for d in dimensions if d.name == query["attribute"])
    members = table.memberships(dimension, ranking.ids)
    return members[:, dimension.groups.index(query["group"])]


def newest(rankings: Sequence[RankingRecord], iteration: int) -> list[RankingRecord]:
    """Return the original ranking, and the newest one of each kind of refined query.

    Refined queries grow, so a newer one holds what the older ones of its group hold.
    """
    found: dict[tuple[object, ...], RankingRecord] = {}
    for record in rankings:
        if record["iteration"] <= iteration:
            query = record["query"]
            found[record["iteration"] == 0, query["attribute"], query["group"]] = record
    return list(found.values())


def measured_list(
    table: DocumentTable,
    dimensions: Sequence[Dimension],
    rankings: Sequence[RankingRecord],
    iteration: int,
    context: Context,
) -> Ranking:
    """Return the list that a round has before any re-ranking.

    With ``fusion`` it is the fusion of the original ranking and the newest refined ones, otherwise
    what the queries of the round retrieved.
    """
    if context.strategy.rerank == "fusion":
        return fused(table, dimensions, newest(rankings, iteration), context)
    own = [record for record in rankings if record["iteration"] == iteration]
    return fused(table, dimensions, own, context)


def pooled(
    table: DocumentTable,
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
            members = table.memberships(dimension, ids)
            best = [id_ for id_, share in zip(ids, members[:, position], strict=True) if share > 0]
            pool.update(dict.fromkeys(best[:quota]))
    return list(pool)


def reranked(
    table: DocumentTable,
    dimensions: Sequence[Dimension],
    pool: Sequence[str],
    rankings: Sequence[RankingRecord],
    iteration: int,
    context: Context,
    original_scores: Mapping[str, float],
) -> Ranking:
    """Order the documents of a pool by the original intent, before the final step.

    Args:
        table: Has the groups of all documents of the run.
        dimensions: What exposure is measured over.
        pool: The documents to order.
        rankings: All that was retrieved.
        iteration: The round.
        context: Of the run.
        original_scores: By the original query, for the order ``original_query``; a document that
            was deleted meanwhile has none and is left out.
    """
    if context.strategy.rerank == "original_query":
        return Ranking.of({id_: original_scores[id_] for id_ in pool if id_ in original_scores})
    order = measured_list(table, dimensions, rankings, iteration, context)
    wanted = set(pool)
    return Ranking.of((i, s) for i, s in zip(order.ids, order.scores, strict=True) if i in wanted)


def table_of(rankings: Sequence[RankingRecord]) -> DocumentTable:
    """Return the groups of all documents that a run has retrieved."""
    table = DocumentTable()
    for record in rankings:
        hits = hits_of(record)
        table.add(hits.ids, hits.memberships)
    return table


def hits_of(record: RankingRecord) -> Hits:
    """Return what a query found, with the groups of the run's attributes."""
    memberships = {name: decoded(members) for name, members in record["memberships"].items()}
    return Hits(record["ids"], record["scores"], memberships)


async def scores_by_original_query(
    engine: SearchEngine, query: str, ids: Sequence[str], original: RankingRecord
) -> dict[str, float]:
    """Return the scores of documents by the original query.

    The engine is asked only about documents that the original query did not retrieve.

    Raises:
        UnsupportedError: There are such documents, and the engine cannot score them.
    """
    scores = dict(zip(original["ids"], original["scores"], strict=True))
    missing = [id_ for id_ in ids if id_ not in scores]
    if missing:
        require(engine, "rescore", "The order 'original_query'")
        pieces = [missing[at : at + IDS_AT_ONCE] for at in range(0, len(missing), IDS_AT_ONCE)]
        for hits in await engine.search([Query(query, len(p), only=tuple(p)) for p in pieces]):
            scores.update(zip(hits.ids, hits.scores, strict=True))
    return scores


def usual_shares(
    corpus_shares: Mapping[str, Sequence[float]], original: RankingRecord
) -> dict[str, FloatArray]:
    """Return the share of each group that is usual, by attribute.

    That is its share of all documents, or where an engine cannot count these, its share of what
    the original query retrieved.
    """
    return {
        name: np.array(corpus_shares[name])
        if name in corpus_shares
        else decoded(members).mean(axis=0)
        for name, members in original["memberships"].items()
    }
