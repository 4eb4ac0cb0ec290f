"""Contriever over a pool: a text is the mean of its tokens' vectors.

As in Izacard et al. (2022), we average the last hidden states of the tokens, including special
tokens but not padding; the score is the dot product, not the cosine.
"""

from __future__ import annotations

from typing import Any

from fairqr.retrieval.pools.encoding import NeuralPoolRetriever

DEFAULT_CONTRIEVER = "facebook/contriever"


class ContrieverPoolRetriever(NeuralPoolRetriever):
    """The dot product of the mean token vectors of query and text; may be negative."""

    kind = "contriever"
    loader = "AutoModel"
    tokens_at_once = 8192

    def __init__(self, model: str = DEFAULT_CONTRIEVER) -> None:
        super().__init__(model)

    @staticmethod
    def vectors(output: Any, mask: Any) -> Any:
        """Return the means over all tokens except padding."""
        present = mask.unsqueeze(-1).to(output.last_hidden_state.dtype)
        return (output.last_hidden_state * present).sum(dim=1) / present.sum(dim=1)
