"""Any encoder of :mod:`fairqr.retrieval.encoders` over a pool: the cosine of query and text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairqr.retrieval.encoders.encoder import Encoder, encode_documents, encode_query
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.pools.base import scores_of_spoken


class DensePoolRetriever:
    """Scores by the cosine, in [-1, 1]; 0 for a text without any word the encoder knows.

    Args:
        encoder: See :func:`fairqr.retrieval.encoders.opening.open_encoder`.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    @property
    def name(self) -> str:
        """``dense:`` and the name of the encoder."""
        return f"dense:{self._encoder.name}"

    async def start(self) -> None:
        """Encode a word, which loads everything needed.

        Raises:
            ModelUnavailableError: A package is missing.
            ModelError: The encoder failed.
        """
        await encode_documents(self._encoder, ["start"])

    async def scores(self, query: str, texts: Sequence[str]) -> FloatArray:
        """Return the scores, shape (n,); see :class:`fairqr.retrieval.pools.base.PoolRetriever`.

        Raises:
            ModelError: The encoder failed.
        """
        return await scores_of_spoken(query, texts, self._score)

    async def _score(self, query: str, texts: list[str]) -> FloatArray:
        vectors = await encode_documents(self._encoder, texts)
        wanted = await encode_query(self._encoder, query, vectors.shape[1])
        return np.asarray(vectors.astype(np.float64) @ wanted.astype(np.float64))
