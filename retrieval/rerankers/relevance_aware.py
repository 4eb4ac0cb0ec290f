"""The step of :mod:`fairqr.retrieval.relevance_aware`, as a re-ranker."""

from __future__ import annotations

from functools import partial

import numpy as np
from pydantic import Field

from fairqr.retrieval.divergence import kullback_leibler
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.relevance import relevance_by_rank
from fairqr.retrieval.relevance_aware import Distance, most_relevant, nearest_exposure
from fairqr.retrieval.rerankers.base import Candidates, Reranked, by_rank
from fairqr.retrieval.rerankers.exposure_aware import ExposureAwareOptions

__all__ = ["RelevanceAwareOptions", "RelevanceAwareReranker", "build", "supply"]


class RelevanceAwareOptions(ExposureAwareOptions):
    """The target, the discount and the relevance come with the candidates."""

    min_relevance: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Put no document forward that is less likely to be relevant than this.",
    )

    @property
    def distance(self) -> Distance:
        """Measures how far exposures are from a target."""
        return partial(kullback_leibler, smoothing=self.smoothing, direction=self.direction)


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
        chances = _chances(candidates)
        eligible = _eligible(candidates, self._options.min_relevance)
        chosen = eligible[
            most_relevant(
                chances[eligible],
                [members[eligible] for members in candidates.memberships],
                candidates.targets,
                tolerance=self._options.tolerance,
                divergence=self._options.distance,
                discount=candidates.discount,
                length=k,
            )
        ]
        others = np.setdiff1d(np.arange(len(candidates)), eligible)
        order = np.concatenate([chosen, others])[:k]
        return Reranked(by_rank(candidates.ranking.reordered(order.tolist())))


def supply(candidates: Candidates, options: RelevanceAwareOptions, k: int) -> list[FloatArray]:
    """Return the exposure that the relevant candidates could give, nearest to the target.

    Args:
        candidates: Documents with their relevance, memberships and targets.
        options: Those of the step.
        k: How many ranks there are.

    Returns:
        One array (G_a,) for each dimension; zeros if no relevant document has a label.
    """
    eligible = _eligible(candidates, options.min_relevance)
    return nearest_exposure(
        [members[eligible] for members in candidates.memberships],
        candidates.targets,
        divergence=options.distance,
        discount=candidates.discount,
        length=k,
    )


def _chances(candidates: Candidates) -> FloatArray:
    if candidates.relevance is None:
        return relevance_by_rank(len(candidates))
    return np.asarray(candidates.relevance, dtype=np.float64)


def _eligible(candidates: Candidates, least: float) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Return the positions of the documents that may be put forward."""
    if candidates.relevance is None:
        return np.arange(len(candidates))
    return np.flatnonzero(np.asarray(candidates.relevance) >= least)


def build(options: RelevanceAwareOptions, engine: SearchEngine) -> RelevanceAwareReranker:
    """Return the re-ranker."""
    return RelevanceAwareReranker(options)
