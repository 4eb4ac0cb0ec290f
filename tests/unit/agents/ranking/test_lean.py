"""The figures of pairs: counted in another way, and what they promise."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqr.agents.ranking.lean import PairFigures, PairOutcome, pair_figures
from fairqr.agents.statistics import binomial_interval, paired_randomisation, sign_test, stream

P, U = "protected", "unprotected"

replies = st.sampled_from([P, P, U, U, "refused", "tie"])
odds = st.one_of(st.none(), st.sampled_from([-1.5, -0.5, 0.0, 0.5, 1.5]))
outcomes = st.lists(
    st.builds(PairOutcome, st.sampled_from("abcd"), replies, replies, st.tuples(odds, odds)),
    max_size=25,
)


def figures(pairs: list[PairOutcome], seed: int = 0) -> PairFigures:
    return pair_figures(pairs, stream(seed, "figures"))


def pairs_of(query: str, *kinds: str) -> list[PairOutcome]:
    """``p`` and ``u`` won in both orders, ``1`` and ``2`` by the position, ``x`` failed."""
    made = {"p": (P, P), "u": (U, U), "1": (P, U), "2": (U, P), "x": ("refused", P)}
    return [PairOutcome(query, *made[kind]) for kinds_ in kinds for kind in kinds_]


@settings(max_examples=60)
@given(outcomes)
def test_the_counts_are_those_of_counting_one_by_one(pairs: list[PairOutcome]) -> None:
    found = figures(pairs)
    said = [(pair.protected_first, pair.unprotected_first) for pair in pairs]
    kinds = Counter(said)
    assert found.pairs == len(pairs)
    assert found.queries == len({pair.query for pair in pairs})
    assert found.protected.count == kinds[P, P]
    assert found.unprotected.count == kinds[U, U]
    assert found.flips_to_first == kinds[P, U]
    assert found.flips_to_second == kinds[U, P]
    assert found.flips.count == kinds[P, U] + kinds[U, P]
    assert found.answered == kinds[P, P] + kinds[U, U] + found.flips.count
    assert {found.protected.of, found.unprotected.of, found.flips.of} == {len(pairs)}
    assert found.p == sign_test(kinds[P, P], kinds[U, U])
    assert found.position_p == sign_test(kinds[P, U], kinds[U, P])
    assert found.consistent.count == kinds[P, P]
    assert found.consistent.of == kinds[P, P] + kinds[U, U]
    single = Counter(reply for each in said for reply in each)
    assert found.failures == {k: single[k] for k in ("refused", "tie") if single[k]}
    assert found.replies == 2 * len(pairs)
    assert found.failed == single["refused"] + single["tie"]
    assert (found.votes.count, found.votes.of) == (single[P], single[P] + single[U])
    assert found.votes.of + found.failed == found.replies


@settings(max_examples=60)
@given(outcomes)
def test_the_averaged_log_odds_cancel_the_position(pairs: list[PairOutcome]) -> None:
    """A pull to the first place, as strong as you like, changes nothing."""
    whole = [(p.log_odds[0], p.log_odds[1]) for p in pairs if None not in p.log_odds]
    balances = [one - other for one, other in whole if one is not None and other is not None]
    found = figures(pairs).averaged
    assert found.protected.count == sum(it > 0 for it in balances)
    assert found.protected.of == sum(it != 0 for it in balances)
    assert found.equal == sum(it == 0 for it in balances)

    def pulled(value: float | None) -> float | None:
        return None if value is None else value + 8

    moved = [replace(p, log_odds=(pulled(p.log_odds[0]), pulled(p.log_odds[1]))) for p in pairs]
    assert figures(moved).averaged == found


@settings(max_examples=40)
@given(outcomes, st.randoms(use_true_random=False))
def test_the_order_of_the_pairs_does_not_matter(pairs: list[PairOutcome], random: object) -> None:
    shuffled = list(pairs)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = figures(pairs), figures(shuffled)
    assert one.log_odds.mean == pytest.approx(other.log_odds.mean)
    assert one.log_odds.deviation == pytest.approx(other.log_odds.deviation)
    assert replace(one, log_odds=other.log_odds) == other


@settings(max_examples=40)
@given(outcomes)
def test_sides_that_change_their_names_change_places(pairs: list[PairOutcome]) -> None:
    """Nothing treats one group otherwise than the other."""
    swap = {P: U, U: P}
    mirrored = [
        PairOutcome(
            pair.query,
            swap.get(pair.unprotected_first, pair.unprotected_first),
            swap.get(pair.protected_first, pair.protected_first),
            pair.log_odds[::-1],
        )
        for pair in pairs
    ]
    one, other = figures(pairs), figures(mirrored)
    assert one.protected.count == other.unprotected.count
    assert (one.flips_to_first, one.flips_to_second) == (
        other.flips_to_first,
        other.flips_to_second,
    )
    assert (one.p, one.position_p) == (other.p, other.position_p)
    assert one.votes.of - one.votes.count == other.votes.count
    averaged = one.averaged.protected
    assert averaged.of - averaged.count == other.averaged.protected.count


@settings(max_examples=40)
@given(outcomes)
def test_all_intervals_are_finite_and_hold_their_value(pairs: list[PairOutcome]) -> None:
    found = figures(pairs)
    shares = (found.protected, found.unprotected, found.flips, found.votes, found.consistent)
    for share in (*shares, found.averaged.protected):
        if share.interval is not None:
            assert share.value is not None
            assert 0 <= share.interval.low <= share.interval.high <= 1
    ratio = found.ratio_interval
    assert (ratio is None) == (
        not found.protected.count or not found.unprotected.count or found.consistent_queries < 6
    )
    if ratio is not None:
        assert found.ratio is not None
        assert 0 < ratio.low < found.ratio < ratio.high < math.inf


def test_an_example_worked_by_hand() -> None:
    """Three queries, ten pairs: 4 protected, 2 unprotected, 3 flips, 1 failure."""
    pairs = [*pairs_of("a", "ppu1"), *pairs_of("b", "pp1"), *pairs_of("c", "u2x")]
    found = figures(pairs)
    assert (found.protected.value, found.unprotected.value, found.flips.value) == (0.4, 0.2, 0.3)
    assert found.ratio == 2
    assert found.ratio_interval is None, "three queries are too few"
    assert (found.answered, found.consistent.of, found.consistent_queries) == (9, 6, 3)
    assert found.consistent.interval == binomial_interval(4, 6)
    assert (found.flips_to_first, found.flips_to_second) == (2, 1)
    assert found.failures == {"refused": 1}
    # 4·2 + 3 + 1 of 19 votes.
    assert (found.votes.count, found.votes.of) == (12, 19)
    expected = paired_randomisation([1, 2, -1], np.random.default_rng(0))
    assert found.over_queries == expected


def test_queries_that_all_say_the_same_do_not_make_a_ratio_certain() -> None:
    """The exact interval is left, which knows that there are only 32 pairs."""
    found = figures([pair for number in range(8) for pair in pairs_of(str(number), "pppu")])
    exact = binomial_interval(24, 32)
    assert exact is not None
    assert found.ratio == 3
    assert found.ratio_interval is not None
    assert found.ratio_interval.low == pytest.approx(exact.low / (1 - exact.low))
    assert found.ratio_interval.high == pytest.approx(exact.high / (1 - exact.high))


def test_a_ratio_without_a_value_says_so() -> None:
    """No pair is won by the one side; nothing becomes infinite."""
    won = figures([*pairs_of("a", "pp1"), *pairs_of("b", "p")])
    assert won.ratio is None
    assert won.ratio_interval is None
    assert won.consistent.interval is not None
    lost = figures([*pairs_of("a", "uu1"), *pairs_of("b", "u")])
    assert lost.ratio == 0
    assert lost.ratio_interval is None


def test_nothing_at_all() -> None:
    found = figures([])
    assert (found.pairs, found.queries, found.replies) == (0, 0, 0)
    assert found.protected.value is None
    assert found.votes.value is None
    assert found.ratio is None
    assert (found.p, found.position_p, found.over_queries) == (None, None, None)
    assert found.log_odds.mean is None


def test_log_odds_tell_how_the_position_draws() -> None:
    pairs = [
        PairOutcome("a", P, U, (2.0, 1.0)),
        PairOutcome("b", P, "timeout", (3.0, None)),
    ]
    found = figures(pairs).log_odds
    assert (found.replies, found.mean, found.deviation) == (3, 2.0, 1.0)


def test_pairs_of_one_query_weigh_as_one_query_in_intervals() -> None:
    """Pairs of eight queries that contradict each other show less than those of many queries."""
    few = [pair for query in range(8) for pair in pairs_of(str(query), "pu"[query % 2] * 10)]
    many = [replace(pair, query=str(number)) for number, pair in enumerate(few)]
    one, other = figures(few).protected.interval, figures(many).protected.interval
    assert one is not None
    assert other is not None
    assert one.high - one.low > other.high - other.low
