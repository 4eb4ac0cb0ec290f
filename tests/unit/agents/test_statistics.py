"""Intervals and tests: against scipy, against counting by hand, and for what they promise."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fairqr.agents.statistics import (
    binomial_interval,
    corrected_by_holm,
    detectable_share,
    mean_interval,
    paired_randomisation,
    share_interval,
    sign_test,
    sums_ratio_interval,
    too_few,
)

differences = st.lists(st.floats(-1, 1).map(lambda x: round(x, 3)), min_size=2, max_size=8)


@pytest.mark.promise("base")
@settings(max_examples=40)
@given(differences)
def test_the_randomisation_test_counts_all_signs(sample: list[float]) -> None:
    """Tests are exact for few queries."""
    observed = abs(sum(sample))
    signs = list(itertools.product((1, -1), repeat=len(sample)))
    sums = [abs(sum(s * d for s, d in zip(sign, sample, strict=True))) for sign in signs]
    expected = sum(total >= observed - 1e-9 for total in sums) / len(signs)
    found = paired_randomisation(sample, np.random.default_rng(0))
    assert found is not None
    assert found == pytest.approx(expected)


@pytest.mark.promise("base")
def test_scipy_agrees_where_signs_are_drawn() -> None:
    """Tests agree with scipy where signs are drawn.

    20 queries: beyond those that are counted in full. No drawn p value is 0.
    """
    sample = np.random.default_rng(4).normal(0.3, 1, 20)
    found = paired_randomisation(sample, np.random.default_rng(0))
    theirs = stats.permutation_test(
        (sample,),
        lambda x, axis: x.sum(axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=20_000,
        rng=np.random.default_rng(1),
    ).pvalue
    assert found == pytest.approx(theirs, abs=0.015)
    least = paired_randomisation(np.ones(40), np.random.default_rng(0), permutations=99)
    assert least == pytest.approx(1 / 100)


SKEWED = {
    "nDCG": (lambda random, n: random.beta(0.8, 1.2, n), 0.4),
    "AP": (lambda random, n: random.beta(0.5, 2, n), 0.2),
    "AWRF": (lambda random, n: random.beta(30, 2, n), 30 / 32),
    "differences": (lambda random, n: random.laplace(0, 1, n), 0.0),
}


@pytest.mark.promise("base")
@pytest.mark.parametrize("shape", SKEWED)
@pytest.mark.parametrize(("count", "least"), [(6, 0.88), (10, 0.90), (50, 0.93)])
def test_an_interval_holds_the_mean_as_often_as_it_says(
    shape: str, count: int, least: float
) -> None:
    """Intervals hold the true mean about as often as they say.

    By simulation, of values shaped as those of measures; a percentile bootstrap has .80 at 6.
    """
    draw, mean = SKEWED[shape]
    random = np.random.default_rng(6)
    held = 0
    for _ in range(2_000):
        interval = mean_interval(draw(random, count))
        assert interval is not None
        held += interval.low <= mean <= interval.high
    assert least <= held / 2_000 <= 0.98


@pytest.mark.promise("base")
def test_there_is_an_interval_only_where_a_test_can_decide() -> None:
    """Fewer than six values have no interval.

    Five queries never differ at 5 % by a randomisation test, nor do they have an interval.
    """
    values = [0.1, 0.2, 0.3, 0.4, 0.6, 0.7]
    random = np.random.default_rng(0)
    for count in range(7):
        tested = paired_randomisation(np.ones(count), random)
        assert too_few(count, 0.05) == (tested is None or tested > 0.05)
        assert (mean_interval(values[:count]) is None) == too_few(count, 0.05)
    assert mean_interval([0.5] * 20) is None
    # Equal but for the last digit, which another processor has.
    assert mean_interval([1.0] * 19 + [1.0 - 1e-16]) is None
    assert mean_interval([0.1 + 0.2] * 10 + [0.3] * 10) is None
    assert mean_interval([1e9] * 19 + [1e9 + 1e-6]) is None
    assert mean_interval([1.0] * 19 + [1.0 - 1e-9]) is not None


@pytest.mark.parametrize("count", [6, 10, 40])
@pytest.mark.parametrize(("wins", "losses"), [(4, 2), (0.5, 0.8), (2, 18)])
def test_shares_and_ratios_are_held_as_often_as_stated(
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


@pytest.mark.promise("base")
def test_what_says_nothing_about_the_spread_has_no_interval() -> None:
    """Values that say nothing about their spread have no interval."""
    assert sums_ratio_interval([1, 2, 0, 1, 3, 1], [0] * 6) is None
    assert sums_ratio_interval([1, 2, 3, 4, 5, 6], [2, 4, 6, 8, 10, 12]) is None
    assert sums_ratio_interval([1, 2, 0, 1, 3, 0], [2, 1, 0, 1, 1, 1]) is None, "five that count"
    assert share_interval([0] * 8, [3] * 8) is None


@pytest.mark.promise("base")
@given(st.lists(st.none() | st.floats(0, 1), max_size=8))
def test_holm_is_its_definition(p_values: list[float | None]) -> None:
    """Several tests are corrected as Holm defines.

    Each is the greatest of those before it, times how many were left; None counts for none.
    """
    there = [(p, place) for place, p in enumerate(p_values) if p is not None]
    expected: list[float | None] = [None] * len(p_values)
    for p, place in there:
        before = sorted(other for other, _ in there if other <= p)
        expected[place] = min(1.0, max((len(there) - i) * it for i, it in enumerate(before)))
    found = corrected_by_holm(p_values)
    assert [p is None for p in found] == [p is None for p in expected]
    assert [p or 0 for p in found] == pytest.approx([p or 0 for p in expected])
    # .01·3, .02·2, and .04·1, which is raised to the one before it.
    assert corrected_by_holm([0.04, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])


@given(st.integers(0, 60), st.integers(0, 60), st.sampled_from([0.8, 0.95]))
def test_counts_have_the_exact_test_and_interval_of_scipy(
    wins: int, losses: int, level: float
) -> None:
    p, found = sign_test(wins, losses), binomial_interval(wins, wins + losses, level)
    if wins + losses == 0:
        assert p is found is None
        return
    theirs = stats.binomtest(wins, wins + losses)
    ends = theirs.proportion_ci(level, method="exact")
    assert p == pytest.approx(theirs.pvalue)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((ends.low, ends.high), abs=1e-9)
    assert found.level == level


@settings(max_examples=30)
@given(st.integers(0, 120), st.sampled_from([0.6, 0.8, 0.9]))
def test_the_detectable_share_is_found_as_often_as_it_says(trials: int, power: float) -> None:
    """By brute force over all majorities; unanimity of five is not enough."""
    majorities = range(trials // 2 + 1, trials + 1)
    enough = [wins for wins in majorities if (sign_test(wins, trials - wins) or 1) <= 0.05]
    share = detectable_share(trials, power=power)
    assert (share is None) == (trials < 6) == (not enough)
    if share is not None:
        assert 0.5 < share < 1
        assert stats.binom.sf(enough[0] - 1, trials, share) == pytest.approx(power)
