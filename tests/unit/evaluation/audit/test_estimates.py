"""Figures over queries with weights, their intervals, and tests."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import optimize, stats

from fairqr.base.statistics import mean_interval, paired_randomisation
from fairqr.evaluation.audit.estimates import effective_queries, jackknifed, randomisation_p
from fairqr.retrieval.exposure import FloatArray


def mean(totals: FloatArray) -> FloatArray:
    return np.asarray(totals[..., 1:] / totals[..., :1])


def parts_of(values: FloatArray) -> FloatArray:
    return np.stack([np.ones(len(values)), values], axis=1)


VALUES = arrays(np.float64, st.integers(6, 30), elements=st.floats(-1, 1, width=16))


def ends(whole: float, others: Sequence[float], weights: FloatArray) -> tuple[float, float]:
    """Return the interval, term by term, by the jackknife, Student and Hall."""
    changes = np.array(others) - whole
    error = np.sqrt((changes**2).sum())
    effective = effective_queries(weights)
    quantile = stats.t.ppf(0.975, int(effective) - 1)
    influence = -changes * (weights.sum() - weights) / weights
    second, third = (np.average(influence**power, weights=weights) for power in (2, 3))
    small = np.sqrt(effective * (effective - 1)) / (effective - 2)
    skewness = small * third / second**1.5 * (weights**3).sum() / (weights**2).sum() ** 1.5

    def transformed(wanted: float) -> float:
        """Hall 1992, solved by search."""

        def less(t: float) -> float:
            cubic = t + skewness * t**2 / 3 + skewness**2 * t**3 / 27 + skewness / 6
            return float(cubic - wanted)

        return float(optimize.brentq(less, -1e6, 1e6, xtol=1e-12))

    low = max(quantile, transformed(quantile))
    high = min(-quantile, transformed(-quantile))
    return whole - error * low, whole - error * high


@given(VALUES)
def test_equal_weights_and_no_skewness_give_students_interval_a_little_wider(
    values: FloatArray,
) -> None:
    values = np.concatenate([values, -values])
    (found,) = jackknifed(parts_of(values), np.ones(len(values)), mean)
    assert found.value == pytest.approx(0, abs=1e-12)
    wanted = mean_interval(values)
    if wanted is None or np.isnan(found.low):
        return
    # (n/(n − 1))·s²/n in place of s²/n.
    ratio = (found.high - found.low) / (wanted.high - wanted.low)
    assert ratio == pytest.approx(np.sqrt(len(values) / (len(values) - 1)), rel=1e-5)


@given(VALUES)
def test_where_values_are_skewed_the_interval_is_wider_on_that_side(values: FloatArray) -> None:
    (found,) = jackknifed(parts_of(values), np.ones(len(values)), mean)
    wanted = mean_interval(values)
    if wanted is None or np.isnan(found.low):
        return
    assert found.low <= wanted.low
    assert wanted.high <= found.high
    skewness = float(stats.skew(values))
    below, above = found.value - found.low, found.high - found.value
    if abs(skewness) > 1e-3:
        assert (above - below) * np.sign(skewness) >= 0


def test_the_interval_of_a_weighted_mean_is_hc3_without_skewness() -> None:
    """MacKinnon & White (1985): Σ h²r²/(1 − h)², with the leverage h of each query."""
    random = np.random.default_rng(1)
    half = random.normal(size=20)
    values, weights = np.concatenate([half, -half]), np.tile(random.lognormal(size=20), 2)
    (found,) = jackknifed(parts_of(values), weights, mean)
    leverage = weights / weights.sum()
    centre = leverage @ values
    error = np.sqrt(((leverage * (values - centre) / (1 - leverage)) ** 2).sum())
    quantile = stats.t.ppf(0.975, int(effective_queries(weights)) - 1)
    assert found.value == pytest.approx(centre)
    assert found.high - found.value == pytest.approx(quantile * error, rel=1e-5)
    assert found.value - found.low == pytest.approx(quantile * error, rel=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_the_interval_of_a_ratio_is_that_of_the_ratios_without_each_query(seed: int) -> None:
    """By brute force, on the log scale."""
    random = np.random.default_rng(seed)
    above, below = random.exponential(1, 25), random.uniform(0.5, 2, 25)
    weights = random.uniform(0.5, 3, 25)

    def ratio(keep: list[int]) -> float:
        return float(weights[keep] @ above[keep] / (weights[keep] @ below[keep]))

    every = list(range(25))
    others = [np.log(ratio([i for i in every if i != left])) for left in every]
    wanted = np.exp(ends(np.log(ratio(every)), others, weights))
    parts = np.stack([above, below], axis=1)
    (found,) = jackknifed(parts, weights, lambda t: t[..., :1] / t[..., 1:], log=True)
    assert found.value == pytest.approx(ratio(every))
    assert (found.low, found.high) == pytest.approx(tuple(wanted), rel=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_intervals_of_a_group_that_is_seldom_seen_hold(weighted: bool) -> None:
    """Most queries have nothing of it; Student's interval alone holds in 907 and 826 of 1,000."""
    random = np.random.default_rng(7)
    truth, audits, held = 0.05, 1_000, 0
    for _ in range(audits):
        values = (random.random(100) < 0.2) * random.exponential(truth / 0.2, 100)
        weights = random.lognormal(size=100) if weighted else np.ones(100)
        (found,) = jackknifed(parts_of(values), weights, mean)
        held += found.low <= truth <= found.high
    assert held >= 935


@pytest.mark.parametrize("value", [0.1, 0.2982, 1.0])
def test_what_is_the_same_in_every_query_has_no_interval(value: float) -> None:
    # Sums of such numbers are rounded, so that figures without a query differ in the last digit.
    weights = np.random.default_rng(4).lognormal(size=57)
    parts = np.stack([np.ones(57), np.full(57, value)], axis=1)
    (found,) = jackknifed(parts, weights, lambda t: t[..., 1:] / t[..., :1])
    assert found.value == pytest.approx(value)
    assert np.isnan(found.low)
    assert np.isnan(found.high)


def test_weights_scale_and_equal_queries_can_be_split_into_clusters() -> None:
    random = np.random.default_rng(3)
    values, weights = random.normal(size=20), random.uniform(1, 9, 20)
    (once,) = jackknifed(parts_of(values), weights, mean)
    (scaled,) = jackknifed(parts_of(values), 1000 * weights, mean)
    assert (scaled.value, scaled.low, scaled.high) == pytest.approx(
        (once.value, once.low, once.high)
    )


@pytest.mark.parametrize(
    ("weights", "is_enough"),
    [
        (np.ones(5), False),
        (np.ones(6), True),
        (np.array([1000.0, *np.ones(30)]), False),
        (np.zeros(0), False),
    ],
)
def test_too_few_queries_tell_nothing(weights: FloatArray, is_enough: bool) -> None:
    values = np.random.default_rng(4).normal(size=len(weights))
    with np.errstate(invalid="ignore"):
        (found,) = jackknifed(parts_of(values), weights, mean)
    assert np.isfinite(found.low) == is_enough
    (p,) = randomisation_p(values[:, None], weights, np.random.default_rng(0))
    assert (p is not None) == is_enough


def test_p_is_that_of_all_assignments_of_signs() -> None:
    random = np.random.default_rng(5)
    values, weights = random.normal(0.4, 1, (9, 2)), random.uniform(0.5, 2, 9)
    found = randomisation_p(values, weights, random)
    for column in range(2):
        weighted = weights * values[:, column]
        sums = [abs(np.dot(s, weighted)) for s in itertools.product((1, -1), repeat=9)]
        wanted = np.mean([it >= abs(weighted.sum()) - 1e-12 for it in sums])
        assert found[column] == pytest.approx(wanted)


def test_p_of_many_queries_agrees_with_the_test_for_two_systems() -> None:
    values = np.random.default_rng(6).normal(0.15, 1, (200, 1))
    (found,) = randomisation_p(values, np.ones(200), np.random.default_rng(7))
    other = paired_randomisation(values[:, 0], np.random.default_rng(8))
    assert other is not None
    assert found == pytest.approx(other.p, abs=0.01)


def test_signs_are_fair_coins() -> None:
    """Half of the mass of a single query's sign is on each side."""
    values = np.zeros((40, 1))
    values[0] = 1.0
    weights = np.ones(40)
    (found,) = randomisation_p(values, weights, np.random.default_rng(9))
    assert found == 1.0
    leaning = np.linspace(0, 1, 40)[:, None]
    (sure,) = randomisation_p(leaning, weights, np.random.default_rng(9))
    assert sure is not None
    assert sure < 0.001
