"""FA*IR over candidates: one group and several, and pools that cannot pass."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqr.base.errors import InputError
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.rerankers.base import Candidates
from fairqr.retrieval.rerankers.fa_ir import FairTopKOptions, FairTopKReranker, fair_top_k
from fairqr.retrieval.rerankers.fa_ir_tables import FairTable, fair_table
from fairqr.retrieval.rerankers.protection import choose_protected
from fairqr.retrieval.sources.schema import UNKNOWN

Make = Callable[..., Candidates]


async def reranked(candidates: Candidates, k: int, **options: object) -> tuple[list[str], int]:
    reranker = FairTopKReranker(FairTopKOptions.model_validate(options))
    result = await reranker.rerank("q", candidates, k)
    assert result.ranking.scores == [1 / rank for rank in range(1, len(result.ranking) + 1)]
    return result.ranking.ids, len(result.warnings)


def orders(kinds: np.ndarray, k: int, number: int) -> Iterator[tuple[int, ...]]:
    """All ways to fill k ranks that keep the order inside each kind."""
    of_kind = [np.flatnonzero(kinds == kind).tolist() for kind in range(number)]
    for sequence in itertools.product(range(number), repeat=k):
        if all(sequence.count(kind) <= len(own) for kind, own in enumerate(of_kind)):
            heads = [iter(own) for own in of_kind]
            yield tuple(next(heads[kind]) for kind in sequence)


# One group.


@settings(max_examples=60)
@given(labels=st.text("fm?b", min_size=1, max_size=40), k=st.integers(1, 40), p=st.floats(0.05, 1))
def test_the_result_passes_wherever_the_pool_allows_it(labels: str, k: int, p: float) -> None:
    k = min(k, len(labels))
    # A document of both groups belongs to the first.
    protected = np.array([label in "fb" for label in labels])
    table = fair_table(k, (p,), 0.1)
    order, failed = fair_top_k(protected.astype(np.intp), table, k)
    assert len(set(order.tolist())) == k
    counts = np.cumsum(protected[order])
    needed = table.minimum[:, 0]
    # No more can be placed than there are.
    assert np.all(counts >= np.minimum(needed, protected.sum()))
    assert (failed == 0) == bool(np.all(counts >= needed))
    for kind in (True, False):
        own = [position for position in order if protected[position] == kind]
        assert own == sorted(own)


@settings(max_examples=40)
@given(labels=st.text("fm", min_size=6, max_size=12))
def test_no_ranking_that_passes_puts_better_documents_first(labels: str) -> None:
    """Of all orders that pass, the result is the first in lexicographic order of the positions."""
    k = 5
    kinds = np.array([int(label == "f") for label in labels])
    table = fair_table(k, [0.6], 0.3)
    order, failed = fair_top_k(kinds, table, k)
    passing = [
        subset for subset in orders(kinds, k, 2) if passes(table, kinds[list(subset)].tolist())
    ]
    assert bool(passing) == (failed == 0)
    if passing:
        assert tuple(order.tolist()) == min(passing)


async def test_a_worked_example(make_candidates: Make) -> None:
    """Where the minimum rises, there a woman is placed, and the best one that is left."""
    assert fair_table(10, [0.5], 0.1).minimum[:, 0].tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 3]
    ids, warned = await reranked(make_candidates("m" * 15 + "f" * 5), 10)
    women = ["d015", "d016", "d017"]
    men = [f"d{number:03}" for number in range(7)]
    assert ids == [*men[:4], women[0], *men[4:6], women[1], men[6], women[2]]
    assert not warned


async def test_a_list_that_passes_is_left_alone(make_candidates: Make) -> None:
    candidates = make_candidates("fmfmfmfmfmfm")
    assert await reranked(candidates, 10) == (candidates.ranking.ids[:10], 0)


async def test_too_few_protected_documents_are_placed_and_said(make_candidates: Make) -> None:
    reranker = FairTopKReranker(FairTopKOptions())
    result = await reranker.rerank("q", make_candidates("m" * 30 + "f", target=0.9), 20)
    assert len(result.ranking) == 20
    assert "d030" in result.ranking.ids[:2]
    assert "too few of female" in result.warnings[0]
    none = await reranker.rerank("q", make_candidates("m" * 30), 20)
    assert none.ranking.ids == [f"d{number:03}" for number in range(20)]
    assert len(none.warnings) == 1


async def test_edges_of_the_pool(make_candidates: Make) -> None:
    assert await reranked(make_candidates(""), 5) == ([], 0)
    assert await reranked(make_candidates("m"), 5) == (["d000"], 0)
    assert (await reranked(make_candidates("mf"), 5))[0] == ["d000", "d001"]
    assert (await reranked(make_candidates("????"), 3))[0] == ["d000", "d001", "d002"]


async def test_the_group_that_lacks_most_is_protected_unless_another_is_named(
    make_candidates: Make,
) -> None:
    men_first, women_first = (
        make_candidates("m" * 20 + "f" * 20),
        make_candidates("f" * 20 + "m" * 20),
    )
    for candidates in (men_first, women_first):
        ids, _ = await reranked(candidates, 20)
        assert any(int(id_[1:]) >= 20 for id_ in ids)
        named = "gender=female" if candidates is women_first else "male"
        assert (await reranked(candidates, 20, protected=named))[0] == candidates.ranking.ids[:20]


async def test_documents_without_a_label_are_not_protected_by_themselves(
    make_candidates: Make,
) -> None:
    """They may be a group of their own, which lacks most here."""
    base = make_candidates("m" * 20 + "f" * 10 + "?" * 20)
    members = np.column_stack([base.memberships[0], 1 - base.memberships[0].sum(axis=1)])
    candidates = Candidates(
        base.ranking,
        [members],
        [np.array([0.3, 0.1, 0.6])],
        ["gender"],
        [["female", "male", UNKNOWN]],
    )
    assert choose_protected([candidates], 20).groups == (0,)
    assert choose_protected([candidates], 20, "all").groups == (0,)
    assert choose_protected([candidates], 20, UNKNOWN).groups == (2,)


def test_a_group_may_have_a_comma_or_an_equals_sign_in_its_name() -> None:
    members = np.eye(3)
    candidates = Candidates(
        Ranking(["a", "b", "c"], [3.0, 2.0, 1.0]),
        [members],
        [np.full(3, 1 / 3)],
        ["home"],
        [["Congo, Republic", "x=y", "z"]],
    )
    assert choose_protected([candidates], 3, "Congo, Republic").groups == (0,)
    assert choose_protected([candidates], 3, "home=Congo, Republic").groups == (0,)
    assert choose_protected([candidates], 3, "z,x=y").groups == (2, 1)


async def test_the_proportion_is_the_targets_share_unless_it_is_given(
    make_candidates: Make,
) -> None:
    labels = "m" * 30 + "f" * 30

    async def women(**options: object) -> int:
        ids, _ = await reranked(make_candidates(labels, target=0.3), 20, **options)
        return sum(int(id_[1:]) >= 30 for id_ in ids)

    assert await women() == fair_table(20, [0.3], 0.1).minimum[-1, 0]
    assert await women(proportion=0.8) == fair_table(20, [0.8], 0.1).minimum[-1, 0]


@pytest.mark.parametrize("named", ["nobody", "gender=nobody", "age=female", "", ",", "female,x"])
async def test_groups_that_do_not_exist_are_named(make_candidates: Make, named: str) -> None:
    with pytest.raises(InputError, match=r"gender=female,male"):
        await reranked(make_candidates("mf"), 2, protected=named)


async def test_a_name_that_stands_in_two_attributes_has_to_be_told_apart() -> None:
    members = np.array([[1.0, 0.0], [0.0, 1.0]])
    candidates = Candidates(
        Ranking(["a", "b"], [2.0, 1.0]),
        [members, members],
        [np.array([0.5, 0.5])] * 2,
        ["origin", "home"],
        [["here", "there"]] * 2,
    )
    with pytest.raises(InputError, match="origin=here or home=here"):
        await reranked(candidates, 2, protected="here")
    await reranked(candidates, 2, protected="home=here")


# Several groups.


def sequences(k: int, groups: int) -> itertools.product[tuple[int, ...]]:
    return itertools.product(range(groups + 1), repeat=k)


def enumerated_failure(table: FairTable, k: int, shares: tuple[Fraction, ...]) -> Fraction:
    """Sum the probabilities of all sequences of groups with a prefix that fails."""
    rest = 1 - sum(shares)
    return sum(
        (
            math.prod((shares[kind - 1] if kind else rest for kind in sequence), start=Fraction(1))
            for sequence in sequences(k, len(shares))
            if not passes(table, list(sequence))
        ),
        start=Fraction(0),
    )


@pytest.mark.parametrize(
    "shares",
    [
        (Fraction(1, 3), Fraction(1, 3)),
        (Fraction(1, 2), Fraction(1, 5)),
        (Fraction(1, 2), Fraction(1, 2)),
        (Fraction(1, 4), Fraction(1, 3), Fraction(1, 3)),
    ],
)
def test_the_bound_holds_over_all_sequences(shares: tuple[Fraction, ...]) -> None:
    """A fair ranking fails at most as often as the table says, which is at most α."""
    table = fair_table(6, tuple(map(float, shares)), 0.3)
    exact = float(enumerated_failure(table, 6, shares))
    assert 0 < exact <= table.failure_probability + 1e-12
    assert table.failure_probability <= 0.3


@settings(max_examples=25)
@given(
    k=st.integers(1, 25),
    weights=st.lists(st.floats(0.01, 1), min_size=2, max_size=4),
    alpha=st.floats(0.01, 0.3),
)
def test_several_groups_never_reject_fair_rankings_more_often_than_alpha(
    k: int, weights: list[float], alpha: float
) -> None:
    """By the bound, and in a simulation."""
    shares = tuple(weight / sum(weights) for weight in weights[1:])
    table = fair_table(k, shares, alpha)
    assert table.failure_probability <= alpha
    draws = np.random.default_rng(3).choice(
        len(weights), size=(400, k), p=[1 - sum(shares), *shares]
    )
    failed = sum(not passes(table, row.tolist()) for row in draws) / len(draws)
    allowed = table.failure_probability
    assert failed <= allowed + 5 * math.sqrt(allowed * (1 - allowed) / len(draws)) + 0.01


def passes(table: FairTable, sequence: list[int]) -> bool:
    counts = [0] * table.minimum.shape[1]
    for length, kind in enumerate(sequence, start=1):
        if kind:
            counts[kind - 1] += 1
        if not table.passes_at(tuple(counts), length):
            return False
    return True


@settings(max_examples=25)
@given(order=st.permutations("0" * 20 + "1" * 15 + "2" * 15), weight=st.floats(0.1, 0.45))
def test_with_enough_of_each_group_every_prefix_passes(order: list[str], weight: float) -> None:
    table = fair_table(15, (weight, 0.3), 0.1)
    kinds = np.array([int(kind) for kind in order])
    found, failed = fair_top_k(kinds, table, 15)
    assert failed == 0
    assert passes(table, kinds[found].tolist())


def test_documents_rise_only_where_a_prefix_would_fail() -> None:
    """Brute force: of all sequences that pass, the result has the best documents first."""
    kinds = np.array([0, 0, 0, 0, 0, 0, 1, 0, 2, 1, 2, 2, 1])
    table = fair_table(6, (0.4, 0.35), 0.3)
    found, failed = fair_top_k(kinds, table, 6)
    best = min(order for order in orders(kinds, 6, 3) if passes(table, kinds[list(order)].tolist()))
    assert not failed
    assert tuple(found.tolist()) == best


def test_counts_that_pass_but_lead_nowhere_are_avoided() -> None:
    """Groups of equal shares need one more at the same rank, so one of them has to come before."""
    table = fair_table(20, (0.3, 0.3), 0.1)
    last = next(n for n in range(1, 20) if table.minimum[n].sum() == 2)
    assert table.passes_at((0, 0), last)
    assert not any(table.passes_at(counts, last + 1) for counts in [(1, 0), (0, 1)])
    assert not table.limited((20, 20)).is_open((0, 0), last)
    kinds = np.array([0] * 20 + [1] * 10 + [2] * 10)
    found, failed = fair_top_k(kinds, table, 20)
    assert failed == 0
    assert passes(table, kinds[found].tolist())


@settings(max_examples=80)
@given(
    labels=st.lists(st.integers(0, 2), min_size=6, max_size=10),
    shares=st.sampled_from([(0.4, 0.35), (0.3, 0.3), (0.25, 0.6)]),
    alpha=st.sampled_from([0.1, 0.3]),
)
def test_a_ranking_that_passes_is_found_wherever_there_is_one(
    labels: list[int], shares: tuple[float, ...], alpha: float
) -> None:
    """Brute force over all orders: documents of a group, or of the rest, may run out."""
    k, kinds = 6, np.array(labels)
    table = fair_table(k, shares, alpha)
    found, failed = fair_top_k(kinds, table, k)
    assert sorted(set(found.tolist())) == sorted(found.tolist())
    every = [(order, kinds[list(order)].tolist()) for order in orders(kinds, k, 3)]
    passing = [order for order, sequence in every if passes(table, sequence)]
    if passing:
        assert not failed
        assert tuple(found.tolist()) == min(passing)
    else:
        longest = max(
            length
            for _, sequence in every
            for length in range(k)
            if passes(table, sequence[:length])
        )
        assert failed == longest + 1


async def test_a_group_that_has_documents_left_is_not_said_to_lack_them() -> None:
    labels = "A" * 12 + "C" * 8
    candidates = Candidates(
        Ranking([f"d{n:02}" for n in range(20)], [float(-n) for n in range(20)]),
        [np.array([[label == group for group in "ABC"] for label in labels], dtype=float)],
        [np.array([0.2, 0.5, 0.3])],
        ["place"],
        [list("ABC")],
    )
    result = await FairTopKReranker(FairTopKOptions(protected="B,C")).rerank("q", candidates, 12)
    assert len(result.ranking) == 12
    assert (
        "No order of the 20 candidates passes it, because there are too few of B."
        in result.warnings[0]
    )


def test_where_one_group_is_absent_the_others_are_still_placed() -> None:
    kinds = np.array([0] * 30 + [1] * 10)
    table = fair_table(20, (0.3, 0.3), 0.1)
    found, failed = fair_top_k(kinds, table, 20)
    assert failed > 0
    assert np.count_nonzero(kinds[found] == 1) >= 2
    assert passes(table, kinds[found[: failed - 1]].tolist())
    assert not passes(table, kinds[found[:failed]].tolist())


def test_shares_of_a_target_may_sum_to_a_little_above_1() -> None:
    table = fair_table(20, (1 / 3 + 1e-9,) * 3, 0.1)
    assert np.array_equal(table.minimum, fair_table(20, (1 / 3,) * 3, 0.1).minimum)


async def test_all_groups_that_lack_exposure_are_protected_at_once() -> None:
    labels = "A" * 40 + "B" * 20 + "C" * 20
    candidates = Candidates(
        Ranking([f"d{n:02}" for n in range(80)], [float(-n) for n in range(80)]),
        [np.array([[label == group for group in "ABC"] for label in labels], dtype=float)],
        [np.full(3, 1 / 3)],
        ["place"],
        [list("ABC")],
    )
    ids, warned = await reranked(candidates, 20, protected="all")
    found = [labels[int(id_[1:])] for id_ in ids]
    assert found.count("B") >= 2
    assert found.count("C") >= 2
    assert not warned
    with pytest.raises(InputError, match="one protected group"):
        await reranked(candidates, 20, protected="B,C", proportion=0.3)
