"""How likely the documents of a given list are relevant, by its order and their texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from fairqr.base.loops import Turn
from fairqr.base.weights import is_pulled
from fairqr.retrieval.encoders.encoder import Float32Array, KeptVectors
from fairqr.retrieval.encoders.minilm import MiniLmEncoder
from fairqr.retrieval.engines.engine import Hits
from fairqr.retrieval.engines.hybrid.encoded_pool import RANKED
from fairqr.retrieval.engines.hybrid.text_reader import LONGEST, TextReader
from fairqr.retrieval.fairness.answerable import NEAREST
from fairqr.retrieval.fairness.claims import claims_by_vector
from fairqr.retrieval.fairness.relevance import CALIBRATED, FEEDBACK, POOL, rank_evidence
from fairqr.retrieval.texts.words import sendable

SHORT = 5 * FEEDBACK
"""In a shorter list, too many of the documents would move the query."""

AT_A_TURN = 20
"""How many texts are encoded until others get their turn."""


class ListEvidence:
    """Estimates relevance as a search does that encodes what an engine finds.

    There are no other documents to compare with, so a similarity counts by what is usual for
    MiniLM. So does the probability that anything in the list is relevant. A list of fewer than five
    texts says nothing about that, so we take it for granted. MiniLM is loaded when it is first
    needed, and no text is encoded twice.

    Args:
        encode_later: Takes the texts that have no vector yet, to encode them when there is time.
            Until then only the vectors that are kept count. Without it, texts are encoded at once.
        vectors: The vectors of texts; by default those that MiniLM makes.
    """

    def __init__(
        self,
        encode_later: Callable[[list[str]], None] | None = None,
        vectors: KeptVectors | None = None,
    ) -> None:
        self._reader: TextReader | None = None
        self._vectors = vectors
        self._encode_later = encode_later

    async def estimated(
        self,
        queries: Sequence[str],
        texts: Sequence[str],
        hits: Hits,
        turn: Turn = nullcontext,
    ) -> list[Hits]:
        """Return a list, once for each query, with the probability that documents are relevant.

        If the texts cannot be compared, the list is as it was.

        Args:
            queries: What was searched for, and perhaps other queries for the same documents.
            texts: The texts of the documents; only the first 200 are read.
            hits: The list, best first; its claims, if it has any, are joined by the vectors.
            turn: Taken for each few texts that are encoded, so that long lists let others through.

        Raises:
            ModelError: The encoder failed.
        """
        read_queries = [sendable(query)[:LONGEST] for query in queries]
        read_texts = [sendable(text)[:LONGEST] for text in texts[:POOL]]
        has_words = read_queries[0].strip() and any(map(str.strip, read_texts))
        if not has_words or not is_pulled(MiniLmEncoder.name):
            return [hits] * len(queries)

        reader = await self.opened()
        vectors = await self._vectors_of(reader.vectors, [*read_texts, *read_queries], turn)
        text_vectors = vectors[: len(read_texts)]
        query_vectors = vectors[len(read_texts) :]
        if any(vector is None for vector in text_vectors):
            return [hits] * len(queries)

        documents = np.array(text_vectors, dtype=np.float32)
        if hits.claims is not None:
            claims = claims_by_vector(documents, MiniLmEncoder.name, hits.claims)
            hits = replace(hits, claims=claims)
        answers = []
        for vector in query_vectors:
            if vector is None:
                answers.append(hits)
            else:
                answers.append(_with_relevance(reader, vector, documents, hits))
        return answers

    async def _vectors_of(
        self, kept: KeptVectors, texts: Sequence[str], turn: Turn
    ) -> list[Float32Array | None]:
        """Return the vector of each text; None for those that are encoded later."""
        vectors = await kept.kept(texts)
        missing = [text for text, vector in zip(texts, vectors, strict=True) if vector is None]
        if not missing:
            return vectors
        if self._encode_later is not None:
            self._encode_later(missing)
            return vectors
        encoded = await _encode(kept, missing, turn)
        complete: list[Float32Array | None] = []
        for text, vector in zip(texts, vectors, strict=True):
            complete.append(encoded[text] if vector is None else vector)
        return complete

    async def opened(self) -> TextReader:
        """Load the encoder, if it is not yet there."""
        if self._reader is None:
            vectors = self._vectors or await KeptVectors.of(MiniLmEncoder())
            no_engine: Any = None  # it reads nothing from an engine
            self._reader = TextReader(no_engine, vectors, with_terms=False)
            self._reader.background = np.zeros((0, vectors.dimensions), dtype=np.float32)
        return self._reader


async def _encode(
    vectors: KeptVectors, texts: Sequence[str], turn: Turn
) -> dict[str, Float32Array]:
    """Return the vector of each text; those that somebody encodes meanwhile are not encoded."""
    encoded: dict[str, Float32Array] = {}
    distinct = list(dict.fromkeys(texts))
    for start in range(0, len(distinct), AT_A_TURN):
        batch = distinct[start : start + AT_A_TURN]
        async with turn():
            rows = await vectors.encode(batch)
        encoded.update(zip(batch, rows, strict=True))
    return encoded


def _with_relevance(
    reader: TextReader, query: Float32Array, documents: Float32Array, hits: Hits
) -> Hits:
    """Return a list with the probability that each document is relevant.

    Args:
        reader: Compares vectors.
        query: The vector of the query, shape (d,).
        documents: The vectors of the first documents, shape (m, d); zeros without a text.
        hits: The list.
    """
    # The best documents move the query, but not in a short list.
    movers = documents if len(documents) >= SHORT else documents[:0]
    similarity = np.zeros(len(hits))
    similarity[: len(documents)] = reader.likeness(query, documents, (range(len(movers)), movers))
    ranks = rank_evidence(hits.ids, hits.ids[:RANKED])
    calibration = CALIBRATED.rank
    relevance = calibration.probability(ranks, similarity)

    answerable = 1.0
    texts = np.count_nonzero(documents.any(axis=1))
    if texts >= NEAREST:
        answerable = reader.answerable(query, documents, calibration.answerable)
    return replace(hits, relevance=relevance, answerable=answerable)
