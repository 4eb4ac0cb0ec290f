"""Who gets seen: the exposure of each group beside its share of the relevant documents."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fairqr.base.statistics import ratio_interval
from fairqr.evaluation.batch import Batch
from fairqr.evaluation.weights import rank_weights
from fairqr.retrieval.dimension import Dimension
from fairqr.retrieval.exposure import LOG2, normalise
from fairqr.retrieval.target import Target

__all__ = ["GroupShare", "group_shares"]

RELEVANCE = Target(parts={"relevance": 1.0})


@dataclass(frozen=True, slots=True)
class GroupShare:
    """How much exposure a group gets, and how much of what is relevant it has.

    Attributes:
        attribute: Whose group.
        group: Its name.
        exposure: Its mean share of the exposure in the first k ranks, by the discount ``log2``.
        relevant: Its mean share of the relevant documents.
        ratio: Exposure / relevant: above 1 the group gets more than its share. Optional.
        low: The lower end of the ratio's 95 % interval; optional, as with few queries.
        high: The upper end.
        queries: Over how many queries: those with a known group among the ranked documents and
            among the relevant ones.
    """

    attribute: str
    group: str
    exposure: float
    relevant: float
    ratio: float | None
    low: float | None
    high: float | None
    queries: int


def group_shares(batches: Iterable[Batch], dimension: Dimension, k: int | None) -> list[GroupShare]:
    """Return the shares of each group, over the queries that have both.

    Args:
        batches: Of one run.
        dimension: The groups.
        k: The cut-off.
    """
    none = np.zeros((0, len(dimension.groups)))
    exposures, shares = [none], [none]
    for batch in batches:
        members = batch.memberships(dimension, k)
        gained = normalise(np.matmul(rank_weights(LOG2, members.shape[1]), members))
        known = gained.any(axis=1)
        counts = np.bincount(batch.owner[known], minlength=len(batch.queries))
        summed = np.zeros((len(batch.queries), len(dimension.groups)))
        np.add.at(summed, batch.owner[known], gained[known])
        relevant, without = batch.targets(dimension, RELEVANCE)
        both = [place for place in np.flatnonzero(counts).tolist() if place not in without]
        exposures.append(summed[both] / counts[both, None])
        shares.append(relevant[both])
    exposure, relevant = np.concatenate(exposures), np.concatenate(shares)
    if not len(exposure):
        return []
    found = []
    for place, group in enumerate(dimension.groups):
        mean, share = float(exposure[:, place].mean()), float(relevant[:, place].mean())
        interval = ratio_interval(exposure[:, place], relevant[:, place])
        found.append(
            GroupShare(
                dimension.name,
                group,
                mean,
                share,
                mean / share if share else None,
                interval.low if interval else None,
                interval.high if interval else None,
                len(exposure),
            )
        )
    return found
