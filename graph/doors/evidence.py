"""How likely the documents of a given list are relevant, by its order and their texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fairqr.base.weights import is_pulled
from fairqr.retrieval.encoders.encoder import KeptVectors
from fairqr.retrieval.encoders.minilm import MiniLmEncoder
from fairqr.retrieval.engines.engine import Hits
from fairqr.retrieval.engines.hybrid.texts import LONGEST, RANKED, TextReader
from fairqr.retrieval.fairness.relevance import CALIBRATED, POOL, rank_evidence
from fairqr.retrieval.texts.sendable import sendable


class ListEvidence:
    """Estimates relevance as a search does that encodes what an engine finds.

    There are no other documents to compare with, so a similarity counts by what is usual for
    MiniLM. It is loaded when it is first needed, and no text is encoded twice.
    """

    def __init__(self) -> None:
        self._texts: TextReader | None = None

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
        if self._texts is None:
            nowhere: Any = None  # nothing is read from an engine
            vectors = await KeptVectors.of(MiniLmEncoder())
            self._texts = TextReader(nowhere, vectors, with_terms=False)
            self._texts.background = np.zeros((0, vectors.dimensions), dtype=np.float32)
        made_by = self._texts.vectors
        rows = await made_by.encode([sendable(text)[:LONGEST] for text in texts[:POOL]])
        asked = await made_by.encode_query(sendable(query))
        similar = np.zeros(len(hits))
        similar[: len(rows)] = self._texts.likeness(asked, rows, (range(len(rows)), rows))
        ranks = rank_evidence(hits.ids, hits.ids[:RANKED])
        return replace(hits, relevance=CALIBRATED.rank.probability(ranks, similar))
