"""Re-rankers that need no model: reciprocal rank fusion, and the exposure-aware step.

Both order documents that were retrieved already. Re-ranking by the original query itself is
:meth:`fairqr.retrieval.index.Index.rescore`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fairqr.retrieval.exposure import LOG2, Discount, FloatArray
from fairqr.retrieval.ranking import Ranking

__all__ = ["RRF_K", "exposure_aware", "reciprocal_rank_fusion"]

RRF_K = 60


def reciprocal_rank_fusion(
    rankings: Sequence[Ranking], weights: Sequence[float] | None = None, k: int = RRF_K
) -> Ranking:
    """Fuse rankings: score(d) = Σ_i w_i / (k + rank_i(d)) (Cormack, Clarke & Büttcher 2009).

    Args:
        rankings: A document that a ranking lacks gets nothing from it.
        weights: One for each ranking; 1 where None.
        k: Large values make the first ranks weigh less.
    """
    scores: dict[str, float] = {}
    for ranking, weight in zip(rankings, weights or [1.0] * len(rankings), strict=True):
        for rank, id_ in enumerate(ranking.ids, start=1):
            scores[id_] = scores.get(id_, 0.0) + weight / (k + rank)
    return Ranking.of(scores)


def exposure_aware(
    memberships: Sequence[FloatArray],
    targets: Sequence[FloatArray],
    *,
    discount: Discount = LOG2,
    length: int,
) -> NDArray[np.intp]:
    """Fill a ranking rank by rank toward a target of exposure.

    At each rank the exposure owed to a group is its share ε*_g of all exposure given out so far,
    that of this rank included, less what the group has had. The document placed is the best one of
    those with the membership pattern that is owed most, summed over its groups and over the
    attributes. So inside each pattern the order stays, and documents without any label keep their
    place.

    Args:
        memberships: One array (n, G_a) for each attribute a, rows from best to worst.
        targets: One array (G_a,) for each attribute.
        discount: The weight of each rank.
        length: How many ranks to fill.

    Returns:
        The positions of min(length, n) documents in their new order.
    """
    members = np.concatenate([np.asarray(m, dtype=np.float64) for m in memberships], axis=1)
    target = np.concatenate([np.asarray(t, dtype=np.float64) for t in targets])
    attribute_of = np.repeat(np.arange(len(targets)), [len(t) for t in targets])
    size = min(length, len(members))
    order = np.arange(size, dtype=np.intp)
    labelled = np.asarray(members.any(axis=1))
    if not labelled.any():
        return order

    patterns, pattern_of = np.unique(members[labelled], axis=0, return_inverse=True)
    positions = np.flatnonzero(labelled)
    queues = [positions[pattern_of == p].tolist() for p in range(len(patterns))]
    heads = np.array([queue.pop(0) for queue in queues])
    used_up = len(members)

    weights = discount.weights(size)
    received = np.zeros_like(target)
    for rank in np.flatnonzero(labelled[:size]):
        given = np.bincount(attribute_of, received) + weights[rank]
        owed = patterns @ (target * given[attribute_of] - received)
        owed[heads == used_up] = -np.inf
        tied = np.flatnonzero(owed >= owed.max() - 1e-12)
        best = tied[np.argmin(heads[tied])]
        order[rank] = heads[best]
        received += weights[rank] * patterns[best]
        heads[best] = queues[best].pop(0) if queues[best] else used_up
    return order
