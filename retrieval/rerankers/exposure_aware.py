"""The exposure-aware step of :mod:`fairqr.retrieval.fairness.rerank`, as a re-ranker."""

from __future__ import annotations

from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.rerank import exposure_aware
from fairqr.retrieval.rerankers.base import Candidates, Reranked, RerankOptions, by_rank


class ExposureAwareReranker:
    """Fills the ranks one by one toward the target; the scores are 1/rank."""

    name = "exposure-aware"

    async def rerank(self, query: str, candidates: Candidates, k: int) -> Reranked:
        """See :meth:`fairqr.retrieval.rerankers.base.Reranker.rerank`."""
        positions = exposure_aware(
            candidates.memberships, candidates.targets, discount=candidates.discount, length=k
        )
        return Reranked(by_rank(candidates.ranking.reordered(positions.tolist())))


def build(options: RerankOptions, engine: SearchEngine) -> ExposureAwareReranker:
    """Return the re-ranker."""
    return ExposureAwareReranker()
