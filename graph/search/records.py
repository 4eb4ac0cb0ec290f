"""What queries retrieved, as plain data of the state."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fairqr.graph.search.context import Context
from fairqr.graph.search.state import QueryRecord, RankingRecord
from fairqr.retrieval.engines.engine import Hits
from fairqr.retrieval.fairness.dimension import dimensions_of
from fairqr.retrieval.fairness.table import coded, decoded
from fairqr.retrieval.sources.schema import Schema


def ranking_record(
    iteration: int,
    query: QueryRecord,
    hits: Hits,
    attributes: Collection[str],
    *,
    with_scores: bool,
) -> RankingRecord:
    """Return what a query retrieved, with the groups of some attributes, as plain data."""
    return RankingRecord(
        iteration=iteration,
        query=query,
        ids=hits.ids,
        own=len(hits) if hits.own is None else hits.own,
        scores=hits.scores if with_scores else [],
        relevance=None if hits.relevance is None else hits.relevance.tolist(),
        answerable=hits.answerable,
        claims=None if hits.claims is None else hits.claims.tolist(),
        memberships=coded(hits.memberships, attributes),
    )


def hits_of(record: RankingRecord) -> Hits:
    """Return the hits of a query, with the groups of the run's attributes."""
    memberships = {name: decoded(members) for name, members in record["memberships"].items()}
    return Hits(record["ids"], record["scores"], memberships)


def records_of(
    iteration: int,
    queries: Sequence[QueryRecord],
    answers: Sequence[Hits],
    context: Context,
    schema: Schema,
) -> list[RankingRecord]:
    """Return what queries retrieved, as plain data."""
    attributes: set[str] = set()
    for dimension in dimensions_of(schema, context.attributes, intersect=context.intersect):
        attributes.update(factor.name for factor in dimension.factors)
    with_scores = iteration == 0 or context.strategy.rerank in ("none", "original_query")
    records = []
    for query, hits in zip(queries, answers, strict=True):
        record = ranking_record(iteration, query, hits, attributes, with_scores=with_scores)
        records.append(record)
    return records
