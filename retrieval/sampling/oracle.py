"""The policy that knows what is useful: all useful items first, in random order otherwise."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairqr.base.errors import InputError
from fairqr.retrieval.sampling.plackett_luce import PlackettLuce

__all__ = ["sample_oracle"]


def sample_oracle(
    useful: ArrayLike, samples: int, k: int, stream: np.random.Generator
) -> NDArray[np.intp]:
    """Draw rankings uniformly from the m!(n−m)! orders that put the m useful of n items first.

    Its exposure is the target of expected exposure, so each ranking has the highest EE-R ("Towards
    Fair RAG", Kim & Diaz 2024). With m = 0 and m = n all orders are drawn from.

    Args:
        useful: Shape (n,), true for the useful items.
        samples: N, how many rankings to draw.
        k: The cut-off.
        stream: Where the random numbers come from.

    Returns:
        Shape (N, min(k, n)): in each row the positions of the items, best first.

    Raises:
        InputError: There is no item, or N or k is below 1.
    """
    labels = np.asarray(useful, dtype=bool)
    if labels.ndim != 1 or not labels.size:
        raise InputError("There is nothing to rank: give a list with a label for each item.")
    # Items of zero mass follow all others, uniformly among themselves.
    policy = PlackettLuce.from_log_weights(np.where(labels, 0.0, -np.inf))
    return policy.sample(samples, k, stream)
