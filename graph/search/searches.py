"""Runs the queries of a round, and asks earlier ones about the documents that they did not find."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from fairqr.base.telemetry import span
from fairqr.graph.search.context import Context
from fairqr.graph.search.final_ranking import queries_about
from fairqr.graph.search.names import Holders, NamedText, only_holders
from fairqr.graph.search.pool import Pool
from fairqr.graph.search.state import EvidenceKind, LookupRecord, QueryRecord
from fairqr.graph.search.target import TARGET_DEPTH
from fairqr.retrieval.engines.engine import Hits, Query, SearchEngine, searched

GROUP_DEPTH = 200
"""How many documents a query with words of a group retrieves."""


async def run_queries(
    records: Sequence[QueryRecord],
    context: Context,
    engine: SearchEngine,
    *,
    is_original: bool = False,
) -> list[Hits]:
    """Run queries in one round trip, each as deep as its kind needs."""
    # A person may have rejected all words.
    if not records:
        return []
    queries = []
    for record in records:
        query = Query(
            record["text"],
            _depth_of(record["kind"], context),
            with_titles=is_original,
            with_claims=is_original and context.aims_at_merit,
        )
        queries.append(query)

    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "retrieval",
        "gen_ai.data_source.id": engine.name,
    }
    with span("retrieval", **attributes) as step:
        step.set("gen_ai.retrieval.top_k", max(query.n for query in queries))
        step.content("gen_ai.retrieval.query.text", "\n".join(query.text for query in queries))
        answers = await searched(engine, queries)
        step.set("fairqr.documents", [len(hits) for hits in answers])
    return answers


def _depth_of(kind: EvidenceKind, context: Context) -> int:
    """Return how many documents a query of a kind retrieves."""
    depth = context.strategy.depth or context.k
    if kind == "query":
        return max(depth, TARGET_DEPTH)
    if kind == "group" and context.words_are_evidence:
        return min(depth, GROUP_DEPTH)
    return depth


async def keep_whole_names(
    queries: Sequence[QueryRecord], answers: Sequence[Hits], engine: SearchEngine
) -> Holders:
    """Keep of what names found only the documents that hold one of the names whole."""
    ids: dict[str, None] = {}
    for query, hits in zip(queries, answers, strict=True):
        if query["names"]:
            ids |= dict.fromkeys(hits.ids)
    if not ids:
        return Holders(list(answers), [])
    documents = await engine.documents(list(ids))
    texts = {document.id: NamedText(document.title, document.text) for document in documents}
    return await asyncio.to_thread(only_holders, queries, answers, texts)


def warnings_of(answers: Sequence[Hits]) -> list[str]:
    """Return the distinct warnings of an engine about its answers."""
    warnings: dict[str, None] = {}
    for hits in answers:
        warnings |= dict.fromkeys(hits.warnings)
    return list(warnings)


async def look_up(pool: Pool, iteration: int) -> list[LookupRecord]:
    """Ask the queries of the user and of the topic about documents that other queries found.

    An engine may estimate a document better when asked about it directly. If it cannot score given
    documents, only its ranks count, and we ask nothing.
    """
    engine = pool.engine
    can_score = "rescore" in engine.capabilities
    if not can_score and "relevance" not in engine.capabilities:
        return []

    kinds: list[EvidenceKind] = []
    queries: list[Query] = []
    for ranking in pool.state["rankings"]:
        query = ranking["query"]
        ids = _ids_to_look_up(pool, query["kind"], iteration)
        batches = queries_about(query["text"], ids)
        queries += batches
        kinds += [query["kind"]] * len(batches)
    if not queries:
        return []

    lookups: dict[EvidenceKind, LookupRecord] = {}
    for kind, hits in zip(kinds, await searched(engine, queries), strict=True):
        empty = LookupRecord(iteration=iteration, kind=kind, scores={}, relevance={})
        lookup = lookups.setdefault(kind, empty)
        if can_score and kind == "query":
            lookup["scores"].update(zip(hits.ids, hits.scores, strict=True))
        if hits.relevance is not None:
            lookup["relevance"].update(zip(hits.ids, hits.relevance.tolist(), strict=True))
    return list(lookups.values())


def _ids_to_look_up(pool: Pool, kind: EvidenceKind, iteration: int) -> list[str]:
    """Return the documents that a query of a kind is asked about after a round."""
    has_estimates = "relevance" in pool.engine.capabilities
    says_more = kind == "query" or has_estimates
    if kind == "group" or not says_more:
        return []
    ids = pool.not_asked(kind)
    if has_estimates:
        ids += pool.found_far_down(kind, iteration)
    return ids
