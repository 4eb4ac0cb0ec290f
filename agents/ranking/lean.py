"""Figures that show whether a model that compares pairs leans toward a group.

A pair has a protected and an unprotected item, which are both relevant or both irrelevant. We ask
about it twice, with each of them first. An item only wins a pair if it is preferred both times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fairqr.agents.statistics import (
    Interval,
    Randomisation,
    binomial_interval,
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
    def answered(self) -> bool:
        """Whether both replies prefer an item."""
        return all(map(_is_vote, self.replies))

    @property
    def balance(self) -> float | None:
        """The log-odds of the protected item, summed over both orders; None if one is missing."""
        one, other = self.log_odds
        return None if one is None or other is None else one - other

    @property
    def winner(self) -> str | None:
        """``protected`` or ``unprotected`` if that item is preferred both times, or else None."""
        return self.protected_first if self.answered and not self.flips else None

    @property
    def flips(self) -> bool:
        """Whether the replies prefer different items."""
        return self.answered and self.protected_first != self.unprotected_first


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
class Averaged:
    """The winners if the log-odds of both orders are averaged, so that the position cancels out.

    Attributes:
        protected: The pairs that the protected item wins, out of those with a winner, with an
            interval over queries.
        equal: The pairs without a winner.
        p: The p value of the exact two-sided sign test; None without a win.
    """

    protected: Share
    equal: int
    p: float | None


@dataclass(frozen=True, slots=True)
class LogOdds:
    """How much the model prefers the first position.

    Attributes:
        replies: The number of replies with probabilities.
        mean: The mean of ln P(first label) − ln P(second label). Above 0, the model prefers the
            first position. None without replies.
        deviation: The standard deviation (n − 1); None for fewer than two replies.
    """

    replies: int
    mean: float | None
    deviation: float | None


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
        over_queries: The paired randomisation test on protected minus unprotected wins by query,
            which treats queries as independent. It uses the queries of ``consistent_queries``, and
            is None without any.
        failures: How many replies prefer neither item, by status, including ``tie``.
        replies: The number of replies, two for each pair.
        votes: Another measure, in which each reply is a vote: the votes for the protected item, out
            of all votes.
        averaged: The winners by the sum of both log-odds, for pairs with both.
        log_odds: How much the model prefers the first position.
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
    over_queries: Randomisation | None
    failures: Mapping[str, int]
    replies: int
    votes: Share
    averaged: Averaged
    log_odds: LogOdds

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
    by_query: dict[str, list[PairOutcome]] = {}
    for outcome in outcomes:
        by_query.setdefault(outcome.query, []).append(outcome)
    clusters = [by_query[query] for query in sorted(by_query)]
    everything = [outcome for cluster in clusters for outcome in cluster]
    asked = _counts(clusters, lambda _: 1)
    wins = _counts(clusters, lambda it: it.winner == PROTECTED)
    losses = _counts(clusters, lambda it: it.winner == UNPROTECTED)
    flips = _counts(clusters, lambda it: it.flips)
    won, lost, decided = int(wins.sum()), int(losses.sum()), (wins + losses) > 0
    exact = binomial_interval(won, won + lost)
    to_first = sum(it.flips and it.protected_first == PROTECTED for it in everything)
    to_second = sum(it.flips and it.protected_first == UNPROTECTED for it in everything)
    failures = Counter(reply for it in everything for reply in it.replies if not _is_vote(reply))
    return PairFigures(
        pairs=len(everything),
        queries=len(clusters),
        answered=sum(outcome.answered for outcome in everything),
        protected=_share(wins, asked),
        unprotected=_share(losses, asked),
        flips=_share(flips, asked),
        flips_to_first=to_first,
        flips_to_second=to_second,
        position_p=sign_test(to_first, to_second),
        ratio=won / lost if lost else None,
        ratio_interval=_ratio_interval(wins, losses, exact),
        consistent=Share(won, won + lost, exact),
        consistent_queries=int(decided.sum()),
        p=sign_test(won, lost),
        over_queries=paired_randomisation((wins - losses)[decided], random),
        failures=dict(sorted(failures.items())),
        replies=2 * len(everything),
        votes=_share(
            _counts(clusters, lambda it: it.replies.count(PROTECTED)),
            _counts(clusters, lambda it: sum(map(_is_vote, it.replies))),
        ),
        averaged=_averaged(clusters),
        log_odds=_log_odds(everything),
    )


Counts = NDArray[np.int64]


def _is_vote(reply: str) -> bool:
    return reply in (PROTECTED, UNPROTECTED)


def _counts(
    clusters: Sequence[Sequence[PairOutcome]], count: Callable[[PairOutcome], int]
) -> Counts:
    """Return, for each query, the sum of a count over its pairs."""
    return np.array([sum(map(count, cluster)) for cluster in clusters], dtype=np.int64)


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


def _share(counts: Counts, of: Counts) -> Share:
    """Return a share over all queries."""
    return Share(int(counts.sum()), int(of.sum()), share_interval(counts, of))


def _averaged(clusters: Sequence[Sequence[PairOutcome]]) -> Averaged:
    won = _counts(clusters, lambda it: it.balance is not None and it.balance > 0)
    lost = _counts(clusters, lambda it: it.balance is not None and it.balance < 0)
    share = _share(won, won + lost)
    return Averaged(
        protected=share,
        equal=int(_counts(clusters, lambda it: it.balance == 0).sum()),
        p=sign_test(share.count, share.of - share.count),
    )


def _log_odds(outcomes: Sequence[PairOutcome]) -> LogOdds:
    values = [odds for outcome in outcomes for odds in outcome.log_odds if odds is not None]
    return LogOdds(
        replies=len(values),
        mean=float(np.mean(values)) if values else None,
        deviation=float(np.std(values, ddof=1)) if len(values) > 1 else None,
    )
