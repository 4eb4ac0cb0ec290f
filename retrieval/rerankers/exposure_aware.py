"""The exposure-aware step of :mod:`fairqr.retrieval.rerank`, as a re-ranker."""

from __future__ import annotations

from pydantic import Field

from fairqr.retrieval.divergence import (
    DEFAULT_SMOOTHING,
    DEFAULT_THRESHOLD,
    Direction,
    kullback_leibler,
)
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.rerank import near_target
from fairqr.retrieval.rerankers.base import Candidates, Reranked, RerankOptions, by_rank

__all__ = ["ExposureAwareOptions", "ExposureAwareReranker", "build"]


class ExposureAwareOptions(RerankOptions):
    """Options of the step; the target and the discount come with the candidates."""

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


class ExposureAwareReranker:
    """Fills the ranks one by one toward the target; the scores are 1/rank."""

    name = "exposure-aware"

    def __init__(self, options: ExposureAwareOptions) -> None:
        self._options = options

    async def rerank(self, query: str, candidates: Candidates, k: int) -> Reranked:
        """See :meth:`fairqr.retrieval.rerankers.base.Reranker.rerank`."""
        positions = near_target(
            candidates.memberships,
            candidates.targets,
            tolerance=self._options.tolerance,
            divergence=self._divergence,
            discount=candidates.discount,
            length=k,
        )
        return Reranked(by_rank(candidates.ranking.reordered(positions.tolist())))

    def _divergence(self, target: FloatArray, exposure: FloatArray) -> float:
        return float(
            kullback_leibler(
                target,
                exposure,
                smoothing=self._options.smoothing,
                direction=self._options.direction,
            )
        )


def build(options: ExposureAwareOptions, engine: SearchEngine) -> ExposureAwareReranker:
    """Return the re-ranker."""
    return ExposureAwareReranker(options)
