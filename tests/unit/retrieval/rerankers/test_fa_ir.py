"""FA*IR: its tables, and its rankings of candidates of one group and of several."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fairqr.base.errors import InputError
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.rerankers.base import Candidates, RerankResult, by_rank
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


@pytest.mark.parametrize(
    ("p", "minimum"),
    [
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
    ],
)
def test_the_published_unadjusted_tables(p: float, minimum: tuple[int, ...]) -> None:
    assert needed(unadjusted_table(len(minimum), p, 0.1)) == minimum


@settings(max_examples=60)
@given(k=st.integers(1, 9), p=PROPORTIONS, alpha=ALPHAS)
def test_the_table_is_the_least_conservative_one_by_exhaustive_enumeration(
    k: int, p: Fraction, alpha: Fraction
) -> None:
    table = fair_table(k, (float(p),), float(alpha))
    minimum, failure = exact_adjusted(k, p, alpha)
    # Where it is α exactly, a float for p may lie on either side: 1 − 0.95 is above 0.05.
    assume(failure != alpha)
    assert table.tolist() == minimum.tolist()
    assert failure_of(table, float(p)) == pytest.approx(float(failure), rel=1e-9, abs=1e-15)


@settings(max_examples=60)
@given(k=st.integers(1, 300), p=st.floats(0, 1), alpha=st.floats(1e-6, 0.999))
def test_it_never_rejects_fair_rankings_more_often_than_alpha(
    k: int, p: float, alpha: float
) -> None:
    table = fair_table(k, (p,), alpha)
    assert failure_of(table, p) <= alpha
    assert set(np.diff((0, *needed(table))).tolist()) <= {0, 1}
    # And it is never stricter than the table without the adjustment.
    assert np.all(table <= unadjusted_table(k, p, alpha))


def test_the_failure_probability_is_the_one_that_simulation_finds() -> None:
    table = unadjusted_table(40, 0.4, 0.1)
    draws = np.random.default_rng(7).random((100_000, 40)) < 0.4
    failed = np.any(np.cumsum(draws, axis=1) < np.array(needed(table)), axis=1).mean()
    # Four standard errors.
    assert failed == pytest.approx(failure_of(table, 0.4), abs=4 * 0.5 / math.sqrt(100_000))
    assert failure_of(table, 0.4) > 0.1


@pytest.mark.parametrize(
    ("p", "minimum"),
    [
        (0.5, (0,)),
        (0.95, (1,)),
        (0.0, (0,) * 50),
        (1e-300, (0,) * 50),
        (1.0, tuple(range(1, 51))),
        (1 - 1e-12, tuple(range(1, 51))),
        # Fails with probability 1/8 exactly, which is not above it.
        (0.5, (0, 0, 1)),
    ],
)
def test_the_edges(p: float, minimum: tuple[int, ...]) -> None:
    alpha = 0.125 if len(minimum) == 3 else 0.1
    table = fair_table(len(minimum), (p,), alpha)
    assert needed(table) == minimum
    assert failure_of(table, p) <= alpha
    tiny = fair_table(1_000, (0.5,), 1e-200)
    assert 0 < failure_of(tiny, 0.5) <= 1e-200
    assert needed(tiny)[-1] > 0


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
def test_the_best_ranking_that_passes_is_found_wherever_there_is_one(
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


async def reranked(candidates: Candidates, k: int, **options: object) -> RerankResult:
    result = await FairTopK.model_validate(options).rerank(Mock(), "q", candidates, k)
    assert result.ranking.scores == [1 / rank for rank in range(1, len(result.ranking) + 1)]
    return result


def three_groups(labels: str, target: Sequence[float], last: str = "C") -> Candidates:
    ranking = by_rank([f"d{n:02}" for n in range(len(labels))])
    members = np.array([[label == group for group in "ABC"] for label in labels], dtype=float)
    return Candidates(ranking, [members], [np.array(target)], ["place"], [["A", "B", last]])


async def test_a_worked_example(make_candidates: Make) -> None:
    """Where the minimum rises, there a woman is placed, and the best one that is left."""
    table = fair_table(10, (0.5,), 0.1)
    assert needed(table) == (0, 0, 0, 0, 1, 1, 1, 2, 2, 3)
    found = await reranked(make_candidates("m" * 15 + "f" * 5), 10)
    women, men = ["d015", "d016", "d017"], [f"d{number:03}" for number in range(7)]
    assert found.ranking.ids == [*men[:4], women[0], *men[4:6], women[1], men[6], women[2]]
    assert not found.warnings
    even = make_candidates("fmfmfmfmfmfm")
    assert (await reranked(even, 10)).ranking.ids == even.ranking.ids[:10]


async def test_too_few_protected_documents_are_placed_and_said(make_candidates: Make) -> None:
    found = await reranked(make_candidates("m" * 30 + "f", target=0.9), 20)
    assert len(found.ranking) == 20
    assert "d030" in found.ranking.ids[:2]
    assert "results fail FA*IR's test" in found.warnings[0]
    none = await reranked(make_candidates("m" * 30), 20)
    assert none.ranking.ids == [f"d{number:03}" for number in range(20)]
    assert len(none.warnings) == 1


async def test_the_group_that_lacks_most_is_protected_unless_others_are_named(
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


def test_documents_without_a_label_are_not_protected_by_themselves() -> None:
    """They may be a group of their own, which lacks most here."""
    candidates = three_groups("B" * 20 + "A" * 10 + "C" * 20, (0.3, 0.1, 0.6), UNKNOWN)
    assert choose_protected([candidates], 20) == (0, [0])
    assert choose_protected([candidates], 20, "all") == (0, [0])
    assert choose_protected([candidates], 20, UNKNOWN) == (0, [2])
    assert choose_protected([candidates], 20, "not A") == (0, [1])


def test_a_group_may_have_a_comma_or_an_equals_sign_in_its_name() -> None:
    groups = [["Congo, Republic", "x=y", "z"]]
    candidates = Candidates(Ranking([], []), [], [], ["home"], groups)
    assert choose_protected([candidates], 3, "Congo, Republic") == (0, [0])
    assert choose_protected([candidates], 3, "home=Congo, Republic") == (0, [0])
    assert choose_protected([candidates], 3, "z,x=y") == (0, [2, 1])


async def test_the_proportion_is_the_targets_share_unless_it_is_given(
    make_candidates: Make,
) -> None:
    candidates = make_candidates("m" * 30 + "f" * 30, target=0.3)
    for share, options in ((0.3, {}), (0.8, {"proportion": 0.8})):
        found = await reranked(candidates, 20, **options)
        women = sum(id_ >= "d030" for id_ in found.ranking.ids)
        assert women == fair_table(20, (share,), 0.1)[-1, 0]


@pytest.mark.parametrize("named", ["nobody", "gender=nobody", "age=female", "", ",", "female,x"])
def test_groups_that_do_not_exist_are_named(make_candidates: Make, named: str) -> None:
    with pytest.raises(InputError, match=r"gender=female,male"):
        choose_protected([make_candidates("mf")], 2, named)


def test_a_name_that_stands_in_two_attributes_has_to_be_told_apart() -> None:
    groups = [["here", "there"]] * 2
    candidates = Candidates(Ranking([], []), [], [], ["origin", "home"], groups)
    with pytest.raises(InputError, match="origin=here or home=here"):
        choose_protected([candidates], 2, "here")
    assert choose_protected([candidates], 2, "home=here") == (1, [0])
