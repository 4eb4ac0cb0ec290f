"""The fair step: the ranking of the highest objective, as a re-ranker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.exposure import FloatArray, exposure
from fairqr.retrieval.objective import Positions, Quality, best_ranking, quality
from fairqr.retrieval.relevance import LIKELY, relevance_by_rank
from fairqr.retrieval.rerankers.base import Candidates, Reranked, RerankOptions, by_rank

WithinGroups = Literal["engine", "estimated"]
"""The order of documents of the same groups."""

PURSUED = (1.0, 4.0, 16.0, 64.0, 256.0, np.inf)
"""The weights of fairness with which a given target is pursued."""
NEAR = 0.01
"""How near the exposure of each group must then come to its target."""


class FairOptions(RerankOptions):
    """Options of the step; target, discount and relevance come with the candidates."""

    weight: float | None = Field(
        None,
        ge=0,
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
        description="Without a weight, choose the lowest of 1, 4, 16, 64 and 256 that brings each "
        "group of these attributes (* for all) within a point of its target, or else go as near as "
        "possible.",
    )


@dataclass(frozen=True, slots=True)
class Step:
    """The result of the step.

    Attributes:
        positions: The first k candidates in their new order.
        weight: The weight of fairness that led to it.
        quality: Its expected relevance and fairness, and the objective at this weight.
    """

    positions: Positions
    weight: float
    quality: Quality


class FairReranker:
    """Returns the ranking of the highest objective; the scores are 1/rank."""

    name = "fair"

    def __init__(self, options: FairOptions) -> None:
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
        order = np.argsort(chances < LIKELY, kind="stable")
    if options.weight is not None:
        weights: tuple[float, ...] = (options.weight,)
    else:
        weights = PURSUED if options.pursue else PURSUED[:1]
    positions = np.zeros(0, dtype=np.intp)
    for weight in weights:
        positions = best_ranking(
            chances,
            candidates.memberships,
            candidates.targets,
            weight=weight,
            discount=candidates.discount,
            length=k,
            order=order,
        )
        if _is_near(candidates, positions, options.pursue):
            break
    reached = quality(
        positions,
        chances,
        candidates.memberships,
        candidates.targets,
        weight=weight,
        discount=candidates.discount,
        length=k,
    )
    return Step(positions, weight, reached)


def chances_of(candidates: Candidates) -> FloatArray:
    """Return the probability that each candidate is relevant, by its rank if none is estimated."""
    if candidates.relevance is None:
        return relevance_by_rank(len(candidates))
    return np.asarray(candidates.relevance, dtype=np.float64)


def _is_near(candidates: Candidates, positions: Positions, pursued: Sequence[str]) -> bool:
    """Return whether each group of the pursued dimensions is within a point of its target."""
    by_name = zip(candidates.dimensions, candidates.memberships, candidates.targets, strict=True)
    for name, own, target in by_name:
        reached = exposure(own[positions], candidates.discount)
        # Without any label there is no exposure, and no weight of fairness brings one.
        is_far = reached.any() and (np.abs(reached - target) > NEAR).any()
        if is_far and (name in pursued or "*" in pursued):
            return False
    return True


def build(options: FairOptions, engine: SearchEngine) -> FairReranker:
    """Return the re-ranker."""
    return FairReranker(options)
