"""xQuAD: relevance, plus coverage of groups that the documents above do not cover yet."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.rerankers.aspects import AspectReranker, Aspects
from fairqr.retrieval.rerankers.base import RerankOptions


class XquadOptions(RerankOptions):
    """Options of xQuAD. The papers tune λ and state no default."""

    diversity: float = Field(
        0.5,
        ge=0,
        le=1,
        description="λ: 0 ranks by relevance alone, 1 by the coverage of groups alone.",
    )


class XquadObjective:
    """The objective of xQuAD (Santos, Macdonald & Ounis 2010).

    With S the documents above, the next one is argmax_d of

        (1−λ)·P(d|q) + λ·Σ_a P(a|q)·P(d|a)·Π_{s∈S} (1 − P(s|a)).

    The product says how little S covers a group. It falls fast: one document that is certainly
    relevant and in the group makes it 0, so the target decides which groups come first, not how
    many documents each gets. Here P(d|q) is the relevance, and P(d|a) is relevance × membership.

    Args:
        aspects: The groups.
        diversity: λ in [0, 1].
    """

    def __init__(self, aspects: Aspects, diversity: float) -> None:
        self._coverage = aspects.coverage
        self._relevance = (1 - diversity) * aspects.relevance
        # λ·P(a|q)·Π(1 − P(s|a)), shape (G,).
        self._uncovered = diversity * aspects.weights

    def values(self, is_left: NDArray[np.bool_]) -> FloatArray:
        """See :meth:`fairqr.retrieval.rerankers.aspects.Objective.values`."""
        return np.asarray(self._relevance + (self._coverage * self._uncovered).sum(axis=1))

    def place(self, position: int) -> None:
        """See :meth:`fairqr.retrieval.rerankers.aspects.Objective.place`."""
        self._uncovered = self._uncovered * (1 - self._coverage[position])


def build(options: XquadOptions, engine: SearchEngine) -> AspectReranker:
    """Return the re-ranker."""
    return AspectReranker("xquad", lambda aspects: XquadObjective(aspects, options.diversity))
