"""The fair step, the ranking of the highest objective, and the exposure-aware step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.best_ranking import best_ranking
from fairqr.retrieval.fairness.exposure import FloatArray, exposure
from fairqr.retrieval.fairness.objective import DIGITS, Positions, Quality, RankingObjective
from fairqr.retrieval.fairness.relevance import LIKELY, relevance_by_rank
from fairqr.retrieval.fairness.rerank import exposure_aware
from fairqr.retrieval.rerankers.base import Candidates, Reranked, RerankOptions, by_rank

WithinGroups = Literal["engine", "estimated"]
"""The order of documents of the same groups."""

PURSUED = tuple(4.0**power for power in range(8))
"""The weights of fairness with which a given target is pursued."""
NEAR = 0.01
"""How near the exposure of each group must then come to its target."""
HEAVIEST = 1e6
"""Beyond this weight of fairness, relevance no longer counts."""


class FairOptions(RerankOptions):
    """Options of the step; target, discount and relevance come with the candidates."""

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
        "are probably not relevant come last, or that of the estimated relevance.",
    )
    pursue: tuple[str, ...] = Field(
        (),
        description="Without a weight, give these attributes (* for all) the lowest of 1, 4, 16 … "
        "16,384 that brings each of their groups within a point of its target, or else within a "
        "point of the nearest that any of these weights comes.",
    )


@dataclass(frozen=True, slots=True)
class Step:
    """The result of the step.

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


class FairReranker:
    """Returns the ranking of the highest objective; the scores are 1/rank."""

    name = "fair"

    def __init__(self, options: FairOptions, engine: SearchEngine | None = None) -> None:
        self._options = options

    async def rerank(self, query: str, candidates: Candidates, k: int) -> Reranked:
        """See :meth:`fairqr.retrieval.rerankers.base.Reranker.rerank`."""
        positions = take_step(candidates, self._options, k).positions
        return Reranked(by_rank(candidates.ranking.reordered(positions.tolist())))


def take_step(candidates: Candidates, options: FairOptions, k: int) -> Step:
    """Take the step.

    Args:
        candidates: Documents in the engine's order, with their relevance, memberships and targets.
        options: The weight of fairness, and the order within groups.
        k: The number of ranks.
    """
    chances = chances_of(candidates)
    order = None
    if options.order == "engine" and candidates.relevance is not None:
        order = np.argsort(chances.round(DIGITS) < LIKELY, kind="stable")
    weights = PURSUED if options.weight is None else (options.weight,)
    tried: list[tuple[float, float, Positions, RankingObjective]] = []
    for weight in weights:
        objective = objective_of(candidates, options.pursue, weight, k)
        positions = best_ranking(objective, order)
        miss = _miss(candidates, positions, options.pursue)
        tried.append((miss, weight, positions, objective))
        if miss <= NEAR or not options.pursue:
            break
    nearest = min(miss for miss, *_ in tried)
    enough = NEAR if nearest <= NEAR else nearest + NEAR
    miss, weight, positions, objective = next(one for one in tried if one[0] <= enough)
    missed = 0 if miss <= NEAR else max(2, round(100 * miss))
    return Step(positions, weight, objective.quality(positions), missed)


def chances_of(candidates: Candidates) -> FloatArray:
    """Return the probability that each candidate is relevant, by its rank if none is estimated."""
    if candidates.relevance is None:
        return relevance_by_rank(len(candidates))
    return np.asarray(candidates.relevance, dtype=np.float64)


def objective_of(
    candidates: Candidates, pursued: Sequence[str], weight: float, k: int
) -> RankingObjective:
    """Return the objective of rankings of k candidates.

    Only the dimensions that are pursued, if any, have this weight.
    """
    weights = [
        weight if not pursued or _is_among(pursued, name) else 1.0 for name in candidates.dimensions
    ]
    return RankingObjective(
        chances_of(candidates),
        candidates.memberships,
        candidates.targets,
        k,
        weights,
        candidates.discount,
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
        if not _is_among(pursued, name):
            continue
        reached = exposure(own[positions], candidates.discount)
        if reached.any():
            misses.append(float(np.abs(reached - target).max().round(DIGITS)))
    return max(misses)


class ExposureAwareReranker:
    """Fills the ranks one by one toward the target; the scores are 1/rank."""

    name = "exposure-aware"

    def __init__(self, options: RerankOptions, engine: SearchEngine | None = None) -> None:
        pass

    async def rerank(self, query: str, candidates: Candidates, k: int) -> Reranked:
        """See :meth:`fairqr.retrieval.rerankers.base.Reranker.rerank`."""
        positions = exposure_aware(
            candidates.memberships, candidates.targets, discount=candidates.discount, length=k
        )
        return Reranked(by_rank(candidates.ranking.reordered(positions.tolist())))
