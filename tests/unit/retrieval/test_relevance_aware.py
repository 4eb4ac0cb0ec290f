"""The relevance-aware step, against an exhaustive search and by what it promises."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fairqr.retrieval.divergence import kullback_leibler
from fairqr.retrieval.exposure import LOG2, Discount, exposure
from fairqr.retrieval.relevance_aware import most_relevant

Array = NDArray[np.float64]
PATTERNS = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0.5, 0.5, 0], [0, 0, 0.4], [0, 0, 0]])


def distance(members: Array, target: Array, tolerance: float, discount: Discount = LOG2) -> float:
    """How far a ranking is from the target, at least the tolerance; 1,000 without any label."""
    got = exposure(members, discount)
    return max(float(kullback_leibler(target, got)), tolerance) if got.any() else 1e3


def expected(relevance: Array) -> float:
    return float(LOG2.weights(len(relevance)) @ relevance)


def exhaustive(relevance: Array, members: Array, target: Array, tolerance: float, k: int) -> Array:
    """The distance and V of the best of all rankings of k documents."""
    every = (
        (distance(members[list(order)], target, tolerance), -expected(relevance[list(order)]))
        for order in itertools.permutations(range(len(relevance)), k)
    )
    nearest, value = min((round(d, 9), v) for d, v in every)
    return np.array([nearest, -value])


def pools(seed: int, count: int, groups: int, n: int) -> Iterator[tuple[Array, Array, Array]]:
    draw = np.random.default_rng(seed)
    for _ in range(count):
        members = np.eye(groups)[draw.choice(groups, n, p=draw.dirichlet(np.ones(groups) * 2))]
        yield draw.beta(2, 2, n), members, draw.dirichlet(np.ones(groups) * 3)


@pytest.mark.parametrize(("groups", "n", "k"), [(2, 7, 4), (3, 7, 4)])
def test_it_comes_near_the_best_of_all_rankings(groups: int, n: int, k: int) -> None:
    """Of 40 random pools at most two end farther from the target than need be; the others lose at
    most .5 % of the highest V in the mean, and never more than 6 %."""
    lost = []
    for relevance, members, target in pools(groups, 40, groups, n):
        best, value = exhaustive(relevance, members, target, 0.02, k)
        order = most_relevant(
            relevance, [members], [target], tolerance=0.02, divergence=kullback_leibler, length=k
        )
        if distance(members[order], target, 0.02) <= best + 1e-6:
            lost.append(1 - expected(relevance[order]) / value)
    assert len(lost) >= 38
    assert np.mean(lost) < 0.005
    assert max(lost) < 0.06


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.floats(0, 1)), max_size=25),
    st.lists(st.floats(0.01, 1), min_size=3, max_size=3),
    st.floats(0, 0.3),
    st.integers(1, 30),
)
def test_what_always_holds(
    pool: list[tuple[int, float]], shares: list[float], tolerance: float, length: int
) -> None:
    members = PATTERNS[[pattern for pattern, _ in pool]].reshape(-1, 3)
    relevance = np.array([chance for _, chance in pool])
    target = np.array(shares) / sum(shares)
    order = most_relevant(
        relevance,
        [members],
        [target],
        tolerance=tolerance,
        divergence=kullback_leibler,
        length=length,
    )
    assert len(order) == min(length, len(pool)) == len(set(order.tolist()))
    # Within a pattern, the more relevant stand first, and none of them is left out.
    for row in PATTERNS:
        same = [place for place in range(len(pool)) if (members[place] == row).all()]
        taken = [place for place in order.tolist() if place in same]
        assert taken == sorted(same, key=lambda place: -relevance[place])[: len(taken)]
    # It is never farther from the target than the order of relevance is.
    if len(pool):
        by_relevance = np.argsort(-relevance, kind="stable")[:length]
        plain = distance(members[by_relevance], target, tolerance)
        assert distance(members[order], target, tolerance) <= plain + 1e-9


def test_within_the_tolerance_only_relevance_counts() -> None:
    for relevance, members, target in pools(5, 20, 3, 40):
        order = most_relevant(
            relevance, [members], [target], tolerance=20, divergence=kullback_leibler, length=10
        )
        assert order.tolist() == np.argsort(-relevance, kind="stable")[:10].tolist()


def test_a_looser_tolerance_is_never_less_relevant() -> None:
    for relevance, members, target in pools(7, 10, 2, 600):
        values = []
        for tolerance in (0.3, 0.05, 0.005):
            order = most_relevant(
                relevance,
                [members],
                [target],
                tolerance=tolerance,
                divergence=kullback_leibler,
                length=20,
            )
            assert distance(members[order], target, 0) <= tolerance
            values.append(expected(relevance[order]))
        assert values[0] >= values[1] - 0.01 >= values[2] - 0.02


def test_several_attributes_count_by_their_mean() -> None:
    draw = np.random.default_rng(3)
    first, second = np.eye(2)[draw.integers(0, 2, 300)], np.eye(4)[draw.integers(0, 4, 300)]
    targets = [np.array([0.8, 0.2]), np.array([0.1, 0.2, 0.3, 0.4])]
    order = most_relevant(
        draw.beta(2, 2, 300),
        [first, second],
        targets,
        tolerance=0.005,
        divergence=kullback_leibler,
        length=20,
    )
    reached = [exposure(first[order]), exposure(second[order])]
    both = [kullback_leibler(t, e) for t, e in zip(targets, reached, strict=True)]
    assert np.mean(both) <= 0.005


def test_unlabelled_documents_are_not_pushed_out() -> None:
    """Nothing is known against them, so they keep the ranks that their relevance gives them."""
    members = np.array([[0, 0], [1, 0], [0, 0], [1, 0], [0, 0], [0, 1]], dtype=float)
    relevance = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4])
    order = most_relevant(
        relevance,
        [members],
        [np.array([0.5, 0.5])],
        tolerance=0.2,
        divergence=kullback_leibler,
        length=5,
    )
    assert 5 in order
    assert {0, 2} <= set(order.tolist())


def test_a_scarce_group_gets_the_best_ranks_that_it_needs() -> None:
    """Beyond the tolerance, the ranking nearest to the target is taken."""
    members = np.eye(2)[[0] * 30 + [1]]
    order = most_relevant(
        np.linspace(1, 0.5, 31),
        [members],
        [np.array([0.3, 0.7])],
        tolerance=0.005,
        divergence=kullback_leibler,
        length=20,
    )
    assert order[0] == 30


def test_long_rankings_are_filled() -> None:
    """Beyond 50 ranks there are no exchanges, and the target is met all the same."""
    draw = np.random.default_rng(1)
    members = np.eye(3)[draw.integers(0, 3, 3000)]
    target = np.array([0.6, 0.3, 0.1])
    begun = time.process_time()
    order = most_relevant(
        draw.random(3000),
        [members],
        [target],
        tolerance=0.005,
        divergence=kullback_leibler,
        length=1000,
    )
    assert distance(members[order], target, 0) <= 0.005
    assert time.process_time() - begun < 2
