"""Re-rankers that need no model: reciprocal rank fusion, and the exposure-aware step.

Both order documents that were retrieved already. Re-ranking by the original query itself is
:meth:`fairqr.retrieval.index.Index.rescore`.
"""

from __future__ import annotations

from collections import defaultdict, deque
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
    size = min(length, len(members))
    order = np.arange(size, dtype=np.intp)
    queues: defaultdict[tuple[float, ...], deque[int]] = defaultdict(deque)
    for position, pattern in enumerate(map(tuple, members.tolist())):
        queues[pattern].append(position)
    unlabelled = set(queues.pop((0.0,) * len(target), ()))
    if not queues:
        return order

    patterns, waiting = np.array(list(queues)), list(queues.values())
    heads = np.array([queue.popleft() for queue in waiting])
    used_up = np.zeros(len(waiting), dtype=bool)
    # What is owed to the groups after a document of a pattern: the target's share of the exposure
    # that it gives out in each attribute, less what it gives to the group itself.
    sizes = [len(t) for t in targets]
    given = np.add.reduceat(patterns, np.cumsum([0, *sizes[:-1]]), axis=1)
    owed_after = target * np.repeat(given, sizes, axis=1) - patterns
    due = np.zeros_like(target)
    for rank, weight in enumerate(discount.weights(size).tolist()):
        if rank in unlabelled:
            continue
        owed = patterns @ (due + weight * target)
        owed[used_up] = -np.inf
        tied = np.flatnonzero(owed >= owed.max() - 1e-12)
        best = tied[heads[tied].argmin()] if len(tied) > 1 else tied[0]
        order[rank] = heads[best]
        due += weight * owed_after[best]
        if waiting[best]:
            heads[best] = waiting[best].popleft()
        else:
            used_up[best] = True
    return order
