"""The interface of re-rankers: what they take and what they return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from fairqr.base.errors import InputError, first_problem, one_line
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import LOG2, Discount, FloatArray
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.fairness.table import DocumentTable


class RerankOptions(BaseModel):
    """Base of re-rankers' options; each field has a default, a range and a description."""

    model_config = ConfigDict(frozen=True, extra="forbid")


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

    def __post_init__(self) -> None:
        shapes = [(len(self.ranking), len(groups)) for groups in self.groups]
        if not self.dimensions or len(self.dimensions) != len(shapes):
            raise ValueError("candidates need the groups of each of one or more dimensions")
        if [np.shape(members) for members in self.memberships] != shapes:
            raise ValueError(f"the memberships must have the shapes {shapes}")
        if [np.shape(target) for target in self.targets] != [shape[1:] for shape in shapes]:
            raise ValueError("each target must have one share for each group of its dimension")

    def __len__(self) -> int:
        return len(self.ranking)


@dataclass(frozen=True, slots=True)
class Reranked:
    """The first k documents in their new order.

    Attributes:
        ranking: The documents, with the re-ranker's scores, which never increase.
        warnings: What users should know, such as a constraint that could not be met.
    """

    ranking: Ranking
    warnings: tuple[str, ...] = ()


class Reranker(Protocol):
    """Puts retrieved documents into another order."""

    @property
    def name(self) -> str:
        """Its name in the registry."""
        ...

    async def rerank(self, query: str, candidates: Candidates, k: int) -> Reranked:
        """Return the first min(k, n) documents in the new order.

        The same input gives the same output.

        Args:
            query: The original query.
            candidates: Documents with their memberships and targets.
            k: How many documents to return, at least 1.

        Raises:
            InputError: An option does not fit these candidates.
        """
        ...


def candidates_of(
    table: DocumentTable,
    ranking: Ranking,
    dimensions: Sequence[Dimension],
    targets: Sequence[FloatArray],
    discount: Discount = LOG2,
    *,
    relevance: FloatArray | None = None,
) -> Candidates:
    """Build the candidates for a re-ranker.

    Args:
        table: Has the groups of the documents.
        ranking: The ranking to re-rank.
        dimensions: The dimensions to measure exposure over.
        targets: ε* of each dimension, shape (G_a,).
        discount: The weight of each rank.
        relevance: The probability that each document is relevant, if it is estimated.
    """
    return Candidates(
        ranking=ranking,
        memberships=[table.memberships(dimension, ranking.ids) for dimension in dimensions],
        targets=targets,
        dimensions=[dimension.name for dimension in dimensions],
        groups=[dimension.groups for dimension in dimensions],
        discount=discount,
        relevance=relevance,
    )


Options = TypeVar("Options", bound=RerankOptions)


def read_options(name: str, model: type[Options], options: Mapping[str, object]) -> Options:
    """Check the options of a re-ranker.

    Raises:
        InputError: An option is missing, unknown or out of range; the message names it.
    """
    known = ", ".join(model.model_fields) or "none"
    for option in options:
        if option not in model.model_fields:
            raise InputError(
                f"The re-ranker {name} has no option '{one_line(option, 60)}'; it has {known}."
            )
    try:
        return model.model_validate(dict(options))
    except ValidationError as error:
        where, reason = first_problem(error)
        if error.errors()[0]["type"] == "missing":
            what = str(model.model_fields[where].description)
            raise InputError(
                f"The re-ranker {name} needs the option '{where}': {what[0].lower()}{what[1:]}"
            ) from None
        raise InputError(
            f"The option '{where or 'options'}' of {name} is wrong: {one_line(reason)}."
        ) from None


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
