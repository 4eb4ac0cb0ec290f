"""Figures over queries with weights, their intervals, and tests."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import special, stats

from fairqr.evaluation import estimates
from fairqr.retrieval.fairness.exposure import FloatArray


def mean(totals: FloatArray) -> FloatArray:
    return np.asarray(totals[..., 1:] / totals[..., :1])


def parts_of(values: FloatArray) -> FloatArray:
    return np.stack([np.ones(len(values)), values], axis=1)


def half_width(changes: FloatArray, telling: float) -> float:
    """Return it term by term: Student's quantile at what the changes tell, times their spread."""
    square, fourth = (changes**2).sum(), (changes**4).sum()
    freedom = min(telling - 1, 3 * square**2 / fourth - 1)
    return float(stats.t.ppf(0.975, freedom) * np.sqrt(square))


@pytest.mark.parametrize("seed", range(5))
def test_the_interval_of_a_weighted_mean_is_hc3(seed: int) -> None:
    """MacKinnon & White (1985): Σ h²r²/(1 − h)², with the leverage h of each query."""
    random = np.random.default_rng(seed)
    values, weights = random.normal(size=40), random.lognormal(size=40)
    (found,) = estimates.estimate(parts_of(values), weights, mean)
    leverage = weights / weights.sum()
    centre = leverage @ values
    changes = leverage * (centre - values) / (1 - leverage)
    wanted = half_width(changes, float(estimates.effective_queries(weights)))
    assert found.value == pytest.approx(centre)
    assert found.high - found.value == pytest.approx(wanted)
    assert found.value - found.low == pytest.approx(wanted)


@pytest.mark.parametrize("seed", range(5))
def test_the_interval_of_a_ratio_is_that_of_a_jackknife(seed: int) -> None:
    """By brute force, on the log scale."""
    random = np.random.default_rng(seed)
    above, below = random.exponential(1, (25, 1)), random.uniform(0.5, 2, (25, 1))
    weights = random.uniform(0.5, 3, 25)

    def ratio(keep: list[int]) -> float:
        return (weights[keep] @ above[keep] / (weights[keep] @ below[keep])).item()

    every = list(range(25))
    others = [ratio([i for i in every if i != left]) for left in every]
    changes = np.log(others) - np.log(ratio(every))
    wide = np.exp(half_width(changes, float(estimates.effective_queries(weights))))
    (found,) = estimates.ratios(above, below, weights)
    assert found.value == pytest.approx(ratio(every))
    assert (found.low, found.high) == pytest.approx((found.value / wide, found.value * wide))


@given(arrays(np.float64, st.tuples(st.integers(6, 30), st.just(3)), elements=st.floats(0, 1)))
def test_no_share_is_less_certain_than_of_trials(
    values: FloatArray,
) -> None:
    weights = np.linspace(1, 2, len(values))
    trials = float(estimates.effective_queries(weights))
    for it in estimates.shares(values, np.ones_like(values), weights):
        if np.isnan(it.low):
            continue
        count = it.value * trials
        low = np.nan_to_num(stats.beta.ppf(0.025, count, trials - count + 1))
        high = np.nan_to_num(stats.beta.ppf(0.975, count + 1, trials - count), nan=1.0)
        assert low - 1e-9 <= it.low <= it.value + 1e-9
        assert it.value - 1e-9 <= it.high <= high + 1e-9


@given(
    arrays(np.float64, st.tuples(st.integers(8, 20), st.just(2)), elements=st.floats(0, 1)),
    arrays(np.float64, st.tuples(st.integers(8, 20), st.just(2)), elements=st.floats(0, 1)),
)
def test_differences_turn_around(one: FloatArray, other: FloatArray) -> None:
    size = min(len(one), len(other))
    one, other, weights = one[:size], other[:size], np.linspace(1, 3, size)
    sides = estimates.differences(one, other, weights), estimates.differences(other, one, weights)
    for it, turned in zip(*sides, strict=True):
        ends = (-turned.value, -turned.high, -turned.low)
        assert (it.value, it.low, it.high) == pytest.approx(ends, nan_ok=True)
        assert np.isnan(it.low) or -1 - 1e-9 <= it.low <= it.value <= it.high <= 1 + 1e-9


def test_a_difference_from_a_certain_share_keeps_the_interval() -> None:
    random = np.random.default_rng(2)
    values, weights = random.random((30, 1)), random.lognormal(size=30)
    (share,) = estimates.shares(values, np.ones_like(values), weights)
    (found,) = estimates.differences(np.full_like(values, 0.5), values, weights, is_known=True)
    assert (found.low, found.high) == pytest.approx((0.5 - share.high, 0.5 - share.low))


def test_too_few_queries_tell_nothing() -> None:
    few = np.ones(5), np.array([1000.0, *np.ones(30)]), np.zeros(0)
    for weights in (np.ones(6), *few):
        values = np.random.default_rng(4).normal(size=len(weights))
        with np.errstate(invalid="ignore"):
            (found,) = estimates.estimate(parts_of(values), weights, mean)
        (p,) = estimates.p_of_means(values[:, None], weights, np.random.default_rng(0))
        assert np.isfinite(found.low) == (p is not None) == (len(weights) == 6)


def test_p_is_that_of_all_assignments_of_signs() -> None:
    random = np.random.default_rng(5)
    values, weights = random.normal(0.4, 1, (9, 2)), random.uniform(0.5, 2, 9)
    found = estimates.p_of_means(values, weights, random)
    for column in range(2):
        weighted = weights * values[:, column]
        sums = [abs(np.dot(s, weighted)) for s in itertools.product((1, -1), repeat=9)]
        wanted = np.mean([it >= abs(weighted.sum()) - 1e-12 for it in sums])
        assert found[column] == pytest.approx(wanted)


@pytest.mark.promise("audit")
@pytest.mark.parametrize("bias", [0.0, 0.3, 1.0, 4.0, 1e7])
def test_an_interval_holds_the_worst_bias(bias: float) -> None:
    """A bias of the estimate accuses nobody more often than chance may.

    Of errors with the deviation 1 around the bias, 95 of 100 are within its half width.
    """
    found = estimates.wider_by_bias(estimates.Estimate(0.5, 0.5 - 1.96, 0.5 + 1.96, 30), bias)
    half = found.high - found.value
    assert half == pytest.approx(found.value - found.low)
    within = special.ndtr(half - bias) - special.ndtr(-half - bias)
    assert within >= 0.95 - 1e-4
    assert bias > 1_000 or within == pytest.approx(0.95, abs=1e-4)
