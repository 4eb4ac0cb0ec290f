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

**The least in place of the mean.** The mean lets a good attribute make up for a bad one. The least
would not, but it has no slope where two are equal, so F is then the soft minimum

    F = −log(Σ_a exp(−β·F_a) / A) / β        F_a = 1 − JS(ε*_a, ε_a)        β = log(A) / 0.01

of the A attributes. Since Σ_a exp(−β·F_a) is between 1 and A times its largest term, F is never
below the least F_a, and above it by at most log(A)/β = 0.01. By Jensen's inequality it is never
above the mean. It is concave in the F_a and increases in each of them (Boyd & Vandenberghe 2004,
section 3.1.5, log-sum-exp), so whatever is concave in the exposures stays so.

**Several cut-offs.** A group may have its exposure from one document at the first rank. With
``spread``, F is the mean (or the soft minimum) of the F_a of several prefixes of the ranking, such
as of its first 5, 10 and 20 ranks, and V stays that of the whole.

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
from fairqr.retrieval.fairness.limits import LimitedPool, Limits

Positions = NDArray[np.intp]

DIGITS = 9
"""Values that are equal when rounded to this many digits count as equal. So all machines choose
alike, although their logarithms and sums differ in the last bits."""

LEAST = 1e-12
"""Smaller values of V and F count as this, so that they have a logarithm."""

ABOVE_LEAST = 0.01
"""By how much the soft minimum may be above the least."""


@dataclass(frozen=True, slots=True)
class Quality:
    """How good a ranking is.

    Attributes:
        relevance: V, in [0, 1].
        fairness: F, in [0, 1].
        value: J = V · F^w.
        most: The highest Σ d·p of the pool; V is a share of it.
        undefined: How many attributes have no exposure, in any of the prefixes that count.
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
        is_least: Whether F is the soft minimum over the attributes instead of their mean. Then they
            have one weight.
        spread: Prefixes of the ranking whose fairness counts as much as that of the whole, as
            numbers of ranks.
        limits: What a ranking may not do, whatever its J; they are no part of it.
    """

    relevance: FloatArray
    memberships: Sequence[FloatArray]
    targets: Sequence[FloatArray]
    length: int
    weight: float | Sequence[float] = 1.0
    discount: Discount = LOG2
    is_least: bool = False
    spread: Sequence[int] = ()
    limits: Limits | None = None

    @cached_property
    def power(self) -> float:
        """The exponent w: the weight itself, or the mean of those of the attributes."""
        if isinstance(self.weight, (int, float)):
            return float(self.weight)
        return sum(self.weight) / len(self.weight)

    @cached_property
    def shares(self) -> list[float]:
        """How much each attribute counts in the mean of F, 1 on average."""
        if isinstance(self.weight, (int, float)) or not any(self.weight):
            return [1.0] * len(self.targets)
        return [own / self.power for own in self.weight]

    @cached_property
    def sharpness(self) -> float:
        """The β of the soft minimum; 0 where F is the mean."""
        count = len(self.targets) * len(self.prefixes)
        return float(np.log(count)) / ABOVE_LEAST if self.is_least else 0.0

    @cached_property
    def prefixes(self) -> list[int]:
        """The ranks over which fairness is measured, ascending; the last is the whole."""
        length = min(self.length, len(self.relevance))
        return sorted({*(min(count, length) for count in self.spread), length})

    @cached_property
    def probabilities(self) -> FloatArray:
        """P as rankings are compared by it, shape (n,): :attr:`relative`, rounded."""
        return self.relative.round(DIGITS)

    @cached_property
    def relative(self) -> FloatArray:
        """P as shares of the highest one, shape (n,); V is a share itself, so it stays the same.

        All 1 where all p are 0, as V is 1 then.
        """
        relevance = np.asarray(self.relevance, dtype=np.float64)
        highest = relevance.max(initial=0.0)
        return relevance / highest if highest > 0 else np.ones_like(relevance)

    @cached_property
    def limited(self) -> LimitedPool | None:
        """The limits for the documents of this pool, if there are any."""
        if self.limits is None:
            return None
        members = [np.asarray(own, dtype=np.float64) for own in self.memberships]
        return LimitedPool(self.limits, members, self.probabilities)

    def quality(self, ranked: Sequence[int] | Positions) -> Quality:
        """Return V, F and J of a ranking.

        Args:
            ranked: The positions of its documents in the pool, best first.
        """
        rows = np.asarray(ranked, dtype=np.intp)
        most = self._discounted(np.sort(self.relevance)[::-1][: self.length])
        relevance = self._discounted(np.asarray(self.relevance)[rows]) / most if most > 0 else 1.0
        given = [
            group_exposure(members[rows], self.discount, count)
            for count in self.prefixes
            for members in self.memberships
        ]
        times = len(self.prefixes)
        targets = [*self.targets] * times
        fair, undefined = fairness(given, targets, self.shares * times, self.sharpness)
        value = relevance * float(fair) ** self.power if np.isfinite(self.power) else float(fair)
        return Quality(relevance, float(fair), value, most, int(undefined))

    def _discounted(self, relevance: FloatArray) -> float:
        return float((self.discount.weights(len(relevance)) * relevance).sum())


def fairness(
    exposures: Sequence[FloatArray],
    targets: Sequence[FloatArray],
    shares: Sequence[float | FloatArray],
    sharpness: float = 0.0,
) -> tuple[FloatArray, NDArray[np.intp]]:
    """Return F of rankings, and how many attributes of each have no exposure.

    Where several prefixes count, each attribute is given once for each.

    Args:
        exposures: ε of each attribute, shape (G_a, …), not necessarily normalised; all zeros where
            no document has a label.
        targets: ε* of each attribute, shape (G_a,).
        shares: How much each attribute counts in the mean, 1 on average; of one ranking each, if
            arrays that broadcast to (…).
        sharpness: β of the soft minimum, in which all attributes count alike; 0 for the mean.

    Returns:
        Both of shape (…); F is 1 if no attribute is defined.
    """
    totals = np.stack([given.sum(axis=0) for given in exposures])
    scales = np.where(_is_known(totals), totals, 1.0)
    parts = zip(exposures, scales, targets, strict=True)
    distances = [_distance(given / scale, target) for given, scale, target in parts]
    return fairness_of_distances(distances, totals, shares, sharpness)


def fairness_of_distances(
    distances: Sequence[FloatArray],
    totals: FloatArray,
    shares: Sequence[float | FloatArray],
    sharpness: float = 0.0,
) -> tuple[FloatArray, NDArray[np.intp]]:
    """Return what :func:`fairness` does, given JS of each attribute.

    Args:
        distances: JS of each attribute, in bits, shape (…).
        totals: What all groups of each attribute get, shape (A, …).
        shares: See :func:`fairness`.
        sharpness: See :func:`fairness`.
    """
    is_known = _is_known(totals)
    undefined = np.asarray((~is_known).sum(axis=0), dtype=np.intp)
    if sharpness:
        return soft_least(1 - np.stack(distances), sharpness, is_known), undefined
    distance = np.zeros(totals.shape[1:])
    counted = np.zeros(distance.shape)
    for apart, known, own in zip(distances, is_known, shares, strict=True):
        distance += np.where(known, own * apart, 0.0)
        counted += own * known
    return 1 - distance / np.where(counted > 0, counted, 1.0), undefined


def _is_known(totals: FloatArray) -> NDArray[np.bool_]:
    """Return which attributes have an exposure; exchanges may leave a residue of rounding."""
    return np.asarray(totals > 10**-DIGITS)


def _distance(exposure: FloatArray, target: FloatArray) -> FloatArray:
    """Return JS of exposures of shape (G, …) and a target, shape (G,), in bits, in [0, 1]."""
    aim = target.reshape(-1, *[1] * (exposure.ndim - 1))
    # JS as the entropy of the middle less the mean entropy of both.
    bits = (times_log(exposure) / 2 - times_log((exposure + aim) / 2)).sum(axis=0)
    # Rounding may leave either end.
    return np.asarray(np.clip(bits + times_log(target).sum() / 2, 0.0, 1.0))


def soft_least(
    values: FloatArray, sharpness: float, is_known: NDArray[np.bool_] | None = None
) -> FloatArray:
    """Return −log(mean of exp(−β·value)) / β, at most log(A)/β above the least of A values.

    Args:
        values: Shape (A, …).
        sharpness: β, positive.
        is_known: Which of them count, shape (A, …); all by default.

    Returns:
        Shape (…); 1 where none counts.
    """
    counts = np.ones(values.shape, dtype=bool) if is_known is None else is_known
    number = counts.sum(axis=0)
    least = np.where(counts, values, np.inf).min(axis=0)
    # Seen from the least one, no exponential is too small or too large.
    least = np.where(number > 0, least, 1.0)
    terms = np.where(counts, np.exp(-sharpness * np.maximum(values - least, 0.0)), 0.0)
    mean = terms.sum(axis=0) / np.maximum(number, 1)
    above = np.log(np.where(number > 0, mean, 1.0)) / sharpness
    return np.asarray(np.where(number > 0, least - above, 1.0))


def times_log(shares: FloatArray) -> FloatArray:
    """Return p·log2 p of each number, with 0·log 0 = 0."""
    return np.asarray(shares * np.log2(np.maximum(shares, 1e-300)))
