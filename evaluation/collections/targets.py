"""The targets of evaluation, from the memberships of the relevant documents: pure arithmetic.

Memberships here have the unknown mass as their last column, so that each row sums to 1: shape
(n, G+1) for an attribute of G groups. What is computed over several attributes is flattened with
the groups of the last attribute varying fastest, as in
:func:`fairqr.retrieval.fairness.exposure.intersection`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from fairqr.retrieval.fairness.exposure import Discount, FloatArray, intersection, normalise

AT_ONCE = 4096
"""How many documents' products of memberships are held at a time."""


def with_unknown(memberships: ArrayLike) -> FloatArray:
    """Append what each row lacks to 1 as the membership in the group of the unknown.

    Args:
        memberships: In the known groups, shape (n, G); a row sums to at most 1.

    Returns:
        Shape (n, G+1); rows sum to 1.
    """
    known = np.asarray(memberships, dtype=np.float64)
    unknown = np.clip(1 - known.sum(axis=-1, keepdims=True), 0, 1)
    return np.concatenate([known, unknown], axis=-1)


def known_cells(sizes: Sequence[int]) -> list[int]:
    """Return the positions of the cells of a product in which no attribute is unknown.

    Args:
        sizes: G+1 of each attribute.
    """
    return np.flatnonzero(
        functools.reduce(np.multiply.outer, [np.arange(size) < size - 1 for size in sizes])
    ).tolist()


def mean_membership(
    memberships: Sequence[ArrayLike], weights: ArrayLike | None = None
) -> FloatArray:
    """Return the mean over documents of their memberships in the product of several attributes.

    Args:
        memberships: For each attribute, shape (n, G_a), with or without the unknown.
        weights: The weight of each document, shape (n,), at least 0; all equal by default.

    Returns:
        Shape (Π G_a,); all zeros where there are no documents or no weight.
    """
    arrays = [np.asarray(members, dtype=np.float64) for members in memberships]
    count = len(arrays[0])
    weight = np.ones(count) if weights is None else np.asarray(weights, dtype=np.float64)
    total = np.zeros(math.prod(array.shape[1] for array in arrays))
    for start in range(0, count, AT_ONCE):
        part = slice(start, start + AT_ONCE)
        total += weight[part] @ intersection([array[part] for array in arrays])
    return total / weight.sum() if weight.any() else total


def trec_target(
    memberships: Sequence[ArrayLike],
    populations: Sequence[ArrayLike],
    *,
    weights: ArrayLike | None = None,
    fully_unknown: bool = True,
) -> FloatArray:
    """Return the target of TREC's Fair Ranking Track for one topic.

    Let t be the mean membership of the relevant documents in the product of the attributes, each
    with its unknown. The cells fall into blocks by which of their attributes are known. In each
    block half the mass stays as it is, and half is shared by the product of the populations of the
    block's known attributes. What is unknown in all attributes stays. For one attribute,
    ε*_g = ½ t_g + ½ (1 − t_unknown)·population_g and ε*_unknown = t_unknown.

    Source: the track's published evaluation code for 2022, Task1Alignment and Task2Alignment
    (github.com/fair-trec/trec2022-fair-public), with the attributes that have a population.

    Args:
        memberships: For each attribute those of the relevant documents, shape (n, G_a + 1); the
            unknown is last.
        populations: The shares of the known groups, for each attribute, shape (G_a,), summing to 1.
        weights: The weight of each document, shape (n,). Task 2 takes :func:`work_needed_exposure`.
        fully_unknown: Whether the cell that is unknown in all attributes keeps its mass, as in
            2022. In 2021 that mass was taken out and the rest normalised.

    Returns:
        Shape (Π (G_a + 1),), sums to 1; all zeros where there are no documents, or nothing is left.
    """
    shape = [np.asarray(members).shape[1] for members in memberships]
    mean = mean_membership(memberships, weights).reshape(shape)
    target = mean.copy()
    for known in itertools.product((True, False), repeat=len(shape)):
        if not any(known):
            continue
        block = tuple(slice(0, -1) if is_known else slice(-1, None) for is_known in known)
        factors = [
            np.asarray(population, dtype=np.float64) if is_known else np.ones(1)
            for is_known, population in zip(known, populations, strict=True)
        ]
        background = functools.reduce(np.multiply.outer, factors)
        target[block] = (mean[block] + mean[block].sum() * background) / 2
    if not fully_unknown:
        target[(-1,) * len(shape)] = 0
        return normalise(target.ravel())
    return np.asarray(target.ravel())


def work_needed_exposure(levels: Sequence[int], discount: Discount) -> FloatArray:
    """Return the exposure that each relevant document should get in task 2 of the track.

    The ideal ranking has the relevant documents in order of how much work they need, those that
    need most first; documents of one level share the exposure of the level's ranks. Source: as for
    :func:`trec_target`.

    Args:
        levels: For each relevant document of a topic; the lowest level needs most work.
        discount: The weight of each rank; the track's is ``trec``.

    Returns:
        Shape (n,), in units of the discount; in all the sum of d(r) over ranks 1 to n.
    """
    level = np.asarray(levels)
    weights = discount.weights(len(level))
    exposures = np.zeros(len(level))
    start = 0
    for value in np.unique(level):
        members = level == value
        end = start + int(members.sum())
        exposures[members] = weights[start:end].mean()
        start = end
    return exposures
