"""One table for each protected group, for as many groups as there are.

Each group has its own binomial test (:mod:`fairqr.retrieval.rerankers.binomial_table`), all at one
α_c. A fair ranking fails some test with at most the sum of the probabilities with which it fails
each (Boole's inequality), so that sum is kept at or below α. For one group this is FA*IR itself,
exactly; for several it is a conservative stand-in for the multinomial test.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fairqr.retrieval.rerankers.binomial_table import TableSteps, failure_probability, last_allowed

__all__ = ["GroupTables", "group_tables"]


@dataclass(frozen=True, slots=True)
class GroupTables:
    """The least number of documents of each group in each prefix.

    Attributes:
        minimum: Shape (k, G).
        proportions: p_1 … p_G.
        significance: α_c of each test.
        failure_probability: A bound from above, exact for one group.
    """

    minimum: NDArray[np.intp]
    proportions: tuple[float, ...]
    significance: float
    failure_probability: float

    def passes_at(self, counts: tuple[int, ...], length: int) -> bool:
        """Tell whether a prefix of this length, at least 1, with these counts passes."""
        return bool(np.all(self.minimum[length - 1] <= counts))

    def openings(self, supply: tuple[int, ...]) -> GroupTables:
        """Return the tables that ask for no more documents of a group than there are.

        Args:
            supply: How many documents there are of the rest, and of each protected group.
        """
        return replace(self, minimum=np.minimum(self.minimum, supply[1:]))

    def is_open(self, counts: tuple[int, ...], length: int) -> bool:
        """Tell whether a prefix passes, and can be continued up to k so that each prefix does.

        It can if at every later length no more documents are lacking than there are ranks left.
        """
        lacking = np.maximum(self.minimum[length - 1 :] - counts, 0).sum(axis=1)
        return bool(np.all(lacking <= np.arange(len(lacking))))


@functools.lru_cache(maxsize=256)
def group_tables(k: int, proportions: tuple[float, ...], alpha: float) -> GroupTables:
    """Return the tables with the largest common α_c whose bound is at most α.

    Arguments are those of :func:`fairqr.retrieval.rerankers.multinomial_table.multinomial_table`.
    """
    lowest = alpha / k / len(proportions)
    steps = [TableSteps(k, proportion, lowest, alpha) for proportion in proportions]
    significances = np.unique(np.concatenate([own.significances for own in steps]))

    def bound(significance: float) -> float:
        return sum(
            failure_probability(own.minimum(significance), proportion, limit=alpha)
            for own, proportion in zip(steps, proportions, strict=True)
        )

    significance = last_allowed(significances, bound, alpha)
    minimum = np.column_stack([own.minimum(significance) for own in steps])
    return GroupTables(minimum, proportions, significance, bound(significance))
