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
    MiniLM. So does the probability that anything in the list is relevant, of which a list of fewer
    than five texts tells nothing: then at least one is taken to be. MiniLM is loaded when it is
    first needed, and no text is encoded twice.

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

        Where that cannot be told, the list is as it was.

        Args:
            queries: What was searched for, and perhaps other queries for the same documents.
            texts: The texts of the documents; only the first 200 are read.
            hits: The list, best first; its claims, if it has any, are joined by the vectors.
            turn: Taken for each few texts that are encoded, so that long lists let others through.

        Raises:
            ModelError: The encoder failed.
        """
        unknown = [hits for _ in queries]
        asked = [sendable(query)[:LONGEST] for query in queries]
        read = [sendable(text)[:LONGEST] for text in texts[:POOL]]
        says = asked[0].strip() and any(map(str.strip, read))
        if not says or not is_pulled(MiniLmEncoder.name):
            return unknown
        reader = await self.opened()
        known = await reader.vectors.kept([*read, *asked])
        missing = [text for text, row in zip([*read, *asked], known, strict=True) if row is None]
        if missing and self._encode_later is not None:
            self._encode_later(missing)
        elif missing:
            new = await _encoded(reader.vectors, missing, turn)
            pairs = zip([*read, *asked], known, strict=True)
            known = [new[text] if row is None else row for text, row in pairs]
        of_texts, of_queries = known[: len(read)], known[len(read) :]
        if any(row is None for row in of_texts):
            return unknown
        documents = np.array(of_texts, dtype=np.float32)
        if hits.claims is not None:
            claims = claims_by_vector(documents, MiniLmEncoder.name, hits.claims)
            hits = replace(hits, claims=claims)
        return [
            hits if row is None else _estimated(reader, row, documents, hits) for row in of_queries
        ]

    async def opened(self) -> TextReader:
        """Load the encoder, if it is not yet there."""
        if self._reader is None:
            nowhere: Any = None  # nothing is read from an engine
            vectors = self._vectors or await KeptVectors.of(MiniLmEncoder())
            self._reader = TextReader(nowhere, vectors, with_terms=False)
            self._reader.background = np.zeros((0, vectors.dimensions), dtype=np.float32)
        return self._reader


async def _encoded(
    vectors: KeptVectors, texts: Sequence[str], turn: Turn
) -> dict[str, Float32Array]:
    """Return the vector of each text; those that somebody encodes meanwhile are not encoded."""
    new: dict[str, Float32Array] = {}
    distinct = [*dict.fromkeys(texts)]
    for start in range(0, len(distinct), AT_A_TURN):
        some = distinct[start : start + AT_A_TURN]
        async with turn():
            rows = await vectors.encode(some)
        new.update(zip(some, rows, strict=True))
    return new


def _estimated(
    reader: TextReader, query: Float32Array, documents: Float32Array, hits: Hits
) -> Hits:
    """Return a list with the probability that each document is relevant.

    Args:
        reader: Compares vectors.
        query: The vector of the query, shape (d,).
        documents: The vectors of the first documents, shape (m, d); zeros without a text.
        hits: The list.
    """
    similar = np.zeros(len(hits))
    movers = documents if len(documents) >= SHORT else documents[:0]
    similar[: len(documents)] = reader.likeness(query, documents, (range(len(movers)), movers))
    ranks = rank_evidence(hits.ids, hits.ids[:RANKED])
    calibration = CALIBRATED.rank
    relevance = calibration.probability(ranks, similar)
    answerable = 1.0
    if np.count_nonzero(documents.any(axis=1)) >= NEAREST:
        answerable = reader.answerable(query, documents, calibration.answerable)
    return replace(hits, relevance=relevance, answerable=answerable)
