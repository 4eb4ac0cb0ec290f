"""What the logs of the proxy and of agents' middleware say about a list."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from fairqr.graph.integrations.order import FirstDocuments, OrderedList
from fairqr.retrieval.engines.engine import Hits, Memberships, shares_above_zero
from fairqr.retrieval.sources.schema import Schema

RERANKED = "re-ranked"
"""The outcome of a search that got a fair list."""


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
    """Return what a record says about a list and its fair order, without the exposure.

    Args:
        order: Its fair order.
        hits: The list, as it was read.
        groups: The groups of its documents, as :func:`groups_of` has them.
        ids: Their ids.
    """
    return {
        "by": "ranks" if hits.relevance is None else "vectors",
        "model": order.words_of,
        "quality": {"engine": _quality_of(order.before), "fair": _quality_of(order.after)},
        "bound": order.after.bound,
        "below_best": order.after.below_best,
        "broken": list(order.after.broken),
        "ids": [*ids],
        "order": order.positions,
        "groups": groups,
    }


def _quality_of(documents: FirstDocuments) -> list[float]:
    return [documents.relevance, documents.fairness]


def groups_of(schema: Schema, memberships: Memberships) -> dict[str, list[Any]]:
    """Return the group of each document, the shares of several, or None, by attribute."""
    groups: dict[str, list[Any]] = {}
    for name, rows in memberships.items():
        attribute = schema.attribute(name)
        groups[name] = [_group_or_shares(shares_above_zero(attribute, row)) for row in rows]
    return groups


def _group_or_shares(shares: dict[str, float]) -> str | dict[str, float] | None:
    """Return a document's group, the shares of several, or None if it has none."""
    if list(shares.values()) == [1.0]:
        return next(iter(shares))
    return shares or None
