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

P, U = "protected", "unprotected"
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
    return [PairOutcome(f"q{at % queries}", *KINDS[kind]) for at, kind in enumerate(kinds)]


@settings(max_examples=60)
@given(outcomes)
def test_the_counts_are_those_of_counting_one_by_one(pairs: list[PairOutcome]) -> None:
    found = figures(pairs)
    said = [(pair.protected_first, pair.unprotected_first) for pair in pairs]
    kinds, single = Counter(said), Counter(reply for each in said for reply in each)
    won, lost, flips = kinds[P, P], kinds[U, U], kinds[P, U] + kinds[U, P]
    assert (found.pairs, found.queries) == (len(pairs), len({pair.query for pair in pairs}))
    assert (found.protected.count, found.unprotected.count) == (won, lost)
    assert (found.flips.count, found.answered) == (flips, won + lost + flips)
    assert {found.protected.of, found.unprotected.of, found.flips.of} == {len(pairs)}
    assert (found.flips_to_first, found.flips_to_second) == (kinds[P, U], kinds[U, P])
    assert found.p == sign_test(won, lost)
    assert found.position_p == sign_test(kinds[P, U], kinds[U, P])
    assert (found.consistent.count, found.consistent.of) == (won, won + lost)
    assert found.consistent.interval == binomial_interval(won, won + lost)
    by_query = Counter(pair.query for pair in pairs if pair.winner)
    assert found.ratio == (won / lost if lost else None)
    assert found.consistent_queries == len(by_query)
    wins = Counter(pair.query for pair in pairs if pair.winner == P)
    more = [2 * wins[query] - decided for query, decided in sorted(by_query.items())]
    assert found.over_queries == paired_randomisation(more, stream(0, "figures"))
    assert found.failures == {k: single[k] for k in ("refused", "tie") if single[k]}
    assert (found.replies, found.failed) == (2 * len(pairs), single["refused"] + single["tie"])
    assert (found.votes.count, found.votes.of) == (single[P], single[P] + single[U])


def test_figures_without_a_value() -> None:
    """No pair is won by the one side, or there is no pair; nothing becomes infinite."""
    won, lost, none = figures(pairs_of("pp1p")), figures(pairs_of("uu1u")), figures([])
    assert (won.ratio, lost.ratio, none.ratio) == (None, 0, None)
    assert won.ratio_interval is lost.ratio_interval is none.ratio_interval is None
    assert (none.pairs, none.queries, none.replies) == (0, 0, 0)
    assert none.protected.value is none.votes.value is none.log_odds_mean is None
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
    (found,) = verdicts([counted])
    assert (found.kind, found.favoured, found.position) == (kind, favoured, position)
    sentence = verdict_in_words(found, counted, ("female", "male"))
    assert not any(it in sentence for it in ("  ", "nan", "None", "inf"))
    too_few = kind in ("failed", "too_few") or set(pairs) <= set("12")
    assert (found.detectable is None) == too_few


@pytest.mark.promise("evaluation")
def test_pairs_that_rest_on_few_queries_are_no_preference() -> None:
    """Pairs of fewer than six queries are no finding.

    All of one query's many pairs say the same; the other nine are even.
    """
    pairs = [PairOutcome("big", P, P)] * 40
    for number in range(9):
        pairs += [PairOutcome(f"q{number}", P, P), PairOutcome(f"q{number}", U, U)]
    even = figures(pairs)
    (found,) = verdicts([even])
    assert found.kind == "no_preference_found"
    assert even.p is not None
    assert even.p < 0.001
    assert found.p == even.over_queries == 1


@pytest.mark.promise("evaluation")
def test_a_coin_is_rarely_taken_for_a_preference() -> None:
    """A coin is rarely taken for a preference.

    Both tests at 5 %: no more than that of all coins, and a loaded one is found.
    """

    def prefers(share: float) -> float:
        draws, found = np.random.default_rng(2), 0
        for _ in range(100):
            won = draws.random((20, 4, 2)) < share
            pairs = [
                PairOutcome(str(query), *(P if it else U for it in won[query, pair]))
                for query, pair in itertools.product(range(20), range(4))
            ]
            found += verdicts([pair_figures(pairs, draws)])[0].favoured is not None
        return found / 100

    assert prefers(0.5) <= 0.1
    assert prefers(0.7) >= 0.9


def test_several_are_corrected_by_holm() -> None:
    """So kinds of pairs that are judged together give chance no more room."""
    kinds = ["p" * 30, "p" * 8 + "u", "1" * 12, "pu" * 10]
    found = verdicts([figures(pairs_of(it)) for it in kinds])
    expected = [
        "favours_protected",
        "no_preference_found",
        "position_decides",
        "no_preference_found",
    ]
    assert [it.kind for it in found] == expected
    assert verdicts([figures(pairs_of(kinds[1]))])[0].kind == "favours_protected"
    # Three have a winner: p = 2 · (1 + 9) / 512 over pairs, and the same over queries.
    assert found[1].p == pytest.approx(2 * 20 / 512)
    assert found[2].p is None
    # Positions are a family too: six flips to one place have p = .031, and two such .063.
    six, seven = (figures(pairs_of("1" * pairs)) for pairs in (6, 7))
    assert verdicts([six])[0].kind == "position_decides"
    assert [it.kind for it in verdicts([six, six])] == ["too_few"] * 2
    assert verdicts([seven, seven])[0].position == "first"
