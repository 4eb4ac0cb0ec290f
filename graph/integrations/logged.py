"""What a log says of a list: that of the proxy, and that of agents' middleware."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from fairqr.graph.integrations.order import OrderedList
from fairqr.retrieval.engines.engine import Hits, Memberships, shares_above_zero
from fairqr.retrieval.sources.schema import Schema

RERANKED = "re-ranked"
"""What became of a search that was shown a fair list."""


def heading(
    index: str, query: str, size: int, *, is_fair: bool, outcome: str, share: float, search: str
) -> dict[str, Any]:
    """Return how a record of a search begins.

    Args:
        index: What was searched.
        query: Stands for the query.
        size: How many documents it asked for.
        is_fair: Whether the query is one of those that get fair lists.
        outcome: What became of it.
        share: The chance that its query is one of those.
        search: Names this one search; empty if nothing does.
    """
    return {
        "time": round(time.time(), 3),
        "index": index,
        "query": query,
        "search": search,
        "arm": "fair" if is_fair else "engine",
        "share": share,
        "outcome": outcome,
        "size": size,
    }


def fair_list_told(
    order: OrderedList, hits: Hits, groups: dict[str, list[Any]], ids: Sequence[str]
) -> dict[str, Any]:
    """Return what a record says of a list and its fair order, but for the exposure.

    Args:
        order: Its fair order.
        hits: The list, as it was read.
        groups: The groups of its documents, as :func:`groups_of` has them.
        ids: Their ids.
    """
    quality = {"engine": order.before, "fair": order.after}
    return {
        "by": "ranks" if hits.relevance is None else "vectors",
        "model": order.words_of,
        "quality": {name: [it.relevance, it.fairness] for name, it in quality.items()},
        "bound": order.after.bound,
        "below_best": order.after.below_best,
        "broken": list(order.after.broken),
        "ids": [*ids],
        "order": order.positions,
        "groups": groups,
    }


def groups_of(schema: Schema, memberships: Memberships) -> dict[str, list[Any]]:
    """Return the group of each document, the shares of several, or None, by attribute."""
    found: dict[str, list[Any]] = {}
    for name, rows in memberships.items():
        attribute = schema.attribute(name)
        found[name] = [_named(shares_above_zero(attribute, row)) for row in rows]
    return found


def _named(shares: dict[str, float]) -> str | dict[str, float] | None:
    """Return a document's group, the shares of several, or None if it has none."""
    return next(iter(shares)) if [*shares.values()] == [1.0] else shares or None
