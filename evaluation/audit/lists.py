"""What a proxy saw of searches: both lists of each query, and what became of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, FiniteFloat, NonNegativeFloat, NonNegativeInt

from fairqr.evaluation.estimates import Estimate, differences, shares
from fairqr.evaluation.user_clicks import CLICKS, ClickFigures

SEEN = "raw/seen.json"
"""The file in the folder of an audit."""


class BothLists(BaseModel, frozen=True, extra="forbid"):
    """What is known of both lists of a query.

    Attributes:
        weight: How often the query was asked.
        arm: Which of the lists the query should be shown.
        shown: Which it was shown; the engine's, too, where the fair one came late.
        engine: Figures of the engine's list by name, from 0 to 1.
        fair: Those of the fair list.
        target: What they should be, as far as that is known.
        by_texts: Whether relevance was estimated by texts; otherwise it falls with the rank.
    """

    weight: NonNegativeFloat
    arm: Literal["engine", "fair"]
    shown: Literal["engine", "fair"]
    engine: dict[str, FiniteFloat]
    fair: dict[str, FiniteFloat]
    target: dict[str, FiniteFloat]
    by_texts: bool


class SeenSearches(BaseModel, frozen=True, extra="forbid"):
    """What is known of the searches of an index.

    Attributes:
        lists: Both lists of each query, where they are known.
        outcomes: How many searches there were, by what became of them.
        unseen: How many of them are in no figure, by the reason.
    """

    lists: tuple[BothLists, ...] = ()
    outcomes: dict[str, NonNegativeInt] = {}
    unseen: dict[str, NonNegativeInt] = {}

    def coverage(self) -> dict[str, Any]:
        """Return how many searches there were, what became of them, and how many are in figures."""
        searches = sum(self.outcomes.values())
        counted = searches - sum(self.unseen.values())
        return {
            "searches": searches,
            "in_figures": counted,
            "outcomes": _most_first(self.outcomes),
            "unseen": _most_first(self.unseen),
            "lists": len(self.lists),
            "by_texts": sum(query.by_texts for query in self.lists),
        }


def _most_first(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


@dataclass(frozen=True, slots=True)
class UserRecords:
    """What is known of those who searched.

    Attributes:
        seen: What a proxy saw of their searches.
        clicks: What their clicks say.
    """

    seen: SeenSearches | None = None
    clicks: ClickFigures | None = None

    def files(self) -> dict[str, BaseModel]:
        """Return the files of an audit that hold it, by name."""
        records = {SEEN: self.seen, CLICKS: self.clicks}
        return {name: record for name, record in records.items() if record is not None}


NO_RECORDS = UserRecords()


def figures_of_lists(lists: Sequence[BothLists]) -> dict[str, list[dict[str, Any]]]:
    """Return the figures of ``both`` lists of all queries, and those of the ``arms``, if two.

    The first are compared query by query. The arms have other queries, so chance moves them more;
    of the fair arm, what was shown counts, as in any trial with an intention to treat.
    Each figure has a ``name``, the estimates ``engine``, ``fair`` and ``change``, and a ``target``.
    """
    of_engine = [query for query in lists if query.arm == "engine"]
    of_fair = [query for query in lists if query.arm == "fair"]
    names: dict[str, None] = {}
    for query in lists:
        names |= dict.fromkeys(query.fair)
    both = [_compared(name, lists, lists) for name in names]
    arms = [_compared(name, of_engine, of_fair) for name in names]
    return {
        "both": [figures for figures in both if figures],
        "arms": [figures for figures in arms if figures],
    }


def _compared(
    name: str, first: Sequence[BothLists], second: Sequence[BothLists]
) -> dict[str, Any] | None:
    """Return a figure of the engine's lists and of the fair ones; None if nobody knows it.

    Args:
        name: The figure.
        first: The queries whose lists of the engine count.
        second: The queries whose fair lists count; the same queries are compared one by one.
    """
    is_paired = first is second
    of_engine = _with_figure(name, first)
    of_fair = _with_figure(name, second)
    if not of_engine or not of_fair:
        return None
    before = np.array([[query.engine[name]] for query in of_engine])
    after = np.array([[_second(query, is_paired)[name]] for query in of_fair])
    weights_before = np.array([query.weight for query in of_engine])
    weights_after = np.array([query.weight for query in of_fair])
    (engine,) = shares(before, np.ones_like(before), weights_before)
    (fair,) = shares(after, np.ones_like(after), weights_after)
    if is_paired:
        (change,) = differences(after, before, weights_before)
    else:
        change = _difference_of_arms(engine, fair)
    targets = [query.target.get(name, np.nan) for query in of_fair]
    target = float(np.average(targets, weights=weights_after))
    return {"name": name, "engine": engine, "fair": fair, "change": change, "target": target}


def _with_figure(name: str, queries: Sequence[BothLists]) -> list[BothLists]:
    """Return the queries of which both lists have a figure.

    Where a client has pinned documents, no quality is known.
    """
    return [query for query in queries if name in query.engine and name in query.fair]


def _difference_of_arms(engine: Estimate, fair: Estimate) -> Estimate:
    """Return fair − engine with its interval, of arms that are independent of each other."""
    below = np.hypot(fair.value - fair.low, engine.high - engine.value)
    above = np.hypot(fair.high - fair.value, engine.value - engine.low)
    value = fair.value - engine.value
    return replace(fair, value=value, low=value - float(below), high=value + float(above))


def _second(lists: BothLists, is_paired: bool) -> dict[str, float]:
    """Return the figures that stand on the fair side: of the fair list, or of what was shown."""
    return lists.fair if is_paired or lists.shown == "fair" else lists.engine
