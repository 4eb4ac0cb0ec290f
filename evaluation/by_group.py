"""Who gets seen: the exposure of each group beside its share of the relevant documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fairqr.agents.statistics import Interval, student_quantile, too_few
from fairqr.evaluation.batch import Batch
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import FloatArray, exposure
from fairqr.retrieval.fairness.target import Target

LEVEL = 0.95
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class GroupShare:
    """The exposure of a group beside its share of the relevant documents.

    Attributes:
        attribute: The attribute.
        group: The group.
        exposure: Its mean share of the exposure in the first k ranks, by the discount ``log2``.
        relevant: Its mean share of the relevant documents.
        ratio: Exposure / relevant: above 1 the group gets more than its share. Optional.
        low: The lower end of the ratio's 95 % interval; optional, as with few queries.
        high: The upper end.
        queries: Over how many queries: those with a known group among the ranked documents and
            among the relevant ones.
    """

    attribute: str
    group: str
    exposure: float
    relevant: float
    ratio: float | None
    low: float | None
    high: float | None
    queries: int


def exposed_and_relevant(
    batch: Batch, dimension: Dimension, k: int | None
) -> tuple[FloatArray, FloatArray]:
    """Return the shares of each group in the exposure of a query and among its relevant documents.

    Two arrays of shape (n, G), over the n queries that have both.
    """
    gained = exposure(batch.memberships(dimension, k))
    means, counts = batch.means(gained, gained.any(axis=1))
    relevant, without = batch.targets(dimension, Target(parts={"relevance": 1.0}))
    both = [place for place in np.flatnonzero(counts).tolist() if place not in without]
    return means[both], relevant[both]


def group_shares(
    dimension: Dimension, parts: Sequence[tuple[FloatArray, FloatArray]]
) -> list[GroupShare]:
    """Return the shares of each group over all queries; none if no query has both.

    Args:
        dimension: The groups.
        parts: Of :func:`exposed_and_relevant`, for batches of the queries.
    """
    exposures, relevant = map(np.concatenate, zip(*parts, strict=True))
    found = []
    for group, seen, due in zip(dimension.groups, exposures.T, relevant.T, strict=True):
        if not len(seen):
            continue
        share, mean, interval = float(due.mean()), float(seen.mean()), ratio_interval(seen, due)
        ratio = mean / share if share else None
        low, high = (interval.low, interval.high) if interval else (None, None)
        found.append(GroupShare(dimension.name, group, mean, share, ratio, low, high, len(seen)))
    return found


def ratio_interval(numerators: ArrayLike, denominators: ArrayLike) -> Interval | None:
    """Return the interval of a ratio of two means over the same queries (Fieller 1954).

    Args:
        numerators: One for each query, shape (n,).
        denominators: The same.

    Returns:
        The interval, or None if there are too few values, if the ratio is the same for all queries,
        or if the mean of the denominators may be 0: the interval is then unbounded.
    """
    above, below = (np.asarray(v, dtype=np.float64) for v in (numerators, denominators))
    if too_few(above.size, 1 - LEVEL):
        return None
    covariance = np.cov(above, below) / above.size
    square = student_quantile(LEVEL, above.size - 1) ** 2
    # The ratios ρ with (mean(above) − ρ·mean(below))² ≤ t²·variance(above − ρ·below).
    a = float(below.mean() ** 2 - square * covariance[1, 1])
    b = float(above.mean() * below.mean() - square * covariance[0, 1])
    c = float(above.mean() ** 2 - square * covariance[0, 0])
    if a <= 0:
        return None
    half = float(np.sqrt(max(0.0, b * b - a * c)))
    if half < ROUNDING:
        return None
    return Interval((b - half) / a, (b + half) / a, LEVEL)
