"""Re-rankers that need no model: reciprocal rank fusion, and the exposure-aware step.

Both order documents that were retrieved already. Re-ranking by the original query itself is
:meth:`fairqr.retrieval.index.Index.rescore`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fairqr.retrieval.exposure import LOG2, Discount, FloatArray, exposure
from fairqr.retrieval.ranking import Ranking

__all__ = ["RRF_K", "exposure_aware", "near_target", "reciprocal_rank_fusion"]

RRF_K = 60
STEPS = 16


def reciprocal_rank_fusion(
    rankings: Sequence[Ranking],
    weights: Sequence[float] | None = None,
    k: int = RRF_K,
    *,
    shares: Sequence[FloatArray | None] | None = None,
) -> Ranking:
    """Fuse rankings: score(d) = Σ_i w_i·s_i(d) / (k + rank_i(d)).

    With all s_i(d) = 1 this is the fusion of Cormack, Clarke & Büttcher (2009).

    Args:
        rankings: A document that a ranking lacks gets nothing from it.
        weights: One for each ranking; 1 where None.
        k: Large values make the first ranks weigh less.
        shares: For a ranking of n documents how much of its weight each gets, shape (n,), in
            [0, 1]; all of it where None. A document that gets nothing at all is left out.
    """
    scores: dict[str, float] = {}
    weights = weights or [1.0] * len(rankings)
    for ranking, weight, own in zip(
        rankings, weights, shares or [None] * len(rankings), strict=True
    ):
        parts = np.ones(len(ranking)) if own is None else own
        gains = weight * parts / (k + np.arange(1, len(ranking) + 1))
        for id_, gain in zip(ranking.ids, gains.tolist(), strict=True):
            if gain:
                scores[id_] = scores.get(id_, 0.0) + gain
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


def near_target(
    memberships: Sequence[FloatArray],
    targets: Sequence[FloatArray],
    *,
    tolerance: float,
    divergence: Callable[[FloatArray, FloatArray], float],
    discount: Discount = LOG2,
    length: int,
) -> NDArray[np.intp]:
    """Fill a ranking as :func:`exposure_aware` does, and no further than is asked for.

    Each step toward the target takes exposure from documents that the order holds to be better. So
    the ranking is filled toward a mixture (1−s)·ε + s·ε* of the exposure that the order has and its
    target, with a small share s, of 16, that brings the mean divergence over the attributes to the
    tolerance. It is found by bisection, which is the smallest one where the divergence falls with
    s, as it mostly does. With s = 0 the order stays; where no share tried suffices, the ranking is
    the one that came nearest.

    Args:
        memberships: Those of :func:`exposure_aware`.
        targets: Likewise.
        tolerance: The divergence to reach, at least 0.
        divergence: Of an exposure from a target; takes the target first.
        discount: The weight of each rank.
        length: How many ranks to fill.
    """
    members = [np.asarray(m, dtype=np.float64) for m in memberships]
    now = [exposure(m, discount, length) for m in members]
    # An attribute that no document of the first ranks has a label of starts at its target.
    now = [e if e.any() else t for e, t in zip(now, targets, strict=True)]

    def filled(step: int) -> NDArray[np.intp]:
        share = step / STEPS
        mixtures = [(1 - share) * e + share * t for e, t in zip(now, targets, strict=True)]
        return exposure_aware(members, mixtures, discount=discount, length=length)

    def distance(order: NDArray[np.intp]) -> float:
        reached = [exposure(m[order], discount) for m in members]
        known = [(t, e) for t, e in zip(targets, reached, strict=True) if e.any()]
        return sum(divergence(t, e) for t, e in known) / len(known) if known else 0.0

    as_it_is = np.arange(min(length, len(members[0])), dtype=np.intp)
    if distance(as_it_is) <= tolerance:
        return as_it_is
    low, high = 0, STEPS
    nearest = filled(high)
    least = distance(nearest)
    while high - low > 1:
        middle = (low + high) // 2
        order = filled(middle)
        found = distance(order)
        if found <= tolerance:
            high = middle
        else:
            low = middle
        if found <= tolerance or found < least:
            nearest, least = order, found
    return nearest
