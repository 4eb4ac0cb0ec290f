"""The objective: one number for how good a ranking is.

J = V · F^w, where

- V = Σ_r d(r)·p(r) / Σ_r d(r)·p_(r) is the **expected relevance**: p is the estimated probability
  that a document is relevant, d(r) the discount of rank r, and p_(1) ≥ p_(2) ≥ … are the highest
  estimates of the pool. It is 1 for the order of relevance, and 1 if every p is 0.
- F = 1 − mean over attributes of JS(ε*, ε), in bits, is the **fairness**: ε is the exposure of the
  groups and ε* its target. If no document of the ranking has a label of an attribute, that has no ε
  and is left out; a ranking with more defined attributes is preferred, whatever its J.
- w ≥ 0 is the **weight of fairness**. With w = 0 only relevance counts, with w = ∞ only fairness.
  Attributes may have weights of their own: then F takes their weighted mean, and w is their mean.

Since dJ/J = dV/V + w·dF/F, a document is worth moving if it adds more fairness than it takes
relevance, in shares. Near the target F is flat, so its last bit is not bought at any price.
:func:`fairqr.retrieval.fairness.best_ranking.best_ranking` finds the ranking of highest J.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fairqr.retrieval.fairness.exposure import LOG2, Discount, FloatArray, group_exposure

Positions = NDArray[np.intp]

DIGITS = 9
"""Values that are equal when rounded to this many digits count as equal. So all machines choose
alike, although their logarithms and sums differ in the last bits."""


@dataclass(frozen=True, slots=True)
class Quality:
    """How good a ranking is.

    Attributes:
        relevance: V, in [0, 1].
        fairness: F, in [0, 1].
        value: J = V · F^w.
        most: The highest Σ d·p of the pool; V is a share of it.
        undefined: How many attributes have no exposure.
    """

    relevance: float
    fairness: float
    value: float
    most: float
    undefined: int

    @property
    def figures(self) -> dict[str, float]:
        """V, F and J by their names."""
        return {"relevance": self.relevance, "fairness": self.fairness, "value": self.value}


@dataclass(frozen=True)
class RankingObjective:
    """What makes a ranking of a pool of documents good.

    Attributes:
        relevance: p of each document of the pool, shape (n,), in [0, 1].
        memberships: One array (n, G_a) for each attribute a. Rows that sum to less than 1 have
            unknown mass.
        targets: ε* of each attribute, shape (G_a,), sums to 1.
        length: How many ranks there are to fill.
        weight: w, at least 0, and maybe infinite; or the weight of each attribute, all finite.
        discount: The weight of each rank.
    """

    relevance: FloatArray
    memberships: Sequence[FloatArray]
    targets: Sequence[FloatArray]
    length: int
    weight: float | Sequence[float] = 1.0
    discount: Discount = LOG2

    @cached_property
    def power(self) -> float:
        """The exponent w: the weight itself, or the mean of those of the attributes."""
        return float(np.mean(self.weight))

    @cached_property
    def shares(self) -> list[float]:
        """How much each attribute counts in the mean of F, 1 on average."""
        if isinstance(self.weight, (int, float)) or not any(self.weight):
            return [1.0] * len(self.targets)
        return [own / self.power for own in self.weight]

    def quality(self, ranked: Sequence[int] | Positions) -> Quality:
        """Return V, F and J of a ranking.

        Args:
            ranked: The positions of its documents in the pool, best first.
        """
        rows = np.asarray(ranked, dtype=np.intp)
        most = self._discounted(np.sort(self.relevance)[::-1][: self.length])
        got = self._discounted(np.asarray(self.relevance)[rows]) / most if most > 0 else 1.0
        given = [group_exposure(members[rows], self.discount) for members in self.memberships]
        fair, undefined = fairness(given, self.targets, self.shares)
        value = got * float(fair) ** self.power if np.isfinite(self.power) else float(fair)
        return Quality(got, float(fair), value, most, int(undefined))

    def _discounted(self, relevance: FloatArray) -> float:
        return float((self.discount.weights(len(relevance)) * relevance).sum())


def fairness(
    exposures: Sequence[FloatArray], targets: Sequence[FloatArray], shares: Sequence[float]
) -> tuple[FloatArray, NDArray[np.intp]]:
    """Return F of rankings, and how many attributes of each have no exposure.

    Args:
        exposures: ε of each attribute, shape (G_a, …), not necessarily normalised; all zeros where
            no document has a label.
        targets: ε* of each attribute, shape (G_a,).
        shares: How much each attribute counts in the mean, 1 on average.

    Returns:
        Both of shape (…); F is 1 if no attribute is defined.
    """
    distance = np.zeros(exposures[0].shape[1:])
    counted = np.zeros(distance.shape)
    undefined = np.zeros(distance.shape, dtype=np.intp)
    for given, target, own in zip(exposures, targets, shares, strict=True):
        total = given.sum(axis=0)
        # Exchanges may leave a residue of rounding where nothing is left.
        is_known = total > 10**-DIGITS
        exposure = given / np.where(is_known, total, 1.0)
        aim = target.reshape(-1, *[1] * distance.ndim)
        # JS as the entropy of the middle less the mean entropy of both.
        bits = (_times_log(exposure) / 2 - _times_log((exposure + aim) / 2)).sum(axis=0)
        bits += _times_log(target).sum() / 2
        distance += np.where(is_known, own * np.maximum(bits, 0.0), 0.0)
        counted += own * is_known
        undefined += ~is_known
    return 1 - distance / np.where(counted > 0, counted, 1.0), undefined


def _times_log(shares: FloatArray) -> FloatArray:
    """Return p·log2 p of each share, with 0·log 0 = 0."""
    return np.asarray(shares * np.log2(np.maximum(shares, 1e-300)))
