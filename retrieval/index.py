"""What fairqr asks of an index; every backend stands behind this one protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from fairqr.retrieval.documents import Document
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.ranking import Ranking
from fairqr.retrieval.schema import Schema

__all__ = ["Index", "IndexInfo", "Progress"]

Progress = Callable[[int], None]
"""Called now and then while documents are written, with the number written so far."""


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """What is known of an index without searching it.

    Attributes:
        name: How commands call it.
        backend: ``tantivy`` or ``elasticsearch``.
        documents: How many it holds.
        location: A folder, or the URL of a server and the index on it; no credentials.
        source: The corpus it was built from.
        source_sha256: The hash of that file, by which a changed corpus is noticed.
    """

    name: str
    backend: str
    documents: int
    location: str
    source: str
    source_sha256: str


class Index(Protocol):
    """Documents of a corpus, ranked by BM25 over title and text under English analysis.

    An index of vectors ranks otherwise; :class:`fairqr.retrieval.vectors.VectorIndex` says how.

    All rankings are repeatable: equal scores stand in order of id. Methods raise
    :class:`fairqr.errors.IndexUnavailableError` where the index cannot be reached.
    """

    @property
    def name(self) -> str:
        """How commands call the index."""
        ...

    @property
    def schema(self) -> Schema:
        """The attributes and groups of its documents."""
        ...

    @property
    def retriever(self) -> str:
        """How documents are found, as results and reports name it: ``bm25``, or ``dense:…``."""
        ...

    @property
    def lexical(self) -> Index:
        """The index of words over the same documents, which alone knows what contains a word.

        The index itself where it ranks by BM25.
        """
        ...

    async def info(self) -> IndexInfo:
        """Return what is known of the index."""
        ...

    async def search(self, query: str, n: int, *, boost: str = "") -> Ranking:
        """Return the best n documents that contain a term of the query; fewer where fewer do.

        Terms of ``boost`` add to the score of a document, but do not alone make it a result.
        """
        ...

    async def rescore(self, query: str, ids: Sequence[str]) -> Ranking:
        """Rank just these documents by the query, with the scores that :meth:`search` gives.

        Documents without any of its terms come last with score 0; ids that the index lacks are left
        out.
        """
        ...

    async def documents(self, ids: Sequence[str]) -> list[Document]:
        """Return these documents, in this order; ids that the index lacks are left out."""
        ...

    async def memberships(self, attribute: str, ids: Sequence[str]) -> FloatArray:
        """Return the share of each group in these documents, shape (len(ids), G).

        A row is all zeros for a document without a label under ``unknown: exclude``, and for an id
        that the index lacks.
        """
        ...

    async def corpus_shares(self, attribute: str) -> FloatArray:
        """Return the mean membership over all documents, shape (G,); 1 less the unknown mass."""
        ...

    async def document_frequencies(self, words: Sequence[str]) -> list[int]:
        """Return for each word or phrase how many documents contain all of its terms.

        A phrase that analysis reduces to nothing, such as a stop word, has frequency 0.
        """
        ...

    async def upsert(self, documents: Iterable[Document], progress: Progress | None = None) -> int:
        """Add documents, in place of those with the same ids, and return how many were written."""
        ...

    async def delete(self, ids: Sequence[str]) -> int:
        """Remove documents and return how many there were."""
        ...

    async def close(self) -> None:
        """Let go of files and connections."""
        ...
