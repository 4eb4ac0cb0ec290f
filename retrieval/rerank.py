"""Re-rankers that need no model: reciprocal rank fusion, and the exposure-aware step.

Both reorder documents that were already retrieved. Re-ranking by the original query itself is a
search limited to given documents; see :class:`fairqr.retrieval.engines.engine.Query`.
"""

from __future__ import annotations

from collections import defaultdict
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
        rankings: The rankings. A document that a ranking lacks gets nothing from it.
        weights: One for each ranking; 1 by default.
        k: Large values make the first ranks weigh less.
        shares: For each ranking of n documents, the share of its weight that each one gets, shape
            (n,), in [0, 1]; None means all of it. A document that gets nothing at all is left out.
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

    At each rank, a group is owed its share ε*_g of all exposure given out so far (including this
    rank), minus the exposure it has had. We take the membership pattern that is owed most, summed
    over its groups and over the attributes, and place its best document. So the order within a
    pattern stays, and documents without any label keep their place.

    Args:
        memberships: One array (n, G_a) for each attribute a, rows from best to worst.
        targets: One array (G_a,) for each attribute.
        discount: The weight of each rank.
        length: How many ranks to fill.

    Returns:
        The positions of min(length, n) documents in their new order.
    """
    return _Patterns(memberships).filled(targets, discount, length)


class _Patterns:
    """The documents of a pool by the pattern of their memberships, over all attributes."""

    def __init__(self, memberships: Sequence[FloatArray]) -> None:
        members = np.concatenate([np.asarray(m, dtype=np.float64) for m in memberships], axis=1)
        self._count = len(members)
        positions: defaultdict[tuple[float, ...], list[int]] = defaultdict(list)
        for position, pattern in enumerate(map(tuple, members.tolist())):
            positions[pattern].append(position)
        self._unlabelled = set(positions.pop((0.0,) * members.shape[1], ()))
        self._patterns = np.array(list(positions)).reshape(len(positions), members.shape[1])
        self._positions = list(positions.values())
        # How much a document of each pattern gives to each attribute, repeated for each group.
        sizes = [np.shape(m)[1] for m in memberships]
        given = np.add.reduceat(self._patterns, np.cumsum([0, *sizes[:-1]]), axis=1)
        self._given = np.repeat(given, sizes, axis=1)

    def filled(
        self, targets: Sequence[FloatArray], discount: Discount, length: int
    ) -> NDArray[np.intp]:
        """Return the order; see :func:`exposure_aware`."""
        target = np.concatenate([np.asarray(t, dtype=np.float64) for t in targets])
        size = min(length, self._count)
        order = np.arange(size, dtype=np.intp)
        if not self._positions:
            return order
        heads = np.array([positions[0] for positions in self._positions])
        placed = [0] * len(heads)
        used_up = np.zeros(len(heads), dtype=bool)
        # What groups are owed after a document of a pattern: the target's share of the exposure
        # that the document gives out in each attribute, minus what it gives to the group itself.
        owed_after = target * self._given - self._patterns
        due = np.zeros_like(target)
        for rank, weight in enumerate(discount.weights(size).tolist()):
            if rank in self._unlabelled:
                continue
            owed = self._patterns @ (due + weight * target)
            owed[used_up] = -np.inf
            tied = np.flatnonzero(owed >= owed.max() - 1e-12)
            best = int(tied[heads[tied].argmin()] if len(tied) > 1 else tied[0])
            order[rank] = heads[best]
            due += weight * owed_after[best]
            placed[best] += 1
            if placed[best] < len(self._positions[best]):
                heads[best] = self._positions[best][placed[best]]
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
    """Fill a ranking as :func:`exposure_aware` does, but only as far as needed.

    Each step toward the target takes exposure from documents that the current order ranks higher.
    So we bisect over 16 blends of the current exposure and the target, and take the mildest that
    meets the tolerance. If none does, we return the order that comes nearest to the target, which
    may be the current one.

    Args:
        memberships: As in :func:`exposure_aware`.
        targets: As in :func:`exposure_aware`.
        tolerance: The divergence to reach, at least 0.
        divergence: Takes a target and an exposure, and returns their divergence.
        discount: The weight of each rank.
        length: How many ranks to fill.
    """
    members = [np.asarray(m, dtype=np.float64) for m in memberships]
    patterns = _Patterns(members)
    now = [exposure(m, discount, length) for m in members]
    # An attribute without any label in the first ranks starts at its target.
    now = [e if e.any() else t for e, t in zip(now, targets, strict=True)]

    def filled(step: int) -> NDArray[np.intp]:
        share = step / STEPS
        mixtures = [(1 - share) * e + share * t for e, t in zip(now, targets, strict=True)]
        return patterns.filled(mixtures, discount, length)

    # An attribute without any label in the whole pool is the same for all orders.
    labelled = [(m, t) for m, t in zip(members, targets, strict=True) if m.any()]

    def distance(order: NDArray[np.intp]) -> tuple[int, float]:
        """Return how many attributes have no label in the order, and the others' mean distance."""
        reached = [(t, exposure(m[order], discount)) for m, t in labelled]
        known = [divergence(t, e) for t, e in reached if e.any()]
        return len(reached) - len(known), sum(known) / len(known) if known else 0.0

    enough = (0, tolerance)
    nearest = np.arange(min(length, len(members[0])), dtype=np.intp)
    least = distance(nearest)
    if least <= enough:
        return nearest
    low, high, step = 0, STEPS, STEPS
    while True:
        order = filled(step)
        found = distance(order)
        if found <= enough or found < least:
            nearest, least = order, found
        if found <= enough:
            high = step
        elif step < high:
            low = step
        if high - low <= 1:
            return nearest
        step = (low + high) // 2
