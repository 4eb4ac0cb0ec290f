"""How likely the documents of a given list are relevant, by its order and their texts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fairqr.base.errors import ModelError
from fairqr.base.weights import is_pulled
from fairqr.retrieval.encoders.encoder import Float32Array, KeptVectors
from fairqr.retrieval.encoders.minilm import MiniLmEncoder
from fairqr.retrieval.engines.engine import Hits
from fairqr.retrieval.engines.hybrid.texts import LONGEST, RANKED, TextReader
from fairqr.retrieval.fairness.relevance import CALIBRATED, POOL, rank_evidence
from fairqr.retrieval.texts.sendable import sendable

WAITING, AT_ONCE = 5_000, 8
"""How many texts may wait to be encoded, and how many are encoded before others have a turn."""


class ListEvidence:
    """Estimates relevance as a search does that encodes what an engine finds.

    There are no other documents to compare with, so a similarity counts by what is usual for
    MiniLM. It is loaded when it is first needed, and no text is encoded twice.
    """

    def __init__(self) -> None:
        self._texts: TextReader | None = None
        self._waiting: dict[str, None] = {}
        self._encoding: asyncio.Task[None] | None = None

    async def estimated(self, query: str, texts: Sequence[str], hits: Hits) -> Hits:
        """Return a list with the probability that each document is relevant, if that can be told.

        Args:
            query: What was searched for.
            texts: The texts of its documents; only the first 200 are read.
            hits: The list, best first.

        Raises:
            ModelError: The encoder failed.
        """
        if not any(text.strip() for text in texts) or not is_pulled(MiniLmEncoder.name):
            return hits
        reader = await self.opened()
        rows = await reader.vectors.encode([_read(text) for text in texts[:POOL]])
        asked = await reader.vectors.encode_query(_read(query))
        return _estimated(reader, asked, rows, hits)

    async def known(self, query: str, texts: Sequence[str], hits: Hits) -> Hits:
        """Do the same by vectors that are kept; without them, encode what is missing afterwards."""
        words = [_read(text) for text in (query, *texts[:POOL])]
        if not query.strip() or not any(words[1:]) or not is_pulled(MiniLmEncoder.name):
            return hits
        reader = await self.opened()
        found = await reader.vectors.kept(words)
        missing = [text for text, it in zip(words, found, strict=True) if it is None]
        vectors = [it for it in found if it is not None]
        if not missing:
            return _estimated(reader, vectors[0], np.array(vectors[1:]), hits)
        self._waiting |= dict.fromkeys(missing[: max(0, WAITING - len(self._waiting))])
        if self._encoding is None or self._encoding.done():
            self._encoding = asyncio.create_task(self._encode(reader))
        return hits

    async def opened(self) -> TextReader:
        """Load the encoder, if it is not yet there."""
        if self._texts is None:
            nowhere: Any = None  # nothing is read from an engine
            vectors = await KeptVectors.of(MiniLmEncoder())
            self._texts = TextReader(nowhere, vectors, with_terms=False)
            self._texts.background = np.zeros((0, vectors.dimensions), dtype=np.float32)
        return self._texts

    async def _encode(self, reader: TextReader) -> None:
        while self._waiting:
            some = [*self._waiting][:AT_ONCE]
            try:
                await reader.vectors.encode(some)
            except ModelError:
                self._waiting.clear()
            for text in some:
                self._waiting.pop(text, None)


def _read(text: str) -> str:
    return sendable(text)[:LONGEST]


def _estimated(reader: TextReader, asked: Float32Array, rows: Float32Array, hits: Hits) -> Hits:
    similar = np.zeros(len(hits))
    similar[: len(rows)] = reader.likeness(asked, rows, (range(len(rows)), rows))
    ranks = rank_evidence(hits.ids, hits.ids[:RANKED])
    return replace(hits, relevance=CALIBRATED.rank.probability(ranks, similar))
