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
    square = (changes**2).sum()
    fourth = (changes**4).sum()
    freedom = min(telling - 1, 3 * square**2 / fourth - 1)
    return float(stats.t.ppf(0.975, freedom) * np.sqrt(square))


@pytest.mark.parametrize("seed", range(5))
def test_the_interval_of_a_weighted_mean_is_hc3(seed: int) -> None:
    """MacKinnon & White (1985): Σ h²r²/(1 − h)², with the leverage h of each query."""
    random = np.random.default_rng(seed)
    values = random.normal(size=40)
    weights = random.lognormal(size=40)
    (estimate,) = estimates.estimate(parts_of(values), weights, mean)
    leverage = weights / weights.sum()
    centre = leverage @ values
    changes = leverage * (centre - values) / (1 - leverage)
    expected = half_width(changes, float(estimates.effective_queries(weights)))

    assert estimate.value == pytest.approx(centre)
    assert estimate.high - estimate.value == pytest.approx(expected)
    assert estimate.value - estimate.low == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(5))
def test_the_interval_of_a_ratio_is_that_of_a_jackknife(seed: int) -> None:
    """Computed by brute force, on the log scale: the ratios without each query."""
    random = np.random.default_rng(seed)
    above = random.exponential(1, (25, 1))
    below = random.uniform(0.5, 2, (25, 1))
    weights = random.uniform(0.5, 3, 25)

    def ratio(keep: list[int]) -> float:
        return (weights[keep] @ above[keep] / (weights[keep] @ below[keep])).item()

    numbers = list(range(25))
    remaining_ratios = [ratio([i for i in numbers if i != number]) for number in numbers]
    changes = np.log(remaining_ratios) - np.log(ratio(numbers))
    wide = np.exp(half_width(changes, float(estimates.effective_queries(weights))))
    (estimate,) = estimates.ratios(above, below, weights)
    assert estimate.value == pytest.approx(ratio(numbers))
    assert (estimate.low, estimate.high) == pytest.approx(
        (estimate.value / wide, estimate.value * wide)
    )


@given(arrays(np.float64, st.tuples(st.integers(6, 30), st.just(3)), elements=st.floats(0, 1)))
def test_no_share_is_less_certain_than_of_trials(
    values: FloatArray,
) -> None:
    weights = np.linspace(1, 2, len(values))
    trials = float(estimates.effective_queries(weights))
    for estimate in estimates.shares(values, np.ones_like(values), weights):
        if np.isnan(estimate.low):
            continue
        count = estimate.value * trials
        low = np.nan_to_num(stats.beta.ppf(0.025, count, trials - count + 1))
        high = np.nan_to_num(stats.beta.ppf(0.975, count + 1, trials - count), nan=1.0)
        assert low - 1e-9 <= estimate.low <= estimate.value + 1e-9
        assert estimate.value - 1e-9 <= estimate.high <= high + 1e-9


@given(
    arrays(np.float64, st.tuples(st.integers(8, 20), st.just(2)), elements=st.floats(0, 1)),
    arrays(np.float64, st.tuples(st.integers(8, 20), st.just(2)), elements=st.floats(0, 1)),
)
def test_differences_turn_around(one: FloatArray, other: FloatArray) -> None:
    size = min(len(one), len(other))
    one = one[:size]
    other = other[:size]
    weights = np.linspace(1, 3, size)
    sides = estimates.differences(one, other, weights), estimates.differences(other, one, weights)
    for estimate, turned in zip(*sides, strict=True):
        ends = (-turned.value, -turned.high, -turned.low)
        assert (estimate.value, estimate.low, estimate.high) == pytest.approx(ends, nan_ok=True)
        assert (
            np.isnan(estimate.low)
            or -1 - 1e-9 <= estimate.low <= estimate.value <= estimate.high <= 1 + 1e-9
        )


def test_a_difference_from_a_certain_share_keeps_the_interval() -> None:
    random = np.random.default_rng(2)
    values = random.random((30, 1))
    weights = random.lognormal(size=30)
    (share,) = estimates.shares(values, np.ones_like(values), weights)

    (estimate,) = estimates.differences(np.full_like(values, 0.5), values, weights, is_known=True)

    assert (estimate.low, estimate.high) == pytest.approx((0.5 - share.high, 0.5 - share.low))


@pytest.mark.parametrize(
    ("weights", "is_enough"),
    [
        pytest.param(np.ones(6), True, id="six"),
        pytest.param(np.ones(5), False, id="five"),
        pytest.param(np.array([1000.0, *np.ones(30)]), False, id="one that outweighs all"),
        pytest.param(np.zeros(0), False, id="none"),
    ],
)
def test_too_few_queries_tell_nothing(weights: FloatArray, is_enough: bool) -> None:
    values = np.random.default_rng(4).normal(size=len(weights))

    with np.errstate(invalid="ignore"):
        (estimate,) = estimates.estimate(parts_of(values), weights, mean)
    (p,) = estimates.p_of_means(values[:, None], weights, np.random.default_rng(0))

    assert np.isfinite(estimate.low) == is_enough
    assert (p is not None) == is_enough


def test_p_is_that_of_all_assignments_of_signs() -> None:
    random = np.random.default_rng(5)
    values = random.normal(0.4, 1, (9, 2))
    weights = random.uniform(0.5, 2, 9)
    p_values = estimates.p_of_means(values, weights, random)
    for column in range(2):
        weighted = weights * values[:, column]
        sums = [abs(np.dot(s, weighted)) for s in itertools.product((1, -1), repeat=9)]
        expected = np.mean([total >= abs(weighted.sum()) - 1e-12 for total in sums])
        assert p_values[column] == pytest.approx(expected)


@pytest.mark.promise("audit")
@pytest.mark.parametrize("bias", [0.0, 0.3, 1.0, 4.0, 1e7])
def test_an_interval_holds_the_worst_bias(bias: float) -> None:
    """A bias of the estimate accuses nobody more often than chance may.

    Of errors with the deviation 1 around the bias, 95 of 100 are within its half width.
    """
    estimate = estimates.wider_by_bias(estimates.Estimate(0.5, 0.5 - 1.96, 0.5 + 1.96, 30), bias)
    half = estimate.high - estimate.value
    assert half == pytest.approx(estimate.value - estimate.low)
    within = special.ndtr(half - bias) - special.ndtr(-half - bias)
    assert within >= 0.95 - 1e-4
    assert bias > 1_000 or within == pytest.approx(0.95, abs=1e-4)
