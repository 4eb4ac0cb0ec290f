"""Exact nearest neighbours by cosine, a block of vectors at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fairqr.retrieval.encoders.encoder import Float32Array
from fairqr.retrieval.exposure import FloatArray

__all__ = ["nearest", "scores_of"]

BLOCK_BYTES = 16 << 20
SLACK = 1e-5
"""By how much the products of a block may be off; single precision errs by far less."""


def nearest(vectors: Float32Array, query: Float32Array, n: int) -> NDArray[np.int64]:
    """Return the rows whose cosine with the query is among the n highest, in no order.

    All that may tie with the last of them are among them, so there may be more than n. Rows of
    zeros have no cosine and are left out.

    The vectors are read once, block by block; beside a block's products, what is kept grows with n
    and not with the number of vectors. They may be a file that is mapped into memory.

    Args:
        vectors: Shape (N, d), of length 1 or 0.
        query: Shape (d,), of length 1.
        n: At least 1.
    """
    block = max(1, BLOCK_BYTES // (4 * vectors.shape[1]))
    rows = np.zeros(0, dtype=np.int64)
    cosines = np.zeros(0, dtype=np.float32)
    least = -np.inf
    for start in range(0, len(vectors), block):
        some = vectors[start : start + block]
        # As fast as a matrix product, which would let threads contend for the cores.
        products = np.vecdot(some, query)
        found = np.flatnonzero(products >= least)
        found = found[~_are_zero(some, products, found)]
        rows = np.concatenate([rows, found + start])
        cosines = np.concatenate([cosines, products[found]])
        if len(rows) > n:
            least = float(np.partition(cosines, -n)[-n]) - SLACK
            kept = cosines >= least
            rows, cosines = rows[kept], cosines[kept]
    return rows


def _are_zero(
    vectors: Float32Array, products: Float32Array, rows: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Tell which of these rows are zeros; only those whose product is 0 need be looked at."""
    zero = np.asarray(products[rows] == 0)
    zero[zero] = ~vectors[rows[zero]].any(axis=1)
    return zero


def scores_of(
    vectors: Float32Array, query: Float32Array, rows: Sequence[int] | NDArray[np.int64]
) -> FloatArray:
    """Return (1 + cosine)/2 of these rows with the query, shape (len(rows),); 0 for rows of zeros.

    A row's score depends on nothing but the row and the query, to the last digit.
    """
    some = vectors[np.asarray(rows, dtype=np.int64)].astype(np.float64)
    # Not a matrix product: that sums in another order when there are more rows.
    cosines = (some * query.astype(np.float64)).sum(axis=1)
    scores = np.clip((1 + cosines) / 2, 0, 1)
    scores[~some.any(axis=1)] = 0
    return np.asarray(scores)
