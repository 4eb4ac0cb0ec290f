"""Plackett–Luce over scores: its weights, its probabilities, and the cases at the edge."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fairqr.base.errors import InputError
from fairqr.retrieval.sampling.plackett_luce import Form, PlackettLuce, deterministic
from fairqr.retrieval.sampling.streams import stream_of
from tests.unit.retrieval.sampling.enumeration import (
    SIGNIFICANCE,
    counts,
    p_value,
    probabilities,
    probability,
)

scores_lists = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12)


def uniform(n: int, k: int) -> dict[tuple[int, ...], float]:
    return dict.fromkeys(itertools.permutations(range(n), k), 1 / math.perm(n, k))


def test_scores_are_normalised_to_one_to_two_and_raised() -> None:
    scores = [-3.0, 1.0, 5.0]
    assert PlackettLuce.of(scores, 4).log_weights.tolist() == [1, 1.5**4, 16]
    worths = PlackettLuce.of(scores, 4, "worths").log_weights
    assert np.exp(worths) == pytest.approx([1, 1.5**4, 16])


@given(scores=scores_lists, alpha=st.sampled_from([0, 1, 2, 4, 8]), factor=st.floats(0.01, 100))
def test_neither_the_scale_nor_the_origin_of_scores_matters(
    scores: list[float], alpha: float, factor: float
) -> None:
    values = np.array(scores)
    assume(np.ptp(values) == 0 or np.ptp(values) > 1e-3)
    one = PlackettLuce.of(values, alpha).log_weights
    other = PlackettLuce.of(values * factor - 7, alpha).log_weights
    assert np.allclose(one, other, rtol=1e-4)


@pytest.mark.parametrize("form", ["logits", "worths"])
def test_each_form_draws_its_orders_as_often_as_the_product_says(form: Form) -> None:
    """All 60 ordered triples of five items, by brute force from the paper's formula."""
    scores, alpha = np.array([0.3, -1.2, 0.9, 0.0, 0.5]), 2.0
    raised = (1 + (scores + 1.2) / 2.1) ** alpha
    weights = np.exp(raised) if form == "logits" else raised
    drawn = PlackettLuce.of(scores, alpha, form).sample(40_000, 3, stream_of(1, form))
    assert p_value(drawn, probabilities(weights.tolist(), 3)) > SIGNIFICANCE


@settings(max_examples=50)
@given(
    weights=st.lists(st.integers(0, 50), min_size=1, max_size=5),
    data=st.data(),
)
def test_probabilities_are_those_of_brute_force_and_sum_to_one(
    weights: list[int], data: st.DataObject
) -> None:
    """Over all orders of at most five items, cut anywhere. Zeros come last, uniformly."""
    policy = PlackettLuce.from_log_weights(
        [math.log(weight) if weight else -math.inf for weight in weights]
    )
    k = data.draw(st.integers(1, len(weights)))
    total = 0.0
    for ranking in itertools.permutations(range(len(weights)), k):
        found = math.exp(policy.log_probability(ranking))
        assert found == pytest.approx(float(tiered(weights, ranking)))
        total += found
    assert total == pytest.approx(1)


def tiered(weights: Sequence[int], ranking: Sequence[int]) -> Fraction:
    """P by brute force; once no mass is left, all that are left weigh the same."""
    left = dict(enumerate(map(Fraction, weights)))
    chance = Fraction(1)
    for item in ranking:
        total = sum(left.values())
        chance *= left[item] / total if total else Fraction(1, len(left))
        del left[item]
    return chance


def test_places_multiply_to_the_whole() -> None:
    weights = [5, 3, 1, 1]
    policy = PlackettLuce.from_log_weights(np.log(weights))
    places = policy.placement_log_probabilities([1, 0, 3])
    assert np.exp(places) == pytest.approx([3 / 10, 5 / 7, 1 / 2])
    assert math.exp(places.sum()) == pytest.approx(float(probability([5, 3, 1, 1], [1, 0, 3])))
    assert policy.log_probability([]) == 0
    assert policy.placement_log_probabilities([]).shape == (0,)


def test_zero_mass_comes_last_and_uniformly() -> None:
    weights = [0.0, 2.0, 0.0, 1.0, 0.0]
    with np.errstate(divide="ignore"):
        policy = PlackettLuce.from_log_weights(np.log(weights))
    expected = {
        ranking: float(tiered([0, 2, 0, 1, 0], ranking))
        for ranking in itertools.permutations(range(5), 4)
    }
    drawn = policy.sample(20_000, 4, stream_of(2))
    assert p_value(drawn, {r: p for r, p in expected.items() if p}) > SIGNIFICANCE
    assert policy.log_probability([0, 1]) == -math.inf
    # Before the massless are reached, only the others are drawn.
    assert set(counts(policy.sample(2000, 1, stream_of(3)))) == {(1,), (3,)}


def test_without_any_mass_all_orders_are_alike() -> None:
    policy = PlackettLuce.from_log_weights([-math.inf] * 4)
    assert p_value(policy.sample(20_000, 3, stream_of(3)), uniform(4, 3)) > SIGNIFICANCE
    assert policy.log_probability([2, 0, 1]) == pytest.approx(-math.log(24))


@pytest.mark.parametrize("form", ["logits", "worths"])
@pytest.mark.parametrize(
    ("scores", "alpha"),
    [([4.0, -1.0, 0.5, 9.0], 0.0), ([3.0] * 4, 1.0), ([-2.0] * 4, 32.0), ([0.0] * 4, 1000.0)],
)
def test_alpha_zero_and_equal_scores_are_uniform(
    scores: list[float], alpha: float, form: Form
) -> None:
    policy = PlackettLuce.of(scores, alpha, form)
    assert p_value(policy.sample(20_000, 4, stream_of(4)), uniform(4, 4)) > SIGNIFICANCE
    for ranking in itertools.permutations(range(4)):
        assert policy.log_probability(ranking) == pytest.approx(-math.log(24))


def test_a_single_item_is_certain() -> None:
    policy = PlackettLuce.of([-7.0], 4)
    assert policy.sample(3, 5, stream_of(0)).tolist() == [[0], [0], [0]]
    assert policy.log_probability([0]) == 0


def test_a_cut_beyond_the_pool_gives_whole_orders() -> None:
    drawn = PlackettLuce.of([1.0, 2.0, 3.0], 1).sample(50, 9, stream_of(0))
    assert drawn.shape == (50, 3)
    assert (np.sort(drawn) == np.arange(3)).all()


@pytest.mark.parametrize("alpha", [32.0, 100.0, 1000.0])
@pytest.mark.parametrize("n", [40, 2000])
def test_a_large_alpha_ranks_by_score_and_ties_at_random(alpha: float, n: int) -> None:
    """Scores come in pairs, so each order within a pair has a chance of one half at every place."""
    scores = np.repeat(np.arange(n // 2, dtype=float), 2)
    # From the top: at α = 32 the next pair is e^(2^32·32/n) times lighter.
    drawn = PlackettLuce.of(scores, alpha).sample(4000, 6, stream_of(5))
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
    weights = np.exp([1.0, 1.01**32])
    drawn = PlackettLuce.of(scores, 32).sample(20_000, 3, stream_of(6, str(n)))
    assert (drawn[:, 0] == n - 1).all()
    sizes = np.bincount(kinds)
    expected = {}
    for pair in itertools.product(range(2), repeat=2):
        left, chance = sizes.astype(float), 1.0
        for kind in pair:
            chance *= left[kind] * weights[kind] / (left @ weights)
            left[kind] -= 1
        expected[pair] = chance
    assert p_value(kinds[drawn[:, 1:]], expected) > SIGNIFICANCE


def test_log_probabilities_neither_overflow_nor_lose_what_is_small() -> None:
    """At α = 32 the worst order has a probability of about e^(−2^32), and pairs still have 1/2."""
    policy = PlackettLuce.of([0.0, 1.0, 1.0], 32)
    assert policy.placement_log_probabilities([0, 1, 2]) == pytest.approx(
        [1 - 2.0**32 - math.log(2), -math.log(2), 0.0], rel=1e-15
    )
    assert policy.log_probability([2, 1, 0]) == pytest.approx(-math.log(2))
    steep = PlackettLuce.of([0.0, 1.0, 1.0], 1000)
    assert steep.log_probability([2, 1, 0]) == pytest.approx(-math.log(2))


def test_extreme_numbers_are_ranked() -> None:
    policy = PlackettLuce.of([1.7e308, -1.7e308, 0.0], 1)
    assert policy.log_weights == pytest.approx([2, 1, 1.5])
    wide = PlackettLuce.from_log_weights([-1.7e308, 1.7e308, 0.0])
    assert wide.sample(5, 3, stream_of(0)).tolist() == [[1, 2, 0]] * 5
    assert wide.log_probability([1, 2, 0]) == 0


def test_a_seed_repeats_and_the_distribution_cannot_be_changed() -> None:
    policy = PlackettLuce.of(np.arange(500.0), 2)
    one, other = (policy.sample(20, 5, stream_of(1, "q")) for _ in range(2))
    assert np.array_equal(one, other)
    with pytest.raises(ValueError, match="read-only"):
        policy.log_weights[0] = 9


def test_the_callers_numbers_are_left_alone() -> None:
    scores = np.array([1.0, 3.0, 2.0])
    PlackettLuce.of(scores, 2).sample(2, 2, stream_of(0))
    given = np.array([1.0, 3.0, 2.0])
    PlackettLuce.from_log_weights(given).sample(2, 2, stream_of(0))
    assert scores.tolist() == given.tolist() == [1, 3, 2]


@given(
    scores=st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=12), k=st.integers(1, 14)
)
def test_the_deterministic_ranking_is_by_score_then_by_position(
    scores: list[float], k: int
) -> None:
    expected = sorted(range(len(scores)), key=lambda item: (-scores[item], item))[:k]
    assert deterministic(scores, k).tolist() == expected


BAD = {
    "no pool": lambda: PlackettLuce.of([], 1),
    "a table": lambda: PlackettLuce.of([[1.0, 2.0]], 1),
    "nan": lambda: PlackettLuce.of([1.0, math.nan], 1),
    "inf": lambda: PlackettLuce.of([1.0, math.inf], 1),
    "minus inf": lambda: PlackettLuce.of([1.0, -math.inf], 1),
    "alpha below 0": lambda: PlackettLuce.of([1.0], -0.1),
    "alpha nan": lambda: PlackettLuce.of([1.0], math.nan),
    "alpha inf": lambda: PlackettLuce.of([1.0], math.inf),
    "alpha too large": lambda: PlackettLuce.of([1.0], 1001),
    "alpha none": lambda: PlackettLuce.of([1.0], None),  # type: ignore[arg-type]
    "alpha text": lambda: PlackettLuce.of([1.0], "2"),  # type: ignore[arg-type]
    "alpha huge": lambda: PlackettLuce.of([1.0], 10**400),
    "alpha complex": lambda: PlackettLuce.of([1.0], 1j),  # type: ignore[arg-type]
    "words": lambda: PlackettLuce.of(["a"], 1),
    "huge": lambda: PlackettLuce.of([10**400, 1], 1),
    "ragged": lambda: PlackettLuce.from_log_weights([[1.0], [1.0, 2.0]]),  # type: ignore[arg-type]
    "half a sample": lambda: PlackettLuce.of([1.0], 1).sample(1.5, 1, stream_of(0)),  # type: ignore[arg-type]
    "half a place": lambda: PlackettLuce.of([1.0], 1).sample(1, 1.5, stream_of(0)),  # type: ignore[arg-type]
    "form": lambda: PlackettLuce.of([1.0], 1, "odds"),  # type: ignore[arg-type]
    "no weights": lambda: PlackettLuce.from_log_weights([]),
    "weight nan": lambda: PlackettLuce.from_log_weights([0.0, math.nan]),
    "weight inf": lambda: PlackettLuce.from_log_weights([0.0, math.inf]),
    "no samples": lambda: PlackettLuce.of([1.0], 1).sample(0, 1, stream_of(0)),
    "no places": lambda: PlackettLuce.of([1.0], 1).sample(1, 0, stream_of(0)),
    "no cut": lambda: deterministic([1.0], 0),
    "no scores": lambda: deterministic([], 1),
    "scores nan": lambda: deterministic([math.nan], 1),
    "item twice": lambda: PlackettLuce.of([1.0, 2.0], 1).log_probability([1, 1]),
    "item beyond": lambda: PlackettLuce.of([1.0, 2.0], 1).log_probability([2]),
    "item before": lambda: PlackettLuce.of([1.0, 2.0], 1).log_probability([-1]),
    "item between": lambda: PlackettLuce.of([1.0, 2.0], 1).log_probability([0.5]),
    "rankings": lambda: PlackettLuce.of([1.0, 2.0], 1).log_probability([[0, 1]]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_told_in_one_sentence(case: str) -> None:
    call: Callable[[], object] = BAD[case]
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert message.endswith(".")
    assert ". " not in message
    assert "\n" not in message
