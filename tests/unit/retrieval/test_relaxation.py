"""The bound of J and the prices of exposure, against exhaustive search and scipy's solver."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import optimize

from fairqr.retrieval.fairness.best_ranking import best_ranking, keeps_order
from fairqr.retrieval.fairness.exposure import (
    LOG2,
    Discount,
    FloatArray,
    distinct_rows,
    intersection,
)
from fairqr.retrieval.fairness.objective import RankingObjective, fairness
from fairqr.retrieval.fairness.relaxation import POINT, TOLERANCE, relax
from tests.unit.retrieval.all_rankings import permutations, values_of

ROUNDING = 1e-9


def a_pool(draw: np.random.Generator, *, is_labelled: bool) -> RankingObjective:
    """Up to seven documents for up to four ranks, with one or two attributes."""
    n = int(draw.integers(2, 8))
    length = int(draw.integers(1, min(n, 4) + 1))
    members = []
    targets = []
    for _ in range(int(draw.integers(1, 3))):
        groups = int(draw.integers(2, 9))
        own = np.eye(groups)[draw.choice(groups, n)]
        if draw.random() < 0.3:
            own = np.where(draw.random((n, 1)) < 0.4, draw.dirichlet(np.ones(groups), n), own)
        if not is_labelled:
            own = own * (draw.random((n, 1)) < 0.7)
        members.append(own)
        targets.append(draw.dirichlet(np.full(groups, draw.choice([0.1, 0.5, 3.0]))))
    relevance = draw.beta(2, 2, n) if draw.random() < 0.7 else draw.integers(0, 4, n) / 3
    # Where nothing fits, all are small; then only their quotients count.
    relevance = relevance * draw.choice([1.0, 1.0, 1e-8])
    weight: float | list[float] = float(draw.choice([0.0, 0.5, 1.0, 2.0, 64.0, 1e6, np.inf]))
    if draw.random() < 0.2:
        weight = draw.choice([0.0, 1.0, 16.0], len(targets)).tolist()
    return RankingObjective(relevance, members, targets, length, weight)


def labelled_exposures(pool: RankingObjective, rankings: NDArray[np.intp]) -> FloatArray:
    """What the labelled documents of each attribute get in rankings, shape (m, A)."""
    weights = pool.discount.weights(pool.length)
    sums = np.stack([members.sum(axis=1) for members in pool.memberships], axis=-1)
    return np.asarray(np.einsum("r,mra->ma", weights, sums[rankings]))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seed", range(4))
def test_no_ranking_is_above_the_bound(seed: int) -> None:
    """Of 2,000 random pools, 500 for each seed; all rankings of each."""
    draw = np.random.default_rng(seed)
    for _ in range(500):
        pool = a_pool(draw, is_labelled=True)
        bound = relax(pool, best_ranking(pool)).bound
        every = permutations(len(pool.relevance), pool.length)
        assert values_of(pool, every)[0].max() <= bound + ROUNDING


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seed", range(4))
def test_no_ranking_of_equal_labelling_is_above_the_bound(seed: int) -> None:
    """Of 2,000 random pools, 500 for each seed, and of one ranking of each drawn at random."""
    draw = np.random.default_rng(100 + seed)
    for _ in range(500):
        pool = a_pool(draw, is_labelled=False)
        rankings = permutations(len(pool.relevance), pool.length)
        labelled = labelled_exposures(pool, rankings)
        chosen = int(draw.integers(len(rankings)))
        is_alike = (np.abs(labelled - labelled[chosen]) < ROUNDING).all(axis=1)
        bound = relax(pool, rankings[chosen]).bound
        assert values_of(pool, rankings[is_alike])[0].max() <= bound + ROUNDING


@pytest.mark.parametrize("is_labelled", [True, False])
def test_no_ranking_is_above_the_bound_by_the_least_attribute(is_labelled: bool) -> None:
    """Of 400 random pools each, whose F is the soft minimum over the attributes."""
    draw = np.random.default_rng(400)
    for _ in range(400):
        pool = a_pool(draw, is_labelled=is_labelled)
        pool = replace(pool, is_least=True, weight=pool.power)
        rankings = permutations(len(pool.relevance), pool.length)
        labelled = labelled_exposures(pool, rankings)
        chosen = int(draw.integers(len(rankings)))
        is_alike = (np.abs(labelled - labelled[chosen]) < ROUNDING).all(axis=1)
        bound = relax(pool, rankings[chosen]).bound
        assert values_of(pool, rankings[is_alike])[0].max() <= bound + ROUNDING


def test_long_lists_come_near_the_least_attributes_bound() -> None:
    """500 documents, two attributes and their intersection: within 2 % at 50 and 100 ranks."""
    draw = np.random.default_rng(5)
    for length in (50, 100):
        members = [np.eye(count)[draw.integers(0, count, 500)] for count in (2, 4)]
        members.append(intersection(members))
        targets = [draw.dirichlet(np.full(count, 5.0)) for count in (2, 4)]
        targets.append(np.outer(*targets).ravel())
        pool = RankingObjective(draw.beta(1, 3, 500), members, targets, length, is_least=True)
        ranked = best_ranking(pool)
        assert pool.quality(ranked).value >= 0.98 * relax(pool, ranked).bound


@pytest.mark.parametrize("seed", range(4))
def test_no_ranking_in_a_given_order_is_above_its_bound(seed: int) -> None:
    """Of 1,000 random pools, 250 for each seed; documents of a pattern stay in a random order."""
    draw = np.random.default_rng(200 + seed)
    for _ in range(250):
        pool = a_pool(draw, is_labelled=True)
        order = draw.permutation(len(pool.relevance))
        rankings = permutations(len(pool.relevance), pool.length)
        kept = [ranking for ranking in rankings if keeps_order(pool, ranking, order)]
        assert len(kept) == sum(is_in_order(pool, ranking, order) for ranking in rankings)
        bound = relax(pool, best_ranking(pool, order), order).bound
        assert values_of(pool, np.array(kept))[0].max() <= bound + ROUNDING


def is_in_order(pool: RankingObjective, ranking: NDArray[np.intp], order: NDArray[np.intp]) -> bool:
    """Whether documents with equal memberships come in the order, none of them left out."""
    members = np.concatenate(pool.memberships, axis=1)
    taken = {int(document): rank for rank, document in enumerate(ranking)}
    for first, second in itertools.combinations(order.tolist(), 2):
        are_alike = np.array_equal(members[first], members[second])
        is_too_early = second in taken and taken.get(first, len(ranking)) > taken[second]
        if are_alike and is_too_early:
            return False
    return True


@st.composite
def pools(draw: st.DrawFn) -> RankingObjective:
    """Up to 16 documents, with one to three attributes of whole, shared and missing labels."""
    n = draw(st.integers(2, 16))
    members = []
    targets = []
    for _ in range(draw(st.integers(1, 3))):
        groups = draw(st.integers(2, 4))
        shared = draw(st.lists(st.floats(0.05, 1), min_size=groups, max_size=groups))
        patterns = np.vstack(
            [
                np.eye(groups),
                np.array(shared) / sum(shared),
                0.4 * np.eye(groups)[:1],
                np.zeros((1, groups)),
            ]
        )
        # The first kinds have labels, the last two only a part of one, or none.
        kinds = draw(st.sampled_from([groups, groups + 1, groups + 3]))
        drawn = draw(st.lists(st.integers(0, kinds - 1), min_size=n, max_size=n))
        members.append(patterns[drawn])
        shares = draw(st.lists(st.floats(0, 1), min_size=groups, max_size=groups))
        targets.append((np.array(shares) + 0.01) / (sum(shares) + 0.01 * groups))
    levels = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.5, 1.0]))
    relevance = np.array(draw(st.lists(levels, min_size=n, max_size=n)))
    of_each = st.lists(st.floats(0, 4), min_size=len(targets), max_size=len(targets))
    weight = draw(st.one_of(st.sampled_from([0.0, 0.5, 1.0, 4.0, 64.0, np.inf]), of_each))
    discount = draw(st.sampled_from([LOG2, Discount("rbp", 0.8), Discount("top_k", 3)]))
    return RankingObjective(relevance, members, targets, draw(st.integers(1, n)), weight, discount)


def exchanged(ranking: NDArray[np.intp], n: int) -> NDArray[np.intp]:
    """A ranking, and what one exchange of two of its documents, or with one outside, makes of it.

    Args:
        ranking: Positions of documents.
        n: How many documents there are.
    """
    length = len(ranking)
    outside = np.setdiff1d(np.arange(n), ranking)
    every = [ranking]
    for one, other in itertools.combinations([*ranking.tolist(), *outside.tolist()], 2):
        after = np.append(ranking, outside)
        first, second = np.flatnonzero((after == one) | (after == other))
        if first < length:
            after[[first, second]] = after[[second, first]]
            every.append(after[:length])
    return np.array(every)


def in_order(
    pool: RankingObjective, ranking: NDArray[np.intp], order: NDArray[np.intp]
) -> NDArray[np.intp]:
    """The same groups at the same ranks, by documents that are taken in an order."""
    patterns = distinct_rows(np.concatenate(pool.memberships, axis=1))[1]
    kept = ranking.copy()
    for pattern in np.unique(patterns[ranking]):
        ranks = np.flatnonzero(patterns[ranking] == pattern)
        kept[ranks] = order[patterns[order] == pattern][: len(ranks)]
    return kept


@pytest.mark.promise("graph")
@settings(max_examples=150, deadline=None)
@given(pools(), st.randoms(use_true_random=False), st.booleans(), st.booleans())
def test_no_exchange_beats_the_bound(
    pool: RankingObjective, draw: random.Random, is_best: bool, keeps: bool
) -> None:
    """No exchange of documents takes a list above the bound of its certificate.

    Neither of the best ranking nor of any other one that the bound is of.

    Where labels are missing, the bound is of rankings with the same labelled exposure, and in an
    order of the engine, of rankings in that order.
    """
    n = len(pool.relevance)
    order = np.array(draw.sample(range(n), n)) if keeps else None
    ranking = best_ranking(pool, order) if is_best else np.array(draw.sample(range(n), pool.length))
    if order is not None:
        ranking = in_order(pool, ranking, order)
    bound = relax(pool, ranking, order).bound

    rankings = exchanged(ranking, n)
    labelled = labelled_exposures(pool, rankings)
    is_bounded = (np.abs(labelled - labelled[0]) < ROUNDING).all(axis=1)
    for candidate in rankings[is_bounded]:
        if order is None or keeps_order(pool, candidate, order):
            assert pool.quality(candidate).value <= bound + ROUNDING


@pytest.mark.parametrize("seed", range(10))
def test_the_bound_is_near_what_a_solver_finds(seed: int) -> None:
    """The relaxed problem, as a mixture of all rankings, by scipy's SLSQP."""
    draw = np.random.default_rng(300 + seed)
    members = np.eye(3)[draw.permutation(6) % 3]
    pool = RankingObjective(draw.beta(2, 2, 6), [members], [draw.dirichlet(np.ones(3))], 3)
    rankings = permutations(6, 3)
    weights = LOG2.weights(3)
    given = np.einsum("r,mrg->mg", weights, members[rankings])
    most = weights @ np.sort(pool.relevance)[::-1][:3]
    relevance = pool.relevance[rankings] @ weights / most

    def loss(mixture: FloatArray) -> float:
        fair = fairness([mixture @ given], pool.targets, [1.0])[0]
        return -float(np.log(mixture @ relevance) + np.log(fair))

    found = optimize.minimize(
        loss,
        np.full(len(rankings), 1 / len(rankings)),
        bounds=[(0, 1)] * len(rankings),
        constraints={"type": "eq", "fun": lambda mixture: mixture.sum() - 1},
        method="SLSQP",
    )
    bound = np.log(relax(pool, best_ranking(pool)).bound_of_mixtures)
    assert -found.fun - 1e-6 <= bound <= -found.fun + 2 * TOLERANCE


def test_long_lists_are_bounded_by_what_the_best_mixture_has() -> None:
    """1,000 documents, 8 groups: f of the optimum is within the tolerance of the bound."""
    draw = np.random.default_rng(1)
    members = np.eye(8)[draw.choice(8, 1000, p=draw.dirichlet(np.ones(8)))]
    pool = RankingObjective(draw.beta(1, 3, 1000), [members], [draw.dirichlet(np.ones(8))], 100)
    relaxed = relax(pool, best_ranking(pool))
    fair = fairness(relaxed.exposures, pool.targets, [1.0])[0]
    assert (
        np.log(relaxed.relevance * float(fair))
        >= np.log(relaxed.bound_of_mixtures) - 1.01 * TOLERANCE
    )


@pytest.mark.parametrize("length", [100, 200])
@pytest.mark.parametrize("groups", [(2,), (8,), (20,), (2, 6)])
def test_long_rankings_come_near_the_bound(length: int, groups: tuple[int, ...]) -> None:
    """Ten random pools of each size: at least .998, and .9995 in the median."""
    draw = np.random.default_rng(3)
    ratios = []
    for _ in range(10):
        members = []
        targets = []
        for count in groups:
            shares = draw.dirichlet(np.ones(count))
            members.append(np.eye(count)[draw.choice(count, 5 * length, p=shares)])
            targets.append(draw.dirichlet(np.ones(count)))
        pool = RankingObjective(draw.beta(1, 3, 5 * length), members, targets, length)
        ranked = best_ranking(pool)
        ratios.append(
            pool.quality(ranked).value / relax(pool, ranked, tolerance=1e-5, most_steps=200).bound
        )
    assert min(ratios) >= 0.998
    assert np.median(ratios) >= 0.9995


def test_long_rankings_of_many_patterns_come_near_the_bound() -> None:
    """Of 2,000 documents each has its own mixture of six groups; 100 ranks."""
    draw = np.random.default_rng(7)
    members = draw.dirichlet(np.full(6, 0.3), 2_000)
    pool = RankingObjective(draw.beta(1, 3, 2_000), [members], [draw.dirichlet(np.ones(6))], 100)
    ranked = best_ranking(pool)
    assert pool.quality(ranked).value >= 0.999 * relax(pool, ranked).bound


def test_a_point_costs_what_the_best_mixture_gives_up_for_it() -> None:
    """Two groups: against the front of V over exposure, by another weight."""
    draw = np.random.default_rng(2)
    members = np.eye(2)[(draw.random(400) < 0.2).astype(int)]
    relevance = draw.beta(2, 3, 400)

    def optimum(share: float, weight: float) -> tuple[float, float, float]:
        target = np.array([1 - share, share])
        pool = RankingObjective(relevance, [members], [target], 50, weight)
        relaxed = relax(pool, best_ranking(pool), tolerance=1e-7, most_steps=2_000)
        exposure = float(relaxed.exposures[0][1])
        return relaxed.relevance, exposure, float(relaxed.cost_of_a_point()[0][1])

    value, exposure, cost = optimum(0.5, 1.0)
    more, nearer, _ = optimum(0.5, 1.1)
    assert nearer > exposure
    assert cost == pytest.approx((value - more) / (nearer - exposure) * POINT, rel=0.1)


def test_a_group_above_its_target_has_a_price_below_zero() -> None:
    members = np.eye(2)[np.arange(40) % 2]
    pool = RankingObjective(
        np.linspace(0.9, 0.1, 40) * (1 + members[:, 0]) / 2, [members], [np.array([0.4, 0.6])], 10
    )
    first, second = relax(pool, best_ranking(pool)).cost_of_a_point()[0]
    assert first < 0 < second


@pytest.mark.parametrize("ranked", [[], [0, 1, 2]])
def test_only_a_ranking_that_fills_its_ranks_is_bounded(ranked: list[int]) -> None:
    pool = RankingObjective(np.ones(9), [np.eye(3)[np.arange(9) % 3]], [np.full(3, 1 / 3)], 5)
    with pytest.raises(ValueError, match="A ranking of 5 ranks"):
        relax(pool, ranked)


@pytest.mark.parametrize("length", [50, 51, 60, 100, 101])
def test_long_lists_reach_targets_despite_unlabelled_tops(length: int) -> None:
    """One labelled document of each group at the last ranks would do at nearly no cost."""
    draw = np.random.default_rng(0)
    relevance = np.sort(draw.beta(1, 3, 300))[::-1]
    members = np.eye(2)[(draw.random(300) < 0.2).astype(int)]
    members[:80] = 0
    pool = RankingObjective(relevance, [members], [np.array([0.5, 0.5])], length)
    labelled = [int(members[:, group].argmax()) for group in (1, 0)]
    simple = [*range(length - 2), *labelled] if length < 80 else [*range(length)]
    assert pool.quality(best_ranking(pool)).value >= 0.98 * pool.quality(simple).value
