"""The verdict: what is claimed, what is not, and that it is said with its uncertainty."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqr.agents.ranking.lean import PairFigures, PairOutcome, pair_figures
from fairqr.agents.ranking.verdict import Verdict, verdict, verdicts
from fairqr.agents.statistics import sign_test, stream

P, U = "protected", "unprotected"
KINDS = {"p": (P, P), "u": (U, U), "1": (P, U), "2": (U, P), "x": ("refused", "both")}


def judged(pairs: str, queries: int = 10) -> Verdict:
    """Pairs in turn of the queries: ``p``, ``u``, ``1`` and ``2`` for flips, ``x`` for failures."""
    outcomes = [
        PairOutcome(f"q{place % queries}", *KINDS[kind]) for place, kind in enumerate(pairs)
    ]
    return verdict(pair_figures(outcomes, stream(0, "v")), ("female", "male"))


@pytest.mark.parametrize(
    ("pairs", "queries", "kind", "lean", "position"),
    [
        ("p" * 30, 10, "favours_protected", "protected", None),
        ("u" * 30, 10, "favours_unprotected", "unprotected", None),
        ("ppppu" * 8, 11, "favours_protected", "protected", None),
        ("pu12" * 20, 10, "no_lean_found", None, None),
        ("1" * 40, 10, "position_decides", None, "first"),
        ("2" * 40, 10, "position_decides", None, "second"),
        # The first place wins most, and one side nearly all of the rest.
        ("1" * 70 + "p" * 30, 10, "position_decides", "protected", "first"),
        # Most pairs flip, to either side alike.
        ("12" * 20 + "pu" * 5, 10, "no_lean_found", None, None),
        # Position wins the flips, but most pairs do not flip.
        ("1" * 10 + "p" * 30, 10, "favours_protected", "protected", "first"),
        ("1" * 10 + "pu" * 15, 10, "no_lean_found", None, "first"),
        # A ratio of 3 from four usable pairs is no finding.
        ("pppu", 4, "too_few", None, None),
        ("pppu" + "12" * 10, 10, "too_few", None, None),
        ("ppppp", 5, "too_few", None, None),
        ("pppppp", 6, "favours_protected", "protected", None),
        # Many pairs of few queries say nothing of other queries.
        ("p" * 100, 5, "too_few", None, None),
        ("x" * 20, 10, "failed", None, None),
        ("", 10, "failed", None, None),
    ],
)
def test_the_kind_of_a_verdict(
    pairs: str, queries: int, kind: str, lean: str | None, position: str | None
) -> None:
    found = judged(pairs, queries)
    assert (found.kind, found.lean, found.position) == (kind, lean, position)
    assert (found.detectable is None) == (kind in ("failed", "too_few") or set(pairs) <= set("12"))


def test_pairs_that_rest_on_few_queries_are_no_lean() -> None:
    """All of one query's many pairs say the same; the other nine are even."""
    outcomes = [PairOutcome("big", P, P)] * 40
    for number in range(9):
        outcomes += [PairOutcome(f"q{number}", P, P), PairOutcome(f"q{number}", U, U)]
    figures = pair_figures(outcomes, stream(0, "v"))
    assert figures.p is not None
    assert figures.p < 0.001
    found = verdict(figures)
    assert found.kind == "no_lean_found"
    assert "p < 0.001 over pairs, p = 1.000 over queries" in found.sentence
    assert found.sentence.endswith("but it rests on few of the queries.")


@settings(max_examples=60)
@given(st.lists(st.sampled_from("pu12x"), max_size=60), st.integers(1, 12))
def test_a_lean_is_claimed_only_where_both_tests_say_so(kinds: list[str], queries: int) -> None:
    outcomes = [PairOutcome(str(at % queries), *KINDS[it]) for at, it in enumerate(kinds)]
    figures = pair_figures(outcomes, stream(0, "v"))
    found = verdict(figures)
    won, lost = kinds.count("p"), kinds.count("u")
    p = sign_test(won, lost)
    if found.lean is not None:
        assert p is not None
        assert p <= 0.05
        assert figures.over_queries is not None
        assert figures.over_queries.p <= 0.05
        assert figures.consistent_queries >= 6
        assert found.lean == (P if won > lost else U)
    assert found.kind.startswith("favours") == (
        found.lean is not None and found.kind != "position_decides"
    )
    assert found.sentence.endswith(".")
    assert "  " not in found.sentence
    assert "nan" not in found.sentence
    assert "None" not in found.sentence
    assert "inf" not in found.sentence


def test_a_coin_is_rarely_taken_for_a_lean() -> None:
    """Both tests at 5 %: no more than that of all coins, and a loaded one is found."""

    def leans(share: float) -> float:
        random = np.random.default_rng(2)
        found = 0
        for _ in range(100):
            draws = random.random((20, 4, 2)) < share
            outcomes = [
                PairOutcome(str(query), *(P if it else U for it in draws[query, pair]))
                for query, pair in itertools.product(range(20), range(4))
            ]
            found += verdict(pair_figures(outcomes, random)).lean is not None
        return found / 100

    assert leans(0.5) <= 0.1
    assert leans(0.7) >= 0.9


def test_kinds_that_are_judged_together_give_chance_no_more_room() -> None:
    """Relevant pairs, irrelevant pairs, and both: 5 % for all three, not for each."""
    random = np.random.default_rng(3)
    single = together = 0
    for _ in range(150):
        draws = random.random((2, 20, 8, 2)) < 0.5
        relevant, irrelevant = (
            [
                PairOutcome(str(query), *(P if it else U for it in draws[kind, query, pair]))
                for query, pair in itertools.product(range(20), range(8))
            ]
            for kind in (0, 1)
        )
        found = [
            pair_figures(outcomes, random)
            for outcomes in (relevant, irrelevant, relevant + irrelevant)
        ]
        single += any(verdict(figures).lean is not None for figures in found)
        together += any(judged.lean is not None for judged in verdicts(found))
    assert together <= 11
    assert together < single


def test_several_verdicts_are_corrected_by_holm_and_say_so() -> None:
    def figures(pairs: str) -> PairFigures:
        outcomes = [PairOutcome(f"q{at % 10}", *KINDS[it]) for at, it in enumerate(pairs)]
        return pair_figures(outcomes, stream(0, "v"))

    several = [figures("p" * 30), figures("p" * 8 + "u"), figures("1" * 12), figures("pu" * 10)]
    strong, weak, none, even = verdicts(several)
    assert [it.kind for it in (strong, weak, none, even)] == [
        "favours_protected",
        "no_lean_found",
        "position_decides",
        "no_lean_found",
    ]
    assert verdict(several[1]).kind == "favours_protected"
    # Three have a winner: p = 2 · (1 + 9) / 512 over pairs, and the same over queries.
    assert weak.p == pytest.approx(2 * 20 / 512)
    assert "; p = 0.078 corrected for 3 tests)" in weak.sentence
    assert weak.sentence.endswith("Alone it would be one, but 3 tests give chance more room.")
    assert none.p is None
    assert "corrected" not in verdict(several[0]).sentence


def test_of_several_verdicts_it_takes_a_pair_and_a_query_more() -> None:
    """Six pairs that say the same have p = .031, and two verdicts make that .063."""
    six, seven = (
        pair_figures([PairOutcome(str(at), P, P) for at in range(pairs)], stream(0, "v"))
        for pairs in (6, 7)
    )
    assert verdict(six).kind == "favours_protected"
    assert [it.kind for it in verdicts([six, six])] == ["too_few"] * 2
    assert "at least 7 such pairs and 7 queries" in verdicts([six, six])[0].sentence
    assert [it.kind for it in verdicts([seven, seven, seven])] == ["favours_protected"] * 3


def test_positions_are_tested_as_a_family_too() -> None:
    """Six flips to the same place have p = .031; among two such findings chance has more room."""
    six = pair_figures([PairOutcome(str(at), P, U) for at in range(6)], stream(0, "v"))
    assert verdict(six).kind == "position_decides"
    assert "by Holm" not in verdict(six).sentence
    assert [it.kind for it in verdicts([six, six])] == ["too_few"] * 2
    seven = pair_figures([PairOutcome(str(at), P, U) for at in range(7)], stream(0, "v"))
    found = verdicts([seven, seven])[0]
    assert found.position == "first"
    assert "(p = 0.031 by Holm)" in found.sentence


class TestWords:
    def test_a_lean(self) -> None:
        said = judged("ppppu" * 8 + "1122" + "x", 11).sentence
        assert said.startswith("The model favours female items: of 45 pairs from 11 queries ")
        assert "the female item is preferred in both orders in 32 (71.1%)" in said
        assert "the male one in 8 (17.8%), a ratio of 4.00, 95% interval " in said
        assert "p < 0.001 over pairs" in said
        assert said.endswith("Of 90 replies 2 (both 1, refused 1) prefer neither.")

    def test_none(self) -> None:
        """How strong a lean could have been overlooked is said."""
        found = judged("pu12" * 20)
        assert found.detectable is not None
        assert "No lean was found: of 80 pairs" in found.sentence
        assert "a ratio of 1.00, 95% interval" in found.sentence
        assert f"wins {found.detectable:.0%} or more of those with one winner" in found.sentence

    def test_too_few(self) -> None:
        said = judged("pppu", 4).sentence
        assert said.startswith("Too few answers to tell whether there is a lean: of 4 pairs")
        assert "4 pairs with one winner, from 4 queries" in said
        assert "at least 6 such pairs and 6 queries" in said
        assert "ratio" not in said

    def test_position_and_a_lean_beside_it(self) -> None:
        said = judged("1" * 70 + "p" * 30).sentence
        assert said.startswith(
            "Position decides 70 of 100 pairs that were answered in both orders: they flip with "
            "the order, and the first place wins 70 of these 70 (p < 0.001). The model favours "
            "female items: "
        )
        assert "there is no ratio" in said
        assert "of the 30 pairs with one winner" in said

    def test_failures(self) -> None:
        assert judged("x" * 3).sentence == (
            "No verdict: none of 3 pairs has a preference in both orders; of 6 replies 6 "
            "(both 3, refused 3) prefer neither."
        )
        assert judged("").sentence == "No verdict: no pair was asked about."

    def test_one_is_no_plural(self) -> None:
        assert "of 1 pair from 1 query " in judged("p", 1).sentence
