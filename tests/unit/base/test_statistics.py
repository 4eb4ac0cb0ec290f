"""Intervals and tests: against scipy, against counting by hand, and for what they promise."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fairqr.base.statistics import (
    holm,
    mean_interval,
    paired_randomisation,
    paired_t,
    ratio_interval,
    share_interval,
    stream,
    student_quantile,
    sums_ratio_interval,
    too_few,
)

differences = st.lists(st.floats(-1, 1).map(lambda x: round(x, 3)), min_size=2, max_size=8)


@settings(max_examples=40)
@given(differences)
def test_the_t_test_is_that_of_scipy(sample: list[float]) -> None:
    ours = paired_t(sample)
    if len(set(sample)) == 1:
        assert ours == (1.0 if sample[0] == 0 else None)
        return
    theirs = stats.ttest_rel(sample, np.zeros(len(sample))).pvalue
    assert ours == pytest.approx(theirs)


@settings(max_examples=40)
@given(differences)
def test_the_randomisation_test_counts_all_signs(sample: list[float]) -> None:
    observed = abs(sum(sample))
    signs = list(itertools.product((1, -1), repeat=len(sample)))
    sums = [abs(sum(s * d for s, d in zip(sign, sample, strict=True))) for sign in signs]
    expected = sum(total >= observed - 1e-9 for total in sums) / len(signs)
    found = paired_randomisation(sample, np.random.default_rng(0))
    assert found is not None
    assert found.exact
    assert found.assignments == len(signs)
    assert found.p == pytest.approx(expected)


def test_the_randomisation_test_of_scipy_agrees_where_signs_are_drawn() -> None:
    """20 queries: beyond those that are counted in full."""
    sample = np.random.default_rng(4).normal(0.3, 1, 20)
    found = paired_randomisation(sample, np.random.default_rng(0))
    assert found is not None
    assert not found.exact
    theirs = stats.permutation_test(
        (sample,),
        lambda x, axis: x.sum(axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=20_000,
        rng=np.random.default_rng(1),
    ).pvalue
    assert found.p == pytest.approx(theirs, abs=0.015)


def test_a_drawn_p_value_is_never_zero() -> None:
    found = paired_randomisation(np.ones(40), np.random.default_rng(0), permutations=99)
    assert found is not None
    assert found.p == pytest.approx(1 / 100)


def test_alike_systems_differ_by_chance_only() -> None:
    """Under the null hypothesis both tests reject at 5% in about 5% of all cases."""
    random = np.random.default_rng(8)
    samples = random.normal(0, 1, (400, 12))
    t = [paired_t(sample) for sample in samples]
    signs = [paired_randomisation(sample, random) for sample in samples]
    # Two standard errors of a share of .05 over 400 are .022.
    assert np.mean([p is not None and p <= 0.05 for p in t]) == pytest.approx(0.05, abs=0.025)
    rejected = np.mean([found is not None and found.p <= 0.05 for found in signs])
    assert rejected == pytest.approx(0.05, abs=0.025)


SKEWED = {
    "nDCG": (lambda random, n: random.beta(0.8, 1.2, n), 0.4),
    "AP": (lambda random, n: random.beta(0.5, 2, n), 0.2),
    "AWRF": (lambda random, n: random.beta(30, 2, n), 30 / 32),
    "differences": (lambda random, n: random.laplace(0, 1, n), 0.0),
}


@pytest.mark.parametrize("shape", SKEWED)
@pytest.mark.parametrize(("count", "least"), [(6, 0.88), (10, 0.90), (50, 0.93)])
def test_the_interval_holds_the_true_mean_about_as_often_as_it_says(
    shape: str, count: int, least: float
) -> None:
    """By simulation, of values shaped as those of measures; a percentile bootstrap has .80 at 6."""
    draw, mean = SKEWED[shape]
    random = np.random.default_rng(6)
    held = 0
    for _ in range(2_000):
        interval = mean_interval(draw(random, count))
        assert interval is not None
        held += interval.low <= mean <= interval.high
    assert least <= held / 2_000 <= 0.98


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 10, 31, 200, 2001])
@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.999])
def test_the_quantile_is_that_of_scipy(freedom: int, level: float) -> None:
    theirs = stats.t.ppf((1 + level) / 2, freedom)
    assert student_quantile(level, freedom) == pytest.approx(theirs, rel=1e-9)


def test_the_interval_is_that_of_scipy() -> None:
    sample = np.random.default_rng(7).normal(size=50)
    theirs = stats.ttest_1samp(sample, 0).confidence_interval(0.9)
    ours = mean_interval(sample, level=0.9)
    assert ours is not None
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))
    assert ours.level == 0.9


def test_there_is_an_interval_only_where_a_test_can_decide() -> None:
    """Five queries never differ at 5 % by a randomisation test, nor do they have an interval."""
    values = [0.1, 0.2, 0.3, 0.4, 0.6, 0.7]
    random = np.random.default_rng(0)
    for count in range(7):
        tested = paired_randomisation(np.ones(count), random)
        assert too_few(count, 0.05) == (tested is None or tested.p > 0.05)
        assert (mean_interval(values[:count]) is None) == too_few(count, 0.05)
        assert (ratio_interval(values[:count], values[::-1][:count]) is None) == (count < 6)
    assert mean_interval([0.5] * 20) is None


def test_the_interval_of_a_ratio_of_means_holds_the_true_one() -> None:
    """Fieller's, by simulation: a group gets twice its share, from queries of different sizes."""
    random = np.random.default_rng(2)
    held = 0
    for _ in range(1_000):
        shares = random.beta(4, 12, 12)
        exposures = 2 * shares + random.normal(0, 0.1, 12)
        interval = ratio_interval(exposures, shares)
        assert interval is not None
        held += interval.low <= 2 <= interval.high
    assert held / 1_000 == pytest.approx(0.95, abs=0.02)


def test_a_ratio_to_what_may_be_nothing_has_no_interval() -> None:
    assert ratio_interval(np.ones(8), [0, 0, 0, 0, 0, 0, 0, 0.5]) is None


def test_a_share_of_independent_trials_has_the_interval_of_its_logit() -> None:
    """The standard error of a logit is √(1/k + 1/(n − k)); n/(n − 1) and t are Student's."""
    n, k = 20, 6
    found = share_interval([1] * k + [0] * (n - k), [1] * n)
    half = student_quantile(0.95, n - 1) * math.sqrt(n / (n - 1) * (1 / k + 1 / (n - k)))
    ends = [1 / (1 + math.exp(-math.log(k / (n - k)) - sign * half)) for sign in (-1, 1)]
    assert found is not None
    assert (found.low, found.high) == pytest.approx(ends)


@pytest.mark.parametrize("count", [6, 10, 40])
@pytest.mark.parametrize(("wins", "losses"), [(4, 2), (0.5, 0.8), (2, 18)])
def test_intervals_of_shares_and_ratios_hold_the_true_one_about_as_often_as_they_say(
    count: int, wins: float, losses: float
) -> None:
    """Also if the pairs of a query resemble each other, and for few queries."""
    random = np.random.default_rng(1)
    held = {"share": 0, "ratio": 0}
    drawn = 0
    while drawn < 600:
        pairs = random.integers(4, 16, count)
        won = random.binomial(pairs, random.beta(wins, losses, count))
        share, ratio = share_interval(won, pairs), sums_ratio_interval(won, pairs - won)
        if share is None or ratio is None:
            continue
        drawn += 1
        held["share"] += share.low <= wins / (wins + losses) <= share.high
        held["ratio"] += ratio.low <= wins / losses <= ratio.high
    for times in held.values():
        assert 0.92 <= times / drawn <= 0.98


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=8))
def test_the_interval_of_a_ratio_holds_it_and_is_finite(counts: list[tuple[int, int]]) -> None:
    above, below = zip(*counts, strict=True) if counts else ((), ())
    interval = sums_ratio_interval(above, below)
    if interval is not None:
        assert 0 < interval.low < sum(above) / sum(below) < interval.high < float("inf")


def test_what_says_nothing_about_the_spread_has_no_interval() -> None:
    assert sums_ratio_interval([1, 2, 0, 1, 3, 1], [0] * 6) is None
    assert sums_ratio_interval([1, 2, 3, 4, 5, 6], [2, 4, 6, 8, 10, 12]) is None
    assert sums_ratio_interval([1, 2, 0, 1, 3, 0], [2, 1, 0, 1, 1, 1]) is None, "five that count"
    assert ratio_interval([1, 2, 3, 4, 5, 6], [2, 4, 6, 8, 10, 12]) is None
    assert share_interval([0] * 8, [3] * 8) is None


def test_streams_differ_by_name_and_by_seed() -> None:
    draws = {
        float(stream(seed, name).random()) for seed in (0, 1) for name in ("nDCG@20", "AP", "")
    }
    assert len(draws) == 6


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_is_its_definition(p_values: list[float]) -> None:
    """Each is the greatest of those before it, times how many were left."""
    found = holm(p_values)
    order = np.argsort(p_values, kind="stable")
    expected = [0.0] * len(p_values)
    for place, position in enumerate(order):
        so_far = [(len(p_values) - i) * p_values[order[i]] for i in range(place + 1)]
        expected[position] = min(1.0, max(so_far))
    assert found == pytest.approx(expected)
    assert all(f >= p for f, p in zip(found, p_values, strict=True))


def test_holm_of_an_example_worked_by_hand() -> None:
    """.01·3, .02·2, and .04·1, which is raised to the one before it."""
    assert holm([0.04, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])


def test_too_few_values_give_none() -> None:
    random = np.random.default_rng(0)
    assert paired_t([0.5]) is None
    assert paired_randomisation([], random) is None
    one = paired_randomisation([0.5], random)
    assert one is not None
    assert one.p == 1
