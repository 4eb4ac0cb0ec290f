"""The groups as aspects of a query, and the greedy loop that places one document at a time.

Methods that diversify search results cover the aspects of a query. Our aspects are the groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.rerankers.base import Candidates, Reranked, by_rank, min_max


@dataclass(frozen=True, slots=True)
class Aspects:
    """The groups of all attributes, side by side.

    With A attributes, each has 1/A of the weight. So the aspects are a sum over attributes, just as
    the divergence is a mean over them. One aspect for each combination of groups would need a
    target for the combinations: ``intersect`` makes such an attribute.

    Attributes:
        relevance: The min-max normalised scores of the n documents, shape (n,).
        memberships: The share of each group in each document, shape (n, G).
        weights: P(a|q), the target's share of each group divided by A, shape (G,).
    """

    relevance: FloatArray
    memberships: FloatArray
    weights: FloatArray

    @classmethod
    def of(cls, candidates: Candidates) -> Aspects:
        """Return the aspects of candidates."""
        return cls(
            relevance=min_max(candidates.ranking.scores),
            memberships=np.concatenate(candidates.memberships, axis=1),
            weights=np.concatenate(candidates.targets) / len(candidates.targets),
        )

    @property
    def coverage(self) -> FloatArray:
        """P(d|a), shape (n, G).

        A document serves a group as much as it is relevant and belongs to the group.
        """
        coverage: FloatArray = self.relevance[:, np.newaxis] * self.memberships
        return coverage


class Objective(Protocol):
    """What a greedy method maximises at each rank."""

    def values(self, is_left: NDArray[np.bool_]) -> FloatArray:
        """Return the value of each document for the next rank, shape (n,).

        Args:
            is_left: Whether a document can still be placed, shape (n,).
        """
        ...

    def place(self, position: int) -> None:
        """Record that this document has the next rank."""
        ...


def diversified(objective: Objective, aspects: Aspects, k: int) -> NDArray[np.intp]:
    """Give each rank to the document with the largest value.

    Ties go to the first position. A document without any label keeps its place, as in the
    exposure-aware step: missing knowledge must not count against it.

    Returns:
        The positions of min(k, n) documents in their new order.
    """
    is_left = np.asarray(aspects.memberships.any(axis=1))
    order = np.arange(min(k, len(is_left)), dtype=np.intp)
    for rank in np.flatnonzero(is_left[: len(order)]):
        best = int(np.where(is_left, objective.values(is_left), -np.inf).argmax())
        order[rank] = best
        is_left[best] = False
        objective.place(best)
    return order


class AspectReranker:
    """Places documents one by one to maximise an objective over groups; the scores are 1/rank."""

    def __init__(self, name: str, objective: Callable[[Aspects], Objective]) -> None:
        self.name = name
        self._objective = objective

    async def rerank(self, query: str, candidates: Candidates, k: int) -> Reranked:
        """See :meth:`fairqr.retrieval.rerankers.base.Reranker.rerank`."""
        aspects = Aspects.of(candidates)
        positions = diversified(self._objective(aspects), aspects, k)
        return Reranked(by_rank(candidates.ranking.reordered(positions.tolist())))
