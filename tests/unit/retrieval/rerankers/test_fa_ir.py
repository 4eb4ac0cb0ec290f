"""FA*IR: its tables, and its rankings of candidates of one group and of several."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from fairqr.base.errors import InputError
from fairqr.retrieval.rerankers.base import Candidates, RerankedList, by_rank
from fairqr.retrieval.rerankers.fa_ir import (
    FairTopK,
    cumulative,
    failure_probability,
    fair_table,
    fair_top_k,
    least_counts,
)
from fairqr.retrieval.rerankers.protection import choose_protected
from fairqr.retrieval.sources.schema import UNKNOWN

Make = Callable[..., Candidates]
PROPORTIONS = st.fractions(Fraction(1, 50), Fraction(49, 50), max_denominator=50)
ALPHAS = st.sampled_from([Fraction(1, 100), Fraction(1, 20), Fraction(1, 10), Fraction(3, 10)])


def unadjusted_table(k: int, p: float, alpha: float) -> np.ndarray:
    """The table at α_c = α, which a fair ranking fails more often than α."""
    return least_counts(cumulative(k, p), alpha)[:, None]


def needed(table: np.ndarray) -> tuple[int, ...]:
    """The minimum of each prefix, of the only group."""
    return tuple(table[:, 0].tolist())


def failure_of(table: np.ndarray, *shares: float) -> float:
    """The bound of the probability that a fair ranking fails: the sum over all groups."""
    return sum(map(failure_probability, table.T, shares))


def exact_cdf(successes: int, trials: int, p: Fraction) -> Fraction:
    terms = range(min(successes, trials) + 1)
    return sum(
        (math.comb(trials, n) * p**n * (1 - p) ** (trials - n) for n in terms), start=Fraction(0)
    )


def exact_table(k: int, p: Fraction, significance: Fraction) -> np.ndarray:
    """The definition, in exact arithmetic."""
    found = [
        next(t for t in range(i + 1) if exact_cdf(t, i, p) > significance) for i in range(1, k + 1)
    ]
    return np.array(found)[:, None]


def passes(minimum: np.ndarray, sequence: Sequence[int]) -> bool:
    """Whether each prefix of a sequence of kinds, 0 for the rest, has what the table asks for."""
    kinds = np.arange(1, minimum.shape[1] + 1)
    counts = (np.array(sequence)[:, None] == kinds).cumsum(axis=0)
    return bool((counts >= minimum[: len(sequence)]).all())


def enumerated_failure(minimum: np.ndarray, shares: Sequence[Fraction]) -> Fraction:
    """Sum the probabilities of all sequences of kinds with a prefix that fails."""
    chances = [1 - sum(shares), *shares]
    every = itertools.product(range(len(chances)), repeat=len(minimum))
    return sum(
        (
            math.prod((chances[kind] for kind in sequence), start=Fraction(1))
            for sequence in every
            if not passes(minimum, sequence)
        ),
        start=Fraction(0),
    )


def exact_adjusted(k: int, p: Fraction, alpha: Fraction) -> tuple[np.ndarray, Fraction]:
    """Try every step of the failure probability, in exact arithmetic and by enumeration."""
    steps = {exact_cdf(t, i, p) for i in range(1, k + 1) for t in range(i + 1)}
    best = exact_table(k, p, Fraction(0)), Fraction(0)
    for step in sorted(step for step in steps if step <= alpha):
        table = exact_table(k, p, step)
        failure = enumerated_failure(table, [p])
        if failure > alpha:
            break
        best = table, failure
    return best


def test_the_published_unadjusted_tables() -> None:
    for p, minimum in (
        # Zehlike et al. 2017 give these rows for α = 0.1 and k = 1 to 12; the row of p = 0.5 is
        # also in the documentation of fair-search for Elasticsearch, "The Theory".
        (0.1, (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)),
        (0.2, (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1)),
        (0.3, (0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2)),
        (0.4, (0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 3)),
        (0.5, (0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 4)),
        (0.6, (0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5)),
        (0.7, (0, 1, 1, 2, 2, 3, 3, 4, 5, 5, 6, 6)),
        # From the tests of fairsearchcore 1.0.4.
        (0.25, (0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3)),
    ):
        assert needed(unadjusted_table(len(minimum), p, 0.1)) == minimum


@settings(max_examples=60)
@given(k=st.integers(1, 9), p=PROPORTIONS, alpha=ALPHAS)
def test_the_table_is_the_least_conservative_one(k: int, p: Fraction, alpha: Fraction) -> None:
    table = fair_table(k, (float(p),), float(alpha))
    minimum, failure = exact_adjusted(k, p, alpha)
    # Where it is α exactly, a float for p may lie on either side: 1 − 0.95 is above 0.05.
    assume(failure != alpha)
    assert table.tolist() == minimum.tolist()
    assert failure_of(table, float(p)) == pytest.approx(float(failure), rel=1e-9, abs=1e-15)


@pytest.mark.promise("labels")
@settings(max_examples=60)
@given(k=st.integers(1, 300), p=st.floats(0, 1), alpha=st.floats(1e-6, 0.999))
@example(k=1000, p=0.5, alpha=1e-200)
@example(k=3, p=0.5, alpha=0.125)
@example(k=50, p=1e-300, alpha=0.1)
@example(k=50, p=1 - 1e-12, alpha=0.1)
def test_it_never_rejects_fair_rankings_more_often_than_alpha(
    k: int, p: float, alpha: float
) -> None:
    """FA*IR's test of one group is its definition, and rejects fair rankings no more often than
    alpha.
    """
    table = fair_table(k, (p,), alpha)
    assert failure_of(table, p) <= alpha
    assert set(np.diff((0, *needed(table))).tolist()) <= {0, 1}
    # It is never stricter than the table without the adjustment; a share of all is needed at once.
    assert np.all(table <= unadjusted_table(k, p, alpha))
    assert p < 1 - 1e-9 or needed(table) == tuple(range(1, k + 1))


@pytest.mark.parametrize("shares", [(3, 3), (2, 5), (2, 2), (4, 3, 3)])
def test_the_bound_holds_over_all_sequences(shares: tuple[int, ...]) -> None:
    """A fair ranking fails at most as often as the table says, which is at most α."""
    parts = [Fraction(1, share) for share in shares]
    table = fair_table(6, tuple(map(float, parts)), 0.3)
    bound = failure_of(table, *map(float, parts))
    assert 0 < float(enumerated_failure(table, parts)) <= bound + 1e-12
    assert bound <= 0.3
    # Shares of a target may sum to a little above 1.
    above = fair_table(20, (1 / 3 + 1e-9,) * 3, 0.1)
    assert np.array_equal(above, fair_table(20, (1 / 3,) * 3, 0.1))


def orders(kinds: np.ndarray, k: int, number: int) -> list[tuple[int, ...]]:
    """All ways to fill k ranks that keep the order inside each kind."""
    of_kind = [np.flatnonzero(kinds == kind).tolist() for kind in range(number)]
    found = []
    for sequence in itertools.product(range(number), repeat=k):
        if all(sequence.count(kind) <= len(own) for kind, own in enumerate(of_kind)):
            heads = [iter(own) for own in of_kind]
            found.append(tuple(next(heads[kind]) for kind in sequence))
    return found


@settings(max_examples=100)
@given(
    labels=st.lists(st.integers(0, 2), min_size=6, max_size=10),
    shares=st.sampled_from([(0.6,), (0.4, 0.35), (0.3, 0.3), (0.25, 0.6)]),
    alpha=st.sampled_from([0.1, 0.3]),
)
def test_the_best_ranking_that_passes_is_found(
    labels: list[int], shares: tuple[float, ...], alpha: float
) -> None:
    """Brute force over all orders: documents of a group, or of the rest, may run out.

    Of those that pass, the result is the first in lexicographic order of the positions.
    """
    kinds = np.minimum(labels, len(shares))
    minimum = fair_table(6, shares, alpha)
    found, failed = fair_top_k(kinds, minimum)
    assert len(set(found.tolist())) == 6
    every = orders(kinds, 6, len(shares) + 1)
    if passing := [order for order in every if passes(minimum, kinds[list(order)].tolist())]:
        assert not failed
        assert tuple(found.tolist()) == min(passing)
    else:
        fits = [n for order in every for n in range(6) if passes(minimum, kinds[list(order[:n])])]
        assert failed == max(fits) + 1


async def reranked(candidates: Candidates, k: int, **options: object) -> RerankedList:
    result = await FairTopK.model_validate(options).rerank(Mock(), "q", candidates, k)
    assert result.ranking.scores == [1 / rank for rank in range(1, len(result.ranking) + 1)]
    return result


def three_groups(labels: str, target: Sequence[float]) -> Candidates:
    ranking = by_rank([f"d{n:02}" for n in range(len(labels))])
    members = np.array([[label == group for group in "ABC"] for label in labels], dtype=float)
    return Candidates(ranking, [members], [np.array(target)], ["place"], [["A", "B", "C"]])


async def test_too_few_protected_documents_are_placed_and_said(make_candidates: Make) -> None:
    found = await reranked(make_candidates("m" * 30 + "f", target=0.9), 20)
    assert len(found.ranking) == 20
    assert "d030" in found.ranking.ids[:2]
    assert "results fail FA*IR's test" in found.warnings[0]
    none = await reranked(make_candidates("m" * 30), 20)
    assert none.ranking.ids == [f"d{number:03}" for number in range(20)]
    assert len(none.warnings) == 1


async def test_the_group_that_lacks_most_is_protected(
    make_candidates: Make,
) -> None:
    for labels, named in (("m" * 20 + "f" * 20, "male"), ("f" * 20 + "m" * 20, "gender=female")):
        candidates = make_candidates(labels)
        assert max((await reranked(candidates, 20)).ranking.ids) >= "d020"
        same = await reranked(candidates, 20, protected=named)
        assert same.ranking.ids == candidates.ranking.ids[:20]
    labels = "A" * 40 + "B" * 20 + "C" * 20
    candidates = three_groups(labels, [1 / 3] * 3)
    found = await reranked(candidates, 20, protected="all")
    placed = [labels[int(id_[1:])] for id_ in found.ranking.ids]
    assert min(placed.count("B"), placed.count("C")) >= 2
    assert not found.warnings
    with pytest.raises(InputError, match="one protected group"):
        await reranked(candidates, 20, protected="B,C", proportion=0.3)


async def test_the_proportion_is_the_targets_share_unless_it_is_given(
    make_candidates: Make,
) -> None:
    candidates = make_candidates("m" * 30 + "f" * 30, target=0.3)
    for share, options in ((0.3, {}), (0.8, {"proportion": 0.8})):
        found = await reranked(candidates, 20, **options)
        women = sum(id_ >= "d030" for id_ in found.ranking.ids)
        assert women == fair_table(20, (share,), 0.1)[-1, 0]


PLACES = [["A", "B", UNKNOWN], ["Congo, Republic", "x=y", "A"]]


def test_groups_that_do_not_exist_are_refused() -> None:
    for named, chosen in (
        # Documents without a label are not protected by themselves, though they lack most here.
        (None, (0, [0])),
        ("all", (0, [0])),
        (UNKNOWN, (0, [2])),
        ("place=not A", (0, [1])),
        ("Congo, Republic", (1, [0])),
        ("home=Congo, Republic", (1, [0])),
        ("home=A,x=y", (1, [2, 1])),
        ("A", "place=A or home=A"),
        *((wrong, "choose among place=A,B") for wrong in ("nobody", "place=x", "age=B", "", ",")),
    ):
        place = three_groups("B" * 20 + "A" * 10 + "C" * 20, (0.3, 0.1, 0.6))
        members = [*place.memberships, np.eye(3)[[0] * 50]]
        targets = [*place.targets, np.eye(3)[0]]
        candidates = Candidates(place.ranking, members, targets, ["place", "home"], PLACES)
        if isinstance(chosen, tuple):
            assert choose_protected([candidates], 20, named) == chosen
        else:
            with pytest.raises(InputError, match=chosen):
                choose_protected([candidates], 20, named)
