"""Intervals and tests over queries.

All functions take one value or difference per query, and treat the queries as a sample of those
that could be asked. Random numbers come from a generator that is passed in.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairqr.base.errors import InputError, one_line

FloatArray = NDArray[np.float64]

PERMUTATIONS = 20_000
EXACT_UP_TO = 16
ROUNDING = 1e-12
CELLS_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval, of a mean unless stated otherwise.

    Attributes:
        low: Its lower end.
        high: Its upper end.
        level: How often such intervals contain the true value, such as .95.
    """

    low: float
    high: float
    level: float


@dataclass(frozen=True, slots=True)
class Randomisation:
    """The outcome of a paired randomisation test.

    Attributes:
        p: The two-sided p value.
        exact: Whether all assignments of signs were counted; otherwise some were drawn.
        assignments: How many were counted.
    """

    p: float
    exact: bool
    assignments: int


def stream(seed: int, name: str) -> np.random.Generator:
    """Return a generator for a name; its numbers do not depend on what else is drawn.

    Raises:
        InputError: The seed is not a whole number of 0 or more.
    """
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(f"A seed must be a whole number of 0 or more, not {one_line(seed, 60)}.")
    digest = hashlib.sha256(name.encode()).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])


def mean_interval(values: ArrayLike, *, level: float = 0.95) -> Interval | None:
    """Return Student's interval of a mean.

    A percentile bootstrap would be too narrow for few queries: with five, it contains the true mean
    in about 80 % of all cases instead of 95 %.

    Args:
        values: One for each query, shape (n,).
        level: In (0, 1).

    Returns:
        The interval, or None if there are too few values (see :func:`too_few`) or all are equal:
        their spread is then unknown.

    Raises:
        InputError: The level is out of range.
    """
    check_level(level)
    sample = np.asarray(values, dtype=np.float64)
    if too_few(sample.size, 1 - level) or not np.ptp(sample) > 0:
        return None
    half = student_quantile(level, sample.size - 1) * sample.std(ddof=1) / np.sqrt(sample.size)
    mean = sample.mean()
    return Interval(float(mean - half), float(mean + half), level)


def mean_with_ends(values: ArrayLike) -> tuple[float, float, float, int]:
    """Return the mean of the values that are not NaN, and the ends of its 95% interval.

    Args:
        values: One for each query, shape (n,).

    Returns:
        The mean, the lower and the upper end, and the number of values. The mean is NaN without
        values, and the ends are NaN if :func:`mean_interval` returns None.
    """
    sample = np.asarray(values, dtype=np.float64)
    defined = sample[~np.isnan(sample)]
    interval = mean_interval(defined)
    ends = (interval.low, interval.high) if interval else (np.nan, np.nan)
    return float(defined.mean()) if defined.size else np.nan, *ends, defined.size


def ratio_interval(
    numerators: ArrayLike, denominators: ArrayLike, *, level: float = 0.95
) -> Interval | None:
    """Return the interval of a ratio of two means over the same queries (Fieller 1954).

    Args:
        numerators: One for each query, shape (n,).
        denominators: The same.
        level: In (0, 1).

    Returns:
        The interval, or None if there are too few values, if the ratio is the same for all queries,
        or if the mean of the denominators may be 0: the interval is then unbounded.
    """
    check_level(level)
    above, below = (np.asarray(v, dtype=np.float64) for v in (numerators, denominators))
    if too_few(above.size, 1 - level):
        return None
    covariance = np.cov(above, below) / above.size
    square = student_quantile(level, above.size - 1) ** 2
    # The ratios ρ with (mean(above) − ρ·mean(below))² ≤ t²·variance(above − ρ·below).
    a = float(below.mean() ** 2 - square * covariance[1, 1])
    b = float(above.mean() * below.mean() - square * covariance[0, 1])
    c = float(above.mean() ** 2 - square * covariance[0, 0])
    if a <= 0:
        return None
    half = float(np.sqrt(max(0.0, b * b - a * c)))
    if half < ROUNDING:
        return None
    return Interval((b - half) / a, (b + half) / a, level)


def too_few(count: int, alpha: float) -> bool:
    """Return whether this number of queries is too small to show anything at the level ``alpha``.

    The smallest p value of an exact randomisation test is 2/2^n: below 6 queries it never reaches
    5 %. We give intervals only where a test could be significant. Among m tests, Holm's correction
    needs a p value of alpha/m.
    """
    return count < 2 or 2.0 ** (1 - count) > alpha


@functools.lru_cache(maxsize=1024)
def student_quantile(level: float, freedom: int) -> float:
    """Return t with P(|T| ≤ t) = level for Student's distribution, by bisection.

    Args:
        level: In (0, 1).
        freedom: The degrees of freedom, at least 1.
    """
    low, high = 0.0, np.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        if _student_within(middle, freedom) < level:
            low = middle
        else:
            high = middle
    return float(np.tan(low) * np.sqrt(freedom))


def _student_within(angle: float, freedom: int) -> float:
    """Return P(|T| ≤ tan(angle)·√freedom); Abramowitz & Stegun (1964), 26.7.3 and 26.7.4."""
    sine, square = np.sin(angle), np.cos(angle) ** 2
    if freedom % 2:
        steps = np.arange(2, freedom - 1, 2)
        terms = np.cumprod(np.concatenate(([1.0], steps / (steps + 1) * square)))
        total = sine * np.cos(angle) * terms.sum() if freedom > 1 else 0.0
        return float(2 / np.pi * (angle + total))
    steps = np.arange(1, freedom - 2, 2)
    return float(sine * np.cumprod(np.concatenate(([1.0], steps / (steps + 1) * square))).sum())


def sums_ratio_interval(
    above: ArrayLike, below: ArrayLike, *, level: float = 0.95
) -> Interval | None:
    """Return the interval of a ratio of two positive sums over clusters, Σ above / Σ below.

    Clusters are, for instance, queries with several pairs each. It is Student's interval of the
    linearised logarithm of the ratio. In simulations it held the true ratio in 92 to 97 of 100
    cases from 6 clusters on, where a percentile bootstrap held it in 84 to 87.

    Args:
        above: One for each cluster, at least 0, shape (n,).
        below: The same.
        level: In (0, 1).

    Returns:
        The interval, or None if a sum is 0, or as :func:`mean_interval` returns None for the
        clusters that are not 0 in both.
    """
    one, other = (np.asarray(values, dtype=np.float64) for values in (above, below))
    counted = one + other > 0
    one, other = one[counted], other[counted]
    if not one.any() or not other.any():
        return None
    shifts = one.size * (one / one.sum() - other / other.sum())
    # Rounded, because clusters with the same ratio say nothing about its spread.
    found = mean_interval(np.log(one.sum() / other.sum()) + shifts.round(12), level=level)
    return found and replace(found, low=np.exp(found.low), high=np.exp(found.high))


def share_interval(counts: ArrayLike, totals: ArrayLike, *, level: float = 0.95) -> Interval | None:
    """Return the interval of a share over clusters, Σ counts / Σ totals.

    Its ends are those of :func:`sums_ratio_interval` for the odds.

    Args:
        counts: One for each cluster, shape (n,).
        totals: The same, each at least the count.
        level: In (0, 1).

    Returns:
        The interval, or None as for the odds; so it is for a share of 0 or 1.
    """
    counted = np.asarray(counts)
    odds = sums_ratio_interval(counted, np.asarray(totals) - counted, level=level)
    return odds and replace(odds, low=odds.low / (1 + odds.low), high=odds.high / (1 + odds.high))


def paired_t(differences: ArrayLike) -> float | None:
    """Return the two-sided p value of Student's paired t test that the mean difference is 0.

    Args:
        differences: One for each query, shape (n,).

    Returns:
        The p value: 1 if all differences are 0; None for fewer than two differences, or if all are
        equal and not 0, since the test is then undefined.
    """
    sample = np.asarray(differences, dtype=np.float64)
    if sample.size < 2:
        return None
    if not sample.any():
        return 1.0
    spread = float(sample.std(ddof=1))
    if spread <= 1e-12 * float(np.abs(sample).max()):
        return None
    freedom = sample.size - 1
    t = abs(float(sample.mean())) / (spread / np.sqrt(sample.size))
    return max(0.0, 1 - _student_within(float(np.arctan(t / np.sqrt(freedom))), freedom))


def paired_randomisation(
    differences: ArrayLike,
    random: np.random.Generator,
    *,
    permutations: int = PERMUTATIONS,
) -> Randomisation | None:
    """Return the paired randomisation test (Fisher; Smucker, Allan & Carterette 2007).

    If the two systems were alike, a coin could decide the sign of each difference. p is the share
    of sign assignments with a mean at least as far from 0 as the observed one. Up to 16 queries,
    all 2^n assignments are counted. Beyond that, some are drawn, and the observed one is counted
    among them, so that p is never 0.

    Args:
        differences: One for each query, shape (n,).
        random: Draws the signs.
        permutations: How many assignments are drawn.

    Returns:
        The test, or None without differences.
    """
    sample = np.asarray(differences, dtype=np.float64)
    if not sample.size:
        return None
    (p,) = randomisation_p(sample[:, None], random, permutations).tolist()
    exact = sample.size <= EXACT_UP_TO
    return Randomisation(p, exact, 1 << sample.size if exact else permutations + 1)


def randomisation_p(
    differences: FloatArray, random: np.random.Generator, permutations: int = PERMUTATIONS
) -> FloatArray:
    """Return the p value of :func:`paired_randomisation` for each column, by the same signs.

    Args:
        differences: Shape (n, M); n is at least 1.
        random: Draws the signs.
        permutations: How many assignments are drawn.
    """
    # Sums that are equal may differ by rounding.
    observed = np.abs(differences.sum(axis=0)) - 1e-12 * np.abs(differences).sum(axis=0)
    size = len(differences)
    if size <= EXACT_UP_TO:
        negative = (np.arange(1 << size)[:, None] >> np.arange(size)) & 1
        return np.asarray((_sums(differences, negative) >= observed).mean(axis=0))
    as_far = np.ones(differences.shape[1])
    for rows in _chunks(permutations, size):
        negative = random.integers(0, 2, (rows, size), dtype=np.int8)
        as_far += (_sums(differences, negative) >= observed).sum(axis=0)
    return as_far / (permutations + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values corrected for the number of tests (Holm 1979), in the same order.

    The chance that any true hypothesis is rejected at α is at most α, even for dependent tests.
    """
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    corrected = [0.0] * len(p_values)
    highest = 0.0
    for done, place in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - done) * p_values[place]))
        corrected[place] = highest
    return corrected


def corrected_by_holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Correct the p values that are not None, by :func:`holm`; the others stay None."""
    there = iter(holm([p for p in p_values if p is not None]))
    return [None if p is None else next(there) for p in p_values]


def check_level(level: float, of: str = "an interval", usual: str = "0.95") -> None:
    """Check that a level is a number between 0 and 1.

    Raises:
        InputError: It is not.
    """
    if not isinstance(level, int | float) or not 0 < level < 1:
        raise InputError(
            f"The level of {of} is between 0 and 1, such as {usual}, not {one_line(level, 60)}."
        )


def p_in_words(p: float | None) -> str:
    """Return a p value as text: ``p = 0.012``, ``p < 0.001``, or ``p has no value``."""
    if p is None:
        return "p has no value"
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def _sums(sample: FloatArray, negative: ArrayLike) -> FloatArray:
    """Return |Σ ±difference| of each column for each row of 0 and 1, where 1 flips the sign."""
    return np.asarray(np.abs(sample.sum(axis=0) - 2 * (np.asarray(negative) @ sample)))


def _chunks(rows: int, columns: int) -> list[int]:
    """Split rows into pieces that fit in the processor's cache."""
    size = max(1, CELLS_AT_ONCE // columns)
    return [min(size, rows - start) for start in range(0, rows, size)]
