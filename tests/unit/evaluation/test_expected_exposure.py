"""Expected exposure: against all orders of few items, and the figures of the paper."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqr.evaluation.expected_exposure import expected_exposure, exposure_bounds, target_exposure
from fairqr.retrieval.fairness.exposure import LOG2, Discount

DISCOUNTS = ["log2", "trec", "rbp(0.8)", "top_k(2)", "top_k(3)", "inverse_log"]


def weights_of(discount: Discount, n: int, k: int | None) -> np.ndarray:
    weights = discount.weights(n)
    return weights if k is None else weights * (np.arange(n) < k)


def exposures(order: tuple[int, ...], weights: np.ndarray) -> np.ndarray:
    """What each item gets from a whole order, item by item."""
    gained = np.zeros(len(order))
    for rank, item in enumerate(order):
        gained[item] = weights[rank]
    return gained


def orders(n: int) -> Iterator[tuple[int, ...]]:
    return itertools.permutations(range(n))


def optimal(n: int, m: int) -> list[tuple[int, ...]]:
    """All orders that put the first m items before all others."""
    return [
        first + second
        for first in itertools.permutations(range(m))
        for second in itertools.permutations(range(m, n))
    ]


CASES = [(n, m, k) for n in range(1, 6) for m in range(n + 1) for k in (None, 1, 3, 7)]


@pytest.mark.parametrize("text", DISCOUNTS)
def test_the_bounds_are_reached_and_never_left_by_any_order(text: str) -> None:
    """Fixed orders reach all upper ends and the least EE-R; mixtures the other lower ends.

    The target is the mean over all orders with the useful first.
    """
    discount = Discount.parse(text)
    for n, m, k in CASES:
        weights = weights_of(discount, n, k)
        target = np.mean([exposures(order, weights) for order in optimal(n, m)], axis=0)
        useful, other = target_exposure(n, m, discount, k)
        assert np.allclose(target, np.where(np.arange(n) < m, useful, other))
        fixed = [exposures(order, weights) for order in orders(n)]
        bounds = exposure_bounds(n, m, discount, k)
        relevance = [e @ target for e in fixed]
        assert bounds.disparity[1] == pytest.approx(max(e @ e for e in fixed))
        assert bounds.relevance == pytest.approx((min(relevance), max(relevance)))
        assert bounds.loss[1] == pytest.approx(max(((e - target) ** 2).sum() for e in fixed))
        uniform = np.mean(fixed, axis=0)
        assert bounds.disparity[0] == pytest.approx(uniform @ uniform)
        assert bounds.loss[0] == 0


@st.composite
def cut_samples(draw: st.DrawFn) -> tuple[int, list[list[int]]]:
    """Rankings that may leave items out, as many as three."""
    n = draw(st.integers(1, 5))
    lists = draw(st.lists(st.permutations(range(n)), min_size=1, max_size=3))
    return n, [order[: draw(st.integers(0, n))] for order in lists]


@pytest.mark.promise("evaluation")
@settings(max_examples=60)
@given(
    case=cut_samples(),
    text=st.sampled_from(DISCOUNTS),
    k=st.sampled_from([None, 1, 3]),
    data=st.data(),
)
def test_it_is_what_counting_every_item_in_every_order_gives(
    case: tuple[int, list[list[int]]], text: str, k: int | None, data: st.DataObject
) -> None:
    """Expected exposure is what counting every item in every order gives.

    Items that a ranking leaves out follow in all orders, each as likely.
    """
    n, samples = case
    useful = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    discount = Discount.parse(text)
    weights = weights_of(discount, n, k)
    single = []
    for listed in samples:
        rest = [item for item in range(n) if item not in listed]
        wholes = [tuple(listed) + tail for tail in itertools.permutations(rest)]
        single.append(np.mean([exposures(whole, weights) for whole in wholes], axis=0))
    system = np.mean(single, axis=0)
    wanted_useful, wanted_other = target_exposure(n, int(useful.sum()), discount, k)
    target = np.where(useful, wanted_useful, wanted_other)

    padded = np.full((len(samples), n), -1)
    for row, listed in enumerate(samples):
        padded[row, : len(listed)] = listed
    found = expected_exposure(padded, useful, discount, k)
    assert found.disparity == pytest.approx(system @ system)
    assert found.relevance == pytest.approx(system @ target)
    assert found.useful_relevance == pytest.approx((system * useful) @ target)
    assert found.loss == pytest.approx(((system - target) ** 2).sum(), abs=1e-9)
    assert found.bounds.relevance[1] == pytest.approx(target @ target)
    for value, (low, high) in (
        (found.disparity, found.bounds.disparity),
        (found.relevance, found.bounds.relevance),
        (found.loss, found.bounds.loss),
    ):
        assert low - 1e-9 <= value <= high + 1e-9
    count = len(samples)
    if count == 1:
        assert found.unbiased_disparity is None
    else:
        total = np.sum(single, axis=0)
        own = sum(x @ x for x in single)
        expected = (total @ total - own) / (count * (count - 1))
        assert found.unbiased_disparity == pytest.approx(expected, abs=1e-9)


@given(
    n=st.integers(2, 5),
    text=st.sampled_from(DISCOUNTS),
    chances=st.lists(st.integers(1, 5), min_size=3, max_size=3),
    data=st.data(),
)
@settings(max_examples=30)
def test_the_correction_for_few_samples_is_right_on_average(
    n: int, text: str, chances: list[int], data: st.DataObject
) -> None:
    """Over all pairs that can be drawn from three orders, the baseline is too high."""
    three = data.draw(st.lists(st.permutations(range(n)), min_size=3, max_size=3))
    discount = Discount.parse(text)
    weights = discount.weights(n)
    chance = np.array(chances) / sum(chances)
    truth = sum(
        p * exposures(tuple(order), weights) for p, order in zip(chance, three, strict=True)
    )
    plain = unbiased = 0.0
    for i, j in itertools.product(range(3), repeat=2):
        found = expected_exposure([three[i], three[j]], np.zeros(n), discount)
        assert found.unbiased_disparity is not None
        plain += chance[i] * chance[j] * found.disparity
        unbiased += chance[i] * chance[j] * found.unbiased_disparity
    assert unbiased == pytest.approx(truth @ truth)
    assert plain >= unbiased - 1e-9


class TestThePaper:
    """The closed forms that "Towards Fair RAG" (Kim & Diaz 2024) gives for its machine user."""

    @pytest.mark.parametrize(("n", "m", "k"), [(10, 3, 5), (10, 7, 5), (10, 5, 5), (6, 1, 2)])
    def test_targets_and_bounds(self, n: int, m: int, k: int) -> None:
        user = Discount("top_k", k)
        useful, other = target_exposure(n, m, user)
        if m <= k:
            assert (useful, other) == pytest.approx((1, (k - m) / (n - m)))
            upper = m + (k - m) ** 2 / (n - m)
        else:
            assert (useful, other) == pytest.approx((k / m, 0))
            upper = k**2 / m
        bounds = exposure_bounds(n, m, user)
        a = min(k, n - m)
        assert bounds.disparity == pytest.approx((k**2 / n, k))
        assert bounds.relevance == pytest.approx((a * other + (k - a) * useful, upper))


def test_many_items_are_counted_as_few_are() -> None:
    random = np.random.default_rng(5)
    samples = [random.permutation(40)[:5] for _ in range(30)]
    useful = np.arange(40) < 7
    few = expected_exposure(samples, useful, LOG2, 5)
    many = expected_exposure(samples, np.concatenate([useful, np.zeros(10_000)]), LOG2, 5)
    # More items change the target of those that are not useful, but not what the system gives.
    assert many.disparity == pytest.approx(few.disparity)
    assert many.useful_relevance == pytest.approx(few.useful_relevance)
