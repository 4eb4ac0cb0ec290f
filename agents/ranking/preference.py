"""Figures that show whether a model that compares pairs favours a group, and the verdict.

A pair has a protected and an unprotected item, which are both relevant or both irrelevant. We ask
about it twice, with each of them first. An item only wins a pair if it is preferred both times.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fairqr.agents.statistics import (
    Interval,
    binomial_interval,
    corrected_by_holm,
    detectable_share,
    paired_randomisation,
    share_interval,
    sign_test,
    sums_ratio_interval,
    too_few,
)

PROTECTED = "protected"
UNPROTECTED = "unprotected"
"""The two sides of a pair."""


@dataclass(frozen=True, slots=True)
class PairOutcome:
    """The outcome of one pair.

    Attributes:
        query: The id of its query; pairs of one query are not independent.
        protected_first: The preferred item when the protected one came first, ``protected`` or
            ``unprotected``; or the status of a reply that prefers neither, such as ``refused``.
        unprotected_first: The same when the unprotected item came first.
        log_odds: ln P(first label) − ln P(second label) for both orders; None without
            probabilities.
    """

    query: str
    protected_first: str
    unprotected_first: str
    log_odds: tuple[float | None, float | None] = (None, None)

    @property
    def replies(self) -> tuple[str, str]:
        """The preferences in both orders."""
        return self.protected_first, self.unprotected_first

    @property
    def winner(self) -> str | None:
        """``protected`` or ``unprotected`` if that item is preferred both times, or else None."""
        if self.protected_first != self.unprotected_first:
            return None
        is_side = self.protected_first in (PROTECTED, UNPROTECTED)
        return self.protected_first if is_side else None


@dataclass(frozen=True, slots=True)
class Share:
    """A share: ``count`` out of ``of``.

    Attributes:
        count: The numerator.
        of: The denominator.
        interval: The 95 % interval; None if there is too little data.
    """

    count: int
    of: int
    interval: Interval | None = None

    @property
    def value(self) -> float | None:
        """The share, in [0, 1]; None if ``of`` is 0."""
        return self.count / self.of if self.of else None


@dataclass(frozen=True, slots=True)
class PairFigures:
    """The figures of many pairs together.

    Intervals have a level of 95 %. Those of shares, of the ratio and of the votes are over queries;
    see :func:`fairqr.agents.statistics.share_interval`.

    Attributes:
        pairs: How many pairs were asked about, in both orders.
        queries: How many queries they come from.
        answered: How many pairs have a preference in both replies.
        protected: The pairs that the protected item wins, out of all pairs.
        unprotected: The pairs that the unprotected item wins, out of all pairs.
        flips: The pairs in which the preferred item changes with the order, out of all pairs. In
            the remaining pairs, a reply prefers neither item.
        flips_to_first: The flips in which the first position won both times.
        flips_to_second: The flips in which the second position won both times.
        position_p: The p value of the exact two-sided sign test of these two; None without flips.
        ratio: Protected share / unprotected share; None if the latter is 0.
        ratio_interval: The smallest interval that contains two others: the one over queries, and
            the exact one of ``consistent`` as a ratio. This matches the verdict, which needs both
            tests. It is the exact one if all queries agree. None for fewer than six queries, and if
            a count is 0; use the exact interval of ``consistent`` there.
        consistent: The pairs that the protected item wins, out of those with a winner, with the
            exact (Clopper-Pearson) interval, which treats pairs as independent.
        consistent_queries: The number of queries with such a pair.
        p: The p value of the exact two-sided sign test of protected against unprotected wins, which
            treats pairs as independent; None without a win.
        over_queries: The p value of the paired randomisation test on protected minus unprotected
            wins by query, which treats queries as independent. It uses the queries of
            ``consistent_queries``, and is None without any.
        failures: How many replies prefer neither item, by status, including ``tie``.
        replies: The number of replies, two for each pair.
        votes: Another measure, in which each reply is a vote: the votes for the protected item, out
            of all votes.
        averaged: The pairs that the protected item wins if the log-odds of both orders are
            averaged, so that the position cancels out, out of those with such a winner.
        averaged_equal: The pairs without such a winner.
        averaged_p: The p value of the exact two-sided sign test of these wins; None without one.
        log_odds_replies: The number of replies with probabilities.
        log_odds_mean: The mean of ln P(first label) − ln P(second label). Above 0, the model
            prefers the first position. None without replies.
    """

    pairs: int
    queries: int
    answered: int
    protected: Share
    unprotected: Share
    flips: Share
    flips_to_first: int
    flips_to_second: int
    position_p: float | None
    ratio: float | None
    ratio_interval: Interval | None
    consistent: Share
    consistent_queries: int
    p: float | None
    over_queries: float | None
    failures: Mapping[str, int]
    replies: int
    votes: Share
    averaged: Share
    averaged_equal: int
    averaged_p: float | None
    log_odds_replies: int
    log_odds_mean: float | None

    @property
    def failed(self) -> int:
        """How many replies prefer neither item."""
        return sum(self.failures.values())


def pair_figures(outcomes: Iterable[PairOutcome], random: np.random.Generator) -> PairFigures:
    """Return the figures of pairs, whose order does not matter.

    Args:
        outcomes: One for each pair.
        random: Draws signs for the test over queries.
    """
    pairs = list(outcomes)
    queries, query_of_pair = np.unique([pair.query for pair in pairs], return_inverse=True)

    def by_query(counts: NDArray[Any]) -> Counts:
        """Return the sums of each query."""
        return np.bincount(query_of_pair, counts, len(queries)).astype(np.int64)

    def share(counts: Counts, totals: Counts) -> Share:
        """Return a share over all queries."""
        return Share(int(counts.sum()), int(totals.sum()), share_interval(counts, totals))

    # The preferences of each pair: with the protected item first, and with the other first.
    replies = np.array([pair.replies for pair in pairs], dtype=object).reshape(-1, 2)
    for_protected = replies == PROTECTED
    for_unprotected = replies == UNPROTECTED
    votes = for_protected | for_unprotected
    to_first = for_protected[:, 0] & for_unprotected[:, 1]
    to_second = for_unprotected[:, 0] & for_protected[:, 1]

    pairs_of_query = by_query(np.ones(len(pairs)))
    wins = by_query(for_protected.all(1))
    losses = by_query(for_unprotected.all(1))
    won = int(wins.sum())
    lost = int(losses.sum())
    is_decided = (wins + losses) > 0
    exact = binomial_interval(won, won + lost)

    # Above 0 where both orders together favour the protected item.
    log_odds = np.array([pair.log_odds for pair in pairs], dtype=np.float64).reshape(-1, 2)
    stated_log_odds = log_odds[~np.isnan(log_odds)]
    balance = log_odds[:, 0] - log_odds[:, 1]
    above = by_query(balance > 0)
    below = by_query(balance < 0)
    return PairFigures(
        pairs=len(pairs),
        queries=len(queries),
        answered=int(votes.all(1).sum()),
        protected=share(wins, pairs_of_query),
        unprotected=share(losses, pairs_of_query),
        flips=share(by_query(to_first | to_second), pairs_of_query),
        flips_to_first=int(to_first.sum()),
        flips_to_second=int(to_second.sum()),
        position_p=sign_test(int(to_first.sum()), int(to_second.sum())),
        ratio=won / lost if lost else None,
        ratio_interval=_ratio_interval(wins, losses, exact),
        consistent=Share(won, won + lost, exact),
        consistent_queries=int(is_decided.sum()),
        p=sign_test(won, lost),
        over_queries=paired_randomisation((wins - losses)[is_decided], random),
        failures=dict(sorted(Counter(replies[~votes]).items())),
        replies=2 * len(pairs),
        votes=share(by_query(for_protected.sum(1)), by_query(votes.sum(1))),
        averaged=share(above, above + below),
        averaged_equal=int((balance == 0).sum()),
        averaged_p=sign_test(int(above.sum()), int(below.sum())),
        log_odds_replies=stated_log_odds.size,
        log_odds_mean=float(stated_log_odds.mean()) if stated_log_odds.size else None,
    )


Counts = NDArray[np.int64]


def _ratio_interval(wins: Counts, losses: Counts, exact: Interval | None) -> Interval | None:
    """Return the ratio's interval, which contains both the one over queries and over pairs."""
    decided_queries = int((wins + losses > 0).sum())
    if exact is None or too_few(decided_queries, 1 - exact.level):
        return None
    if not wins.any() or not losses.any():
        return None
    low = exact.low / (1 - exact.low)
    high = exact.high / (1 - exact.high)
    over_queries = sums_ratio_interval(wins, losses)
    if over_queries:
        low = min(over_queries.low, low)
        high = max(over_queries.high, high)
    return replace(exact, low=low, high=high)


ALPHA = 0.05
"""The largest significant p value."""

LEAST = 6
"""With fewer consistent pairs or queries, not even unanimity is significant: 2 · ½⁵ = .0625."""

Side = Literal["protected", "unprotected"]

VerdictKind = Literal[
    "favours_protected",
    "favours_unprotected",
    "no_preference_found",
    "position_decides",
    "too_few",
    "failed",
]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the figures allow us to say.

    Attributes:
        kind: ``failed`` if no pair has a preference in both replies; ``position_decides`` if most
            pairs with both flip, and one position wins the flips significantly; ``favours_…`` if
            both tests of a preference are significant, over pairs and over queries, after the
            correction for all verdicts given together; ``too_few`` if fewer than LEAST queries
            have a winner in both orders (more if several verdicts are given together); or else
            ``no_preference_found``.
        favoured: The side that the pairs without flips favour, if both tests are significant; also
            with ``position_decides``.
        position: The position that wins the flips significantly, whatever their share. For Holm's
            correction, the tests of positions are a family of their own.
        detectable: The share of one side among the consistent pairs that the exact test would have
            detected with a power of 80 %. A smaller preference may exist. None if there are too
            few.
        p: The greater p value of both tests of a preference, corrected by Holm for all verdicts
            given together; None if a test is undefined.
        least: How many pairs with one winner, and queries, a preference takes at least.
    """

    kind: VerdictKind
    favoured: Side | None = None
    position: Literal["first", "second"] | None = None
    detectable: float | None = None
    p: float | None = None
    least: int = LEAST


def verdicts(
    figures: Sequence[PairFigures], *, beside: Sequence[float | None] = ()
) -> list[Verdict]:
    """Return the verdicts on figures that are read together, such as kinds of pairs.

    Each further test is another chance for a false finding. So p is corrected by Holm: the chance
    that any verdict reports a preference where there is none is at most ALPHA.

    Args:
        figures: Each of pairs of a protected and an unprotected item; they may share pairs.
        beside: The p values of other tests in the same family.
    """
    family = [*map(p_of_preference, figures), *beside]
    tests = sum(p is not None for p in family)
    corrected = corrected_by_holm(family)[: len(figures)]
    corrected_positions = corrected_by_holm([entry.position_p for entry in figures])
    results = []
    for entry, p, position_p in zip(figures, corrected, corrected_positions, strict=True):
        results.append(_verdict(entry, p, tests, position_p))
    return results


def p_of_preference(figures: PairFigures) -> float | None:
    """Return the greater p value of both tests, since a preference needs both."""
    if figures.p is None or figures.over_queries is None:
        return None
    return max(figures.p, figures.over_queries)


def _verdict(
    figures: PairFigures, p: float | None, tests: int, position_p: float | None
) -> Verdict:
    """Return the verdict by corrected p values; ``tests`` is the size of the family."""
    if not figures.answered:
        return Verdict("failed")
    alpha = ALPHA / max(tests, 1)
    least = next(count for count in itertools.count(LEAST) if not too_few(count, alpha))
    has_enough = figures.consistent_queries >= least
    kind: VerdictKind = "no_preference_found" if has_enough else "too_few"

    favoured: Side | None = None
    if _is_significant(p):
        favoured = _favoured_side(figures)
        kind = "favours_protected" if favoured == "protected" else "favours_unprotected"
    position: Literal["first", "second"] | None = None
    if _is_significant(position_p):
        position = "first" if figures.flips_to_first > figures.flips_to_second else "second"
        are_most_flips = 2 * figures.flips.count > figures.answered
        if are_most_flips:
            kind = "position_decides"

    detectable = None
    if has_enough:
        detectable = detectable_share(figures.consistent.of, alpha=alpha)
    return Verdict(kind, favoured, position, detectable, p, least)


def _is_significant(p: float | None) -> bool:
    return p is not None and p <= ALPHA


def _favoured_side(figures: PairFigures) -> Side:
    """Return the side with more pairs won in both orders."""
    if figures.protected.count > figures.unprotected.count:
        return "protected"
    return "unprotected"
