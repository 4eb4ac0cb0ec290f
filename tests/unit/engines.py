"""What tests ask of an engine in one line, and the engine that they watch."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from fairqr.base.errors import UnsupportedError
from fairqr.retrieval.documents import Document
from fairqr.retrieval.engines.engine import Capability, EngineInfo, Hits, Query, SearchEngine
from fairqr.retrieval.engines.tantivy import TantivyEngine
from fairqr.retrieval.engines.tantivy_writing import remove_documents
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.ranking import Ranking
from fairqr.retrieval.schema import Schema

__all__ = ["WatchedEngine", "answers_of", "hits_of", "ranked", "remove"]


async def hits_of(
    engine: SearchEngine, text: str, n: int, *, boost: str = "", only: Sequence[str] | None = None
) -> Hits:
    """The hits of one query."""
    among = None if only is None else tuple(only)
    (hits,) = await engine.search([Query(text, n, boost=boost, only=among)])
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


async def remove(engine: SearchEngine, ids: Sequence[str]) -> int:
    """Delete documents from an embedded index, as another process would."""
    assert isinstance(engine, TantivyEngine)
    return await asyncio.to_thread(remove_documents, engine.folder, ids)


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

    async def info(self) -> EngineInfo:
        return await self._engine.info()

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        self.searches.append(list(queries))
        for query in queries:
            if query.n == 0:
                self._require("document_frequencies")
            if query.only is not None and query.text:
                self._require("rescore")
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
