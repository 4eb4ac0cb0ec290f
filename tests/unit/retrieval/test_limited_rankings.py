"""A cap of exposure and equal chance: the fair step obeys them wherever any list of a pool does.

These pools have one attribute, or two with caps alone. With equal chance in several attributes the
step may miss a list that obeys; it then says which limit is broken.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fairqr.retrieval.fairness import best_ranking as search
from fairqr.retrieval.fairness.best_ranking import best_ranking, keeps_order
from fairqr.retrieval.fairness.exposure import FloatArray, exposure
from fairqr.retrieval.fairness.limits import Limits
from fairqr.retrieval.fairness.objective import RankingObjective
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.rerankers.base import Candidates
from fairqr.retrieval.rerankers.certificate import certify
from fairqr.retrieval.rerankers.fair import UNEQUAL_CHANCE, FairStep
from tests.unit.retrieval.all_rankings import permutations, values_of
from tests.unit.retrieval.test_objective import a_pool

ROUNDING = 1e-9


def is_capped(pool: RankingObjective, ranking: NDArray[np.intp]) -> bool:
    """Whether no group is above the cap of its attribute, by definition."""
    assert pool.limits is not None
    return all(
        cap is None or exposure(members[ranking]).max() <= cap + ROUNDING
        for members, cap in zip(pool.memberships, pool.limits.caps, strict=True)
    )


def has_equal_chance(pool: RankingObjective, ranking: NDArray[np.intp]) -> bool:
    """Whether no two groups are farther apart than allowed in any prefix, by definition."""
    for members in pool.memberships:
        gains = pool.probabilities[:, None] * members
        groups = np.flatnonzero(gains.sum(axis=0) > 0).tolist()
        for prefix in range(1, len(ranking) + 1):
            for one, other in itertools.permutations(groups, 2):
                pair = gains[:, [one, other]]
                shares = pair[ranking[:prefix]].sum(axis=0) / pair.sum(axis=0)
                steps = pair.max(axis=0) / pair.sum(axis=0)
                if shares[0] - shares[1] > steps.mean() + ROUNDING:
                    return False
    return True


def limited(draw: np.random.Generator, pool: RankingObjective) -> RankingObjective:
    """The pool with a cap, equal chance, or both."""
    is_equal, has_caps = [(True, False), (False, True), (True, True)][draw.integers(3)]
    caps = [float(draw.choice([0.4, 0.5, 0.6])) if has_caps else None for _ in pool.targets]
    return replace(pool, limits=Limits(caps, is_equal))


def allowed_rankings(pool: RankingObjective) -> list[NDArray[np.intp]]:
    """All rankings by relevance within patterns that obey the limits."""
    assert pool.limits is not None
    order = np.argsort(-pool.probabilities, kind="stable")
    return [
        ranking
        for ranking in permutations(len(pool.relevance), pool.length)
        if is_capped(pool, ranking)
        and keeps_order(pool, ranking, order)
        and (not pool.limits.equal_chance or has_equal_chance(pool, ranking))
    ]


def share_of_the_best(pool: RankingObjective, allowed: list[NDArray[np.intp]]) -> float:
    """J of the step's list by the best that obeys; it obeys, and has as many attributes."""
    values, undefined = values_of(pool, np.array(allowed))
    ranked = best_ranking(pool)
    assert any(np.array_equal(ranked, one) for one in allowed)
    quality = pool.quality(ranked)
    assert quality.undefined == undefined.min()
    best = values[undefined == undefined.min()].max()
    return quality.value / best if best > 0 else 1.0


def test_no_list_that_obeys_is_better() -> None:
    """Of 150 random pools, all lists of each."""
    draw = np.random.default_rng(1)
    for _ in range(150):
        pool = limited(draw, a_pool(draw, least=1, most=3))
        if allowed := allowed_rankings(pool):
            assert share_of_the_best(pool, allowed) >= 1 - ROUNDING


@pytest.mark.promise("graph")
def test_filling_and_exchanges_obey_where_any_list_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caps and equal chance are obeyed wherever a list can.

    Of 100 random pools; longer lists have no other way. They are the best in the median.
    """
    monkeypatch.setattr(search, "EVERY", 0)
    draw = np.random.default_rng(2)
    shares = []
    for _ in range(100):
        pool = limited(draw, a_pool(draw, least=2, most=4))
        if allowed := allowed_rankings(pool):
            shares.append(share_of_the_best(pool, allowed))
    assert len(shares) > 40
    assert min(shares) > 0.85
    assert np.median(shares) > 0.9999


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 6),
    st.integers(1, 80),
    st.sampled_from([0.0, 1.0, np.inf]),
    st.integers(0, 10_000),
)
def test_one_attribute_always_has_a_list_of_equal_chance(
    groups: int, length: int, weight: float, seed: int
) -> None:
    """And the step finds one, of any length, whatever the target and the weight."""
    draw = np.random.default_rng(seed)
    members = np.eye(groups)[draw.choice(groups, 90, p=draw.dirichlet(np.ones(groups)))]
    target = draw.dirichlet(np.ones(groups))
    limits = Limits([None], equal_chance=True)
    pool = RankingObjective(draw.beta(1, 3, 90), [members], [target], length, weight, limits=limits)
    assert pool.limited is not None
    ranked = best_ranking(pool)
    assert pool.limited.unequal_chance(members[ranked], pool.probabilities[ranked]) == 0


@pytest.mark.parametrize(("length", "cap"), [(20, 0.15), (100, 0.1)])
def test_no_seller_is_above_the_cap(length: int, cap: float) -> None:
    """Of 60 sellers, three have the most relevant documents, and the target is for them."""
    draw = np.random.default_rng(3)
    seller = draw.integers(0, 60, 500)
    relevance = np.where(seller < 3, draw.uniform(0.7, 1, 500), draw.uniform(0.1, 0.6, 500))
    target = np.where(np.arange(60) < 3, 20.0, 1.0)
    pool = RankingObjective(relevance, [np.eye(60)[seller]], [target / target.sum()], length)
    free = exposure(pool.memberships[0][best_ranking(pool)])
    kept = replace(pool, limits=Limits([cap]))
    capped = exposure(pool.memberships[0][best_ranking(kept)])
    assert free.max() > 1.3 * cap
    assert 0.9 * cap < capped.max() <= cap + ROUNDING


def test_a_group_of_uncertain_relevance_gets_its_share() -> None:
    """Ten of each are equally often relevant in all, but of b we know not which."""
    relevance = np.array([0.9] * 5 + [0.1] * 5 + [0.5] * 10)
    members = np.eye(2)[[0] * 10 + [1] * 10]
    pool = RankingObjective(relevance, [members], [np.array([0.5, 0.5])], 8, weight=0.0)
    equal = replace(pool, limits=Limits([None], equal_chance=True))
    counts = [members[best_ranking(it)].sum(axis=0).tolist() for it in (pool, equal)]
    assert counts == [[5, 3], [3, 5]]


def candidates_of(members: FloatArray, relevance: FloatArray) -> Candidates:
    ids = [f"{number:03}" for number in range(len(members))]
    count = members.shape[1]
    return Candidates(
        ranking=Ranking(ids, (1 / np.arange(1, len(ids) + 1)).tolist()),
        memberships=[members],
        targets=[np.full(count, 1 / count)],
        dimensions=["seller"],
        groups=[[f"s{number}" for number in range(count)]],
        relevance=relevance,
    )


@pytest.mark.promise("graph")
def test_a_list_says_which_limit_it_breaks() -> None:
    """A list says which limit it breaks."""
    candidates = candidates_of(np.eye(2)[[0] * 6 + [1] * 6], np.linspace(0.9, 0.1, 12))
    too_few = FairStep(at_most=0.15)
    (sentence,) = too_few.broken(candidates, too_few.take(candidates, 5).positions)
    assert sentence == (
        "s0 has 72.3% of the exposure of seller, more than at_most; no list gives each of its "
        "groups at most 15.0%."
    )
    enough = FairStep(at_most=0.6)
    assert enough.broken(candidates, enough.take(candidates, 5).positions) == []
    assert "no list found gives" in enough.broken(candidates, [0, 1, 2])[0]
    equal = FairStep(equal_chance=True)
    assert equal.broken(candidates, equal.take(candidates, 5).positions) == []
    assert equal.broken(candidates, [0, 1, 2, 3]) == [UNEQUAL_CHANCE]
    assert equal.broken(candidates, []) == FairStep().broken(candidates, [0, 1]) == []


@pytest.mark.promise("graph")
def test_other_is_no_group_that_a_cap_concerns() -> None:
    """Caps do not concern `other`, which is no group.

    It stands for many groups. The most relevant half of the documents belong to it.
    """
    candidates = candidates_of(np.eye(3)[[2] * 6 + [0, 1] * 3], np.linspace(0.9, 0.1, 12))
    candidates = replace(
        candidates, groups=[["s0", "s1", "other"]], targets=[np.array([0.1, 0.1, 0.8])]
    )
    step = FairStep(at_most=0.15)
    ranked = step.take(candidates, 5).positions
    shares = exposure(candidates.memberships[0][ranked])
    assert shares[2] > 0.6
    assert shares[:2].max() <= 0.15 + ROUNDING
    assert step.broken(candidates, ranked) == []


@pytest.mark.parametrize("name", ["all others", "nobody × other", "x × all others"])
def test_no_name_takes_a_group_out_of_its_cap(name: str) -> None:
    candidates = candidates_of(np.eye(3)[[2] * 6 + [0, 1] * 3], np.linspace(0.9, 0.1, 12))
    candidates = replace(candidates, groups=[["s0", "s1", name]])
    step = FairStep(at_most=0.5)
    ranked = step.take(candidates, 5).positions
    assert exposure(candidates.memberships[0][ranked]).max() <= 0.5 + ROUNDING


def test_an_attribute_with_too_few_groups_has_no_cap() -> None:
    sellers = candidates_of(np.eye(6)[[*range(6)] * 2], np.linspace(0.9, 0.1, 12))
    both = replace(
        sellers,
        memberships=[*sellers.memberships, np.eye(2)[[0, 1] * 6]],
        targets=[*sellers.targets, np.array([0.5, 0.5])],
        dimensions=["seller", "gender"],
        groups=[*sellers.groups, ["female", "male"]],
    )
    step = FairStep(at_most=0.35)
    assert step.broken(both, step.take(both, 6).positions) == []


def test_a_certificate_leaves_limits_out() -> None:
    """It is that of the same list without them."""
    draw = np.random.default_rng(4)
    candidates = candidates_of(np.eye(3)[draw.integers(0, 3, 12)], draw.beta(2, 2, 12))
    step = FairStep(at_most=0.4, equal_chance=True)
    ranked = step.take(candidates, 6).positions.tolist()
    certificate = certify(candidates, step, 1.0, 6, ranked)
    plain = certify(candidates, FairStep(), 1.0, 6, ranked)
    assert certificate == replace(plain, leaves_out=("at_most", "equal_chance"))


def test_many_groups_have_equal_chance_by_all_their_documents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Exchanges with patterns that no price fills in add little, over five pools of many groups."""
    for seed in range(5):
        draw = np.random.default_rng(seed)
        members = np.eye(60)[draw.zipf(1.3, 150) % 60]
        members = members[:, members.any(axis=0)]
        assert members.shape[1] > search.MANY_GROUPS
        relevance = draw.beta(1, 2, 150)
        target = relevance @ members / (relevance @ members).sum()
        limits = Limits([None], equal_chance=True)
        pool = RankingObjective(relevance, [members], [target], 8, limits=limits)
        ranking = best_ranking(pool)
        assert has_equal_chance(pool, ranking)
        with monkeypatch.context() as patched:
            patched.setattr(search, "MANY_GROUPS", 1000)
            every = pool.quality(best_ranking(pool))
        assert pool.quality(ranking).value >= every.value * 0.99
