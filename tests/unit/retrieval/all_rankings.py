"""All rankings of a small pool, and how good they are by the definition of J."""

from __future__ import annotations

import functools
import itertools

import numpy as np
from numpy.typing import NDArray

from fairqr.retrieval.fairness.exposure import LOG2, FloatArray
from fairqr.retrieval.fairness.objective import RankingObjective, fairness


@functools.cache
def permutations(n: int, length: int) -> NDArray[np.intp]:
    """All rankings of so many of n documents."""
    return np.array(list(itertools.permutations(range(n), length)))


def values_of(
    pool: RankingObjective, rankings: NDArray[np.intp]
) -> tuple[FloatArray, NDArray[np.intp]]:
    """J of rankings, and how many attributes of each are undefined."""
    weights = LOG2.weights(pool.length)
    # The first ranks alone count in a prefix.
    counts = sorted({*(min(count, pool.length) for count in pool.spread), pool.length})
    given = [
        np.einsum("r,mrg->gm", np.where(np.arange(pool.length) < count, weights, 0), own[rankings])
        for count in counts
        for own in pool.memberships
    ]
    times = len(counts)
    fair, undefined = fairness(given, [*pool.targets] * times, pool.shares * times, pool.sharpness)
    if np.isinf(pool.power):
        return fair, undefined
    most = weights @ np.sort(pool.relevance)[::-1][: pool.length]
    expected = pool.relevance[rankings] @ weights / most if most else np.ones(len(rankings))
    return np.asarray(expected * fair**pool.power), undefined
