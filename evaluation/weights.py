"""The weights of ranks, kept for those who ask for the same ones for every query."""

from __future__ import annotations

from functools import lru_cache

from fairqr.retrieval.exposure import Discount, FloatArray

__all__ = ["rank_weights"]

KEPT = 1 << 16


def rank_weights(discount: Discount, n: int) -> FloatArray:
    """Return the weights of ranks 1 to n, shape (n,); not to be written to."""
    return _kept(discount, n) if n <= KEPT else discount.weights(n)


@lru_cache(maxsize=128)
def _kept(discount: Discount, n: int) -> FloatArray:
    weights = discount.weights(n)
    weights.flags.writeable = False
    return weights
