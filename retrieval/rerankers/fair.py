"""The fair step, the ranking of the highest objective, and the exposure-aware step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from fairqr.retrieval.fairness.best_ranking import best_ranking
from fairqr.retrieval.fairness.exposure import FloatArray, exposure
from fairqr.retrieval.fairness.objective import DIGITS, Positions, Quality, RankingObjective
from fairqr.retrieval.fairness.relevance import LIKELY, relevance_by_rank
from fairqr.retrieval.rerankers.base import Candidates, Reranker

WithinGroups = Literal["engine", "estimated"]
"""The order of documents of the same groups."""

PURSUED = tuple(4.0**power for power in range(8))
"""The weights of fairness with which a given target is pursued."""
NEAR = 0.01
"""How near the exposure of each group must then come to its target."""
HEAVIEST = 1e6
"""Beyond this weight of fairness, relevance no longer counts."""


@dataclass(frozen=True, slots=True)
class FairOrder:
    """The result of the fair step.

    Attributes:
        positions: The first k candidates in their new order.
        weight: The weight of fairness that led to it, of the pursued dimensions if there are any.
        quality: Its expected relevance and fairness, and the objective at this weight.
        missed: By how many points a group of a pursued dimension is from its target; 0 if by at
            most one.
    """

    positions: Positions
    weight: float
    quality: Quality
    missed: int


class FairStep(Reranker):
    """The fair step: the ranking of the highest expected relevance × fairness (fairqr).

    Target, discount and relevance come with the candidates.
    """

    weight: float | None = Field(
        None,
        ge=0,
        le=HEAVIEST,
        description="The weight of fairness beside relevance; 1 by default, or as high as a target "
        "of your own needs.",
    )
    order: WithinGroups = Field(
        "engine",
        description="The order of documents of the same groups: the engine's, in which those that "
        "are probably not relevant come last, or the order of estimated relevance.",
    )
    pursue: tuple[str, ...] = Field(
        (),
        description="Without a weight, give these attributes (* for all) the lowest of 1, 4, 16 … "
        "16,384 that brings each of their groups within a point of its target, or else within a "
        "point of the nearest that any of these weights comes.",
    )

    def positions(self, candidates: Candidates, k: int) -> Positions:
        """See :meth:`fairqr.retrieval.rerankers.base.Reranker.positions`."""
        return self.take(candidates, k).positions

    def take(self, candidates: Candidates, k: int) -> FairOrder:
        """Take the step over candidates in the engine's order, to fill k ranks."""
        order = None
        if self.order == "engine" and candidates.relevance is not None:
            order = np.argsort(candidates.relevance.round(DIGITS) < LIKELY, kind="stable")
        tried: list[tuple[float, float, Positions, RankingObjective]] = []
        for weight in PURSUED if self.weight is None else (self.weight,):
            objective = objective_of(candidates, self.pursue, weight, k)
            positions = best_ranking(objective, order)
            miss = _miss(candidates, positions, self.pursue)
            tried.append((miss, weight, positions, objective))
            if miss <= NEAR or not self.pursue:
                break
        nearest = min(miss for miss, *_ in tried)
        enough = NEAR if nearest <= NEAR else nearest + NEAR
        miss, weight, positions, objective = next(one for one in tried if one[0] <= enough)
        missed = 0 if miss <= NEAR else max(2, round(100 * miss))
        return FairOrder(positions, weight, objective.quality(positions), missed)


def relevance_probabilities(candidates: Candidates) -> FloatArray:
    """Return the probability that each candidate is relevant, by its rank if none is estimated."""
    if candidates.relevance is None:
        return relevance_by_rank(len(candidates))
    return candidates.relevance


def objective_of(
    candidates: Candidates, pursued: Sequence[str], weight: float, k: int
) -> RankingObjective:
    """Return the objective of rankings of k candidates.

    Only the dimensions that are pursued, if any, have this weight.
    """
    weights = [
        weight if not pursued or _is_among(pursued, name) else 1.0 for name in candidates.dimensions
    ]
    relevance, memberships = relevance_probabilities(candidates), candidates.memberships
    return RankingObjective(
        relevance, memberships, candidates.targets, k, weights, candidates.discount
    )


def _is_among(pursued: Sequence[str], name: str) -> bool:
    return name in pursued or "*" in pursued


def _miss(candidates: Candidates, positions: Positions, pursued: Sequence[str]) -> float:
    """Return how far a group of the pursued dimensions is from its target, at most.

    Only dimensions with labels count: no weight brings an exposure to the others.
    """
    by_name = zip(candidates.dimensions, candidates.memberships, candidates.targets, strict=True)
    misses = [0.0]
    for name, own, target in by_name:
        reached = exposure(own[positions], candidates.discount)
        if _is_among(pursued, name) and reached.any():
            misses.append(float(np.abs(reached - target).max().round(DIGITS)))
    return max(misses)


class ExposureAwareStep(Reranker):
    """Fills the ranks one by one toward the target of exposure (after Singh & Joachims 2018).

    At each rank, the deficit of a group is its target share ε*_g of all exposure given out so far
    (including this rank), minus the exposure it has had. The rank goes to the first document whose
    groups have the largest deficit, summed over its groups and over the attributes. So the order of
    documents of the same groups stays, and documents without any label keep their place.
    """

    def positions(self, candidates: Candidates, k: int) -> Positions:
        """See :meth:`fairqr.retrieval.rerankers.base.Reranker.positions`."""
        members = np.concatenate(candidates.memberships, axis=1, dtype=np.float64)
        target = np.concatenate(candidates.targets)
        # What a document gives to each attribute, repeated for each group.
        sizes = [len(own) for own in candidates.targets]
        given = np.add.reduceat(members, np.cumsum([0, *sizes[:-1]]), axis=1)
        # By how much a document changes deficits: the target share of the exposure that it gives
        # out in each attribute, minus what it gives to the group itself.
        deficit_after = target * np.repeat(given, sizes, axis=1) - members
        order = np.arange(min(k, len(members)), dtype=np.intp)
        deficit = np.zeros(len(target))
        is_left = np.asarray(members.any(axis=1))
        ranks = np.flatnonzero(is_left[: len(order)])
        for rank, weight in zip(ranks, candidates.discount.weights(len(order))[ranks], strict=True):
            of_document = np.where(is_left, members @ (deficit + weight * target), -np.inf)
            order[rank] = best = int((of_document >= of_document.max() - 1e-12).argmax())
            is_left[best] = False
            deficit += weight * deficit_after[best]
        return order
