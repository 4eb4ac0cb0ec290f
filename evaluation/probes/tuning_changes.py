"""What a tuning changed in the held-out pairs, as reports and commands show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fairqr.agents.ranking.lean import PairFigures, Share
from fairqr.agents.ranking.verdict import Verdict
from fairqr.base.statistics import Interval, Randomisation

__all__ = ["Change", "GroupChange", "LeanChange", "RatioChange", "RelevanceChange"]


@dataclass(frozen=True, slots=True)
class Change:
    """A share of the held-out pairs, before and after, of the same pairs.

    Attributes:
        before, after: Of all pairs, each with its interval over queries.
        difference: After less before; None without pairs.
        interval: Of the difference, over queries; None for fewer than two.
        test: The paired randomisation test over queries that nothing changed; None without any.
    """

    before: Share
    after: Share
    difference: float | None
    interval: Interval | None
    test: Randomisation | None


@dataclass(frozen=True, slots=True)
class RatioChange:
    """The ratio of wins in both orders, protected to unprotected, and how far it moved toward 1.

    Attributes:
        before, after: The ratio; None where no unprotected item won.
        moved: |ln before| − |ln after|, with ½ added to each count so that it is always a number;
            above 0 the ratio is nearer to 1 after. None without pairs.
        interval: Of ``moved``, over queries; None for fewer than two queries, and where one of the
            four counts is 0, since resamples cannot show how far such a count may vary.
        nearer: The share of the resamples of queries in which the ratio is nearer to 1 after; None
            where there is no interval.
        test: The randomisation test that nothing changed: before and after change places in each
            query by a coin, and p is how often ``moved`` is then as far from 0 as it is. None where
            there is no interval, which is too narrow for a handful of queries.
    """

    before: float | None
    after: float | None
    moved: float | None
    interval: Interval | None
    nearer: float | None
    test: Randomisation | None = None


@dataclass(frozen=True, slots=True)
class LeanChange:
    """The mean of what a model thinks of the protected item, in log-odds; position cancels.

    Of each pair it is half of the sum of ln P(protected) − ln P(unprotected) in both orders.

    Attributes:
        pairs: How many were weighed in both orders, before and after.
        before, after: Means over these; None without any.
        before_interval, after_interval: Over queries; None for fewer than two.
        shrunk: |before| − |after|; above 0 the lean is smaller after.
        interval: Of ``shrunk``, over queries.
    """

    pairs: int
    before: float | None
    after: float | None
    before_interval: Interval | None
    after_interval: Interval | None
    shrunk: float | None
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class GroupChange:
    """The held-out pairs of one kind of one collection, before and after.

    Attributes:
        collection: Its name.
        kind: ``both`` is relevant and irrelevant pairs together.
        pairs: How many were asked about both times.
        queries: Of how many queries.
        before, after: The figures; see :mod:`fairqr.agents.ranking.lean`.
        before_verdict, after_verdict: In words.
        ratio: And how it moved.
        consistent: The pairs that either item wins in both orders.
        lean: In log-odds.
    """

    collection: str
    kind: Literal["relevant", "irrelevant", "both"]
    pairs: int
    queries: int
    before: PairFigures
    after: PairFigures
    before_verdict: Verdict
    after_verdict: Verdict
    ratio: RatioChange
    consistent: Change
    lean: LeanChange


@dataclass(frozen=True, slots=True)
class RelevanceChange:
    """How well the model tells relevant from irrelevant items of one group, before and after.

    Attributes:
        collection: Its name.
        pairs: How many were asked about both times.
        queries: Of how many queries.
        both_orders: The pairs whose relevant item wins in both orders.
        averaged: The pairs whose relevant item wins where the log-odds of both orders are added up.
    """

    collection: str
    pairs: int
    queries: int
    both_orders: Change
    averaged: Change
