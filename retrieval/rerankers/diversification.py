"""Methods that diversify search results, with the groups as aspects of a query: xQuAD and PM-2.

They place one document at a time: that of the largest value, given those above it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.rerankers.base import Candidates, Reranked, RerankOptions, by_rank, min_max


class XquadOptions(RerankOptions):
    """Options of xQuAD. The papers tune λ and state no default."""

    diversity: float = Field(
        0.5,
        ge=0,
        le=1,
        description="λ: 0 ranks by relevance alone, 1 by the coverage of groups alone.",
    )


class Pm2Options(RerankOptions):
    """Options of PM-2. The paper tunes λ and states no default."""

    focus: float = Field(
        0.5,
        ge=0,
        le=1,
        description="λ: at 1, each rank goes to the group whose turn it is; below 1, a more "
        "relevant document of another group can win.",
    )


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
        """See :meth:`fairqr.retrieval.rerankers.diversification.Objective.values`."""
        return np.asarray(self._relevance + (self._coverage * self._uncovered).sum(axis=1))

    def place(self, position: int) -> None:
        """See :meth:`fairqr.retrieval.rerankers.diversification.Objective.place`."""
        self._uncovered = self._uncovered * (1 - self._coverage[position])


class Pm2Objective:
    """The objective of PM-2 (Dang & Croft 2012), which builds on Sainte-Laguë's method for seats.

    A rank is a seat, and v_a = P(a|q) are the votes of a group that has s_a seats so far. The next
    seat is due to the group a* with the largest quotient q_a = v_a/(2·s_a + 1), and goes to

        argmax_d λ·q_a*·P(d|a*) + (1−λ)·Σ_{a≠a*} q_a·P(d|a),

    Then each s_a grows by the share of the seat that the document takes for the group. Here P(d|a)
    is relevance × membership, and that share is the membership; the unknown part of a document
    takes its part of the seat for no group. No seat is due to a group without remaining documents
    of relevance above 0, as a party gets no more seats once its list is used up.

    Args:
        aspects: The groups.
        focus: λ in [0, 1].
    """

    def __init__(self, aspects: Aspects, focus: float) -> None:
        self._focus = focus
        self._votes = aspects.weights
        self._memberships = aspects.memberships
        self._coverage = aspects.coverage
        self._seats = np.zeros_like(aspects.weights)

    def values(self, is_left: NDArray[np.bool_]) -> FloatArray:
        """See :meth:`fairqr.retrieval.rerankers.diversification.Objective.values`."""
        quotients = self._votes / (2 * self._seats + 1)
        has_documents = self._coverage[is_left].any(axis=0)
        due = np.where(has_documents, quotients, -1).argmax()
        factors = (1 - self._focus) * quotients
        factors[due] = self._focus * quotients[due]
        return np.asarray((self._coverage * factors).sum(axis=1))

    def place(self, position: int) -> None:
        """See :meth:`fairqr.retrieval.rerankers.diversification.Objective.place`."""
        self._seats = self._seats + self._memberships[position]


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


def xquad(options: XquadOptions, engine: SearchEngine) -> AspectReranker:
    """Return xQuAD."""
    return AspectReranker("xquad", lambda aspects: XquadObjective(aspects, options.diversity))


def pm2(options: Pm2Options, engine: SearchEngine) -> AspectReranker:
    """Return PM-2."""
    return AspectReranker("pm2", lambda aspects: Pm2Objective(aspects, options.focus))
