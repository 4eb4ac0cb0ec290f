"""How far a distribution of exposure is from its target."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from fairqr.retrieval.fairness.exposure import FloatArray

DEFAULT_SMOOTHING = 1e-3
DEFAULT_THRESHOLD = 0.005
"""The divergence, in nats, at which exposure counts as near its target."""
Direction = Literal["target_exposure", "exposure_target"]
Lack = Literal["difference", "ratio", "divergence"]


def smooth(distribution: ArrayLike, smoothing: float = DEFAULT_SMOOTHING) -> FloatArray:
    """Mix a distribution with the uniform one: (1−λ)·p + λ/G.

    With λ > 0 no share is zero, and two results are equal exactly when the two distributions are.

    Args:
        distribution: Shape (…, G), sums to 1.
        smoothing: λ, in [0, 1).
    """
    values = np.asarray(distribution, dtype=np.float64)
    return np.asarray((1 - smoothing) * values + smoothing / values.shape[-1])


def _relative_entropy(p: FloatArray, q: FloatArray) -> FloatArray:
    """Return Σ p·ln(p/q); a zero in p adds nothing, a zero in q alone makes the sum infinite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(p > 0, p * (np.log(p) - np.log(q)), 0.0)
    # If the distributions are equal, rounding can leave a sum of about −1e-17.
    return np.asarray(np.maximum(terms.sum(axis=-1), 0.0))


def kullback_leibler(
    target: ArrayLike,
    exposure: ArrayLike,
    *,
    smoothing: float = DEFAULT_SMOOTHING,
    direction: Direction = "target_exposure",
) -> FloatArray:
    """Return KL(ε*‖ε) in nats, with both distributions smoothed alike.

    KL(ε*‖ε) = Σ_g ε*_g ln(ε*_g/ε_g). It is 0 exactly at equality, and at most about ln(G/λ).
    FAIR-QR (Chen & Fang 2025) uses KL without stating direction or smoothing: both are parameters.

    Args:
        target: ε*, shape (…, G).
        exposure: ε, shape (…, G).
        smoothing: λ of :func:`smooth`. With 0 the divergence can be infinite.
        direction: ``exposure_target`` gives KL(ε‖ε*).
    """
    p, q = smooth(target, smoothing), smooth(exposure, smoothing)
    return _relative_entropy(p, q) if direction == "target_exposure" else _relative_entropy(q, p)


def lacks(
    target: ArrayLike,
    exposure: ArrayLike,
    by: Lack = "difference",
    *,
    smoothing: float = DEFAULT_SMOOTHING,
) -> FloatArray:
    """Return how much exposure each group lacks, shape (G,): the largest value lacks most.

    FAIR-QR (Chen & Fang 2025) refines for "the most under-represented group" without saying by
    what. Values above 0, or above 1 for a ratio, mean that a group has less than its target.

    Args:
        target: ε*, shape (G,).
        exposure: ε, shape (G,).
        by: ``difference`` gives ε*_g − ε_g, ``ratio`` ε*_g/ε_g, and ``divergence`` the group's term
            ε*_g·ln(ε*_g/ε_g) of KL(ε*‖ε).
        smoothing: λ of :func:`smooth`, for ratio and divergence; above 0.
    """
    if by == "difference":
        return np.asarray(target, dtype=np.float64) - np.asarray(exposure, dtype=np.float64)
    p = smooth(target, smoothing)
    ratio = p / smooth(exposure, smoothing)
    return np.asarray(ratio if by == "ratio" else p * np.log(ratio))


def jensen_shannon(
    target: ArrayLike, exposure: ArrayLike, *, unit: Literal["nats", "bits"] = "nats"
) -> FloatArray:
    """Return the Jensen–Shannon divergence; symmetric, finite with zeros, 0 exactly at equality.

    JS = ½KL(p‖m) + ½KL(q‖m), m = (p+q)/2 (Lin 1991). At most ln 2 nats, which is 1 bit.
    1 − JS is AWRF (TREC Fair 2022 uses nats).
    """
    p, q = np.asarray(target, dtype=np.float64), np.asarray(exposure, dtype=np.float64)
    middle = (p + q) / 2
    nats = (_relative_entropy(p, middle) + _relative_entropy(q, middle)) / 2
    return np.asarray(nats / np.log(2)) if unit == "bits" else nats
