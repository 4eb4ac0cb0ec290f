"""SPLADE over a pool: a text is weights over the vocabulary, most of them 0.

Formal et al. (2021), SPLADE v2, with max pooling: the weight of vocabulary term j in a text is the
greatest of ln(1 + max(0, logit of j at token t)) over its tokens t. The logits are those of a
masked language model; the special tokens count, padding does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairqr.neural import Pretrained
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.pools.base import scores_of_spoken
from fairqr.retrieval.pools.encoding import dot_products, load_whole

__all__ = ["DEFAULT_SPLADE", "SpladePoolRetriever"]

DEFAULT_SPLADE = "naver/splade_v2_max"
TOKENS_AT_ONCE = 2048
"""Each token has a logit for each of some 30,000 terms: 250 MB for these."""


class SpladePoolRetriever:
    """The dot product of the term weights of query and text; 0 or more.

    Args:
        model: A hub id or a folder of a masked language model. What it does not take of a text, for
            the default the part beyond 512 tokens, is not read.
    """

    def __init__(self, model: str = DEFAULT_SPLADE) -> None:
        self._model = model

    @property
    def name(self) -> str:
        """``splade:`` and the model."""
        return f"splade:{self._model}"

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
        return await load_whole("AutoModelForMaskedLM", self._model)

    async def _score(self, query: str, texts: list[str]) -> FloatArray:
        pretrained = await self._pretrained()
        return await pretrained.run(
            lambda: dot_products(pretrained, query, texts, _term_weights, TOKENS_AT_ONCE)
        )


def _term_weights(output: Any, mask: Any) -> Any:
    # The logarithm grows with its argument, so the maximum may be taken before it, of fewer values.
    masked = output.logits.masked_fill(mask.unsqueeze(-1) == 0, float("-inf"))
    return masked.max(dim=1).values.clamp(min=0).log1p()
