"""What is recorded of searches."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fairqr.graph.search.result import Shares
from fairqr.retrieval.rerankers.base import MANY_ABSENT, OTHERS

Record = dict[str, Any]
"""What the log and the metrics say of a list."""

Outcome = Record | str
"""What became of a search: the record of its list, or in a word why it has none."""


def readable_shares(
    lists: Mapping[str, Shares], open_attributes: Collection[str]
) -> dict[str, Shares]:
    """Return the shares in several lists; of many groups, those that no list has are one.

    So are those of an open attribute, however few, as other lists have others.

    Args:
        lists: The shares of groups by list; ``target`` is the target and no list.
        open_attributes: The attributes each of whose values is a group.
    """
    readable: dict[str, Shares] = {name: {} for name in lists}
    for attribute, target in lists["target"].items():
        by_list = {name: shares[attribute] for name, shares in lists.items()}
        is_open = attribute in open_attributes
        groups = [*target]
        if is_open or len(groups) >= MANY_ABSENT:
            groups = _groups_shown(by_list)
        has_others = is_open or len(groups) < len(target)

        for name, shares in by_list.items():
            named = {group: shares[group] for group in groups}
            if has_others:
                named[OTHERS] = sum(shares.values()) - sum(named.values())
            readable[name][attribute] = named
    return readable


def _groups_shown(by_list: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return the groups that some list shows, in the order of the target."""
    lists = [shares for name, shares in by_list.items() if name != "target"]
    return [group for group in by_list["target"] if any(shares[group] for shares in lists)]
