"""How fairly a ranking shares exposure out among the groups.

Memberships have shape (…, n, G): for each ranking the documents in order of rank, and the share of
each group in each of them. A row of zeros is a document whose group is not known: it keeps its rank
and gives exposure to no group. Targets have shape (…, G) and sum to 1.

Where no document of a ranking has a known group, its exposure is undefined: the functions here need
at least one. :func:`fairqr.evaluation.evaluate.evaluate` sees to that, and gives the reason instead
of a value.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from fairqr.retrieval.fairness.divergence import jensen_shannon, kullback_leibler
from fairqr.retrieval.fairness.exposure import LOG2, FloatArray, normalise

Unit = Literal["nats", "bits"]


def awrf(exposures: ArrayLike, target: ArrayLike, *, unit: Unit = "nats") -> FloatArray:
    """Return AWRF = 1 − JS(ε, ε*), attention-weighted rank fairness.

    ε is the exposure of the groups in the first k ranks, normalised (Sapiezynski et al. 2019; with
    the Jensen–Shannon divergence in TREC Fair 2022, Ekstrand et al. 2023).

    Args:
        exposures: ε, shape (…, G), such as of :func:`fairqr.retrieval.fairness.exposure.exposure`;
            TREC Fair 2022 takes the discount ``trec``.
        target: ε*, shape (…, G).
        unit: ``nats``, as in TREC Fair 2022: in [1 − ln 2, 1], about .307 to 1. ``bits``: in
            [0, 1]. Gains in one unit are not gains in the other.

    Returns:
        Shape (…); 1 is fair: exposure is exactly as the target says.
    """
    return np.asarray(1 - jensen_shannon(target, exposures, unit=unit))


def ndkl(
    memberships: ArrayLike,
    target: ArrayLike,
    k: int | None = None,
    *,
    smoothing: float = 0.0,
) -> FloatArray:
    """Return NDKL = (1/Z) Σ_i KL(D_i‖ε*)/log2(i+1), Z = Σ_i 1/log2(i+1).

    Geyik, Ambler & Kenthapadi (2019), definition 3.2; D_i are the shares of the groups among the
    first i documents. The groups come from the schema, so a missing one is noticed.
    Prefixes in which no group is known yet are left out of both sums.

    Args:
        memberships: Shape (…, n, G).
        target: The desired shares, shape (…, G).
        k: How many prefixes; all where it is None.
        smoothing: λ of :func:`fairqr.retrieval.fairness.divergence.smooth`; 0 as published.

    Returns:
        Shape (…), in nats, at least 0; 0 is fair. Infinite where the target gives nothing to a
        group that is there and nothing is smoothed. 0 where no document has a known group.
    """
    members = np.asarray(memberships, dtype=np.float64)[..., :k, :]
    counts = np.cumsum(members, axis=-2)
    wanted, known = np.asarray(target, dtype=np.float64)[..., None, :], counts.sum(axis=-1) > 0
    divergences = kullback_leibler(
        wanted, normalise(counts), smoothing=smoothing, direction="exposure_target"
    )
    weights = LOG2.weights(members.shape[-2]) * known
    total = weights.sum(axis=-1)
    summed = (weights * np.where(known, divergences, 0.0)).sum(axis=-1)
    return np.asarray(np.divide(summed, total, out=np.zeros_like(summed), where=total > 0))
