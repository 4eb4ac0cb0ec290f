"""SPLADE over a pool: a text is weights over the vocabulary, most of them 0.

Formal et al. (2021), SPLADE v2, with max pooling: the weight of vocabulary term j in a text is the
maximum of ln(1 + max(0, logit of j at token t)) over its tokens t. The logits come from a masked
language model; special tokens count, padding does not.
"""

from __future__ import annotations

from typing import Any

from fairqr.retrieval.pools.encoding import NeuralPoolRetriever

DEFAULT_SPLADE = "naver/splade_v2_max"


class SpladePoolRetriever(NeuralPoolRetriever):
    """The dot product of the term weights of query and text; 0 or more."""

    kind = "splade"
    loader = "AutoModelForMaskedLM"
    # Each token has a logit for each of some 30,000 terms: 250 MB for these.
    tokens_at_once = 2048

    def __init__(self, model: str = DEFAULT_SPLADE) -> None:
        super().__init__(model)

    @staticmethod
    def vectors(output: Any, mask: Any) -> Any:
        """Return the weights of the vocabulary's terms."""
        # The logarithm is increasing, so we take the maximum first and the logarithm of fewer
        # values.
        masked = output.logits.masked_fill(mask.unsqueeze(-1) == 0, float("-inf"))
        return masked.max(dim=1).values.clamp(min=0).log1p()
