"""Queries to tune on and queries to probe with, so that nothing that is probed with was seen."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from fairqr.base.errors import InputError
from fairqr.base.statistics import stream
from fairqr.evaluation.probes.collection import ProbeQuery

__all__ = ["Split", "apart", "split_queries"]


@dataclass(frozen=True, slots=True)
class Split:
    """Which queries are trained on.

    Attributes:
        train: Ids.
        held_out: Ids of the others.
    """

    train: tuple[str, ...]
    held_out: tuple[str, ...]


def split_queries(ids: Iterable[str], train_share: float, seed: int) -> Split:
    """Deal queries at random.

    A query that stands in several probe collections is on one side in all of them.

    Args:
        ids: Of the queries; what stands twice counts once. Their order does not matter.
        train_share: The share to train on, in (0, 1); rounded, at least one query is on each side.
        seed: Of the draw.

    Raises:
        InputError: There are fewer than two queries.
    """
    known = sorted(set(ids))
    if len(known) < 2:
        raise InputError(
            f"With {len(known)} queries none can be held out; take a collection with two or more."
        )
    order = stream(seed, "split of the queries").permutation(len(known))
    train = min(max(round(train_share * len(known)), 1), len(known) - 1)
    return Split(
        tuple(sorted(known[place] for place in order[:train])),
        tuple(sorted(known[place] for place in order[train:])),
    )


def apart(queries: Sequence[ProbeQuery], held_out: Collection[str]) -> tuple[list[ProbeQuery], int]:
    """Leave out items that are probed with.

    Irrelevant items are drawn from other queries, so that an item of a query to train on may be one
    of a held-out query too.

    Args:
        queries: To train on.
        held_out: The ids of the items of the pairs that are probed with.

    Returns:
        The queries with the items that are left, and how many different items were left out.
    """
    both = {item.id for query in queries for item in query.items if item.id in held_out}
    kept = [
        query.model_copy(
            update={"items": tuple(item for item in query.items if item.id not in both)}
        )
        for query in queries
    ]
    return kept, len(both)
