"""The tables of FA*IR: how many documents of each protected group each prefix must have.

We model a ranking of k documents as k draws, each of group g with probability p_g. Its prefix of
length i passes the test of a group if the number τ_i of its documents has
BinomCDF(τ_i; i, p_g) > α_c, and the ranking passes if all its prefixes do (Zehlike et al. 2017).

Each group has a test of its own, all with the same α_c. By Boole's inequality, the probability
that a fair ranking fails some test is at most the sum of the tests' failure probabilities, so we
keep that sum at or below α. For one group this is exactly FA*IR. For several groups it is a bound:
a fair ranking fails less often than α, since one ranking may fail several tests and is then counted
more than once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairqr.retrieval.fairness.exposure import FloatArray

IntArray = NDArray[np.intp]

ROUNDING = 1e-11
"""Two probabilities with a smaller relative difference than this count as equal."""


@dataclass(frozen=True, slots=True)
class FairTable:
    """The minimum number of documents of each group in each prefix.

    Attributes:
        minimum: Shape (k, G); each is at most one more than that of the prefix before.
        significance: α_c of each test.
        failure_probability: An upper bound; exact for one group, but for rounding.
    """

    minimum: IntArray
    significance: float
    failure_probability: float

    def passes_at(self, counts: Sequence[int], length: int) -> bool:
        """Return whether a prefix of this length, at least 1, with these counts passes."""
        return bool(np.all(self.minimum[length - 1] <= counts))

    def limited(self, supply: Sequence[int]) -> FairTable:
        """Return the table that requires no more documents of a group than there are."""
        return replace(self, minimum=np.minimum(self.minimum, supply))

    def is_open(self, counts: Sequence[int], length: int) -> bool:
        """Return whether a prefix passes and can be continued to k with every prefix passing.

        It can if, at every later length, at most as many documents are missing as ranks are left.
        """
        lacking = np.maximum(self.minimum[length - 1 :] - counts, 0).sum(axis=1)
        return bool(np.all(lacking <= np.arange(len(lacking))))


def fair_table(k: int, proportions: Sequence[float], alpha: float) -> FairTable:
    """Return the table with the model-adjusted significance.

    α_c is the largest value at which a random ranking fails with probability at most α. The table,
    and with it this probability, is a step function of α_c: it only changes where α_c reaches a
    value of BinomCDF(τ; i, p). It never decreases, so a binary search over these values finds the
    last allowed step. (Searching tables rather than numbers follows Zehlike, Sühr & Castillo 2020.)
    We can skip the steps below α/(k·G), because there all tests together reject with probability at
    most α.

    Args:
        k: The length of the ranking, at least 1.
        proportions: The proportion of each protected group, in [0, 1]; those of a target may sum to
            slightly more than 1.
        alpha: The allowed probability of rejecting a fair ranking, in (0, 1).

    Returns:
        The table. Its ``significance`` is where its step starts, or the lowest one. A step that
        exactly reaches α may be refused because of rounding, as with p = 0.95 and α = 0.05.
    """
    total = max(1.0, math.fsum(proportions))
    return _fair_table(k, tuple(proportion / total for proportion in proportions), alpha)


@functools.lru_cache(maxsize=256)
def _fair_table(k: int, proportions: tuple[float, ...], alpha: float) -> FairTable:
    lowest = alpha / k / len(proportions)
    steps = [TableSteps(k, proportion, lowest, alpha) for proportion in proportions]

    def failure(significance: float) -> float:
        return sum(
            failure_probability(own.minimum(significance), proportion, limit=alpha)
            for own, proportion in zip(steps, proportions, strict=True)
        )

    every = np.unique(np.concatenate([own.significances for own in steps]))
    significance = last_allowed(every, failure, alpha)
    minimum = np.column_stack([own.minimum(significance) for own in steps])
    return FairTable(minimum, significance, failure(significance))


def failure_probability(minimum: ArrayLike, proportion: float, limit: float = 1.0) -> float:
    """Return the probability that k random draws fail a table at any prefix.

    We carry the distribution of the number of protected draws from prefix to prefix; the part below
    the minimum fails and is removed. So each ranking is counted where it first fails.

    Args:
        minimum: The minimum of each prefix, shape (k,).
        proportion: p, the probability that a draw is protected.
        limit: The sum may stop once it is above this.
    """
    needed = np.asarray(minimum, dtype=np.intp)
    # A count that has reached the largest minimum can no longer fail, so we need not follow it.
    alive = np.zeros(int(needed.max(initial=0)) + 1)
    alive[0] = 1.0
    failed = 0.0
    for least in needed.tolist():
        drawn = alive * proportion
        alive *= 1 - proportion
        alive[1:] += drawn[:-1]
        if least:
            failed += float(alive[:least].sum())
            alive[:least] = 0.0
        if failed > limit:
            break
    return failed


def last_allowed(
    significances: FloatArray, failure: Callable[[float], float], alpha: float
) -> float:
    """Return the last of increasing significances that fails with probability at most α.

    The probability never decreases with the significance, and the first one is allowed.
    """
    allowed, refused = 0, len(significances)
    while refused - allowed > 1:
        middle = (allowed + refused) // 2
        if failure(float(significances[middle])) <= alpha:
            allowed = middle
        else:
            refused = middle
    return float(significances[allowed])


class TableSteps:
    """The values at which the table changes, from ``lowest`` to ``highest`` significance.

    Attributes:
        significances: ``lowest``, and each value of the CDF up to ``highest``, increasing.
    """

    def __init__(self, k: int, proportion: float, lowest: float, highest: float) -> None:
        base, rows, values = np.zeros(k, dtype=np.intp), [], []
        mass = np.zeros(k + 1)
        mass[0] = 1.0
        for i in range(1, k + 1):
            drawn = mass[:i] * proportion
            mass[:i] *= 1 - proportion
            mass[1 : i + 1] += drawn
            cdf = np.cumsum(mass[: i + 1])
            first, end = np.searchsorted(
                cdf, [_raised(lowest), _raised(highest)], side="right"
            ).tolist()
            base[i - 1] = first
            values.append(cdf[first:end])
            rows.append(np.full(end - first, i - 1))
        self._base = base
        self._rows = np.concatenate(rows)
        self._values = np.concatenate(values)
        self.significances = np.concatenate([[lowest], distinct(np.sort(self._values))])

    def minimum(self, significance: float) -> IntArray:
        """Return for each prefix the smallest τ with CDF(τ) > α_c, shape (k,)."""
        reached = self._rows[self._values <= _raised(significance)]
        return self._base + np.bincount(reached, minlength=len(self._base))


def _raised(probability: float) -> float:
    """Return the number just above this probability, allowing for rounding."""
    return probability * (1 + ROUNDING)


def distinct(values: FloatArray) -> FloatArray:
    """Drop increasing values that differ from the next one only by rounding."""
    differs = values[1:] > values[:-1] * (1 + ROUNDING)
    return values[np.append(differs, True)] if len(values) else values
