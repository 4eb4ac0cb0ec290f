"""The step of :mod:`fairqr.retrieval.relevance_aware`, as a re-ranker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from pydantic import Field

from fairqr.retrieval.divergence import kullback_leibler
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.exposure import FloatArray, exposure
from fairqr.retrieval.relevance import relevance_by_rank
from fairqr.retrieval.relevance_aware import Positions, most_relevant
from fairqr.retrieval.rerankers.base import Candidates, Reranked, by_rank
from fairqr.retrieval.rerankers.exposure_aware import ExposureAwareOptions

__all__ = ["RelevanceAwareOptions", "RelevanceAwareReranker", "Step", "build", "take_step"]


class RelevanceAwareOptions(ExposureAwareOptions):
    """The target, the discount and the relevance come with the candidates."""

    min_relevance: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Put no document forward that is less likely to be relevant than this.",
    )

    capped: bool = Field(
        True,
        description="If the documents cannot give the target, stop near what they can give, rather "
        "than come as near to the target as possible at any price.",
    )


@dataclass(frozen=True, slots=True)
class Step:
    """What the step makes of candidates.

    Attributes:
        positions: The first k candidates in their new order.
        supply: The exposure nearest to the target that the candidates which may be put forward
            could give, one array (G_a,) for each dimension; zeros without any label.
    """

    positions: Positions
    supply: list[FloatArray]


class RelevanceAwareReranker:
    """Takes the most relevant ranking that is near the target; the scores are 1/rank.

    Documents below the least relevance come last, in order of relevance. Where the retriever does
    not estimate relevance, the rank stands in for it, and no document is below.
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
        k: How many ranks there are.
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

    # Whatever it costs in relevance.
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
    """Return the positions of the documents that may be put forward."""
    if candidates.relevance is None:
        return np.arange(len(candidates))
    return np.flatnonzero(np.asarray(candidates.relevance) >= least)


def build(options: RelevanceAwareOptions, engine: SearchEngine) -> RelevanceAwareReranker:
    """Return the re-ranker."""
    return RelevanceAwareReranker(options)
