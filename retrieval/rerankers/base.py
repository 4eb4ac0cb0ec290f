"""The interface of re-rankers: what they take and what they return."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.dimension import TIMES, Dimension
from fairqr.retrieval.fairness.exposure import LOG2, Discount, FloatArray, absent_as_one
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.fairness.table import DocumentTable

MANY_ABSENT = 50
"""This many groups without documents, or more, count as one where that changes no order."""

OTHERS = "all others"
"""The name of that group."""


@dataclass(frozen=True, slots=True)
class RerankedList:
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

    def with_absent_groups_as_one(self) -> Candidates:
        """Return the same candidates, with the many groups that no document has as one.

        The best order is the same; see
        :func:`fairqr.retrieval.fairness.exposure.absent_as_one`.
        """
        memberships = []
        targets = []
        groups = []
        dimensions = zip(self.memberships, self.targets, self.groups, strict=True)
        for members, target, names in dimensions:
            folded = _folded(members, target, names)
            memberships.append(folded.memberships)
            targets.append(folded.target)
            groups.append(folded.groups)
        return replace(self, memberships=memberships, targets=targets, groups=groups)

    def with_intersections(self) -> Candidates:
        """Return the same candidates, with the intersection of each two dimensions as another one.

        Its target is the product of their targets: the target of each group holds within each group
        of the other dimension. So an intersection is never nearer to its target than the two
        dimensions are to theirs, if all documents have labels, as merging groups never increases a
        divergence (data processing). Groups to which no document belongs are one; see
        :meth:`with_absent_groups_as_one`.
        """
        memberships = list(self.memberships)
        targets = list(self.targets)
        names = list(self.dimensions)
        groups = list(self.groups)
        for first, second in itertools.combinations(range(len(self.dimensions)), 2):
            intersection = self._intersection(first, second)
            memberships.append(intersection.memberships)
            targets.append(intersection.target)
            names.append(TIMES.join([self.dimensions[first], self.dimensions[second]]))
            groups.append(intersection.groups)
        return replace(
            self, memberships=memberships, targets=targets, dimensions=names, groups=groups
        )

    def _intersection(self, first: int, second: int) -> _GroupsOfDimension:
        """Return the groups of two dimensions together."""
        rows = np.asarray(self.memberships[first], dtype=np.float64)
        columns = np.asarray(self.memberships[second], dtype=np.float64)
        # The pairs of groups that some document has.
        documents_in_both = (rows > 0).T.astype(np.float64) @ (columns > 0)
        of_first, of_second = np.nonzero(documents_in_both)

        target = self.targets[first][of_first] * self.targets[second][of_second]
        target_of_others = max(0.0, 1 - float(target.sum()))
        members = rows[:, of_first] * columns[:, of_second]
        names = []
        for row, column in zip(of_first.tolist(), of_second.tolist(), strict=True):
            names.append(f"{self.groups[first][row]} {TIMES} {self.groups[second][column]}")
        return _GroupsOfDimension(
            memberships=np.column_stack([members, np.zeros(len(rows))]),
            target=np.append(target, target_of_others),
            groups=[*names, OTHERS],
        )

    def taken(self, positions: NDArray[np.intp], warnings: tuple[str, ...] = ()) -> RerankedList:
        """Return the documents at these positions, in that order; the scores are 1/rank."""
        ids = [self.ranking.ids[position] for position in positions]
        return RerankedList(by_rank(ids), warnings)


class _GroupsOfDimension(NamedTuple):
    """The groups of one dimension, as :class:`Candidates` has them."""

    memberships: FloatArray
    target: FloatArray
    groups: Sequence[str]


def _folded(
    memberships: FloatArray, target: FloatArray, groups: Sequence[str]
) -> _GroupsOfDimension:
    """Return a dimension in which the groups without documents are one, if they are many."""
    is_present = np.asarray(memberships.any(axis=0))
    if np.count_nonzero(~is_present) < MANY_ABSENT:
        return _GroupsOfDimension(memberships, target, groups)
    names = [*itertools.compress(groups, is_present.tolist()), OTHERS]
    return _GroupsOfDimension(*absent_as_one(memberships, target), names)


class Reranker(BaseModel, frozen=True, extra="forbid"):
    """Puts retrieved documents into another order.

    Its fields are its options; each has a range and a description. The first line of a re-ranker's
    docstring says to users what it does and where it comes from.
    """

    async def rerank(
        self, engine: SearchEngine, query: str, candidates: Candidates, k: int
    ) -> RerankedList:
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
    # Halve them, so that even the range of the largest finite scores is finite.
    halves = values / 2
    width = halves.max() - halves.min()
    if width > 0:
        return np.asarray((halves - halves.min()) / width)
    return np.ones_like(values)
