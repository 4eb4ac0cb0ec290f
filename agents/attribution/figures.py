"""The figures of a check: the area under the ROC curve, and how sure a share is."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["area_under_curve", "share_interval"]

RESAMPLES = 10_000
LEVEL = 0.95


def area_under_curve(labels: ArrayLike, scores: ArrayLike) -> float | None:
    """Return the area under the ROC curve (Hanley and McNeil 1982), by the ranks of the scores.

    It is the probability that a random positive has a greater score than a random negative, where
    equal scores count half.

    Args:
        labels: True for positives, shape (n,).
        scores: Finite, shape (n,).

    Returns:
        In [0, 1]; None where one class is missing.
    """
    positive = np.asarray(labels, dtype=bool)
    values: NDArray[np.float64] = np.asarray(scores, dtype=np.float64)
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not ones or not zeros:
        return None
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]  # equal values share their mean rank
    return float((ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def share_interval(right: int, number: int, random: np.random.Generator) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of a share (Efron 1979).

    Drawing ``number`` outcomes with replacement makes the number of right ones binomial, so that is
    drawn at once. The interval of 0 or of 1 has no width, which is too narrow for few pairs.

    Args:
        right: How many outcomes are right.
        number: Of all; positive.
        random: Draws the resamples.
    """
    shares = random.binomial(number, right / number, RESAMPLES) / number
    low, high = np.quantile(shares, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
