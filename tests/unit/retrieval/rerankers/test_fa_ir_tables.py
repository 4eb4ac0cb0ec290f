"""The tables of FA*IR for one group: published ones, and exhaustive enumeration."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fairqr.retrieval.rerankers import fa_ir_tables
from fairqr.retrieval.rerankers.fa_ir_tables import (
    FairTable,
    TableSteps,
    failure_probability,
    fair_table,
)

PROPORTIONS = st.fractions(Fraction(1, 50), Fraction(49, 50), max_denominator=50)
ALPHAS = st.sampled_from([Fraction(1, 100), Fraction(1, 20), Fraction(1, 10), Fraction(3, 10)])


def unadjusted_table(k: int, proportions: list[float], alpha: float) -> FairTable:
    """The table at α_c = α, which a fair ranking fails more often than α."""
    (p,) = proportions
    minimum = TableSteps(k, p, alpha, alpha).minimum(alpha)
    return FairTable(minimum[:, None], alpha, failure_probability(minimum, p))


def needed(table: FairTable) -> tuple[int, ...]:
    """The minimum of each prefix, of the only group."""
    return tuple(table.minimum[:, 0].tolist())


def exact_cdf(successes: int, trials: int, p: Fraction) -> Fraction:
    return sum(
        (
            math.comb(trials, n) * p**n * (1 - p) ** (trials - n)
            for n in range(min(successes, trials) + 1)
        ),
        Fraction(0),
    )


def exact_table(k: int, p: Fraction, significance: Fraction) -> tuple[int, ...]:
    """The definition, in exact arithmetic."""
    return tuple(
        next(t for t in range(i + 1) if exact_cdf(t, i, p) > significance) for i in range(1, k + 1)
    )


def enumerated_failure(minimum: tuple[int, ...], p: Fraction) -> Fraction:
    """Sum the probabilities of all rankings of protected and other documents that fail."""
    failed = Fraction(0)
    for ranking in itertools.product((0, 1), repeat=len(minimum)):
        counts = itertools.accumulate(ranking)
        if any(count < least for count, least in zip(counts, minimum, strict=True)):
            ones = sum(ranking)
            failed += p**ones * (1 - p) ** (len(ranking) - ones)
    return failed


def exact_adjusted(k: int, p: Fraction, alpha: Fraction) -> tuple[tuple[int, ...], Fraction]:
    """Try every step of the failure probability, in exact arithmetic and by enumeration."""
    steps = {exact_cdf(t, i, p) for i in range(1, k + 1) for t in range(i + 1)}
    best = exact_table(k, p, Fraction(0)), Fraction(0)
    for step in sorted(step for step in steps if step <= alpha):
        table = exact_table(k, p, step)
        failure = enumerated_failure(table, p)
        if failure > alpha:
            break
        best = table, failure
    return best


@pytest.mark.parametrize(
    ("p", "minimum"),
    [
        # Zehlike et al. 2017 give these rows for α = 0.1 and k = 1 to 12; the row of p = 0.5 is
        # also in the documentation of fair-search for Elasticsearch, "The Theory".
        (0.1, (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)),
        (0.2, (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1)),
        (0.3, (0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2)),
        (0.4, (0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 3)),
        (0.5, (0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 4)),
        (0.6, (0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5)),
        (0.7, (0, 1, 1, 2, 2, 3, 3, 4, 5, 5, 6, 6)),
    ],
)
def test_the_published_unadjusted_tables(p: float, minimum: tuple[int, ...]) -> None:
    assert needed(unadjusted_table(12, [p], 0.1)) == minimum


def test_the_worked_examples_of_the_published_package() -> None:
    """From the README and the tests of fairsearchcore 1.0.4."""
    expected = (0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3)
    assert needed(unadjusted_table(20, [0.25], 0.1)) == expected
    assert fair_table(10, [0.2], 0.15).failure_probability == pytest.approx(0.1342177280000001)


def test_the_published_corrected_significance_is_a_step_too_far() -> None:
    """The documentation of fair-search names α_c = 0.0207 for k = 100, p = 0.5 and α = 0.1."""
    assert unadjusted_table(100, [0.5], 0.0207).failure_probability > 0.1
    ours = fair_table(100, [0.5], 0.1)
    assert 0.020 < ours.significance < 0.0207
    assert 0.0999 < ours.failure_probability <= 0.1


def test_the_published_packages_adjusted_table_fails_too_often_and_ours_does_not() -> None:
    """The README's table of p = 0.25 at α = 0.1; ours is the next one that asks for less."""
    theirs = (0,) * 8 + (1,) * 7 + (2,) * 5
    assert failure_probability(theirs, 0.25) == pytest.approx(0.10515247355215251)
    ours = fair_table(20, [0.25], 0.1)
    assert needed(ours) == (0,) * 9 + (1,) * 6 + (2,) * 5
    assert ours.failure_probability == pytest.approx(0.0897221672)


@settings(max_examples=60)
@given(k=st.integers(1, 9), p=PROPORTIONS, alpha=ALPHAS)
def test_the_table_is_the_least_conservative_one_by_exhaustive_enumeration(
    k: int, p: Fraction, alpha: Fraction
) -> None:
    table = fair_table(k, [float(p)], float(alpha))
    minimum, failure = exact_adjusted(k, p, alpha)
    # Where it is α exactly, a float for p may lie on either side: 1 − 0.95 is above 0.05.
    assume(failure != alpha)
    assert needed(table) == minimum
    assert table.failure_probability == pytest.approx(float(failure), rel=1e-9, abs=1e-15)
    assert enumerated_failure(needed(table), p) <= alpha


@settings(max_examples=60)
@given(
    k=st.integers(1, 300),
    p=st.floats(0, 1),
    alpha=st.floats(1e-6, 0.999),
)
def test_it_never_rejects_fair_rankings_more_often_than_alpha(
    k: int, p: float, alpha: float
) -> None:
    table = fair_table(k, [p], alpha)
    assert table.failure_probability <= alpha
    assert failure_probability(needed(table), p) == table.failure_probability
    steps = np.diff((0, *needed(table)))
    assert set(steps.tolist()) <= {0, 1}
    # And it is never stricter than the table without the adjustment.
    assert np.all(table.minimum <= unadjusted_table(k, [p], alpha).minimum)


def test_the_failure_probability_is_the_one_that_simulation_finds() -> None:
    table = unadjusted_table(40, [0.4], 0.1)
    draws = np.random.default_rng(7).random((100_000, 40)) < 0.4
    failed = np.any(np.cumsum(draws, axis=1) < np.array(needed(table)), axis=1).mean()
    # Four standard errors.
    assert failed == pytest.approx(table.failure_probability, abs=4 * 0.5 / math.sqrt(100_000))
    assert table.failure_probability > 0.1


@pytest.mark.parametrize(
    ("k", "p", "minimum"),
    [
        (1, 0.5, (0,)),
        (1, 0.95, (1,)),
        (50, 0.0, (0,) * 50),
        (50, 1e-300, (0,) * 50),
        (50, 1.0, tuple(range(1, 51))),
        (50, 1 - 1e-12, tuple(range(1, 51))),
        # Fails with probability 1/8 exactly, which is not above it.
        (3, 0.5, (0, 0, 1)),
    ],
)
def test_the_edges(k: int, p: float, minimum: tuple[int, ...]) -> None:
    alpha = 0.125 if k == 3 else 0.1
    table = fair_table(k, [p], alpha)
    assert needed(table) == minimum
    assert table.failure_probability <= alpha


def test_a_tiny_alpha_asks_for_what_chance_hardly_ever_denies() -> None:
    table = fair_table(1_000, [0.5], 1e-200)
    assert 0 < table.failure_probability <= 1e-200
    assert needed(table)[-1] > 0


def test_a_table_of_a_hundred_is_ready_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The published package takes about a second, as it computes many more probabilities."""
    computed: list[float] = []

    def counting(minimum: Any, proportion: float, limit: float = 1.0) -> float:
        computed.append(proportion)
        return failure_probability(minimum, proportion, limit)

    monkeypatch.setattr(fa_ir_tables, "failure_probability", counting)
    proportions = [0.501, 0.502, 0.503, 0.504, 0.505]
    for p in proportions:
        fair_table(100, [p], 0.1)
    assert all(1 < computed.count(p) <= 13 for p in proportions)
