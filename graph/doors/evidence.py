"""How likely the documents of a given list are relevant, by its order and their texts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fairqr.base.weights import is_pulled
from fairqr.retrieval.encoders.encoder import Float32Array, KeptVectors
from fairqr.retrieval.encoders.minilm import MiniLmEncoder
from fairqr.retrieval.engines.engine import Hits
from fairqr.retrieval.engines.hybrid.texts import LONGEST, RANKED, TextReader
from fairqr.retrieval.fairness.answerable import NEAREST
from fairqr.retrieval.fairness.relevance import CALIBRATED, FEEDBACK, POOL, rank_evidence
from fairqr.retrieval.texts.words import sendable

SHORT = 5 * FEEDBACK
"""In a shorter list, too many of the documents would move the query."""


class ListEvidence:
    """Estimates relevance as a search does that encodes what an engine finds.

    There are no other documents to compare with, so a similarity counts by what is usual for
    MiniLM. So does the chance that anything in the list is relevant, of which a list of fewer than
    five texts tells nothing: then at least one is taken to be. MiniLM is loaded when it is first
    needed, and no text is encoded twice.
    """

    def __init__(self) -> None:
        self._reader: TextReader | None = None
        self._turn = asyncio.Lock()
        self._later: asyncio.Task[Float32Array] | None = None

    async def estimated(
        self, query: str, texts: Sequence[str], hits: Hits, *, later: bool = False
    ) -> Hits:
        """Return a list with the probability that each document is relevant, if that can be told.

        Args:
            query: What was searched for.
            texts: The texts of its documents; only the first 200 are read.
            hits: The list, best first.
            later: Only use vectors that are kept, and encode what is missing afterwards, one list
                at a time. The texts of others are when they come again.

        Raises:
            ModelError: The encoder failed.
        """
        words = [sendable(text)[:LONGEST] for text in (query, *texts[:POOL])]
        says = words[0].strip() and any(map(str.strip, words[1:]))
        if not says or not is_pulled(MiniLmEncoder.name):
            return hits
        reader = await self.opened()
        rows: Sequence[Float32Array | None] = await reader.vectors.kept(words)
        missing = [text for text, row in zip(words, rows, strict=True) if row is None]
        if missing and later:
            if self._later is None or self._later.done():
                self._later = asyncio.create_task(reader.vectors.encode(missing))
                # Nobody waits for an error; the list is in order without it.
                self._later.add_done_callback(lambda done: done.cancelled() or done.exception())
            return hits
        if missing:
            async with self._turn:  # one alone takes all processors, and leaves vectors for others
                rows = [*await reader.vectors.encode(words)]
        own, similar = np.array(rows, dtype=np.float32), np.zeros(len(hits))
        movers = own[1:] if len(own) > SHORT else own[:0]
        similar[: len(own) - 1] = reader.likeness(own[0], own[1:], (range(len(movers)), movers))
        ranks = rank_evidence(hits.ids, hits.ids[:RANKED])
        calibration = CALIBRATED.rank
        relevance = calibration.probability(ranks, similar)
        answerable = 1.0
        if np.count_nonzero(own[1:].any(axis=1)) >= NEAREST:
            answerable = reader.answerable(own[0], own[1:], calibration.answerable)
        return replace(hits, relevance=relevance, answerable=answerable)

    async def opened(self) -> TextReader:
        """Load the encoder, if it is not yet there."""
        if self._reader is None:
            nowhere: Any = None  # nothing is read from an engine
            vectors = await KeptVectors.of(MiniLmEncoder())
            self._reader = TextReader(nowhere, vectors, with_terms=False)
            self._reader.background = np.zeros((0, vectors.dimensions), dtype=np.float32)
        return self._reader
