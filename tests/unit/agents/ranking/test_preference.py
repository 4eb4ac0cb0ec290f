"""The figures of pairs, counted in another way; and what the verdict claims, and what not."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqr.agents.ranking.preference import PairFigures, PairOutcome, pair_figures, verdicts
from fairqr.agents.statistics import binomial_interval, paired_randomisation, sign_test, stream
from fairqr.graph.probe.verdicts import verdict_in_words

P = "protected"
U = "unprotected"
KINDS = {"p": (P, P), "u": (U, U), "1": (P, U), "2": (U, P), "x": ("refused", "both")}

replies = st.sampled_from([P, P, U, U, "refused", "tie"])
odds = st.one_of(st.none(), st.sampled_from([-1.5, -0.5, 0.0, 0.5, 1.5]))
outcomes = st.lists(
    st.builds(PairOutcome, st.sampled_from("abcd"), replies, replies, st.tuples(odds, odds)),
    max_size=25,
)


def figures(pairs: list[PairOutcome]) -> PairFigures:
    return pair_figures(pairs, stream(0, "figures"))


def pairs_of(kinds: str, queries: int = 10) -> list[PairOutcome]:
    """``p`` and ``u`` won in both orders, ``1`` and ``2`` by the position, ``x`` failed."""
    return [PairOutcome(f"q{number % queries}", *KINDS[kind]) for number, kind in enumerate(kinds)]


@settings(max_examples=60)
@given(outcomes)
def test_the_counts_are_those_of_counting_one_by_one(pairs: list[PairOutcome]) -> None:
    counts = figures(pairs)
    replies = [(pair.protected_first, pair.unprotected_first) for pair in pairs]
    kinds = Counter(replies)
    single = Counter(reply for pair in replies for reply in pair)
    won = kinds[P, P]
    lost = kinds[U, U]
    flips = kinds[P, U] + kinds[U, P]
    assert (counts.pairs, counts.queries) == (len(pairs), len({pair.query for pair in pairs}))
    assert (counts.protected.count, counts.unprotected.count) == (won, lost)
    assert (counts.flips.count, counts.answered) == (flips, won + lost + flips)
    assert {counts.protected.of, counts.unprotected.of, counts.flips.of} == {len(pairs)}
    assert (counts.flips_to_first, counts.flips_to_second) == (kinds[P, U], kinds[U, P])
    assert counts.p == sign_test(won, lost)
    assert counts.position_p == sign_test(kinds[P, U], kinds[U, P])
    assert (counts.consistent.count, counts.consistent.of) == (won, won + lost)
    assert counts.consistent.interval == binomial_interval(won, won + lost)
    by_query = Counter(pair.query for pair in pairs if pair.winner)
    assert counts.ratio == (won / lost if lost else None)
    assert counts.consistent_queries == len(by_query)
    wins = Counter(pair.query for pair in pairs if pair.winner == P)
    majorities = [2 * wins[query] - decided for query, decided in sorted(by_query.items())]
    assert counts.over_queries == paired_randomisation(majorities, stream(0, "figures"))
    assert counts.failures == {k: single[k] for k in ("refused", "tie") if single[k]}
    assert (counts.replies, counts.failed) == (2 * len(pairs), single["refused"] + single["tie"])
    assert (counts.votes.count, counts.votes.of) == (single[P], single[P] + single[U])


def test_figures_without_a_value() -> None:
    """No pair is won by the one side, or there is no pair; nothing becomes infinite."""
    won = figures(pairs_of("pp1p"))
    lost = figures(pairs_of("uu1u"))
    nothing = figures([])
    assert (won.ratio, lost.ratio, nothing.ratio) == (None, 0, None)
    assert won.ratio_interval is lost.ratio_interval is nothing.ratio_interval is None
    assert (nothing.pairs, nothing.queries, nothing.replies) == (0, 0, 0)
    assert nothing.protected.value is nothing.votes.value is nothing.log_odds_mean is None
    drawn = figures([PairOutcome("a", P, U, (2, 1)), PairOutcome("b", P, "timeout", (3, None))])
    assert (drawn.log_odds_replies, drawn.log_odds_mean) == (3, 2)


@pytest.mark.promise("evaluation")
@pytest.mark.parametrize(
    ("pairs", "queries", "kind", "favoured", "position"),
    [
        ("p" * 30, 10, "favours_protected", "protected", None),
        ("u" * 30, 10, "favours_unprotected", "unprotected", None),
        ("pu12" * 20, 10, "no_preference_found", None, None),
        ("1" * 40, 10, "position_decides", None, "first"),
        ("2" * 40, 10, "position_decides", None, "second"),
        # The first place wins most, and one side nearly all of the rest.
        ("1" * 70 + "p" * 30, 10, "position_decides", "protected", "first"),
        # Most pairs flip, to either side alike.
        ("12" * 20 + "pu" * 5, 10, "no_preference_found", None, None),
        # Position wins the flips, but most pairs do not flip.
        ("1" * 10 + "p" * 30, 10, "favours_protected", "protected", "first"),
        ("1" * 10 + "pu" * 15, 10, "no_preference_found", None, "first"),
        # A ratio of 3 from four usable pairs is no finding.
        ("pppu", 4, "too_few", None, None),
        ("pppu" + "12" * 10, 10, "too_few", None, None),
        ("ppppp", 5, "too_few", None, None),
        ("pppppp", 6, "favours_protected", "protected", None),
        # Many pairs of few queries say nothing of other queries.
        ("p" * 100, 5, "too_few", None, None),
        # Each query prefers one side by one pair, and of all pairs three in five say so: p = .36.
        ("p" * 18 + "u" * 12, 6, "no_preference_found", None, None),
        ("x" * 20, 10, "failed", None, None),
        ("", 10, "failed", None, None),
    ],
)
def test_the_kind_follows_from_the_counts(
    pairs: str, queries: int, kind: str, favoured: str | None, position: str | None
) -> None:
    """Four pairs are no finding about a model."""
    counted = figures(pairs_of(pairs, queries))
    (preference,) = verdicts([counted])
    assert (preference.kind, preference.favoured, preference.position) == (kind, favoured, position)
    sentence = verdict_in_words(preference, counted, ("female", "male"))
    assert not any(word in sentence for word in ("  ", "nan", "None", "inf"))
    too_few = kind in ("failed", "too_few") or set(pairs) <= set("12")
    assert (preference.detectable is None) == too_few


@pytest.mark.promise("evaluation")
def test_pairs_that_rest_on_few_queries_are_no_preference() -> None:
    """Pairs of fewer than six queries are no finding.

    All of one query's many pairs say the same; the other nine are even.
    """
    pairs = [PairOutcome("big", P, P)] * 40
    for number in range(9):
        pairs += [PairOutcome(f"q{number}", P, P), PairOutcome(f"q{number}", U, U)]
    even = figures(pairs)

    (preference,) = verdicts([even])

    assert preference.kind == "no_preference_found"
    assert even.p is not None
    assert even.p < 0.001
    assert preference.p == even.over_queries == 1


@pytest.mark.promise("evaluation")
def test_a_coin_is_rarely_taken_for_a_preference() -> None:
    """A coin is rarely taken for a preference.

    Both tests are at 5 %: so many coins at most are taken for one, and a loaded one is found.
    """

    def prefers(share: float) -> float:
        draws = np.random.default_rng(2)
        count = 0
        for _ in range(100):
            won = draws.random((20, 4, 2)) < share
            pairs = [
                PairOutcome(str(query), *(P if is_won else U for is_won in won[query, pair]))
                for query, pair in itertools.product(range(20), range(4))
            ]
            count += verdicts([pair_figures(pairs, draws)])[0].favoured is not None
        return count / 100

    assert prefers(0.5) <= 0.1
    assert prefers(0.7) >= 0.9


def test_several_are_corrected_by_holm() -> None:
    """So kinds of pairs that are judged together give chance no more room."""
    kinds = ["p" * 30, "p" * 8 + "u", "1" * 12, "pu" * 10]
    preferences = verdicts([figures(pairs_of(letters)) for letters in kinds])
    expected = [
        "favours_protected",
        "no_preference_found",
        "position_decides",
        "no_preference_found",
    ]
    assert [preference.kind for preference in preferences] == expected
    assert verdicts([figures(pairs_of(kinds[1]))])[0].kind == "favours_protected"
    # Three have a winner: p = 2 · (1 + 9) / 512 over pairs, and the same over queries.
    assert preferences[1].p == pytest.approx(2 * 20 / 512)
    assert preferences[2].p is None
    # Positions are a family too: six flips to one place have p = .031, and two such .063.
    six, seven = (figures(pairs_of("1" * pairs)) for pairs in (6, 7))
    assert verdicts([six])[0].kind == "position_decides"
    assert [preference.kind for preference in verdicts([six, six])] == ["too_few"] * 2
    assert verdicts([seven, seven])[0].position == "first"
