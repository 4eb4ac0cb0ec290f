"""The common part of engines that can only search: runs, HTTP endpoints, LangChain's objects."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import NamedTuple

from fairqr.base.loops import run_together
from fairqr.retrieval.encoders.encoder import text_of
from fairqr.retrieval.engines.engine import (
    Capability,
    EngineInfo,
    Hits,
    Query,
    SearchEngine,
    best_first,
    require,
    require_groups,
)
from fairqr.retrieval.fairness.claims import claims_by_text
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.sources.labels import LabelReader
from fairqr.retrieval.texts.words import sendable

OVERHEAD = 1000
"""What a kept document takes beside its texts, in characters."""


class SeenDocuments:
    """The documents that searches returned last, by id; several threads may use it.

    Args:
        characters: The most characters to keep, in titles, texts and fields together. The last
            document stays even if it has more.
    """

    def __init__(self, characters: int = 200_000_000) -> None:
        self._free = characters
        self._documents: dict[str, tuple[Document, int]] = {}
        self._lock = Lock()

    def add(self, documents: Iterable[Document]) -> None:
        """Keep documents, and forget the oldest ones if there are too many."""
        with self._lock:
            for document in documents:
                self._forget(document.id)
                size = _size_of(document)
                self._documents[document.id] = (document, size)
                self._free -= size
                while self._free < 0 and len(self._documents) > 1:
                    oldest = next(iter(self._documents))
                    self._forget(oldest)

    def get(self, ids: Iterable[str]) -> list[Document]:
        """Return those of these documents that are still here, in this order."""
        with self._lock:
            return [self._documents[id_][0] for id_ in ids if id_ in self._documents]

    def _forget(self, id_: str) -> None:
        _, size = self._documents.pop(id_, (None, 0))
        self._free += size


def _size_of(document: Document) -> int:
    """Return what a document takes, in characters."""
    texts = (document.title, document.text, str(document.fields))
    return OVERHEAD + sum(map(len, texts))


class ScoredDocuments(NamedTuple):
    """What a search returned: distinct documents, their scores, and warnings for users."""

    documents: Sequence[Document]
    scores: Sequence[float]
    warnings: Sequence[str] = ()


class LimitedEngine(SearchEngine):
    """What engines share that only answer queries; see :class:`SearchEngine`."""

    in_process = False
    capabilities: frozenset[Capability] = frozenset()
    filterable: frozenset[tuple[str, str]] = frozenset()

    def __init__(self, info: EngineInfo, labels: LabelReader, retriever: str) -> None:
        self.name = info.name
        self.schema = labels.schema
        self.retriever = retriever
        self.labels = labels
        self._info = info

    async def info(self) -> EngineInfo:
        """Return what we know of the engine."""
        return self._info

    async def corpus_shares(self) -> Mapping[str, FloatArray]:
        """Raise an error, because such an engine does not show all its documents."""
        require(self, "corpus_shares", "The share of each group in all documents")
        return {}

    async def aclose(self) -> None:
        """Close nothing: no connection stays open."""


class SearchOnlyEngine(LimitedEngine):
    """An engine that answers words with whole documents.

    It can only read documents that a search has returned, and forgets the oldest of them.
    """

    capabilities: frozenset[Capability] = frozenset({"new_queries"})

    def __init__(self, info: EngineInfo, labels: LabelReader, retriever: str) -> None:
        super().__init__(info, labels, retriever)
        self._seen = SeenDocuments()

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        """Answer all queries, several at a time."""
        require_groups(self, queries)
        for query in queries:
            if query.only is not None and query.text:
                require(self, "rescore", "Ranking given documents")
            if query.n < 1 or query.every_word:
                require(self, "document_frequencies", "Counting the documents with a word")
        return await run_together(self._hits(query) for query in queries)

    async def documents(self, ids: Sequence[str]) -> list[Document]:
        """Return those of these documents that a search has returned, in this order."""
        return self._seen.get(ids)

    @abstractmethod
    async def _answer(self, text: str, n: int) -> ScoredDocuments:
        """Return what answers a text, perhaps more than n documents."""

    async def _hits(self, query: Query) -> Hits:
        if query.only is None:
            answer = await self._answer(sendable(query.text.strip()), query.n)
        else:
            seen = self._seen.get(dict.fromkeys(query.only))
            answer = ScoredDocuments(seen, [0.0] * len(seen))
        documents = answer.documents
        ids = [document.id for document in documents]
        memberships = self.labels.memberships(ids, self.labels.in_fields(documents))
        hits = best_first(ids, answer.scores, memberships, query.n, warnings=answer.warnings)

        best_ids = set(hits.ids)
        self._seen.add(document for document in documents if document.id in best_ids)
        if not query.with_claims:
            return hits
        texts = {document.id: text_of(document) for document in documents}
        return replace(hits, claims=claims_by_text([texts[id_] for id_ in hits.ids]))
