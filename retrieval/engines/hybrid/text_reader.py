"""The texts of an engine's documents: their vectors and terms, kept for a while."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairqr.retrieval.encoders.encoder import Float32Array, KeptVectors, text_of
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.answerable import (
    FITTED_WITH,
    USUAL,
    Answerability,
    Background,
    background_of,
    nearest_mean,
    unrelated_vectors,
)
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.fairness.relevance import fused_best, moved_toward, standardised
from fairqr.retrieval.sources.documents import ProgressFunction
from fairqr.retrieval.texts.words import document_terms, sendable

SAMPLED = 200
"""How many documents similarities are compared with."""

LONGEST = 100_000
"""How many characters of a text we read; more would only cost time."""

SECONDS_KEPT = 600.0
"""How long we keep what we know of texts."""

KEPT_BYTES = 150_000_000
"""How much we keep: about 60,000 texts of 100 words with MiniLM."""

OVERHEAD = 500
"""The bytes that Python needs for each text."""

Terms = NDArray[np.uint32]


class Text(NamedTuple):
    """What we know of the text of a document.

    Attributes:
        vector: Of length 1, or zeros without a text, shape (d,).
        terms: The stems of its words, as numbers.
    """

    vector: Float32Array
    terms: Terms


Texts = Mapping[str, Text]


class TextReader:
    """Reads the texts of an engine's documents, and keeps what it knows of them for ten minutes.

    Args:
        engine: Has the documents.
        vectors: Makes vectors of texts, none twice.
        with_terms: Whether terms are needed; without, there are none.

    Attributes:
        background: The vectors of a sample of documents, none of zeros, which the owner sets.
        unrelated: What cosines unrelated queries reach; what is usual until :meth:`compare`.
    """

    background: Float32Array
    unrelated: Background = USUAL

    def __init__(self, engine: SearchEngine, vectors: KeptVectors, *, with_terms: bool) -> None:
        self.engine = engine
        self.vectors = vectors
        self._with_terms = with_terms
        self._blank = Text(np.zeros(vectors.dimensions, dtype=np.float32), hashed_terms(""))
        self._forget()

    def _forget(self) -> None:
        # A new dictionary, since others may still use the old one.
        self._kept: dict[str, Text] = {}
        self._since = time.monotonic()
        self._size = 0

    async def read(self, ids: Iterable[str], progress: ProgressFunction | None = None) -> Texts:
        """Return texts by id, at least these; one that the engine does not return is blank."""
        is_old = time.monotonic() - self._since >= SECONDS_KEPT
        if is_old or self._size > KEPT_BYTES:
            self._forget()
        kept = self._kept
        missing = [id_ for id_ in dict.fromkeys(ids) if id_ not in kept]
        if not missing:
            return kept

        documents = await self.engine.documents(missing)
        contents = [readable(text_of(document)) for document in documents]
        vectors = await self.vectors.encode(contents, progress)
        terms = [self._blank.terms] * len(contents)
        if self._with_terms:
            terms = await asyncio.to_thread(lambda: [*map(hashed_terms, contents)])

        kept |= dict.fromkeys(missing, self._blank)
        returned_ids = [document.id for document in documents]
        kept |= zip(returned_ids, map(Text, vectors, terms), strict=True)
        bytes_of_terms = sum(numbers.nbytes for numbers in terms)
        self._size += len(missing) * OVERHEAD + vectors.nbytes + bytes_of_terms
        return kept

    def stacked(self, texts: Iterable[Text]) -> Float32Array:
        """Return the vectors of texts, shape (n, d)."""
        rows = [text.vector for text in texts]
        return np.array(rows, dtype=np.float32).reshape(-1, self.vectors.dimensions)

    async def compare(self) -> None:
        """Compare the sample with unrelated queries, if it is not known what cosines they reach.

        Raises:
            ModelError: The encoder failed.
        """
        if self.vectors.encoder.name == FITTED_WITH or not len(self.background):
            return
        unrelated = await unrelated_vectors(self.vectors)
        self.unrelated = background_of(self.background, unrelated, self.vectors.encoder)

    def answerable(
        self, query: Float32Array, vectors: Float32Array, regression: Answerability
    ) -> float:
        """Return the probability that there are relevant documents for a query.

        Args:
            query: The vector of the query, shape (d,).
            vectors: The vectors of the pool, shape (n, d); zeros do not count.
            regression: Fitted on pools.
        """
        with_text = vectors[vectors.any(axis=1)]
        nearest = nearest_mean(np.vecdot(with_text, query))
        return regression.probability(self.unrelated.above(nearest), words=0.0)

    def likeness(
        self,
        query: Float32Array,
        vectors: Float32Array,
        rankings: tuple[Sequence[int], Float32Array],
    ) -> FloatArray:
        """Return the similarity of documents in standard deviations; see :func:`standardised`.

        Args:
            query: The vector of the query, shape (d,).
            vectors: The vectors of the documents, shape (n, d); zeros have the mean similarity.
            rankings: The documents that may move the query: their rows, best first by words, and
                their vectors.
        """
        by_words, candidates = rankings
        nearest = np.argsort(-np.vecdot(candidates, query), kind="stable").tolist()
        moved = moved_toward(query, candidates[fused_best([by_words, nearest])])
        cosines = np.where(vectors.any(axis=1), np.vecdot(vectors, moved), np.nan)
        return standardised(cosines, self.background @ moved)


def hashed_terms(text: str) -> Terms:
    """Return the stems of a document's text as numbers.

    Among a million distinct ones, one in 4,000 shares its number.
    """
    return as_numbers(document_terms(text))


def as_numbers(stems: Sequence[str]) -> Terms:
    """Return the stems of words as numbers; see :func:`hashed_terms`."""
    return np.array([zlib.crc32(stem.encode()) for stem in stems], dtype=np.uint32)


def readable(text: str) -> str:
    """Return as much of a text as we read."""
    return sendable(text)[:LONGEST]
