"""Intervals and tests: against scipy, against counting by hand, and for what they promise."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fairqr.base.errors import InputError
from fairqr.base.statistics import (
    bootstrap_mean,
    bootstrap_ratio,
    holm,
    paired_randomisation,
    paired_t,
    stream,
)

differences = st.lists(st.floats(-1, 1).map(lambda x: round(x, 3)), min_size=2, max_size=8)


@settings(max_examples=40, deadline=None)
@given(differences)
def test_the_t_test_is_that_of_scipy(sample: list[float]) -> None:
    ours = paired_t(sample)
    if len(set(sample)) == 1:
        assert ours == (1.0 if sample[0] == 0 else None)
        return
    theirs = stats.ttest_rel(sample, np.zeros(len(sample))).pvalue
    assert ours == pytest.approx(theirs)


@settings(max_examples=40, deadline=None)
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


def test_the_interval_holds_the_true_mean_as_often_as_it_says() -> None:
    random = np.random.default_rng(6)
    held = 0
    for _ in range(300):
        interval = bootstrap_mean(random.exponential(1, 60), random, resamples=300, level=0.9)
        assert interval is not None
        held += interval.low <= 1 <= interval.high
    assert held / 300 == pytest.approx(0.9, abs=0.05)


def test_the_interval_is_near_that_of_scipy() -> None:
    sample = np.random.default_rng(7).normal(size=50)
    ours = bootstrap_mean(sample, np.random.default_rng(0), resamples=5000)
    theirs = stats.bootstrap(
        (sample,), np.mean, method="percentile", n_resamples=5000, rng=np.random.default_rng(1)
    ).confidence_interval
    assert ours is not None
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.02)
    assert (ours.level, ours.resamples) == (0.95, 5000)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=30), st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_an_interval_repeats_and_stays_within_the_values(values: list[float], seed: int) -> None:
    def interval() -> object:
        return bootstrap_mean(values, stream(seed, "x"), resamples=50)

    found = bootstrap_mean(values, stream(seed, "x"), resamples=50)
    assert found is not None
    assert found == interval()
    assert min(values) - 1e-12 <= found.low <= found.high <= max(values) + 1e-12


def test_a_ratio_of_sums_with_denominators_of_one_is_a_mean() -> None:
    """Draw for draw: queries are drawn alike."""
    values = np.random.default_rng(5).exponential(1, 30)
    mean = bootstrap_mean(values, np.random.default_rng(0))
    assert bootstrap_ratio(values, np.ones(30), np.random.default_rng(0)) == mean


def test_the_interval_of_a_ratio_is_near_that_of_scipy() -> None:
    random = np.random.default_rng(7)
    above, below = random.poisson(4, 40), random.poisson(2, 40)
    ours = bootstrap_ratio(above, below, np.random.default_rng(0), added=0.5, resamples=5000)
    theirs = stats.bootstrap(
        (above, below),
        lambda x, y, axis: (x.sum(axis=axis) + 0.5) / (y.sum(axis=axis) + 0.5),
        paired=True,
        method="percentile",
        n_resamples=5000,
        rng=np.random.default_rng(1),
    ).confidence_interval
    assert ours is not None
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.05)


def test_the_interval_of_a_ratio_holds_the_true_one_about_as_often_as_it_says() -> None:
    """Also where the pairs of a query resemble each other, so that they are not independent."""
    random = np.random.default_rng(3)
    held = 0
    for _ in range(300):
        shares = random.beta(4, 2, 40)  # of mean 2/3: a ratio of 2
        wins = random.binomial(5, shares)
        interval = bootstrap_ratio(wins, 5 - wins, random, added=0.5, resamples=400)
        assert interval is not None
        held += interval.low <= 2 <= interval.high
    assert held / 300 == pytest.approx(0.95, abs=0.04)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=8))
def test_the_interval_of_a_ratio_is_finite(counts: list[tuple[int, int]]) -> None:
    """Whatever is drawn: half a count is added."""
    above, below = zip(*counts, strict=True)
    interval = bootstrap_ratio(above, below, np.random.default_rng(0), added=0.5, resamples=50)
    assert interval is not None
    assert 0 < interval.low <= interval.high < float("inf")


def test_a_ratio_that_could_divide_by_zero_is_refused() -> None:
    random = np.random.default_rng(0)
    with pytest.raises(InputError, match="leave out clusters without"):
        bootstrap_ratio([1, 2], [1, 0], random)
    for above, below in (([1], [1, 2]), ([-1, 1], [1, 1])):
        with pytest.raises(InputError, match="as many numerators as denominators"):
            bootstrap_ratio(above, below, random)
    assert bootstrap_ratio([1], [2], random) is None
    assert bootstrap_ratio([], [], random) is None


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
    assert bootstrap_mean([0.5], random) is None
    assert paired_t([0.5]) is None
    assert paired_randomisation([], random) is None
    one = paired_randomisation([0.5], random)
    assert one is not None
    assert one.p == 1


def test_without_scipy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    with pytest.raises(InputError, match=r"pip install 'fairqr\[evaluation\]'"):
        paired_t([0.1, 0.2])
