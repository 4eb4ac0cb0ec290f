"""Two lists of each query, the engine's and a fair one: what the second gives and costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, FiniteFloat, NonNegativeFloat

from fairqr.evaluation.estimates import differences, shares

LISTS = "raw/lists.json"
"""The file in the folder of an audit."""


class BothLists(BaseModel, frozen=True, extra="forbid"):
    """What is known of both lists of a query.

    Attributes:
        weight: How often the query was asked.
        arm: Which of the lists was shown.
        engine: Figures of the engine's list by name, from 0 to 1.
        fair: Those of the fair list.
        target: What they should be, as far as that is known.
    """

    weight: NonNegativeFloat
    arm: Literal["engine", "fair"]
    engine: dict[str, FiniteFloat]
    fair: dict[str, FiniteFloat]
    target: dict[str, FiniteFloat]


def figures_of_lists(lists: Sequence[BothLists]) -> dict[str, list[dict[str, Any]]]:
    """Return the figures of ``both`` lists of all queries, and those of the ``arms``, if two.

    The first are compared query by query. The arms have other queries, so chance moves them more.
    Each figure has a ``name``, the estimates ``engine``, ``fair`` and ``change``, and a ``target``.
    """
    arms = [[it for it in lists if it.arm == arm] for arm in ("engine", "fair")]
    names = list(dict.fromkeys(name for it in lists for name in it.fair))
    both = [it for name in names for it in _compared(name, lists, lists)]
    return {"both": both, "arms": [it for name in names for it in _compared(name, *arms)]}


def _compared(
    name: str, first: Sequence[BothLists], second: Sequence[BothLists]
) -> Iterator[dict[str, Any]]:
    one, two = ([it for it in side if name in it.engine] for side in (first, second))
    if not (one and two):
        return
    before = np.array([[it.engine[name]] for it in one])
    after = np.array([[it.fair[name]] for it in two])
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
