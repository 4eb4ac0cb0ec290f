"""Figures over queries with weights: their intervals, and tests that a mean is 0.

Each figure is a function of totals over queries, such as a mean or a ratio of two sums. Its
interval is a delete-one-query jackknife (Miller 1974): the figure is computed again without each
query, and the spread of these values says how much it depends on which queries were asked. A query
is a cluster, so one that is asked a thousand times counts as one query with a weight of 1,000.

For a weighted mean this is the heteroscedasticity-consistent variance HC3 (MacKinnon & White 1985).
Student's quantile is taken at n − 1 degrees of freedom, where n = (Σw)²/Σw² is the number of
queries with equal weights that would tell as much (Kish 1965).

Where few queries make most of a figure, as for a small group that is seldom seen, this interval
misses on one side. Hall's transformation (1992, JRSS B 54, 221-228) takes the skewness out, but
estimates it from the same few queries. Each end is the wider one of the two.
``benchmarks/audit.py`` shows how often such intervals hold the true value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from fairqr.base.statistics import student_quantile, too_few
from fairqr.retrieval.exposure import FloatArray

LEVEL = 0.95
PERMUTATIONS = 20_000
EXACT_UP_TO = 14
ROUNDING = 1e-12
NEXT_TO_NO_SKEWNESS = 1e-6
CELLS_AT_ONCE = 1 << 22
"""So many signs are drawn at a time; what is drawn depends on it."""
CELLS_IN_CACHE = 1 << 17
"""So many signs as numbers fit into the cache of a processor."""

Statistic = Callable[[FloatArray], FloatArray]
"""Takes totals, shape (…, T), and returns figures, shape (…, M); NaN where one has no value."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure over queries.

    Attributes:
        value: NaN where there is none.
        low: The lower end of the 95 % interval; NaN where there are too few queries to tell.
        high: The upper end.
        queries: How many queries it is over.
        p: The p value of the test that it is 0, corrected for all tests of the audit; None if
            there was no test.
    """

    value: float
    low: float
    high: float
    queries: int
    p: float | None = None


def effective_queries(weights: FloatArray) -> float:
    """Return how many queries of equal weight tell as much, (Σw)²/Σw²; 0 without any weight."""
    square = float(weights @ weights)
    return float(weights.sum()) ** 2 / square if square else 0.0


def jackknifed(
    parts: FloatArray, weights: FloatArray, statistic: Statistic, *, log: bool = False
) -> list[Estimate]:
    """Return figures of weighted totals with their intervals.

    Args:
        parts: What each query adds to the totals, shape (n, T).
        weights: Of the queries, at least 0, shape (n,).
        statistic: Computes M figures from the totals.
        log: Whether the intervals are computed on the logarithms, as for ratios; a figure of 0 has
            no interval then.

    Returns:
        M figures.
    """
    weighted = weights[:, None] * parts
    totals = weighted.sum(axis=0)
    values = statistic(totals)
    effective = effective_queries(weights)
    ends = np.full((2, len(values)), np.nan)
    if not too_few(int(effective), 1 - LEVEL):
        # A query whose weight is nearly all leaves no rest to compare with: NaN.
        with np.errstate(divide="ignore", invalid="ignore"):
            whole = np.log(values) if log else values
            others = statistic(totals - weighted)
            others = np.log(others) if log else others
            changes = others - whole
            spread = np.sqrt((changes**2).sum(axis=0))
            quantile = student_quantile(LEVEL, max(1, int(effective) - 1))
            skewness = _skewness(changes, weights, effective)
            ends = np.stack(
                [
                    whole - spread * np.maximum(quantile, _transformed(quantile, skewness)),
                    whole - spread * np.minimum(-quantile, _transformed(-quantile, skewness)),
                ]
            )
            ends = np.exp(ends) if log else ends
        # What no query changes, but for rounding, says nothing of its spread.
        is_same = spread <= ROUNDING * (1 + np.abs(whole))
        ends[:, ~np.isfinite(spread) | is_same] = np.nan
    return [
        Estimate(float(value), float(low), float(high), len(parts))
        for value, low, high in zip(values, *ends, strict=True)
    ]


def _skewness(changes: FloatArray, weights: FloatArray, effective: float) -> FloatArray:
    """Return the skewness of figures over samples of as many queries with such weights.

    Without query i a weighted mean μ of values v changes by wᵢ(μ − vᵢ)/(Σw − wᵢ). This gives vᵢ − μ
    and, for other figures, the influence of a query in its place. The skewness of the influences is
    estimated; the part of the weights, Σw³/(Σw²)^1.5, is known.

    Args:
        changes: Of the figures without each query, shape (n, M).
        weights: Of the queries, shape (n,).
        effective: How many queries of equal weight tell as much; above 2.
    """
    asked = weights > 0
    weight = weights[asked, None]
    influence = -changes[asked] * (weights.sum() - weight) / weight
    share = weight / weight.sum()
    second, third = ((share * influence**power).sum(axis=0) for power in (2, 3))
    of_values = third / second**1.5 * np.sqrt(effective * (effective - 1)) / (effective - 2)
    return np.asarray(of_values * (weight**3).sum() / (weight**2).sum() ** 1.5)


def _transformed(quantile: float, skewness: FloatArray) -> FloatArray:
    """Return the quantile of a mean over its standard error where the mean is skewed.

    Solves t + γt²/3 + γ²t³/27 + γ/6 = quantile for t (Hall 1992).
    """
    # With a skewness near 0 this would be 0 / 0, and the quantile is what it tends to.
    safe = np.where(np.abs(skewness) < NEXT_TO_NO_SKEWNESS, NEXT_TO_NO_SKEWNESS, skewness)
    return np.asarray(3 / safe * (np.cbrt(1 + safe * (quantile - safe / 6)) - 1))


def means(values: FloatArray, weights: FloatArray, *, log: bool = False) -> list[Estimate]:
    """Return the weighted mean of each column with its interval.

    Args:
        values: Shape (n, M).
        weights: Of the queries, shape (n,).
        log: As :func:`jackknifed` takes it.
    """
    parts = np.concatenate([np.ones((len(values), 1)), values], axis=1)
    return jackknifed(parts, weights, lambda t: divided(t[..., 1:], t[..., :1]), log=log)


def ratios(above: FloatArray, below: FloatArray, weights: FloatArray) -> list[Estimate]:
    """Return Σ above / Σ below of each column with its interval, both of shape (n, M)."""
    size = above.shape[1]
    parts = np.concatenate([above, below], axis=1)
    return jackknifed(parts, weights, lambda t: divided(t[..., :size], t[..., size:]))


def shares(parts: FloatArray, weights: FloatArray) -> list[Estimate]:
    """Return what each column makes of the total of all columns, shape (n, M)."""
    return jackknifed(parts, weights, lambda t: divided(t, t.sum(axis=-1, keepdims=True)))


def divided(above: FloatArray, below: FloatArray) -> FloatArray:
    """Return above / below; NaN where below is 0."""
    wide = np.broadcast_to(below, above.shape)
    return np.asarray(np.divide(above, wide, out=np.full(above.shape, np.nan), where=wide > 0))


def most_unseen(weights: FloatArray) -> float:
    """Return the upper end of a mean that is 0 in every query, where no spread can be seen.

    A mean μ of numbers from 0 to 1 lets at most 1 − μ of the queries show 0, so that n of n do
    with a probability of at most (1 − μ)ⁿ. At 95 % the end is 1 − .025^(1/n), as for no success in
    n trials (Clopper & Pearson 1934). By symmetry this is the distance from 1 where all show 1.

    Args:
        weights: Of the queries, shape (n,).

    Returns:
        NaN if there are too few queries to tell.
    """
    effective = effective_queries(weights)
    if too_few(int(effective), 1 - LEVEL):
        return float("nan")
    return float(1 - ((1 - LEVEL) / 2) ** (1 / effective))


def within(estimate: Estimate, least: float, greatest: float) -> Estimate:
    """Cut an interval off at the ends of what the figure can be."""
    low, high = (float(np.clip(end, least, greatest)) for end in (estimate.low, estimate.high))
    return replace(estimate, low=low, high=high)


def randomisation_p(
    values: FloatArray, weights: FloatArray, random: np.random.Generator
) -> list[float | None]:
    """Test that weighted means are 0, by the paired randomisation test.

    If the values of a query were as likely to be the other way round, the sign of each would be a
    coin's (Smucker, Allan & Carterette 2007). The same signs are drawn for all columns. Up to 14
    queries all assignments are counted, beyond that 20,000 are drawn.

    Args:
        values: Shape (n, M).
        weights: Shape (n,).
        random: Draws the signs.

    Returns:
        Two-sided p values, uncorrected; None if there are too few queries for any to reach .05.
    """
    if too_few(int(effective_queries(weights)), 1 - LEVEL):
        return [None] * values.shape[1]
    weighted = weights[:, None] * values
    # Equal sums differ by rounding.
    observed = np.abs(weighted.sum(axis=0)) - 1e-12 * np.abs(weighted).sum(axis=0)
    count = len(weighted)
    if count <= EXACT_UP_TO:
        signs = 1.0 - 2 * ((np.arange(1 << count)[:, None] >> np.arange(count)) & 1)
        return _listed((np.abs(signs @ weighted) >= observed).mean(axis=0))
    as_far = np.ones(values.shape[1])
    rows = max(1, CELLS_AT_ONCE // count)
    for start in range(0, PERMUTATIONS, rows):
        size = (min(rows, PERMUTATIONS - start), count)
        # Bits are drawn eight at a time.
        drawn = random.integers(0, 256, (size[0], -(-count // 8)), dtype=np.uint8)
        for block in np.array_split(drawn, -(-drawn.size * 8 // CELLS_IN_CACHE)):
            signs = 1.0 - 2.0 * np.unpackbits(block, axis=1, count=count)
            as_far += (np.abs(signs @ weighted) >= observed).sum(axis=0)
    return _listed(as_far / (PERMUTATIONS + 1))


def _listed(values: FloatArray) -> list[float | None]:
    return [float(value) for value in values]
