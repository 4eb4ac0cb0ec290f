"""One table for each protected group, for any number of groups.

Each group has its own binomial test (:mod:`fairqr.retrieval.rerankers.binomial_table`), all with
the same α_c. By Boole's inequality, the probability that a fair ranking fails some test is at most
the sum of the tests' failure probabilities, so we keep that sum at or below α. For one group this
is exactly FA*IR. For several groups it is a bound: a fair ranking fails less often than α, since
one ranking may fail several tests and is then counted more than once.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fairqr.retrieval.rerankers.binomial_table import TableSteps, failure_probability, last_allowed


@dataclass(frozen=True, slots=True)
class GroupTables:
    """The minimum number of documents of each group in each prefix.

    Attributes:
        minimum: Shape (k, G).
        proportions: p_1 … p_G.
        significance: α_c of each test.
        failure_probability: An upper bound; exact for one group.
    """

    minimum: NDArray[np.intp]
    proportions: tuple[float, ...]
    significance: float
    failure_probability: float

    def passes_at(self, counts: tuple[int, ...], length: int) -> bool:
        """Return whether a prefix of this length, at least 1, with these counts passes."""
        return bool(np.all(self.minimum[length - 1] <= counts))

    def openings(self, supply: tuple[int, ...]) -> GroupTables:
        """Return the tables that require no more documents of a group than there are.

        Args:
            supply: How many documents there are of the rest, and of each protected group.
        """
        return replace(self, minimum=np.minimum(self.minimum, supply[1:]))

    def is_open(self, counts: tuple[int, ...], length: int) -> bool:
        """Return whether a prefix passes and can be continued to k with every prefix passing.

        It can if, at every later length, at most as many documents are missing as ranks are left.
        """
        lacking = np.maximum(self.minimum[length - 1 :] - counts, 0).sum(axis=1)
        return bool(np.all(lacking <= np.arange(len(lacking))))


@functools.lru_cache(maxsize=256)
def group_tables(k: int, proportions: tuple[float, ...], alpha: float) -> GroupTables:
    """Return the tables with the largest common α_c whose bound is at most α.

    Args:
        k: The length of the ranking.
        proportions: p_1 … p_G; at least 0, with a sum of at most 1.
        alpha: The allowed probability of rejecting a fair ranking, in (0, 1).
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
