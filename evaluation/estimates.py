"""Figures over queries with weights: their intervals, and tests that a mean is 0.

Each figure is a function of totals over queries, such as a mean or a ratio of two sums. Its
interval is a delete-one-query jackknife (Miller 1974) on a scale where the figure is symmetric: the
logit of a share, the logarithm of a ratio, and otherwise its own. The figure is computed again
without each query, and the changes c say how much it depends on which queries were asked. A query
is a cluster, so one that is asked a thousand times counts as one query with a weight of 1,000.

The spread √Σc² is multiplied by Student's quantile. Its degrees of freedom are one less than the
number of queries that say something: at most (Σw)²/Σw² of all queries (Kish 1965), at most those
that have something of the group, and at most 3(Σc²)²/Σc⁴, which is all of them for normal changes
and few where few queries make most of the spread.

- No share is less certain than if each query showed all or nothing, so its interval ends at the
  exact one of so many trials (Clopper & Pearson 1934). That is the whole interval if fewer than
  two queries have something of the group, or something else.
- Where all queries show the same, others may show anything. They are at most as frequent as what
  none of so many trials shows, and the interval ends where these show nothing, or all.
- The interval of a difference of two shares is made of theirs and the correlation of their changes
  (Zou & Donner 2008, "MOVER"), since the difference alone is skewed where one of them is small.

``python -m benchmarks.audit`` shows how often such intervals hold the true value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from fairqr.agents import statistics
from fairqr.base.extras import library
from fairqr.retrieval.fairness.exposure import FloatArray

if TYPE_CHECKING:
    from pandas import DataFrame, Series

special = library("scipy.special", "An evaluation")

LEVEL = 0.95
DIGITS = 12
"""How many significant digits numbers have in JSON and tables."""
NORMAL = 1.96
"""Half the width of a 95 % interval in deviations of the normal distribution."""

ROUNDING = 1e-12
ALIKE = 0.01
"""What differs by no more than this in all queries says little of how much it varies in others."""
POSSIBLE = 0.95
"""How many of the drawn figures must be possible, as a share."""

Statistic = Callable[[FloatArray], FloatArray]
"""Takes totals, shape (…, T), and returns figures, shape (…, M); NaN where one has no value."""

Scale = Literal["own", "log", "logit"]
_SCALES: Mapping[Scale, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "own": (np.asarray, np.asarray),
    "log": (np.log, np.exp),
    "logit": (special.logit, special.expit),
}


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure over queries.

    Attributes:
        value: NaN where there is none.
        low: The lower end of the 95 % interval; NaN where there are too few queries to tell, and
            the value itself where it is known and not a matter of chance.
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


def as_data(value: Any) -> Any:
    """Return figures for JSON: dataclasses by their fields, numbers rounded, and NaN as None."""
    if isinstance(value, float):
        return _rounded(value)
    if isinstance(value, Estimate):
        ends = [as_data(value.low), as_data(value.high)]
        return {
            "value": as_data(value.value),
            "queries": value.queries,
            "p": as_data(value.p),
            "interval": None if None in ends else ends,
        }
    if is_dataclass(value):
        return {field.name: as_data(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: as_data(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [as_data(part) for part in value]
    return value


def _rounded(number: float) -> float | None:
    """Return a number with few digits, and 0 without a sign; None if it is not finite."""
    if not math.isfinite(number):
        return None
    return float(f"{number:.{DIGITS}g}") + 0.0


def effective_queries(weights: FloatArray) -> FloatArray:
    """Return how many queries of equal weight tell as much, (Σw)²/Σw²; 0 without any weight.

    Args:
        weights: The weights of the queries, shape (n, …); the result has the shape (…).
    """
    return divided(weights.sum(axis=0) ** 2, (weights**2).sum(axis=0), otherwise=0.0)


def estimate(
    parts: FloatArray, weights: FloatArray, statistic: Statistic, **options: Any
) -> list[Estimate]:
    """Return M figures of weighted totals with their intervals.

    Args:
        parts: What each query adds to the totals, shape (n, T).
        weights: The weights of the queries, at least 0, shape (n,).
        statistic: Computes M figures from the totals.
        options: ``scale``, where the interval is computed: a ratio of 0, and a share of 0 or 1,
            have none. ``telling``, how many effective queries say something of each figure, if not
            all, shape (M,); below two there is no interval. ``comparisons``, with how many others a
            figure is compared at the same time (Bonferroni).
    """
    return _as_estimates(_jackknifed(parts, weights, statistic, **options), len(parts))


def from_deletions(
    value: float, without: Sequence[float], weights: FloatArray, scale: Scale = "own"
) -> Estimate:
    """Return a figure with its interval, from what it is without each query.

    Args:
        value: Over all queries.
        without: Over all but each, in their order, n values.
        weights: The weights of the queries, shape (n,).
        scale: Where the interval is computed.
    """
    deletions = np.array(without)[:, None]
    ends = _with_ends(np.array([value]), lambda: deletions, weights, scale)
    (estimate,) = _as_estimates(ends, len(weights))
    return estimate


def _jackknifed(
    parts: FloatArray, weights: FloatArray, statistic: Statistic, **options: Any
) -> FloatArray:
    """Return figures with the ends of their intervals, shape (3, M)."""
    weighted = weights[:, None] * parts
    totals = weighted.sum(axis=0)
    values = statistic(totals)
    return _with_ends(values, lambda: statistic(totals - weighted), weights, **options)


def _with_ends(
    values: FloatArray,
    without: Callable[[], FloatArray],
    weights: FloatArray,
    scale: Scale = "own",
    telling: FloatArray | float = np.inf,
    comparisons: int = 1,
) -> FloatArray:
    """Return figures with the ends of their intervals, shape (3, M).

    Args:
        values: The figures, shape (M,).
        without: Returns them without each query, shape (n, M).
        weights: The weights of the queries, shape (n,).
        scale: See :func:`estimate`, as for the others.
        telling: How many effective queries say something of each.
        comparisons: With how many others a figure is compared.
    """
    effective = float(effective_queries(weights))
    if statistics.too_few(int(effective), 1 - LEVEL):
        return np.array([values, values * np.nan, values * np.nan])
    # A query whose weight is nearly all leaves no rest to compare with: NaN.
    to_scale, from_scale = _SCALES[scale]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        whole = to_scale(values)
        changes = to_scale(without()) - whole
        square = (changes**2).sum(axis=0)
        fourth = (changes**4).sum(axis=0)
        freedom = 3 * divided(square**2, fourth, otherwise=np.inf)
        freedom = np.minimum(np.minimum(telling, effective), freedom) - 1
        enough = np.where(np.isfinite(square) & (freedom >= 1), freedom, np.nan)
        level = 1 - (1 - LEVEL) / comparisons
        half = np.sqrt(square) * special.stdtrit(enough, (1 + level) / 2)
        # What no query changes, but for rounding, says nothing of its spread.
        half = np.where(half <= ROUNDING * (1 + np.abs(whole)), np.nan, half)
        return np.array([values, from_scale(whole - half), from_scale(whole + half)])


def _as_estimates(ends: FloatArray, queries: int) -> list[Estimate]:
    """Return figures and their ends, shape (3, M), as estimates.

    Machines add in different orders, which shows in the last digits; nothing goes by these.
    """
    figures = ends.round(10).T.tolist()
    return [Estimate(value, low, high, queries) for value, low, high in figures]


def means(values: FloatArray, weights: FloatArray) -> list[Estimate]:
    """Return the weighted mean of each column with its interval on its own scale.

    Args:
        values: Shape (n, M).
        weights: The weights of the queries, shape (n,).
    """
    return _as_estimates(_ratio(values, np.ones_like(values), weights), len(values))


def shares(above: FloatArray, below: FloatArray, weights: FloatArray) -> list[Estimate]:
    """Return Σ above / Σ below of each column with its interval.

    Args:
        above: From 0 to ``below``, shape (n, M).
        below: What ``above`` is part of, shape (n, M).
        weights: The weights of the queries, shape (n,).
    """
    return _as_estimates(_shares(above, below, weights), len(above))


def _shares(above: FloatArray, below: FloatArray, weights: FloatArray) -> FloatArray:
    """Return shares with the ends of their intervals, shape (3, M)."""
    has_rest = below - above > ROUNDING * below
    counted = np.stack([above > 0, has_rest, below], axis=1)
    with_some, with_rest, trials = effective_queries(weights[:, None, None] * counted)
    telling = np.minimum(with_some, with_rest)
    value, low, high = _ratio(above, below, weights, scale="logit", telling=telling)
    if statistics.too_few(int(effective_queries(weights)), 1 - LEVEL):
        trials = trials * np.nan
    least, most = statistics.exact_ends(value * trials, trials, LEVEL)
    shares_of_queries = divided(above, below)
    highest = np.nanmax(shares_of_queries, axis=0, initial=0)
    lowest = np.nanmin(shares_of_queries, axis=0, initial=1)
    is_constant = highest - lowest <= ALIKE
    low, high = np.where(
        is_constant,
        _of_all_alike(value, trials, 0.0),
        [np.fmax(low, least), np.fmin(high, most)],
    )
    return np.array([value, low, high])


def ratios(above: FloatArray, below: FloatArray, weights: FloatArray) -> list[Estimate]:
    """Return Σ above / Σ below of each column with its interval, both above 0, shape (n, M)."""
    return _as_estimates(_ratio(above, below, weights, scale="log"), len(above))


def differences(
    first: FloatArray, second: FloatArray, weights: FloatArray, *, is_known: bool = False
) -> list[Estimate]:
    """Return the mean of first − second of each column with its interval.

    Args:
        first: Shares from 0 to 1, shape (n, M).
        second: The same.
        weights: The weights of the queries, shape (n,).
        is_known: Whether ``first`` is the same in all other queries, too.
    """
    if not len(first):
        return means(first, weights)
    value_1, low_1, high_1 = _shares(first, np.ones_like(first), weights)
    value_2, low_2, high_2 = _shares(second, np.ones_like(second), weights)
    if is_known:
        low_1 = value_1
        high_1 = value_1
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = (weights / (weights.sum() - weights))[:, None]
        changes_1 = scale * (value_1 - first)
        changes_2 = scale * (value_2 - second)
        product = np.sqrt((changes_1**2).sum(axis=0) * (changes_2**2).sum(axis=0))
        correlation = divided((changes_1 * changes_2).sum(axis=0), product, otherwise=0.0)
    value = value_1 - value_2
    below_1 = np.abs(low_1 - value_1)
    above_1 = np.abs(high_1 - value_1)
    below_2 = np.abs(low_2 - value_2)
    above_2 = np.abs(high_2 - value_2)
    low = value - np.sqrt(below_1**2 + above_2**2 - 2 * correlation * below_1 * above_2)
    high = value + np.sqrt(above_1**2 + below_2**2 - 2 * correlation * above_1 * below_2)
    # Both may change from query to query, and their difference be the same in all.
    is_alike = (np.ptp(first - second, axis=0) <= ALIKE) & ~np.isnan(low) & (not is_known)
    alike = _of_all_alike(value, effective_queries(weights), -1.0)
    low, high = np.where(is_alike, alike, [low, high])
    return _as_estimates(np.array([value, low, high]), len(first))


def _ratio(above: FloatArray, below: FloatArray, weights: FloatArray, **options: Any) -> FloatArray:
    """Return Σ above / Σ below of each column with the ends of its interval, shape (3, M)."""
    size = above.shape[1]
    parts = np.concatenate([above, below], axis=1)

    def quotients(totals: FloatArray) -> FloatArray:
        return divided(totals[..., :size], totals[..., size:])

    return _jackknifed(parts, weights, quotients, **options)


def divided(above: FloatArray, below: FloatArray, *, otherwise: float = np.nan) -> FloatArray:
    """Return above / below; ``otherwise`` where below is 0."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(below > 0, above / below, otherwise)


def _of_all_alike(value: FloatArray, trials: FloatArray, least: float) -> FloatArray:
    """Return the ends of the interval of what is the same in all queries, shape (2, M).

    Args:
        value: In each of them, shape (M,).
        trials: How many queries there are.
        least: What it can be at least; at most it is 1.
    """
    rate_of_others = statistics.exact_ends(np.zeros_like(value), trials, LEVEL)[1]
    low = value - rate_of_others * (value - least)
    high = value + rate_of_others * (1 - value)
    return np.array([low, high])


def wider_by(estimate: Estimate, ends: Sequence[float], *, is_ratio: bool = False) -> Estimate:
    """Return a figure with an interval that also holds another error, which has these ends.

    Errors are independent, so their squares add up; those of a ratio on the scale of its logarithm.
    """
    if math.isnan(estimate.low):
        return estimate
    numbers = np.array([estimate.value, estimate.low, estimate.high, *ends])
    with np.errstate(divide="ignore", invalid="ignore"):
        if is_ratio:
            numbers = np.log(np.maximum(numbers, 0.0))
        value, low, high, least, most = numbers
        new_ends = np.array(
            [
                value - np.hypot(value - low, max(value - least, 0.0)),
                value + np.hypot(high - value, max(most - value, 0.0)),
            ]
        )
    if is_ratio:
        new_ends = np.exp(new_ends)
    low, high = new_ends.tolist()
    return replace(estimate, low=low, high=high)


def wider_by_spread(estimate: Estimate, error: float) -> Estimate:
    """Return a figure with an interval that also holds chance of this half width."""
    return wider_by(estimate, (estimate.value - error, estimate.value + error))


def wider_by_bias(estimate: Estimate, bias: float) -> Estimate:
    """Return a figure with an interval that also holds a bias of at most so much.

    A bias is the same in all queries, so it does not even out. Each end lies so far off that with
    the bias at its worst, 95 of 100 intervals hold the true value (Armstrong & Kolesár 2018): by
    the root of a quantile of the noncentral χ² distribution, in standard errors.
    """
    if math.isnan(estimate.low) or not bias:
        return estimate
    widths = np.array([estimate.value - estimate.low, estimate.high - estimate.value])
    errors = np.maximum(widths / NORMAL, bias / 1_000)
    below, above = errors * np.sqrt(special.chndtrix(LEVEL, 1, (bias / errors) ** 2))
    low = estimate.value - float(below)
    high = estimate.value + float(above)
    return replace(estimate, low=low, high=high)


def middle_of(drawn: FloatArray) -> list[list[float]]:
    """Return the ends of the middle 95 % of drawn figures, shape (draws, M), as M pairs.

    A draw in which a group has nothing of what its figure is a share of (NaN) is impossible, since
    the group was seen, and says nothing. Where there are many, the figure may be anything. To leave
    it out would leave those in where chance makes a group look larger than it is.
    """
    is_possible = np.isfinite(drawn).mean(axis=0) >= POSSIBLE
    possible = drawn[:, is_possible]
    quantiles = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    # Where nothing is missing, the other function does the same, many times as fast.
    quantile = np.nanquantile if np.isnan(possible).any() else np.quantile
    ends = np.full((2, drawn.shape[1]), [[-np.inf], [np.inf]])
    ends[:, is_possible] = quantile(possible, quantiles, axis=0)
    return ends.T.tolist()


def p_of_means(
    values: FloatArray, weights: FloatArray, random: np.random.Generator, tests: int = 1
) -> list[float | None]:
    """Test that weighted means are 0, by the paired randomisation test.

    Args:
        values: Shape (n, M).
        weights: Shape (n,).
        random: Draws the signs.
        tests: For how many tests p values will be corrected.

    Returns:
        Two-sided p values, uncorrected; None if there are too few queries for any to reach .05 when
        it is corrected.
    """
    if statistics.too_few(int(effective_queries(weights)), (1 - LEVEL) / tests):
        return [None] * values.shape[1]
    # The smallest p value that can be drawn has to be far below that, too.
    draws = max(statistics.PERMUTATIONS, 200 * tests)
    return [*statistics.randomisation_p(weights[:, None] * values, random, draws).tolist()]


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
    interval = statistics.mean_interval(defined)
    mean = float(defined.mean()) if defined.size else np.nan
    low = interval.low if interval else np.nan
    high = interval.high if interval else np.nan
    return mean, low, high, defined.size


def means_by(values: Series, count: str) -> DataFrame:
    """Return the mean of the values of each key, the ends of its interval, and their number.

    Args:
        values: Indexed by the keys.
        count: The name of the column with their number.
    """
    import pandas as pd

    keys = values.index.names
    groups = values.groupby(level=keys, sort=False, observed=True)
    rows = [(*key, *mean_with_ends(own)) for key, own in groups]
    return pd.DataFrame(rows, columns=[*keys, "mean", "low", "high", count]).set_index(keys)
