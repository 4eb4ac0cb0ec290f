"""The objective and its ranking, against an exhaustive search and by what they promise."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqr.retrieval.fairness import best_ranking as search
from fairqr.retrieval.fairness.best_ranking import best_ranking
from fairqr.retrieval.fairness.divergence import jensen_shannon
from fairqr.retrieval.fairness.exposure import LOG2, exposure, intersection
from fairqr.retrieval.fairness.objective import ABOVE_LEAST, RankingObjective, soft_least
from tests.unit.retrieval.all_rankings import permutations, values_of

PATTERNS = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0.5, 0.5, 0], [0, 0, 0.4], [0, 0, 0]])


def highest(pool: RankingObjective) -> tuple[int, float]:
    """The fewest undefined attributes of any ranking, and −J, the least among those."""
    every = permutations(len(pool.relevance), pool.length)
    values, undefined = values_of(pool, every)
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


def by_the_least(pool: RankingObjective) -> RankingObjective:
    """The same pool, whose F is the soft minimum over attributes and the pairs of them."""
    pairs = itertools.combinations(range(len(pool.targets)), 2)
    members = [*pool.memberships]
    targets = [*pool.targets]
    for one, other in pairs:
        members.append(intersection([pool.memberships[one], pool.memberships[other]]))
        targets.append(np.outer(pool.targets[one], pool.targets[other]).ravel())
    return replace(pool, memberships=members, targets=targets, is_least=True)


@pytest.mark.promise("objective")
@pytest.mark.parametrize("seed", range(4))
def test_no_ranking_is_half_a_percent_better(seed: int) -> None:
    """The fair list is within half a percent of the best of all rankings, on small pools of every
    kind.

    Of 2,000 random pools, 500 for each seed.
    """
    draw = np.random.default_rng(seed)
    for _ in range(500):
        assert_near_the_best(a_pool(draw))


@pytest.mark.promise("objective")
@pytest.mark.parametrize("seed", range(4))
def test_filling_and_exchanges_alone_come_as_near(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps that make long lists come as near to the best of all rankings on small pools.

    Of 1,000 random pools of five or six ranks; longer lists have no other way.
    """
    monkeypatch.setattr(search, "EVERY", 0)
    draw = np.random.default_rng(seed)
    for _ in range(250):
        assert_near_the_best(a_pool(draw, least=5, most=6))


@pytest.mark.parametrize("seed", range(2))
def test_no_ranking_is_better_by_the_least_attribute(seed: int) -> None:
    """As above, on 600 random pools, 300 for each seed."""
    draw = np.random.default_rng(50 + seed)
    for _ in range(300):
        assert_near_the_best(by_the_least(a_pool(draw)))


def test_the_least_attribute_comes_near_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As above, on 150 random pools of five or six ranks."""
    monkeypatch.setattr(search, "EVERY", 0)
    draw = np.random.default_rng(60)
    for _ in range(150):
        assert_near_the_best(by_the_least(a_pool(draw, least=5, most=6)))


@pytest.mark.parametrize("is_least", [False, True])
def test_no_ranking_is_better_over_several_cut_offs(is_least: bool) -> None:
    """As above, on 300 random pools whose first rank or two count as much as the whole list."""
    draw = np.random.default_rng(70)
    for _ in range(300):
        spread = tuple(draw.integers(1, 4, 2).tolist())
        assert_near_the_best(replace(a_pool(draw), spread=spread, is_least=is_least))


def test_several_cut_offs_come_near_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As above, on 150 random pools of five or six ranks, of which two and four count, too."""
    monkeypatch.setattr(search, "EVERY", 0)
    draw = np.random.default_rng(80)
    for _ in range(150):
        assert_near_the_best(replace(a_pool(draw, least=5, most=6), spread=(2, 4)))


def test_over_several_cut_offs_fairness_is_the_mean_of_their_own() -> None:
    draw = np.random.default_rng(2)
    pool = RankingObjective(
        draw.random(30), [draw.dirichlet(np.ones(3), 30)], [draw.dirichlet(np.ones(3))], 20
    )
    ranked = draw.permutation(30)[:20]
    alone = [replace(pool, length=count).quality(ranked[:count]).fairness for count in (5, 10, 20)]
    found = replace(pool, spread=(10, 5, 50)).quality(ranked)
    assert found.fairness == pytest.approx(np.mean(alone), rel=1e-12)
    assert found.relevance == pool.quality(ranked).relevance
    least = replace(pool, spread=(5, 10), is_least=True).quality(ranked)
    assert min(alone) - 1e-12 <= least.fairness <= min(alone) + ABOVE_LEAST


def test_spread_leaves_no_group_to_one_document() -> None:
    """One woman at the first rank has the exposure of two below it; the first five have others."""
    members = np.eye(2)[[0] * 20 + [1] * 20]
    relevance = np.concatenate([np.linspace(0.9, 0.6, 20), np.linspace(0.8, 0.5, 20)])
    pool = RankingObjective(relevance, [members], [np.array([0.5, 0.5])], 20)
    wide = replace(pool, spread=(3, 5, 10))
    for count in (3, 5, 10):
        first = [exposure(members[best_ranking(it)][:count])[1] for it in (pool, wide)]
        assert abs(first[1] - 0.5) <= abs(first[0] - 0.5) + 1e-9


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=12),
    st.lists(st.floats(0, 1), min_size=12, max_size=12),
    st.floats(0, 1),
)
def test_the_soft_minimum_is_near_the_least_and_concave(
    drawn: list[float], others: list[float], share: float
) -> None:
    values = np.array(drawn)
    sharpness = max(1.0, math.log(len(values)) / ABOVE_LEAST)
    found = float(soft_least(values, sharpness))
    terms = [math.exp(-sharpness * (value - min(drawn))) for value in drawn]
    assert found == pytest.approx(min(drawn) - math.log(sum(terms) / len(terms)) / sharpness)
    assert min(drawn) - 1e-12 <= found <= min(min(drawn) + ABOVE_LEAST, values.mean()) + 1e-12
    other = np.array(others[: len(values)])
    between = soft_least(share * values + (1 - share) * other, sharpness)
    chord = share * found + (1 - share) * soft_least(other, sharpness)
    assert between >= chord - 1e-12
    assert soft_least(np.maximum(values, other), sharpness) >= found - 1e-12


def test_the_soft_minimum_leaves_out_attributes_without_exposure() -> None:
    values = np.array([[0.2, 0.5], [0.1, 0.5]])
    is_known = np.array([[True, False], [False, False]])
    assert soft_least(values, 100.0, is_known).tolist() == [0.2, 1.0]


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


def test_fairness_is_never_below_0() -> None:
    """Nothing of the target is there, so JS is 1 bit, also after rounding."""
    draw = np.random.default_rng(0)
    target = np.eye(8)[0]
    for _ in range(200):
        members = np.eye(8)[draw.integers(1, 8, 20)]
        pool = RankingObjective(draw.random(20), [members], [target], 20, weight=0.5)
        found = pool.quality(draw.permutation(20))
        assert 0 <= found.fairness < 1e-12
        assert 0 <= found.value < 1e-6


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


@pytest.mark.promise("objective")
def test_an_unlikely_document_is_not_moved_at_any_price() -> None:
    """A document that is hardly relevant is not moved up by default.

    It costs more expected relevance than it brings fairness.
    """
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


@pytest.mark.parametrize("order", [None, "engine"])
@pytest.mark.parametrize("weight", [0.5, 1.0, 16.0])
def test_of_many_groups_the_patterns_that_are_filled_in_suffice(
    weight: float, order: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exchanges with all others add at most half a percent, over five pools of 33 to 80 groups."""
    for seed in range(5):
        draw = np.random.default_rng(seed)
        sizes = draw.zipf(1.2, 200) % 80
        members = np.eye(80)[sizes]
        members[draw.random(200) < 0.1] = 0
        members = members[:, members.any(axis=0)]
        assert members.shape[1] > search.MANY_GROUPS
        relevance = draw.beta(1, 2, 200)
        target = relevance @ members / (relevance @ members).sum()
        pool = RankingObjective(relevance, [members], [target], 8, weight)
        taken = None if order is None else draw.permutation(200)
        some = pool.quality(best_ranking(pool, taken))
        with monkeypatch.context() as patched:
            patched.setattr(search, "MANY_GROUPS", 1000)
            every = pool.quality(best_ranking(pool, taken))
        assert some.value >= every.value * 0.995
