"""The objective and its ranking, against an exhaustive search and by what they promise."""

from __future__ import annotations

import functools
import itertools
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fairqr.retrieval.fairness import best_ranking as search
from fairqr.retrieval.fairness.best_ranking import best_ranking
from fairqr.retrieval.fairness.divergence import jensen_shannon
from fairqr.retrieval.fairness.exposure import LOG2, exposure
from fairqr.retrieval.fairness.objective import RankingObjective, fairness

PATTERNS = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0.5, 0.5, 0], [0, 0, 0.4], [0, 0, 0]])


@functools.cache
def permutations(n: int, length: int) -> NDArray[np.intp]:
    return np.array(list(itertools.permutations(range(n), length)))


def highest(pool: RankingObjective) -> tuple[int, float]:
    """The fewest undefined attributes of any ranking, and −J, the least among those."""
    every = permutations(len(pool.relevance), pool.length)
    weights = LOG2.weights(pool.length)
    given = [np.einsum("r,mrg->gm", weights, members[every]) for members in pool.memberships]
    fair, undefined = fairness(given, pool.targets, pool.shares)
    most = weights @ np.sort(pool.relevance)[::-1][: pool.length]
    expected = pool.relevance[every] @ weights / most if most else np.ones(len(every))
    values = fair if np.isinf(pool.power) else expected * fair**pool.power
    return min(zip(undefined.tolist(), (-values).tolist(), strict=True))


def a_pool(draw: np.random.Generator, least: int = 1, most: int = 4) -> RankingObjective:
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
    weight = float(draw.choice([0.5, 1.0, 1.0, 2.0, np.inf]))
    return RankingObjective(relevance, members, targets, length, weight)


@pytest.mark.parametrize("seed", range(4))
def test_no_ranking_is_half_a_percent_better(seed: int) -> None:
    """Of 2,000 random pools, 500 for each seed."""
    draw = np.random.default_rng(seed)
    for _ in range(500):
        assert_near_the_best(a_pool(draw))


@pytest.mark.parametrize("seed", range(4))
def test_filling_and_exchanges_alone_come_as_near(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 1,000 random pools of five or six ranks; longer lists have no other way."""
    monkeypatch.setattr(search, "EVERY", 0)
    draw = np.random.default_rng(seed)
    for _ in range(250):
        assert_near_the_best(a_pool(draw, least=5, most=6))


def assert_near_the_best(pool: RankingObjective) -> None:
    undefined, value = highest(pool)
    reached = pool.quality(best_ranking(pool))
    assert reached.undefined == undefined
    assert reached.value >= -value * 0.995, pool


def test_the_parts_are_those_of_their_definitions() -> None:
    draw = np.random.default_rng(1)
    members = draw.dirichlet(np.ones(3), 9)
    relevance, target = draw.random(9), draw.dirichlet(np.ones(3))
    ranked = [4, 0, 7]
    found = RankingObjective(relevance, [members], [target], 3, weight=2).quality(ranked)
    weights = LOG2.weights(3)
    expected = weights @ relevance[ranked] / (weights @ np.sort(relevance)[::-1][:3])
    fair = float(1 - jensen_shannon(target, exposure(members[ranked]), unit="bits"))
    assert found.relevance == pytest.approx(expected, rel=1e-12)
    assert found.fairness == pytest.approx(fair, rel=1e-12)
    assert found.value == pytest.approx(expected * fair**2, rel=1e-12)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.floats(0, 1)), max_size=25),
    st.lists(st.floats(0.01, 1), min_size=3, max_size=3),
    st.sampled_from([0.0, 0.5, 1.0, 4.0, np.inf]),
    st.integers(1, 30),
)
def test_what_always_holds(
    drawn: list[tuple[int, float]], shares: list[float], weight: float, length: int
) -> None:
    members = PATTERNS[[pattern for pattern, _ in drawn]].reshape(-1, 3)
    relevance = np.array([chance for _, chance in drawn]).round(9)
    pool = RankingObjective(relevance, [members], [np.array(shares) / sum(shares)], length, weight)
    order = best_ranking(pool)
    assert len(order) == min(length, len(drawn)) == len(set(order.tolist()))
    # Within a pattern, the more relevant stand first, and none of them is left out.
    for row in PATTERNS:
        same = [place for place in range(len(drawn)) if (members[place] == row).all()]
        taken = [place for place in order.tolist() if place in same]
        assert taken == sorted(same, key=lambda place: -relevance[place])[: len(taken)]
    if len(drawn):
        # It is never worse than the order of relevance, which it is if only relevance counts.
        before = pool.quality(np.argsort(-relevance, kind="stable")[:length])
        after = pool.quality(order)
        assert (-after.undefined, after.value) >= (-before.undefined, before.value - 1e-6)
        if weight == 0 and not before.undefined:
            assert after.relevance == pytest.approx(1)


def test_an_unlikely_document_is_not_moved_at_any_price() -> None:
    """It costs more expected relevance than it brings fairness."""
    members, relevance = np.eye(2)[[0] * 20 + [1]], np.array([0.9] * 20 + [0.01])
    pool = RankingObjective(relevance, [members], [np.array([0.97, 0.03])], 20)
    assert 20 not in best_ranking(pool)
    assert 20 in best_ranking(replace(pool, weight=np.inf))


def test_long_rankings_are_filled() -> None:
    """Beyond 50 ranks there are no exchanges, and both parts are high all the same."""
    draw = np.random.default_rng(1)
    members = [np.eye(3)[draw.integers(0, 3, 3000)]]
    pool = RankingObjective(draw.random(3000), members, [np.array([0.6, 0.3, 0.1])], 1000)
    begun = time.process_time()
    reached = pool.quality(best_ranking(pool))
    assert time.process_time() - begun < 2
    assert reached.value > 0.93
