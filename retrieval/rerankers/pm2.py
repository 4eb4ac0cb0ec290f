"""PM-2: shares out ranks in proportion to the target, like seats in an election."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.rerankers.aspects import AspectReranker, Aspects
from fairqr.retrieval.rerankers.base import RerankOptions


class Pm2Options(RerankOptions):
    """Options of PM-2. The paper tunes λ and states no default."""

    focus: float = Field(
        0.5,
        ge=0,
        le=1,
        description="λ: at 1, each rank goes to the group whose turn it is; below 1, a more "
        "relevant document of another group can win.",
    )


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
        """See :meth:`fairqr.retrieval.rerankers.aspects.Objective.values`."""
        quotients = self._votes / (2 * self._seats + 1)
        has_documents = self._coverage[is_left].any(axis=0)
        due = np.where(has_documents, quotients, -1).argmax()
        factors = (1 - self._focus) * quotients
        factors[due] = self._focus * quotients[due]
        return np.asarray((self._coverage * factors).sum(axis=1))

    def place(self, position: int) -> None:
        """See :meth:`fairqr.retrieval.rerankers.aspects.Objective.place`."""
        self._seats = self._seats + self._memberships[position]


def build(options: Pm2Options, engine: SearchEngine) -> AspectReranker:
    """Return the re-ranker."""
    return AspectReranker("pm2", lambda aspects: Pm2Objective(aspects, options.focus))
