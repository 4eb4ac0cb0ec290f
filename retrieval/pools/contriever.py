"""Contriever over a pool: a text is the mean of its tokens' vectors.

Izacard et al. (2022): the last hidden states of the tokens, the special ones included and padding
not, are averaged; the score is the dot product, not the cosine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairqr.neural import Pretrained
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.pools.base import scores_of_spoken
from fairqr.retrieval.pools.encoding import dot_products, load_whole

__all__ = ["DEFAULT_CONTRIEVER", "ContrieverPoolRetriever"]

DEFAULT_CONTRIEVER = "facebook/contriever"
TOKENS_AT_ONCE = 8192


class ContrieverPoolRetriever:
    """The dot product of the mean token vectors of query and text; may be negative.

    Args:
        model: A hub id or a folder of an encoder. What it does not take of a text, for the default
            the part beyond 512 tokens, is not read.
    """

    def __init__(self, model: str = DEFAULT_CONTRIEVER) -> None:
        self._model = model

    @property
    def name(self) -> str:
        """``contriever:`` and the model."""
        return f"contriever:{self._model}"

    async def start(self) -> None:
        """Load the model.

        Raises:
            ModelUnavailableError: The extra ``neural`` is missing, or there is no such model.
        """
        await self._pretrained()

    async def scores(self, query: str, texts: Sequence[str]) -> FloatArray:
        """Return the scores, shape (n,); see :class:`fairqr.retrieval.pools.base.PoolRetriever`."""
        return await scores_of_spoken(query, texts, self._score)

    async def _pretrained(self) -> Pretrained:
        return await load_whole("AutoModel", self._model)

    async def _score(self, query: str, texts: list[str]) -> FloatArray:
        pretrained = await self._pretrained()
        return await pretrained.run(
            lambda: dot_products(pretrained, query, texts, _mean_vectors, TOKENS_AT_ONCE)
        )


def _mean_vectors(output: Any, mask: Any) -> Any:
    present = mask.unsqueeze(-1).to(output.last_hidden_state.dtype)
    return (output.last_hidden_state * present).sum(dim=1) / present.sum(dim=1)
