"""Exact tests and intervals of counts: against scipy, and by counting all outcomes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fairqr.base.binomial import (
    binomial_interval,
    binomial_tail,
    detectable_share,
    least_majority,
    sign_test,
)
from fairqr.base.errors import InputError

counts = st.tuples(st.integers(0, 60), st.integers(0, 60))


@given(st.integers(-2, 70), st.integers(0, 60), st.floats(0, 1))
def test_the_tail_is_that_of_scipy(successes: int, trials: int, share: float) -> None:
    theirs = stats.binom.sf(successes - 1, trials, share)
    assert binomial_tail(successes, trials, share) == pytest.approx(theirs, abs=1e-12)


def test_the_tail_of_many_trials_is_that_of_scipy() -> None:
    """As many as the pairs of a large benchmark; coefficients alone would overflow."""
    for successes in (69_000, 70_000, 70_400, 72_000):
        theirs = stats.binom.sf(successes - 1, 140_000, 0.5)
        assert binomial_tail(successes, 140_000) == pytest.approx(theirs, rel=1e-6)


@given(counts)
def test_the_sign_test_is_that_of_scipy(both: tuple[int, int]) -> None:
    wins, losses = both
    if wins + losses == 0:
        assert sign_test(wins, losses) is None
        return
    assert sign_test(wins, losses) == pytest.approx(stats.binomtest(wins, wins + losses).pvalue)
    assert sign_test(wins, losses) == sign_test(losses, wins)


@settings(max_examples=30)
@given(st.integers(1, 10), st.data())
def test_the_sign_test_counts_all_outcomes(trials: int, data: st.DataObject) -> None:
    """Brute force: the share of all sequences of coins that are at least as one-sided."""
    wins = data.draw(st.integers(0, trials))
    sums = [sum(coins) for coins in itertools.product((0, 1), repeat=trials)]
    as_far = [abs(2 * total - trials) >= abs(2 * wins - trials) for total in sums]
    assert sign_test(wins, trials - wins) == pytest.approx(sum(as_far) / len(as_far))


@settings(max_examples=40)
@given(counts, st.sampled_from([0.8, 0.95]))
def test_the_interval_is_that_of_scipy(both: tuple[int, int], level: float) -> None:
    successes, trials = both[0], sum(both)
    found = binomial_interval(successes, trials, level)
    if trials == 0:
        assert found is None
        return
    theirs = stats.binomtest(successes, trials).proportion_ci(level, method="exact")
    assert found is not None
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=1e-9)
    assert found.level == level


@given(st.integers(0, 200))
def test_the_least_majority_is_the_first_that_is_significant(trials: int) -> None:
    """Brute force over all majorities; unanimity of five is not enough."""
    enough = [
        wins
        for wins in range(trials // 2 + 1, trials + 1)
        if (sign_test(wins, trials - wins) or 1) <= 0.05
    ]
    assert least_majority(trials) == (enough[0] if enough else None)
    assert (least_majority(trials) is None) == (trials < 6)


@settings(max_examples=30)
@given(st.integers(0, 120), st.sampled_from([0.6, 0.8, 0.9]))
def test_the_detectable_share_is_found_as_often_as_it_says(trials: int, power: float) -> None:
    share = detectable_share(trials, power=power)
    majority = least_majority(trials)
    if majority is None:
        assert share is None
        return
    assert share is not None
    assert 0.5 < share < 1
    assert stats.binom.sf(majority - 1, trials, share) == pytest.approx(power)


def test_examples_worked_by_hand() -> None:
    """2/64 for six of six; the rule of three; about 62 % of 200 with a power of 80 %, or less."""
    assert sign_test(6, 0) == pytest.approx(2 / 64)
    assert sign_test(5, 0) == pytest.approx(2 / 32)
    assert sign_test(3, 1) == pytest.approx(2 * 5 / 16)
    assert sign_test(2, 2) == 1
    interval = binomial_interval(0, 100)
    assert interval is not None
    assert interval.high == pytest.approx(0.0362, abs=1e-4)
    assert detectable_share(200) == pytest.approx(0.6, abs=0.02)


@pytest.mark.parametrize(("trials", "share"), [(-1, 0.5), (3, 1.1), (3, -0.1)])
def test_what_is_no_binomial_is_refused(trials: int, share: float) -> None:
    with pytest.raises(InputError, match="at least 0 trials and a share in"):
        binomial_tail(1, trials, share)


def test_what_is_no_interval_is_refused() -> None:
    with pytest.raises(InputError, match="cannot be 4 successes in 3 trials"):
        binomial_interval(4, 3)
    with pytest.raises(InputError, match="between 0 and 1"):
        binomial_interval(1, 3, 95)
