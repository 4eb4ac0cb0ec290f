"""The objective and its ranking, against an exhaustive search and by what they promise."""

from __future__ import annotations

import functools
import itertools
import time
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fairqr.retrieval.fairness import objective
from fairqr.retrieval.fairness.divergence import jensen_shannon
from fairqr.retrieval.fairness.exposure import LOG2, exposure
from fairqr.retrieval.fairness.objective import Quality, best_ranking, fairness, quality

Array = NDArray[np.float64]
Patch = pytest.MonkeyPatch
PATTERNS = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0.5, 0.5, 0], [0, 0, 0.4], [0, 0, 0]])


class Pool(NamedTuple):
    relevance: Array
    members: list[Array]
    targets: list[Array]
    length: int
    weight: float

    def ranked(self) -> NDArray[np.intp]:
        return best_ranking(
            self.relevance, self.members, self.targets, weight=self.weight, length=self.length
        )

    def quality(self, ranked: NDArray[np.intp]) -> Quality:
        return quality(ranked, self.relevance, self.members, self.targets, weight=self.weight)

    def highest(self) -> tuple[int, float]:
        """The fewest undefined attributes of any ranking, and the highest J among those."""
        every = permutations(len(self.relevance), self.length)
        weights = LOG2.weights(self.length)
        given = [np.einsum("r,mrg->mg", weights, members[every]) for members in self.members]
        fair, undefined = fairness(given, self.targets)
        most = weights @ np.sort(self.relevance)[::-1][: self.length]
        expected = self.relevance[every] @ weights / most if most else np.ones(len(every))
        values = fair if np.isinf(self.weight) else expected * fair**self.weight
        return min(zip(undefined.tolist(), (-values).tolist(), strict=True))


@functools.cache
def permutations(n: int, length: int) -> NDArray[np.intp]:
    return np.array(list(itertools.permutations(range(n), length)))


def a_pool(draw: np.random.Generator, least: int = 1, most: int = 4) -> Pool:
    """From ``least`` to ``most`` ranks; up to three attributes of two to four groups each.

    Some attributes have fractional memberships, some documents have no label, some attributes no
    labelled document, and some pools have many documents of the same relevance.
    """
    n = int(draw.integers(least + 1, max(8, most + 3)))
    length = int(draw.integers(least, min(n, most) + 1))
    members, targets = [], []
    for _ in range(int(draw.integers(1, 4))):
        groups = int(draw.integers(2, 5))
        own = np.eye(groups)[draw.choice(groups, n, p=draw.dirichlet(np.full(groups, 2.0)))]
        kind = draw.random()
        if kind < 0.3:
            own = np.where(draw.random((n, 1)) < 0.4, draw.dirichlet(np.ones(groups), n), own)
        if kind > 0.6:
            own = own * (draw.random((n, 1)) < (0.6 if kind < 0.95 else 0))
        members.append(own)
        targets.append(draw.dirichlet(np.full(groups, draw.choice([0.5, 3.0]))))
    tied = draw.integers(0, 4, n) / 3
    relevance = draw.beta(2, 2, n) if draw.random() < 0.7 else tied
    return Pool(
        relevance, members, targets, length, float(draw.choice([0.5, 1.0, 1.0, 2.0, np.inf]))
    )


@pytest.mark.parametrize("seed", range(4))
def test_no_ranking_is_half_a_percent_better(seed: int) -> None:
    """Of 2,000 random pools, 500 for each seed."""
    draw = np.random.default_rng(seed)
    for _ in range(500):
        assert_near_the_best(a_pool(draw))


@pytest.mark.parametrize("seed", range(4))
def test_filling_and_exchanges_alone_come_as_near(seed: int, monkeypatch: Patch) -> None:
    """Of 1,000 random pools of five or six ranks; longer lists have no other way."""
    monkeypatch.setattr(objective, "EVERY", 0)
    draw = np.random.default_rng(seed)
    for _ in range(250):
        assert_near_the_best(a_pool(draw, least=5, most=6))


def assert_near_the_best(pool: Pool) -> None:
    undefined, value = pool.highest()
    reached = pool.quality(pool.ranked())
    assert reached.undefined == undefined
    assert reached.value >= -value * 0.995, pool


def test_the_parts_are_those_of_their_definitions() -> None:
    draw = np.random.default_rng(1)
    members = draw.dirichlet(np.ones(3), 9)
    relevance, target = draw.random(9), draw.dirichlet(np.ones(3))
    ranked = [4, 0, 7]
    found = quality(ranked, relevance, [members], [target], weight=2)
    weights = LOG2.weights(3)
    expected = weights @ relevance[ranked] / (weights @ np.sort(relevance)[::-1][:3])
    fair = 1 - jensen_shannon(target, exposure(members[ranked]), unit="bits")
    assert found.relevance == pytest.approx(expected, rel=1e-12)
    assert found.fairness == pytest.approx(float(fair), rel=1e-12)
    assert found.value == pytest.approx(expected * float(fair) ** 2, rel=1e-12)


def test_a_shorter_list_is_held_against_as_many_ranks() -> None:
    """One document is not all that a list of three could have."""
    relevance, members = np.array([0.9, 0.8, 0.7]), np.eye(2)[[0, 1, 0]]
    one = quality([0], relevance, [members], [np.full(2, 0.5)], length=3)
    assert one.relevance == pytest.approx(0.9 / (LOG2.weights(3) @ relevance))


def test_an_attribute_without_labels_takes_nothing_from_the_others() -> None:
    """Also where only fairness counts: then the other attribute is as near its target as alone."""
    draw = np.random.default_rng(3)
    members, none = np.eye(2)[draw.integers(0, 2, 200)], np.zeros((200, 2))
    relevance, half = draw.random(200), np.full(2, 0.5)
    for weight in (1.0, 256.0, np.inf):
        alone = best_ranking(relevance, [members], [half], weight=weight, length=20)
        beside = best_ranking(relevance, [members, none], [half, half], weight=weight, length=20)
        assert beside.tolist() == alone.tolist()


def test_extremes_of_fairness() -> None:
    target = np.array([0.25, 0.75])
    same, _ = fairness([target], [target])
    apart, _ = fairness([np.array([3.0, 0.0])], [np.array([0.0, 1.0])])
    none, undefined = fairness([np.zeros(2), target * 5], [target, target])
    assert (float(same), float(apart), float(none), int(undefined)) == (1, 0, 1, 1)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.floats(0, 1)), max_size=25),
    st.lists(st.floats(0.01, 1), min_size=3, max_size=3),
    st.sampled_from([0.0, 0.5, 1.0, 4.0, np.inf]),
    st.integers(1, 30),
)
def test_what_always_holds(
    pool: list[tuple[int, float]], shares: list[float], weight: float, length: int
) -> None:
    members = PATTERNS[[pattern for pattern, _ in pool]].reshape(-1, 3)
    relevance = np.array([chance for _, chance in pool]).round(9)
    target = np.array(shares) / sum(shares)
    order = best_ranking(relevance, [members], [target], weight=weight, length=length)
    assert len(order) == min(length, len(pool)) == len(set(order.tolist()))
    # Within a pattern, the more relevant stand first, and none of them is left out.
    for row in PATTERNS:
        same = [place for place in range(len(pool)) if (members[place] == row).all()]
        taken = [place for place in order.tolist() if place in same]
        assert taken == sorted(same, key=lambda place: -relevance[place])[: len(taken)]
    if len(pool):
        # It is never worse than the order of relevance, which it is if only relevance counts.
        plain = np.argsort(-relevance, kind="stable")[:length]
        before = quality(plain, relevance, [members], [target], weight=weight)
        after = quality(order, relevance, [members], [target], weight=weight)
        assert (-after.undefined, after.value) >= (-before.undefined, before.value - 1e-6)
        if weight == 0 and not before.undefined:
            assert after.relevance == pytest.approx(1)


def test_a_higher_weight_buys_more_fairness_for_relevance() -> None:
    draw = np.random.default_rng(7)
    for _ in range(20):
        members = np.eye(3)[draw.integers(0, 3, 200)]
        pool = Pool(draw.beta(2, 2, 200), [members], [draw.dirichlet(np.full(3, 3.0))], 20, 1.0)
        found = [
            one.quality(one.ranked())
            for one in (pool._replace(weight=weight) for weight in (0, 1, 16, np.inf))
        ]
        fair, relevant = (
            [getattr(one, name) for one in found] for name in ("fairness", "relevance")
        )
        assert all(after >= before - 1e-3 for before, after in itertools.pairwise(fair))
        assert all(after <= before + 1e-3 for before, after in itertools.pairwise(relevant))


def test_the_given_order_stays_within_a_pattern() -> None:
    draw = np.random.default_rng(2)
    members = np.eye(2)[draw.integers(0, 2, 40)]
    relevance, order = draw.random(40), draw.permutation(40)
    ranked = best_ranking(relevance, [members], [np.array([0.7, 0.3])], length=10, order=order)
    place = np.argsort(order)
    for group in members.T:
        taken = [place[row] for row in ranked if group[row]]
        own = sorted(place[np.flatnonzero(group)])
        assert taken == own[: len(taken)]


def test_an_unlikely_document_is_not_moved_at_any_price() -> None:
    """It costs more expected relevance than it brings fairness."""
    members = np.eye(2)[[0] * 20 + [1]]
    relevance = np.array([0.9] * 20 + [0.01])
    targets = [np.array([0.97, 0.03])]
    assert 20 not in best_ranking(relevance, [members], targets, length=20)
    assert 20 in best_ranking(relevance, [members], targets, length=20, weight=np.inf)


def test_unlabelled_documents_are_not_pushed_out() -> None:
    """Nothing is known against them, so they keep the ranks that their relevance gives them."""
    members = np.array([[0, 0], [1, 0], [0, 0], [1, 0], [0, 0], [0, 1]], dtype=float)
    relevance = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4])
    order = best_ranking(relevance, [members], [np.array([0.5, 0.5])], length=5)
    assert 5 in order
    assert {0, 2} <= set(order.tolist())


def test_a_list_with_more_defined_attributes_is_preferred() -> None:
    """Whatever its J: only the last document has a label of the second attribute."""
    first = np.eye(2)[[0, 1, 0, 1, 0]]
    second = np.zeros((5, 2))
    second[4, 0] = 1
    relevance = np.array([0.9, 0.9, 0.9, 0.9, 0.01])
    targets = [np.array([0.5, 0.5]), np.array([0.01, 0.99])]
    assert 4 in best_ranking(relevance, [first, second], targets, length=3)


def test_an_empty_pool_has_an_empty_ranking() -> None:
    assert not len(best_ranking(np.zeros(0), [np.zeros((0, 2))], [np.full(2, 0.5)], length=20))


def test_long_rankings_are_filled() -> None:
    """Beyond 50 ranks there are no exchanges, and both parts are high all the same."""
    draw = np.random.default_rng(1)
    pool = Pool(
        draw.random(3000),
        [np.eye(3)[draw.integers(0, 3, 3000)]],
        [np.array([0.6, 0.3, 0.1])],
        1000,
        1.0,
    )
    begun = time.process_time()
    reached = pool.quality(pool.ranked())
    assert time.process_time() - begun < 2
    assert reached.value > 0.93
