"""The step of :mod:`fairqr.retrieval.relevance_aware`, as a re-ranker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from pydantic import Field

from fairqr.retrieval.divergence import (
    DEFAULT_SMOOTHING,
    DEFAULT_THRESHOLD,
    Direction,
    kullback_leibler,
)
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.exposure import FloatArray, exposure
from fairqr.retrieval.relevance import relevance_by_rank
from fairqr.retrieval.relevance_aware import Positions, most_relevant
from fairqr.retrieval.rerankers.base import Candidates, Reranked, RerankOptions, by_rank

__all__ = ["RelevanceAwareOptions", "RelevanceAwareReranker", "Step", "build", "take_step"]


class RelevanceAwareOptions(RerankOptions):
    """Options of the step; the target, discount and relevance come with the candidates."""

    tolerance: float = Field(
        DEFAULT_THRESHOLD,
        ge=0,
        description="The divergence to stop at, in nats; 0 goes as near to the target as possible.",
    )
    smoothing: float = Field(
        DEFAULT_SMOOTHING,
        gt=0,
        lt=1,
        description="The weight of a uniform distribution mixed into target and exposure.",
    )
    direction: Direction = Field(
        "target_exposure",
        description="target_exposure is KL(target || exposure), exposure_target is the reverse.",
    )
    min_relevance: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Do not move documents up that are less likely to be relevant than this.",
    )

    capped: bool = Field(
        True,
        description="If the documents cannot reach the target, stop near the best they can give, "
        "instead of approaching the target at any price.",
    )


@dataclass(frozen=True, slots=True)
class Step:
    """The result of the step.

    Attributes:
        positions: The first k candidates in their new order.
        supply: The exposure nearest to the target that the eligible candidates could give, one
            array (G_a,) for each dimension; zeros without any label.
    """

    positions: Positions
    supply: list[FloatArray]


class RelevanceAwareReranker:
    """Returns the most relevant ranking that is near the target; the scores are 1/rank.

    Documents below the minimum relevance come last, in order of relevance. If the retriever does
    not estimate relevance, we use the rank instead, and no document is below the minimum.
    """

    name = "relevance-aware"

    def __init__(self, options: RelevanceAwareOptions) -> None:
        self._options = options

    async def rerank(self, query: str, candidates: Candidates, k: int) -> Reranked:
        """See :meth:`fairqr.retrieval.rerankers.base.Reranker.rerank`."""
        positions = take_step(candidates, self._options, k).positions
        return Reranked(by_rank(candidates.ranking.reordered(positions.tolist())))


def take_step(candidates: Candidates, options: RelevanceAwareOptions, k: int) -> Step:
    """Take the step.

    Args:
        candidates: Documents with their relevance, memberships and targets.
        options: How far to go.
        k: The number of ranks.
    """
    chances = _chances(candidates)
    eligible = _eligible(candidates, options.min_relevance)
    members = [own[eligible] for own in candidates.memberships]
    divergence = partial(kullback_leibler, smoothing=options.smoothing, direction=options.direction)

    def nearest(targets: Sequence[FloatArray], tolerance: float) -> Positions:
        return most_relevant(
            chances[eligible],
            members,
            targets,
            tolerance=tolerance,
            divergence=divergence,
            discount=candidates.discount,
            length=k,
        )

    # At any cost in relevance.
    chosen = nearest(candidates.targets, 0.0)
    supply = [exposure(own[chosen], candidates.discount) for own in members]
    pairs = list(zip(candidates.targets, supply, strict=True))
    far = [float(divergence(target, could)) for target, could in pairs if could.any()]
    if not far or sum(far) / len(far) <= options.tolerance:
        chosen = nearest(candidates.targets, options.tolerance)
    elif options.capped:
        within = [could if could.any() else target for target, could in pairs]
        chosen = nearest(within, options.tolerance)
    others = np.setdiff1d(np.arange(len(candidates)), eligible)
    return Step(np.concatenate([eligible[chosen], others])[:k], supply)


def _chances(candidates: Candidates) -> FloatArray:
    if candidates.relevance is None:
        return relevance_by_rank(len(candidates))
    return np.asarray(candidates.relevance, dtype=np.float64)


def _eligible(candidates: Candidates, least: float) -> Positions:
    """Return the positions of the documents that may be moved up."""
    if candidates.relevance is None:
        return np.arange(len(candidates))
    return np.flatnonzero(np.asarray(candidates.relevance) >= least)


def build(options: RelevanceAwareOptions, engine: SearchEngine) -> RelevanceAwareReranker:
    """Return the re-ranker."""
    return RelevanceAwareReranker(options)
