"""The table of FA*IR for one protected group: how many of its documents each prefix must have.

We model a ranking of k documents as k draws, each protected with probability p. Its prefix of
length i passes if the number τ_i of protected documents has BinomCDF(τ_i; i, p) > α_c. The ranking
passes if all its prefixes do (Zehlike et al. 2017).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairqr.base.errors import InputError
from fairqr.retrieval.fairness.exposure import FloatArray

IntArray = NDArray[np.intp]

ROUNDING = 1e-11
"""Two probabilities with a smaller relative difference than this count as equal."""


@dataclass(frozen=True, slots=True)
class BinomialTable:
    """The minimum number of protected documents in each prefix.

    Attributes:
        minimum: For the prefixes of length 1 to k; each is at most one more than the one before.
        proportion: p, the probability that a draw is protected.
        significance: α_c, at which each prefix is tested.
        failure_probability: The probability that a random ranking fails at any prefix.
    """

    minimum: tuple[int, ...]
    proportion: float
    significance: float
    failure_probability: float

    def passes(self, protected: Sequence[bool]) -> bool:
        """Return whether a ranking of at most k documents, protected or not, passes."""
        counts = np.cumsum(protected)
        return bool(np.all(counts >= np.array(self.minimum[: len(counts)])))


def unadjusted_table(k: int, proportion: float, alpha: float) -> BinomialTable:
    """Return the table at α_c = α, which a fair ranking fails more often than α.

    Arguments and errors are as in :func:`adjusted_table`.
    """
    _check(k, proportion, alpha)
    minimum = TableSteps(k, proportion, alpha, alpha).minimum(alpha)
    failure = failure_probability(minimum, proportion)
    return BinomialTable(tuple(minimum.tolist()), proportion, alpha, failure)


@functools.lru_cache(maxsize=256)
def adjusted_table(k: int, proportion: float, alpha: float) -> BinomialTable:
    """Return the table with the model-adjusted significance.

    α_c is the largest value at which a random ranking fails with probability at most α. The table,
    and with it this probability, is a step function of α_c: it only changes where α_c reaches a
    value of BinomCDF(τ; i, p). It never decreases, so a binary search over these values finds the
    last allowed step. (Searching tables rather than numbers follows Zehlike, Sühr & Castillo 2020.)
    We can skip the steps below α/k, because there the k tests together reject with probability at
    most α.

    Args:
        k: The length of the ranking.
        proportion: p, in [0, 1].
        alpha: The allowed probability of rejecting a fair ranking, in (0, 1).

    Returns:
        The table. Its ``significance`` is where its step starts, or α/k if that is lower. Its
        ``failure_probability`` is exact except for rounding, and never above α. So a step that
        exactly reaches α may be refused because of rounding, as with p = 0.95 and α = 0.05.

    Raises:
        InputError: An argument is out of range.
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


def _check(k: int, proportion: float, alpha: float) -> None:
    if k < 1:
        raise InputError(f"FA*IR needs a k of at least 1, not {k}.")
    if not 0 <= proportion <= 1:
        raise InputError(
            f"The proportion of the protected group must be from 0 to 1, not {proportion:g}."
        )
    if not 0 < alpha < 1:
        raise InputError(f"The significance alpha must be between 0 and 1, not {alpha:g}.")
