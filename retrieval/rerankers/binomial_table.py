"""The table of FA*IR for one protected group: how many of it each prefix needs at least.

A ranking of k documents is modelled as k draws, each protected with probability p. Its prefix of
length i passes where the number τ_i of protected documents has BinomCDF(τ_i; i, p) > α_c. The
ranking passes where all its prefixes do (Zehlike et al. 2017).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairqr.base.errors import InputError
from fairqr.retrieval.exposure import FloatArray

__all__ = [
    "BinomialTable",
    "TableSteps",
    "adjusted_table",
    "distinct",
    "failure_probability",
    "last_allowed",
    "unadjusted_table",
]

IntArray = NDArray[np.intp]

ROUNDING = 1e-11
"""Two probabilities that differ by less than this share of themselves count as the same."""


@dataclass(frozen=True, slots=True)
class BinomialTable:
    """The least number of protected documents in each prefix.

    Attributes:
        minimum: For the prefixes of length 1 to k; each is at most one above the one before.
        proportion: p, of the protected among the draws.
        significance: α_c, at which each prefix is tested.
        failure_probability: That a ranking drawn at random fails at any prefix.
    """

    minimum: tuple[int, ...]
    proportion: float
    significance: float
    failure_probability: float

    def passes(self, protected: Sequence[bool]) -> bool:
        """Tell whether a ranking of at most k documents, protected or not, passes."""
        counts = np.cumsum(protected)
        return bool(np.all(counts >= np.array(self.minimum[: len(counts)])))


def unadjusted_table(k: int, proportion: float, alpha: float) -> BinomialTable:
    """Return the table at α_c = α, which a fair ranking fails more often than α.

    Arguments and errors are those of :func:`adjusted_table`.
    """
    _check(k, proportion, alpha)
    minimum = TableSteps(k, proportion, alpha, alpha).minimum(alpha)
    failure = failure_probability(minimum, proportion)
    return BinomialTable(tuple(minimum.tolist()), proportion, alpha, failure)


@functools.lru_cache(maxsize=256)
def adjusted_table(k: int, proportion: float, alpha: float) -> BinomialTable:
    """Return the table with the model-adjusted significance.

    α_c is the largest at which a ranking drawn at random fails with a probability of at most α. As
    a function of α_c the table, and with it this probability, is a step function: it can change
    only where α_c reaches a value of BinomCDF(τ; i, p). It never decreases, so a binary search over
    these values finds the last step that is allowed. (The search over tables rather than over
    numbers follows Zehlike, Sühr & Castillo 2020.) The steps below α/k need no look: there, the k
    tests together reject with a probability of at most α already.

    Args:
        k: The length of the ranking.
        proportion: p, in [0, 1].
        alpha: The probability that a fair ranking may be rejected with, in (0, 1).

    Returns:
        The table; its ``significance`` is where its step begins, or α/k where that is lower, and
        its ``failure_probability`` is exact but for rounding, and never above α. So a step that
        reaches α itself may be refused for a rounding error, as with p = 0.95 and α = 0.05.

    Raises:
        InputError: An argument is out of its range.
    """
    _check(k, proportion, alpha)
    steps = TableSteps(k, proportion, alpha / k, alpha)
    significance = last_allowed(
        steps.significances,
        lambda step: failure_probability(steps.minimum(step), proportion, limit=alpha),
        alpha,
    )
    minimum = steps.minimum(significance)
    failure = failure_probability(minimum, proportion)
    return BinomialTable(tuple(minimum.tolist()), proportion, significance, failure)


def failure_probability(minimum: ArrayLike, proportion: float, limit: float = 1.0) -> float:
    """Return the probability that k draws at random fail a table at any prefix.

    The distribution of the number of protected draws is carried from prefix to prefix; what is
    below the minimum fails and leaves it. So each ranking is counted where it first fails.

    Args:
        minimum: Of each prefix, shape (k,).
        proportion: p, of each draw.
        limit: The sum may stop once it is above.
    """
    needed = np.asarray(minimum, dtype=np.intp)
    # Once a count has reached the largest minimum it cannot fail, and need not be followed.
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
    """Return the last of increasing significances that fails with a probability of at most α.

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
    """Where the table changes, for significances from ``lowest`` to ``highest``.

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
    """Return the number below which all are this probability or less, but for rounding."""
    return probability * (1 + ROUNDING)


def distinct(values: FloatArray) -> FloatArray:
    """Drop of increasing values those that only rounding holds apart from the next one."""
    differs = values[1:] > values[:-1] * (1 + ROUNDING)
    return values[np.append(differs, True)] if len(values) else values


def _check(k: int, proportion: float, alpha: float) -> None:
    if k < 1:
        raise InputError(f"FA*IR needs a k of at least 1, not {k}.")
    if not 0 <= proportion <= 1:
        raise InputError(
            f"The proportion of the protected group must be from 0 to 1, not {proportion:g}."
        )
    if not 0 < alpha < 1:
        raise InputError(f"The significance alpha must be between 0 and 1, not {alpha:g}.")
