"""What a certificate says of a list holds for every other list of the same documents."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import numpy as np
import pytest

from fairqr.retrieval.fairness.best_ranking import keeps_order
from fairqr.retrieval.fairness.objective import ABOVE_LEAST, RankingObjective
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.rerankers.base import Candidates
from fairqr.retrieval.rerankers.certificate import certify
from fairqr.retrieval.rerankers.fair import FairStep
from tests.unit.retrieval.all_rankings import permutations, values_of

ROUNDING = 1e-9
DOCUMENTS = 6
RANKS = 3
GROUPS = ["a", "b", "c"]


def candidates_of(draw: np.random.Generator) -> Candidates:
    """Six documents of two of the three groups, in the engine's order."""
    ids = [str(number) for number in range(DOCUMENTS)]
    return Candidates(
        ranking=Ranking(ids, [1.0 / (rank + 1) for rank in range(DOCUMENTS)]),
        memberships=[np.eye(3)[draw.integers(0, 2, DOCUMENTS)]],
        targets=[draw.dirichlet(np.ones(3))],
        dimensions=["group"],
        groups=[GROUPS],
        relevance=draw.beta(2, 2, DOCUMENTS),
    )


@pytest.mark.promise("graph")
@pytest.mark.parametrize("order", ["engine", "estimated"])
def test_no_list_that_is_allowed_is_above_the_bound(order: str) -> None:
    """No order that a certificate bounds has a higher J.

    Of 200 pools, the list of the fair step and one drawn at random.
    """
    draw = np.random.default_rng(7)
    step = FairStep(order=order)
    rankings = permutations(DOCUMENTS, RANKS)
    for _ in range(200):
        candidates = candidates_of(draw)
        objective = step.objective(candidates, 1.0, RANKS)
        values = values_of(objective, rankings)[0]
        taken = step.order_within_groups(candidates)
        fair = step.take(candidates, RANKS).positions
        for ranked in (fair, draw.permutation(DOCUMENTS)[:RANKS]):
            certificate = certify(candidates, step, 1.0, RANKS, ranked.tolist())
            allowed = values
            if taken is not None and keeps_order(objective, ranked, taken):
                keep = [keeps_order(objective, ranking, taken) for ranking in rankings]
                allowed = values[keep]
            assert allowed.max() <= certificate.bound + ROUNDING


def test_an_engines_order_is_bounded_by_such_lists_alone() -> None:
    """Both documents of the group are likely to fit, and the engine has the less likely first."""
    candidates = Candidates(
        ranking=Ranking(["0", "1"], [2.0, 1.0]),
        memberships=[np.ones((2, 1))],
        targets=[np.ones(1)],
        dimensions=["group"],
        groups=[["a"]],
        relevance=np.array([0.6, 0.9]),
    )
    bounds = {
        order: certify(candidates, FairStep(order=order), 1.0, 1, [0]).bound
        for order in ("engine", "estimated")
    }
    # In the order of the engine, only its first document can fill the only rank.
    assert bounds == pytest.approx({"engine": 0.6 / 0.9, "estimated": 1})


def test_prices_are_of_the_groups_that_documents_belong_to() -> None:
    candidates = candidates_of(np.random.default_rng(1))
    certificate = certify(candidates, FairStep(), 1.0, RANKS, [0, 1, 2])
    assert certificate.price["group"].keys() == {"a", "b"}


def test_a_list_that_leaves_ranks_empty_has_no_certificate() -> None:
    candidates = candidates_of(np.random.default_rng(1))
    assert certify(candidates, FairStep(), 1.0, RANKS, [0, 1]) is None
    assert certify(candidates, FairStep(), 1.0, RANKS, []) is None


def two_attributes(draw: np.random.Generator) -> Candidates:
    """Six documents with labels of two attributes, of which one has a group without documents."""
    candidates = candidates_of(draw)
    return replace(
        candidates,
        memberships=[*candidates.memberships, np.eye(2)[draw.integers(0, 2, DOCUMENTS)]],
        targets=[*candidates.targets, draw.dirichlet(np.ones(2))],
        dimensions=["group", "side"],
        groups=[GROUPS, ["left", "right"]],
    )


def test_the_worst_off_are_bounded_with_their_intersections() -> None:
    draw = np.random.default_rng(8)
    step = FairStep(order="estimated", fairness="worst")
    rankings = permutations(DOCUMENTS, RANKS)
    for _ in range(100):
        candidates = two_attributes(draw)
        fair = step.take(candidates, RANKS)
        certificate = certify(candidates, step, 1.0, RANKS, fair.positions.tolist())
        objective = step.objective(candidates, 1.0, RANKS)
        values = values_of(objective, rankings)[0]
        assert values.max() <= certificate.bound + ROUNDING
        assert objective.quality(fair.positions).value >= 0.995 * values.max()
        assert certificate.price["group×side"].keys() <= {
            f"{one} × {other}" for one in GROUPS for other in ("left", "right")
        }


def test_an_intersection_is_as_far_as_its_worst_attribute() -> None:
    """So the least over all is that of the intersection, within the error of the soft minimum."""
    draw = np.random.default_rng(9)
    mean = FairStep()
    worst = FairStep(fairness="worst")
    for _ in range(100):
        candidates = two_attributes(draw)
        ranked = draw.permutation(DOCUMENTS)[:RANKS]
        both = candidates.with_intersections()
        assert [float(target.sum()) for target in both.targets] == pytest.approx([1, 1, 1])
        alone = [
            RankingObjective(both.relevance, [members], [target], RANKS).quality(ranked).fairness
            for members, target in zip(both.memberships, both.targets, strict=True)
        ]
        assert alone[2] <= min(alone[:2]) + ROUNDING
        least = worst.objective(candidates, 1.0, RANKS).quality(ranked).fairness
        assert alone[2] - ROUNDING <= least <= alone[2] + ABOVE_LEAST + ROUNDING
        assert least <= mean.objective(candidates, 1.0, RANKS).quality(ranked).fairness + ROUNDING


def test_a_certificate_says_that_it_leaves_out_spread() -> None:
    """Bound and price are those of the list without it, and so is the value that is bounded."""
    draw = np.random.default_rng(11)
    candidates = candidates_of(draw)
    wide = FairStep(order="estimated", spread=(1, 2))
    fair = wide.take(candidates, RANKS)
    certificate = certify(candidates, wide, 1.0, RANKS, fair.positions.tolist())
    alone = FairStep(order="estimated")
    plain = certify(candidates, alone, 1.0, RANKS, fair.positions.tolist())
    assert certificate == replace(plain, leaves_out=("spread",))
    whole = alone.objective(candidates, 1.0, RANKS).quality(fair.positions)
    assert certificate.bounded == whole.value <= certificate.bound
    assert plain.leaves_out == ()


class Counting(Candidates):
    """Counts how often intersections are computed."""

    count = 0

    def with_intersections(self) -> Candidates:
        Counting.count += 1
        return super().with_intersections()


def test_intersections_are_computed_once() -> None:
    """For a certificate, and for all weights of a front."""
    found = two_attributes(np.random.default_rng(4))
    candidates = Counting(**{it.name: getattr(found, it.name) for it in dataclasses.fields(found)})
    step = FairStep(fairness="worst")
    for work in (
        lambda: step.front(candidates, RANKS, [0.5, 1.0, 2.0]),
        lambda: certify(candidates, step, 1.0, RANKS, [*range(RANKS)]),
    ):
        Counting.count = 0
        assert work() is not None
        assert Counting.count == 1


def test_one_attribute_has_no_worse_one() -> None:
    """The lists are those of the mean."""
    candidates = candidates_of(np.random.default_rng(10))
    lists = [FairStep(fairness=it).take(candidates, RANKS) for it in ("mean", "worst")]
    assert lists[0].positions.tolist() == lists[1].positions.tolist()


@pytest.mark.promise("graph")
@pytest.mark.parametrize(
    ("order", "labelled", "among"),
    [
        ("estimated", 6, ()),
        ("engine", 6, ("engine_order",)),
        ("estimated", 5, ("labelled_exposure",)),
        ("engine", 5, ("engine_order", "labelled_exposure")),
    ],
)
def test_a_certificate_says_which_orders_it_bounds(
    order: str, labelled: int, among: tuple[str, ...]
) -> None:
    """A certificate says which orders it bounds.

    The engine has less likely documents above more likely ones of the same group.
    """
    members = np.eye(2)[[0, 1, 0, 1, 0, 1]]
    members[labelled:] = 0
    candidates = Candidates(
        ranking=Ranking([*"012345"], [1.0 / rank for rank in range(1, 7)]),
        memberships=[members],
        targets=[np.array([0.5, 0.5])],
        dimensions=["group"],
        groups=[["a", "b"]],
        relevance=np.array([0.6, 0.9, 0.9, 0.7, 0.8, 0.55]),
    )
    step = FairStep(order=order)
    ranked = step.take(candidates, RANKS).positions.tolist()
    assert certify(candidates, step, 1.0, RANKS, ranked).among == among


def test_no_price_is_above_all_relevance() -> None:
    """Of 300 pools at high weights, with two attributes and labels missing."""
    draw = np.random.default_rng(11)
    for _ in range(300):
        candidates = candidates_of(draw)
        other = np.eye(3)[draw.integers(0, 3, DOCUMENTS)] * (draw.random((DOCUMENTS, 1)) < 0.7)
        both = replace(
            candidates,
            memberships=[*candidates.memberships, other],
            targets=[*candidates.targets, draw.dirichlet(np.full(3, 0.1))],
            dimensions=["group", "other"],
            groups=[GROUPS, GROUPS],
        )
        weight = float(draw.choice([4.0, 64.0, 16384.0]))
        step = FairStep(weight=weight, fairness=str(draw.choice(["mean", "worst"])))
        ranked = step.take(both, RANKS).positions.tolist()
        prices = certify(both, step, weight, RANKS, ranked).price
        assert all(abs(cost) <= 1 for of_groups in prices.values() for cost in of_groups.values())


def test_a_group_of_which_there_is_no_more_has_no_price() -> None:
    """The only document of b is at the first rank, and no order gives b another point."""
    relevance = np.linspace(0.9, 0.4, 20)
    members = np.eye(2)[[1] + [0] * 19]
    candidates = Candidates(
        ranking=Ranking([*map(str, range(20))], relevance.tolist()),
        memberships=[members],
        targets=[np.array([0.2, 0.8])],
        dimensions=["group"],
        groups=[["a", "b"]],
        relevance=relevance,
    )
    certificate = certify(candidates, FairStep(), 4.0, 10, [*range(10)])
    assert certificate.price["group"].keys() == {"a"}
