"""What tests ask of an engine in one line, and the engine that they watch."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from fairqr.base.errors import UnsupportedError
from fairqr.retrieval.engines.engine import (
    Capability,
    EngineInfo,
    Hits,
    Query,
    SearchEngine,
    lexical_of,
)
from fairqr.retrieval.engines.tantivy.engine import TantivyEngine
from fairqr.retrieval.engines.tantivy.store import remove_documents
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.sources.schema import Schema


async def hits_of(
    engine: SearchEngine, text: str, n: int, *, only: Sequence[str] | None = None
) -> Hits:
    """The hits of one query."""
    among = None if only is None else tuple(only)
    (hits,) = await engine.search([Query(text, n, only=among)])
    return hits


async def ranked(
    engine: SearchEngine, text: str, n: int, *, only: Sequence[str] | None = None
) -> Ranking:
    """The ranking of one query."""
    hits = await hits_of(engine, text, n, only=only)
    return Ranking(hits.ids, hits.scores)


async def answers_of(
    engine: SearchEngine, queries: Sequence[Query]
) -> list[tuple[list[str], list[float], int | None]]:
    """The ids, scores and total of each query."""
    return [(hits.ids, hits.scores, hits.total) for hits in await engine.search(queries)]


async def compare_within(
    engine: SearchEngine,
    queries: Sequence[Query],
    documents: int,
    *,
    counts: bool = True,
    rounded: bool = False,
) -> int:
    """Compare searches within each group with a filter by hand over the hits of all documents.

    Args:
        engine: What is searched.
        queries: What is asked for.
        documents: At least as many as there are.
        counts: Whether the counts of matches must be the same, too.
        rounded: Whether the last digits of scores may differ, and with them the order of ties.

    Returns:
        How many hits were compared.
    """
    compared = 0
    deep = await engine.search([replace(query, n=documents) for query in queries])
    matching = await engine.search([replace(q, n=documents, only=None) for q in queries])
    for within in sorted(engine.filterable):
        limited = [replace(query, within=within) for query in queries]
        answers = await engine.search(limited)
        totals = await engine.search([replace(query, n=0) for query in limited]) if counts else []
        for query, hits, everything in zip(queries, answers, deep, strict=True):
            members = _rows_within(engine, everything, within)
            rows = members[: query.n]
            if rounded:
                expected = [everything.scores[row] for row in rows]
                assert hits.scores == pytest.approx(expected), (query, within)
                row_of = {everything.ids[row]: row for row in members}
                rows = [row_of[id_] for id_ in hits.ids]
            expected = [everything.scores[row] for row in rows]
            assert hits.scores == (pytest.approx(expected) if rounded else expected), (
                query,
                within,
            )
            assert hits.ids == [everything.ids[row] for row in rows], (query, within)
            for name, shares in hits.memberships.items():
                assert shares.tolist() == everything.memberships[name][rows].tolist()
            compared += len(hits)
        for query, total, everything in zip(queries, totals, matching, strict=False):
            ids = {everything.ids[row] for row in _rows_within(engine, everything, within)}
            if query.text:
                counted = ids if query.only is None else ids.intersection(query.only)
                assert total.total == len(counted), (query, within)
    return compared


def _rows_within(engine: SearchEngine, hits: Hits, within: tuple[str, str]) -> list[int]:
    attribute, group = within
    place = engine.schema.attribute(attribute).universe.index(group)
    rows: list[int] = np.flatnonzero(hits.memberships[attribute][:, place] > 0).tolist()
    return rows


async def remove(engine: SearchEngine, ids: Sequence[str]) -> int:
    """Delete documents from an embedded index, as another process would."""
    lexical = lexical_of(engine)
    assert isinstance(lexical, TantivyEngine)
    return await asyncio.to_thread(remove_documents, lexical.folder, ids)


class WatchedEngine:
    """A real engine that notes each round trip, and may be made to lack capabilities.

    What it lacks it refuses, as an engine does that cannot do it.

    Attributes:
        searches: The queries of each call of ``search``.
        reads: The ids of each call of ``documents``.
        counts: How often the shares of the corpus were asked for.
        closed: How often it was closed.
    """

    def __init__(self, engine: SearchEngine, *, without: Sequence[Capability] = ()) -> None:
        self._engine = engine
        self.name = engine.name
        self.retriever = engine.retriever
        self.in_process = engine.in_process
        self.capabilities: frozenset[Capability] = engine.capabilities - {*without}
        self.searches: list[list[Query]] = []
        self.reads: list[list[str]] = []
        self.counts = 0
        self.closed = 0

    @property
    def schema(self) -> Schema:
        return self._engine.schema

    @property
    def filterable(self) -> frozenset[tuple[str, str]]:
        lacks = "within_group" not in self.capabilities
        return frozenset() if lacks else self._engine.filterable

    async def info(self) -> EngineInfo:
        return await self._engine.info()

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        self.searches.append(list(queries))
        for query in queries:
            if query.n == 0:
                self._require("document_frequencies")
            if query.only is not None and query.text:
                self._require("rescore")
            if query.within is not None:
                self._require("within_group")
        return await self._engine.search(queries)

    async def documents(self, ids: Sequence[str]) -> list[Document]:
        self.reads.append(list(ids))
        return await self._engine.documents(ids)

    async def corpus_shares(self) -> Mapping[str, FloatArray]:
        self.counts += 1
        self._require("corpus_shares")
        return await self._engine.corpus_shares()

    async def aclose(self) -> None:
        self.closed += 1
        await self._engine.aclose()

    @property
    def round_trips(self) -> int:
        """How often the engine was asked for anything but texts."""
        return len(self.searches) + self.counts

    def _require(self, capability: Capability) -> None:
        if capability not in self.capabilities:
            raise UnsupportedError(f"'{self.name}' was asked for {capability}, which it lacks.")
