"""The interface of re-rankers: what they take and what they return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import LOG2, Discount, FloatArray
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.fairness.table import DocumentTable


@dataclass(frozen=True, slots=True)
class RerankResult:
    """The first k documents in their new order.

    Attributes:
        ranking: The documents, with the re-ranker's scores, which never increase.
        warnings: What users should know, such as a constraint that could not be met.
    """

    ranking: Ranking
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidates:
    """The documents to re-rank, with what is known about them.

    Attributes:
        ranking: The n documents, from best to worst, with their scores.
        memberships: One array (n, G_a) for each dimension a: the share of each group in each
            document. Rows that sum to less than 1 have unknown mass.
        targets: One array (G_a,) for each dimension: ε*, which sums to 1.
        dimensions: The name of each dimension.
        groups: The names of the groups of each dimension.
        discount: The weight of each rank.
        relevance: The probability that each document is relevant, shape (n,); None if it is not
            estimated.
    """

    ranking: Ranking
    memberships: Sequence[FloatArray]
    targets: Sequence[FloatArray]
    dimensions: Sequence[str]
    groups: Sequence[Sequence[str]]
    discount: Discount = LOG2
    relevance: FloatArray | None = None

    @classmethod
    def of(
        cls,
        table: DocumentTable,
        ranking: Ranking,
        dimensions: Sequence[Dimension],
        targets: Sequence[FloatArray],
        discount: Discount = LOG2,
        *,
        relevance: FloatArray | None = None,
    ) -> Candidates:
        """Return the candidates of a ranking, with the groups that a table has of them."""
        memberships = [table.memberships(dimension, ranking.ids) for dimension in dimensions]
        names = [dimension.name for dimension in dimensions]
        groups = [dimension.groups for dimension in dimensions]
        return cls(ranking, memberships, targets, names, groups, discount, relevance)

    def __len__(self) -> int:
        return len(self.ranking)

    def taken(self, positions: NDArray[np.intp], warnings: tuple[str, ...] = ()) -> RerankResult:
        """Return the documents at these positions, in that order; the scores are 1/rank."""
        return RerankResult(by_rank([self.ranking.ids[place] for place in positions]), warnings)


class Reranker(BaseModel, frozen=True, extra="forbid"):
    """Puts retrieved documents into another order.

    Its fields are its options; each has a range and a description. The first line of a re-ranker's
    docstring says to users what it does and where it comes from.
    """

    async def rerank(
        self, engine: SearchEngine, query: str, candidates: Candidates, k: int
    ) -> RerankResult:
        """Return the first min(k, n) documents in the new order.

        The same input gives the same output.

        Args:
            engine: The engine that has the documents.
            query: The original query.
            candidates: Documents with their memberships and targets.
            k: How many documents to return, at least 1.

        Raises:
            InputError: An option does not fit these candidates.
        """
        return candidates.taken(self.positions(candidates, k))

    def positions(self, candidates: Candidates, k: int) -> NDArray[np.intp]:
        """Return the positions of the first min(k, n) documents; the scores are then 1/rank."""
        raise NotImplementedError


def by_rank(ids: Sequence[str]) -> Ranking:
    """Return a ranking whose scores only express its order: 1/rank."""
    return Ranking(list(ids), [1 / rank for rank in range(1, len(ids) + 1)])


def min_max(scores: Sequence[float] | FloatArray) -> FloatArray:
    """Scale scores, shape (n,), to [0, 1]; all 1 if they are equal."""
    values = np.asarray(scores, dtype=np.float64)
    if not len(values):
        return values
    low, high = values.min(), values.max()
    # Halve them, so that even the range of the largest finite scores is finite.
    width = high / 2 - low / 2
    return np.asarray((values / 2 - low / 2) / width) if width > 0 else np.ones_like(values)
