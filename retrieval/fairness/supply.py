"""The supply: what relevant documents could give to each group, whatever their ranking."""

from __future__ import annotations

import numpy as np

from fairqr.retrieval.fairness.best_ranking import best_ranking
from fairqr.retrieval.fairness.exposure import Discount, FloatArray, exposure
from fairqr.retrieval.fairness.objective import DIGITS, RankingObjective


def attainable(memberships: FloatArray, discount: Discount, length: int) -> FloatArray:
    """Return the most exposure that each group could get by itself, shape (G,).

    All its documents stand first, and others fill the remaining ranks.

    Args:
        memberships: Of the documents to rank, shape (n, G).
        discount: The weight of each rank.
        length: How many ranks there are.
    """
    weights = discount.weights(min(length, len(memberships)))
    # Those with the largest share of the group first.
    first = -np.sort(-memberships, axis=0)[: len(weights)]
    return np.asarray(weights @ first / (weights.sum() or 1.0))


def supply(
    memberships: FloatArray, target: FloatArray, discount: Discount, length: int
) -> FloatArray:
    """Return the exposure that documents could give to each group, shape (G,).

    That is the target itself where each group could reach its share; that ranks are whole is not
    held against an engine. Otherwise it is the exposure of the ranking that comes nearest to the
    target; zeros if no document has a label.

    Args:
        memberships: Of the documents that are relevant, shape (n, G).
        target: ε*, shape (G,).
        discount: The weight of each rank.
        length: How many ranks there are.
    """
    if (attainable(memberships, discount, length) >= target - 10**-DIGITS).all():
        return target
    alike = np.ones(len(memberships))
    nearest = RankingObjective(alike, [memberships], [target], length, np.inf, discount)
    return exposure(memberships[best_ranking(nearest)], discount)
