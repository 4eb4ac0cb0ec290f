"""The policy that knows what is useful: it ranks useful items first, otherwise at random."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairqr.base.errors import InputError
from fairqr.retrieval.sampling.plackett_luce import PlackettLuce


def sample_oracle(
    useful: ArrayLike, samples: int, k: int, stream: np.random.Generator
) -> NDArray[np.intp]:
    """Draw rankings uniformly from the m!(n−m)! orders that put the m useful of n items first.

    Its exposure is the target of expected exposure, so each ranking has the highest EE-R ("Towards
    Fair RAG", Kim & Diaz 2024). With m = 0 or m = n, all orders are equally likely.

    Args:
        useful: True for the useful items, shape (n,).
        samples: N, how many rankings to draw.
        k: The cut-off.
        stream: The source of random numbers.

    Returns:
        The positions of the items in each row, best first, shape (N, min(k, n)).

    Raises:
        InputError: There are no items, or N or k is below 1.
    """
    labels = np.asarray(useful, dtype=bool)
    if labels.ndim != 1 or not labels.size:
        raise InputError("There is nothing to rank: give a list with a label for each item.")
    # Items without mass follow all others, uniformly among themselves.
    policy = PlackettLuce.from_log_weights(np.where(labels, 0.0, -np.inf))
    return policy.sample(samples, k, stream)
