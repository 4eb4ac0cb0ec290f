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

PROTECTED, UNPROTECTED = "protected", "unprotected"


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
        one, other = self.replies
        return one if one == other and one in (PROTECTED, UNPROTECTED) else None


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
    queries, at = np.unique([it.query for it in pairs], return_inverse=True)
    said = np.array([it.replies for it in pairs], dtype=object).reshape(-1, 2)
    for_one, for_other = said == PROTECTED, said == UNPROTECTED
    votes = for_one | for_other
    odds = np.array([it.log_odds for it in pairs], dtype=np.float64).reshape(-1, 2)
    known, balance = odds[~np.isnan(odds)], odds[:, 0] - odds[:, 1]

    def total(counts: NDArray[Any]) -> Counts:
        """Return the sums of each query."""
        return np.bincount(at, counts, len(queries)).astype(np.int64)

    def share(counts: Counts, of: Counts) -> Share:
        """Return a share over all queries."""
        return Share(int(counts.sum()), int(of.sum()), share_interval(counts, of))

    asked, wins, losses = total(np.ones(len(pairs))), total(for_one.all(1)), total(for_other.all(1))
    won, lost, decided = int(wins.sum()), int(losses.sum()), (wins + losses) > 0
    to_first, to_second = (
        (one[:, 0] & other[:, 1]) for one, other in ((for_one, for_other), (for_other, for_one))
    )
    above, below = total(balance > 0), total(balance < 0)
    exact = binomial_interval(won, won + lost)
    return PairFigures(
        pairs=len(pairs),
        queries=len(queries),
        answered=int(votes.all(1).sum()),
        protected=share(wins, asked),
        unprotected=share(losses, asked),
        flips=share(total(to_first | to_second), asked),
        flips_to_first=int(to_first.sum()),
        flips_to_second=int(to_second.sum()),
        position_p=sign_test(int(to_first.sum()), int(to_second.sum())),
        ratio=won / lost if lost else None,
        ratio_interval=_ratio_interval(wins, losses, exact),
        consistent=Share(won, won + lost, exact),
        consistent_queries=int(decided.sum()),
        p=sign_test(won, lost),
        over_queries=paired_randomisation((wins - losses)[decided], random),
        failures=dict(sorted(Counter(said[~votes]).items())),
        replies=2 * len(pairs),
        votes=share(total(for_one.sum(1)), total(votes.sum(1))),
        averaged=share(above, above + below),
        averaged_equal=int((balance == 0).sum()),
        averaged_p=sign_test(int(above.sum()), int(below.sum())),
        log_odds_replies=known.size,
        log_odds_mean=float(known.mean()) if known.size else None,
    )


Counts = NDArray[np.int64]


def _ratio_interval(wins: Counts, losses: Counts, exact: Interval | None) -> Interval | None:
    """Return the ratio's interval, which contains both the one over queries and over pairs."""
    if exact is None or too_few(int((wins + losses > 0).sum()), 1 - exact.level):
        return None
    if not wins.any() or not losses.any():
        return None
    low, high = exact.low / (1 - exact.low), exact.high / (1 - exact.high)
    if over := sums_ratio_interval(wins, losses):
        low, high = min(over.low, low), max(over.high, high)
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
    several: Sequence[PairFigures], *, beside: Sequence[float | None] = ()
) -> list[Verdict]:
    """Return the verdicts on figures that are read together, such as kinds of pairs.

    Each further test is another chance for a false finding. So p is corrected by Holm: the chance
    that any verdict reports a preference where there is none is at most ALPHA.

    Args:
        several: The figures, each of pairs of a protected and an unprotected item; they may share
            pairs.
        beside: The p values of other tests in the same family.
    """
    family = [*map(p_of_preference, several), *beside]
    tests = sum(p is not None for p in family)
    corrected = corrected_by_holm(family)[: len(several)]
    positions = corrected_by_holm([figures.position_p for figures in several])
    return [
        _judged(figures, p, tests, position_p)
        for figures, p, position_p in zip(several, corrected, positions, strict=True)
    ]


def p_of_preference(figures: PairFigures) -> float | None:
    """Return the greater p value of both tests, since a preference needs both."""
    over = figures.over_queries
    return None if figures.p is None or over is None else max(figures.p, over)


def _judged(
    figures: PairFigures, p: float | None, tests: int, by_position: float | None
) -> Verdict:
    """Return the verdict by corrected p values; ``tests`` is the size of the family."""
    if not figures.answered:
        return Verdict("failed")
    alpha = ALPHA / max(tests, 1)
    least = next(count for count in itertools.count(LEAST) if not too_few(count, alpha))
    enough = figures.consistent_queries >= least
    kind: VerdictKind = "no_preference_found" if enough else "too_few"
    favoured: Side | None = None
    if p is not None and p <= ALPHA:
        favours = figures.protected.count > figures.unprotected.count
        favoured = "protected" if favours else "unprotected"
        kind = "favours_protected" if favours else "favours_unprotected"
    detectable = detectable_share(figures.consistent.of, alpha=alpha) if enough else None
    position: Literal["first", "second"] | None = None
    if by_position is not None and by_position <= ALPHA:
        position = "first" if figures.flips_to_first > figures.flips_to_second else "second"
        if 2 * figures.flips.count > figures.answered:
            kind = "position_decides"
    return Verdict(kind, favoured, position, detectable, p, least)
