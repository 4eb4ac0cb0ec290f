"""What documents and groups should be exposed to a generator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from fairqr.evaluation.collections.labels import with_unknown
from fairqr.retrieval.fairness.best_ranking import highest_exposure
from fairqr.retrieval.fairness.exposure import Discount, FloatArray, normalise
from fairqr.retrieval.sources.schema import Attribute


def graded_target(gains: ArrayLike, k: int) -> FloatArray:
    """Return the exposure of each document in proportion to its gain, shape (n,), each in [0, 1].

    Where useful documents differ in worth, so should what they are exposed. No document gets more
    than 1: what is left is for the others, and for those without a gain, evenly, once all others
    have 1. So it sums to min(k, n), and is ε* if all useful documents gain the same.

    Args:
        gains: Shape (n,), in units of utility; what is not above 0, or unknown, counts as 0.
        k: How many documents the generator reads.
    """
    worth = np.nan_to_num(np.maximum(np.asarray(gains, dtype=np.float64), 0.0))
    most = np.ones(len(worth))
    total = float(min(k, len(worth)))
    target = _divided(total, worth, most)
    rest = max(0.0, total - target.sum())
    without_gain = (worth == 0).astype(np.float64)
    return target + _divided(rest, without_gain, most)


def _divided(total: float, worth: FloatArray, most: FloatArray) -> FloatArray:
    """Divide a total in proportion to worth; what would exceed a part's most is for the others."""
    parts = np.zeros(len(worth))
    is_open = worth > 0
    while is_open.any():
        parts[is_open] = total * worth[is_open] / worth[is_open].sum()
        is_full = is_open & (parts > most)
        if not is_full.any():
            break
        parts[is_full] = most[is_full]
        total -= most[is_full].sum()
        is_open &= ~is_full
    return parts


def aim_of(attribute: Attribute, members: FloatArray, k: int) -> FloatArray:
    """Return the exposure of each group that group-aware samples aim at, shape (G,).

    That is k times its share, see :func:`shares_of`, as far as its documents in the pool reach; the
    other groups divide the rest as they divide the whole.

    Args:
        attribute: The groups.
        members: The memberships of the documents of the pool, shape (n, G).
        k: How many documents the generator reads.
    """
    read = min(k, len(members))
    most = highest_exposure(members, Discount("top_k", k), k) * read
    worth = shares_of(attribute, members) * (most > 0)
    total = float(min(k, members.sum()))
    return _divided(total, worth, most)


def shares_of(attribute: Attribute, members: FloatArray) -> FloatArray:
    """Return each group's share of the population, or of a pool if none is stated, shape (G,)."""
    population = attribute.population
    if population:
        sizes = np.array([population.get(group, 0.0) for group in attribute.groups])
    else:
        sizes = members.sum(axis=0)
    return np.asarray(normalise(sizes), dtype=np.float64)


def memberships_of(
    attribute: Attribute, documents: Sequence[Mapping[str, Mapping[str, float]]]
) -> FloatArray:
    """Return the share of each group in each document, the unknown last, shape (n, G + 1).

    Each row sums to 1.

    Args:
        attribute: One of the collection's schema.
        documents: The groups of each document by attribute.
    """
    rows = []
    for document in documents:
        shares = document.get(attribute.name, {})
        rows.append([shares.get(group, 0.0) for group in attribute.groups])
    return with_unknown(rows)
