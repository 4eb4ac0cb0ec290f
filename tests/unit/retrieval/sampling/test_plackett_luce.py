"""Rankings by Plackett–Luce over scores, by score alone and by the oracle; and their streams."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr.base.errors import InputError
from fairqr.retrieval.sampling.plackett_luce import (
    Form,
    deterministic,
    sample_oracle,
    sample_plackett_luce,
    stream_of,
)
from tests.unit.retrieval.sampling.enumeration import (
    SIGNIFICANCE,
    class_probabilities,
    p_value,
    probabilities,
)

FORMS = pytest.mark.parametrize("form", ["logits", "worths"])


@FORMS
@pytest.mark.parametrize("scale", [1, -50])
def test_each_form_draws_its_orders_as_often_as_the_product_says(form: Form, scale: float) -> None:
    """All 60 ordered triples of five items, by brute force from the paper's formula."""
    scores, alpha = scale * np.array([0.3, -1.2, 0.9, 0.0, 0.5]) + 3 * scale, 2.0
    raised = (1 + (scores - scores.min()) / np.ptp(scores)) ** alpha
    weights = np.exp(raised) if form == "logits" else raised
    drawn = sample_plackett_luce(scores, alpha, 40_000, 3, stream_of(1, form), form)
    assert p_value(drawn, probabilities(weights.tolist(), 3)) > SIGNIFICANCE


@FORMS
@pytest.mark.parametrize(
    ("scores", "alpha"),
    [([4.0, -1.0, 0.5, 9.0], 0.0), ([3.0] * 4, 1.0), ([-2.0] * 4, 32.0), ([0.0] * 4, 1000.0)],
)
def test_alpha_zero_and_equal_scores_are_uniform(
    scores: list[float], alpha: float, form: Form
) -> None:
    drawn = sample_plackett_luce(scores, alpha, 20_000, 4, stream_of(4), form)
    assert p_value(drawn, probabilities([1] * 4, 4)) > SIGNIFICANCE


def test_a_cut_beyond_the_pool_gives_whole_orders() -> None:
    drawn = sample_plackett_luce([1.0, 2.0, 3.0], 1, 50, 9, stream_of(0))
    assert drawn.shape == (50, 3)
    assert (np.sort(drawn) == np.arange(3)).all()
    assert sample_plackett_luce([-7.0], 4, 3, 5, stream_of(0)).tolist() == [[0], [0], [0]]


@pytest.mark.parametrize("alpha", [32.0, 100.0, 1000.0])
@pytest.mark.parametrize("n", [40, 2000])
def test_a_large_alpha_ranks_by_score_and_ties_at_random(alpha: float, n: int) -> None:
    """Scores come in pairs, so each order within a pair has a chance of one half at every place."""
    scores = np.repeat(np.arange(n // 2, dtype=float), 2)
    # From the top: at α = 32 the next pair is e^(2^32·32/n) times lighter.
    drawn = sample_plackett_luce(scores, alpha, 4000, 6, stream_of(5))
    pairs = drawn // 2
    assert (pairs == np.repeat(np.arange(n // 2)[:-4:-1], 2)).all()
    first_of_two = drawn[:, ::2] % 2
    assert np.abs(first_of_two.mean(axis=0) - 0.5).max() < 5 * 0.5 / np.sqrt(4000)


@pytest.mark.parametrize("n", [20, 2000])
def test_alpha_32_keeps_the_tail(n: int) -> None:
    """One item far above; for the others 1 ≤ s^32 ≤ 1.01^32, so they are ranked nearly at random.

    Classes of equal scores after the first place, by enumeration.
    """
    kinds = np.arange(n - 1) % 2
    scores = np.append(kinds * 0.02, 2.0)
    drawn = sample_plackett_luce(scores, 32, 20_000, 3, stream_of(6, str(n)))
    assert (drawn[:, 0] == n - 1).all()
    weights = [math.exp(1.0), math.exp(1.01**32)]
    expected = class_probabilities(np.bincount(kinds).tolist(), weights, 2)
    assert p_value(kinds[drawn[:, 1:]], expected) > SIGNIFICANCE


def test_a_seed_repeats_and_the_callers_scores_are_left_alone() -> None:
    scores = np.arange(500.0)
    one, other = (sample_plackett_luce(scores, 2, 20, 5, stream_of(1, "q")) for _ in range(2))
    assert np.array_equal(one, other)
    assert np.array_equal(scores, np.arange(500.0))


def test_extreme_scores_are_ranked_and_those_that_are_no_numbers_refused() -> None:
    extreme = [1.7e308, -1.7e308, 0.0]
    assert sample_plackett_luce(extreme, 1000, 5, 3, stream_of(0)).tolist() == [[0, 2, 1]] * 5
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(InputError, match="not a finite number; correct it"):
            sample_plackett_luce([1.0, bad], 1, 1, 1, stream_of(0))
        with pytest.raises(InputError, match="not a finite number"):
            deterministic([1.0, bad], 1)


@given(
    scores=st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=12), k=st.integers(1, 14)
)
def test_the_deterministic_ranking_is_by_score_then_by_position(
    scores: list[float], k: int
) -> None:
    expected = sorted(range(len(scores)), key=lambda item: (-scores[item], item))[:k]
    assert deterministic(scores, k).tolist() == expected


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("m", [0, 1, 2, 4, 5])
def test_the_orders_of_the_oracle_are_equally_likely(m: int, k: int) -> None:
    """Those that put the useful items first, counting all m!(n−m)! whole ones."""
    useful = np.isin(np.arange(5), (3, 0, 4, 1, 2)[:m])
    drawn = sample_oracle(useful, 20_000, k, stream_of(1, str(m), str(k)))
    first, last = np.flatnonzero(useful).tolist(), np.flatnonzero(~useful).tolist()
    orders = [
        (*one, *other)[:k]
        for one in itertools.permutations(first)
        for other in itertools.permutations(last)
    ]
    expected = {order: orders.count(order) / len(orders) for order in set(orders)}
    assert drawn.shape == (20_000, min(k, 5))
    if len(expected) == 1:
        assert (drawn == next(iter(expected))).all()
    else:
        assert p_value(drawn, expected) > SIGNIFICANCE


def test_a_large_pool_has_its_useful_items_first() -> None:
    useful = stream_of(2).random(50_000) < 0.0001
    m = int(useful.sum())
    assert 0 < m < 20
    drawn = sample_oracle(useful, 100, 20, stream_of(3))
    assert useful[drawn[:, :m]].all()
    assert not useful[drawn[:, m:]].any()
    assert all(len(set(row)) == 20 for row in drawn.tolist())


@given(seed=st.integers(), names=st.lists(st.text(max_size=4), max_size=3))
def test_equal_arguments_give_equal_numbers_whatever_was_drawn_before(
    seed: int, names: list[str]
) -> None:
    first = stream_of(seed, *names).random(4)
    stream_of(seed, *names, "another").random(100)
    assert np.array_equal(first, stream_of(seed, *names).random(4))


def test_other_seeds_names_and_orders_give_other_numbers() -> None:
    cases = [(1,), (2,), (-1,), (1, "1"), (1, "ab"), (1, "a", "b"), (1, "b", "a"), (1, "")]
    cases += [(1, 'a", "b'), (1, "é"), *((1, f"q{number}") for number in range(20))]
    drawn = [stream_of(*case).random(2000) for case in cases]
    # Correlations of 2,000 numbers are about ±1/√2000 = ±.022; six times that is far out.
    for one, other in itertools.combinations(drawn, 2):
        assert abs(np.corrcoef(one, other)[0, 1]) < 6 / np.sqrt(2000)


def test_the_numbers_stay_the_same_from_version_to_version() -> None:
    """Runs that were kept can be repeated."""
    assert stream_of(0, "bm25", "q1").bit_generator.random_raw() == 9310837085825694230
