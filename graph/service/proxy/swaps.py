"""Chance swaps two ranks of some fair lists, to learn how far down users look."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

from fairqr.graph.service.proxy.records import Record


def tossed(key: str, share: float, ranks: int) -> Record | None:
    """Toss a coin whether the first rank is swapped with another one, for a share of the queries.

    A query keeps what it got for a day, so that pages and reloads show one list.

    Args:
        key: Stands for the query.
        share: The share of queries for which the coin is tossed.
        ranks: Ranks below this are not swapped.

    Returns:
        The ``rank``, and whether it ``is_swapped``; None if no coin is tossed.
    """
    if ranks < 2:
        return None
    day = datetime.now(UTC).date()
    chance = hashlib.sha256(f"swap {key} {day}".encode()).digest()
    if int.from_bytes(chance[:8]) / 2**64 >= share:
        return None
    rank = 2 + int.from_bytes(chance[8:16]) % (ranks - 1)
    return {"rank": rank, "is_swapped": chance[16] % 2 == 1}


def order_shown(record: Record) -> list[int]:
    """Return the fair order of a list as it was shown: chance may have swapped two ranks."""
    order = [*record["order"]]
    swap = record.get("swap")
    if swap and swap["is_swapped"]:
        last = swap["rank"] - 1
        order[0], order[last] = order[last], order[0]
    return order
