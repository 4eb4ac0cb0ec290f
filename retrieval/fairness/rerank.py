"""Re-rankers that need no model: reciprocal rank fusion, and the exposure-aware step.

Both reorder documents that were already retrieved. Re-ranking by the original query itself is a
search limited to given documents; see :class:`fairqr.retrieval.engines.engine.Query`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fairqr.retrieval.fairness.exposure import LOG2, Discount, FloatArray, distinct_rows
from fairqr.retrieval.fairness.ranking import Ranking

RRF_K = 60


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
    members = np.concatenate(memberships, axis=1, dtype=np.float64)
    is_labelled: list[bool] = list(np.any(members, axis=1))
    size, last = min(length, len(members)), len(members)
    patterns, numbers = distinct_rows(members)
    waiting: list[deque[int]] = [deque() for _ in patterns]
    for position, number in enumerate(numbers.tolist()):
        if is_labelled[position]:
            waiting[number].append(position)
    # The first document of each pattern; ``last`` if none is left.
    heads = np.array([own[0] if own else last for own in waiting])
    # What a document of each pattern gives to each attribute, repeated for each group.
    sizes = [len(target) for target in targets]
    given = np.add.reduceat(patterns, np.cumsum([0, *sizes[:-1]]), axis=1)
    target = np.concatenate(targets)
    # What groups are owed after a document of a pattern: the target's share of the exposure that
    # the document gives out in each attribute, minus what it gives to the group itself.
    owed_after = target * np.repeat(given, sizes, axis=1) - patterns
    order, due = np.arange(size, dtype=np.intp), np.zeros(len(target))
    for rank, weight in enumerate(discount.weights(size).tolist()):
        if not is_labelled[rank]:
            continue
        owed = np.where(heads < last, patterns @ (due + weight * target), -np.inf)
        tied = np.flatnonzero(owed >= owed.max() - 1e-12)
        best = int(tied[heads[tied].argmin()])
        order[rank] = waiting[best].popleft()
        heads[best] = waiting[best][0] if waiting[best] else last
        due += weight * owed_after[best]
    return order
