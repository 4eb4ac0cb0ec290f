"""An index that is searched by vectors: the corpus is that of a lexical index, the ranking not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from fairqr.errors import InputError
from fairqr.retrieval.documents import Document
from fairqr.retrieval.encoders.encoder import Encoder, EncoderMark, Float32Array, encode_query
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.index import Index, IndexInfo, Progress
from fairqr.retrieval.ranking import Ranking
from fairqr.retrieval.schema import Schema

__all__ = ["VectorIndex", "Vectors"]


class Vectors(Protocol):
    """The vectors of the documents of an index, wherever they lie.

    A query's vector has length 1. A score is (1 + cosine)/2, in [0, 1]. Documents with a vector of
    zeros, which have no cosine, are never found; as rescored ones they have score 0, the lowest.
    """

    async def search(self, query: Float32Array, n: int) -> Ranking:
        """Return the n documents whose vectors are most like the query's."""
        ...

    async def rescore(self, query: Float32Array, ids: Sequence[str]) -> Ranking:
        """Rank just these documents; ids that the index lacks are left out."""
        ...

    async def lowest(self, ids: Sequence[str]) -> Ranking:
        """Give each of these documents score 0; ids that the index lacks are left out."""
        ...

    async def update(self, progress: Progress | None = None) -> None:
        """Encode the documents that have no vector yet."""
        ...


class VectorIndex:
    """An index that ranks by the cosine between the vectors of a query and of the documents.

    The scores are (1 + cosine)/2, in [0, 1]. Unlike with BM25 every document is a result, however
    unlike the query, but those without any word. A query without any word finds nothing. Words of
    ``boost`` are encoded together with the query, after it, and so may bring new results.

    All else is that of the lexical index, which :meth:`close` closes too. Documents that are
    written through this object can be found at once; those written otherwise, over an embedded
    index at the next search, on a server when the retriever is opened next.
    """

    def __init__(
        self, lexical: Index, encoder: Encoder, mark: EncoderMark, vectors: Vectors
    ) -> None:
        """Take what :meth:`open` has found."""
        self._lexical = lexical
        self._encoder = encoder
        self._mark = mark
        self._vectors = vectors

    @classmethod
    async def open(
        cls, index: Index, encoder: Encoder, progress: Progress | None = None
    ) -> VectorIndex:
        """Open vector search over an index, and encode first what has no vector yet.

        Args:
            index: Embedded, or on an Elasticsearch server.
            encoder: Makes the vectors.
            progress: Told how many documents have been encoded, where any have to be.

        Raises:
            InputError: There can be no vectors on this index, or those of another model go by the
                encoder's name.
            ModelError: The encoder fails.
            ModelUnavailableError: It cannot be started.
            IndexUnavailableError: The vectors cannot be written.
        """
        lexical = index.lexical
        mark = await EncoderMark.of(encoder)
        vectors = await _vectors_of(lexical, encoder, mark)
        await vectors.update(progress)
        return cls(lexical, encoder, mark, vectors)

    @property
    def name(self) -> str:
        """How commands call the index."""
        return self._lexical.name

    @property
    def schema(self) -> Schema:
        """The attributes and groups of its documents."""
        return self._lexical.schema

    @property
    def lexical(self) -> Index:
        """The index of words over the same documents."""
        return self._lexical

    @property
    def retriever(self) -> str:
        """``dense:<encoder>``."""
        return f"dense:{self._encoder.name}"

    async def info(self) -> IndexInfo:
        """Return what is known of the index."""
        return await self._lexical.info()

    async def search(self, query: str, n: int, *, boost: str = "") -> Ranking:
        """Return the n documents most like the query and the words of ``boost`` together."""
        vector = await self._encode(f"{query} {boost}" if boost else query)
        if n < 1 or not vector.any():
            return Ranking([], [])
        return await self._vectors.search(vector, n)

    async def rescore(self, query: str, ids: Sequence[str]) -> Ranking:
        """Rank just these documents, with the scores that :meth:`search` gives.

        Documents without any word have score 0, as have all for a query without any.
        """
        vector = await self._encode(query)
        if not vector.any():
            return await self._vectors.lowest(ids)
        return await self._vectors.rescore(vector, ids)

    async def documents(self, ids: Sequence[str]) -> list[Document]:
        """Return these documents, in this order; ids that the index lacks are left out."""
        return await self._lexical.documents(ids)

    async def memberships(self, attribute: str, ids: Sequence[str]) -> FloatArray:
        """Return the share of each group in these documents, shape (len(ids), G)."""
        return await self._lexical.memberships(attribute, ids)

    async def corpus_shares(self, attribute: str) -> FloatArray:
        """Return the mean membership over all documents, shape (G,)."""
        return await self._lexical.corpus_shares(attribute)

    async def document_frequencies(self, words: Sequence[str]) -> list[int]:
        """Return for each word or phrase how many documents contain all of its terms."""
        return await self._lexical.document_frequencies(words)

    async def upsert(self, documents: Iterable[Document], progress: Progress | None = None) -> int:
        """Add or replace documents, encode them, and return how many were written."""
        count = await self._lexical.upsert(documents, progress)
        await self._vectors.update()
        return count

    async def delete(self, ids: Sequence[str]) -> int:
        """Remove documents and return how many there were."""
        return await self._lexical.delete(ids)

    async def close(self) -> None:
        """Close the lexical index."""
        await self._lexical.close()

    async def _encode(self, text: str) -> Float32Array:
        return await encode_query(self._encoder, text, self._mark.dimensions)


async def _vectors_of(lexical: Index, encoder: Encoder, mark: EncoderMark) -> Vectors:
    backend = (await lexical.info()).backend
    # Each backend is imported where it is used, for their clients take their time.
    if backend == "tantivy":
        from fairqr.retrieval.tantivy_index import TantivyIndex
        from fairqr.retrieval.vectors.tantivy_vectors import TantivyVectors

        if isinstance(lexical, TantivyIndex):
            return TantivyVectors(lexical, encoder, mark)
    elif backend == "elasticsearch":
        from fairqr.retrieval.elasticsearch_index import ElasticsearchIndex
        from fairqr.retrieval.vectors.elasticsearch_vectors import ElasticsearchVectors

        if isinstance(lexical, ElasticsearchIndex):
            return ElasticsearchVectors(lexical, encoder, mark)
    raise InputError(
        f"The index '{lexical.name}' cannot be searched by vectors: its backend is {backend}; "
        "take one on tantivy or elasticsearch, or the retriever bm25."
    )
