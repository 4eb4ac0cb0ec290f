"""What a proxy saw of searches: both lists of each query, and what became of all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, FiniteFloat, NonNegativeFloat, NonNegativeInt

from fairqr.evaluation.estimates import differences, shares
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
            "by_texts": sum(one.by_texts for one in self.lists),
        }


def _most_first(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda it: (-it[1], it[0])))


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
    arms = [[it for it in lists if it.arm == arm] for arm in ("engine", "fair")]
    names = list(dict.fromkeys(name for it in lists for name in it.fair))
    both = [it for name in names for it in _compared(name, lists, lists)]
    return {"both": both, "arms": [it for name in names for it in _compared(name, *arms)]}


def _compared(
    name: str, first: Sequence[BothLists], second: Sequence[BothLists]
) -> Iterator[dict[str, Any]]:
    # Where a client has pinned documents, no quality is known.
    one, two = (
        [it for it in side if name in it.engine and name in it.fair] for side in (first, second)
    )
    if not (one and two):
        return
    before = np.array([[it.engine[name]] for it in one])
    after = np.array([[_second(it, first is second)[name]] for it in two])
    weights, others = (np.array([it.weight for it in side]) for side in (one, two))
    (engine,) = shares(before, np.ones_like(before), weights)
    (fair,) = shares(after, np.ones_like(after), others)
    if first is second:
        (change,) = differences(after, before, weights)
    else:  # the arms are independent of each other
        low = np.hypot(fair.value - fair.low, engine.high - engine.value)
        high = np.hypot(fair.high - fair.value, engine.value - engine.low)
        value = fair.value - engine.value
        change = replace(fair, value=value, low=value - float(low), high=value + float(high))
    targets = [it.target.get(name, np.nan) for it in two]
    target = float(np.average(targets, weights=others))
    yield {"name": name, "engine": engine, "fair": fair, "change": change, "target": target}


def _second(lists: BothLists, is_paired: bool) -> dict[str, float]:
    """Return the figures that stand on the fair side: of the fair list, or of what was shown."""
    return lists.fair if is_paired or lists.shown == "fair" else lists.engine
