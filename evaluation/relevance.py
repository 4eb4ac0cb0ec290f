"""How well a ranking serves the query: the plain measures of relevance.

All functions take arrays with the ranks on the last axis, the best rank first, and any number of
axes before it; they return one value for each ranking. A ranking that is shorter than others is
padded with zeros, which count as documents that are not relevant.

The definitions are those of trec_eval (Buckley & Voorhees). Where nothing is relevant, the measures
that divide by the number of relevant documents are undefined; these functions then return 0, and
:func:`fairqr.evaluation.evaluate.evaluate` gives the reason instead of a value.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fairqr.retrieval.fairness.exposure import LOG2, Discount, FloatArray


def ndcg(
    gains: ArrayLike, ideal: ArrayLike, discount: Discount = LOG2, k: int | None = None
) -> FloatArray:
    """Return nDCG = DCG of the ranking / DCG of the best possible ranking.

    Järvelin & Kekäläinen (2002). With gains of 0 and 1 the best possible ranking has relevant
    documents at its first min(k, relevant) ranks.

    Args:
        gains: Shape (…, n): the gain of the document at each rank.
        ideal: Shape (…, m): the gains of all judged documents, highest first.
        discount: ``log2`` is usual; TREC Fair 2021 and 2022 take ``trec``.
        k: The cut-off.

    Returns:
        Shape (…), in [0, 1]; 1 is best. 0 where no document is relevant.
    """
    values = np.asarray(gains, dtype=np.float64)[..., :k]
    highest = np.asarray(ideal, dtype=np.float64)[..., :k]
    n, m = values.shape[-1], highest.shape[-1]
    weights = discount.weights(max(n, m))
    found, best = values @ weights[:n], highest @ weights[:m]
    return np.asarray(np.divide(found, best, out=np.zeros_like(found), where=best > 0))


def precision(relevant: ArrayLike, k: int) -> FloatArray:
    """Return P@k: how many of the first k documents are relevant, divided by k.

    Ranks beyond the end of a list shorter than k count as not relevant.

    Args:
        relevant: Shape (…, n), 1 where the document at that rank is relevant, else 0.
        k: The cut-off.

    Returns:
        Shape (…), in [0, 1]; 1 is best.
    """
    return np.asarray(np.asarray(relevant, dtype=np.float64)[..., :k].sum(axis=-1) / k)


def recall(relevant: ArrayLike, total: ArrayLike, k: int | None = None) -> FloatArray:
    """Return R@k: how many of all relevant documents stand in the first k ranks.

    Args:
        relevant: Shape (…, n), 1 where the document at that rank is relevant, else 0.
        total: Shape (…): how many documents are relevant.
        k: The cut-off; defaults to the whole list.

    Returns:
        Shape (…), in [0, 1]; 1 is best. 0 where no document is relevant.
    """
    found = np.asarray(relevant, dtype=np.float64)[..., :k].sum(axis=-1)
    return _share(found, total)


def average_precision(relevant: ArrayLike, total: ArrayLike, k: int | None = None) -> FloatArray:
    """Return AP = (1/R) Σ_r relevant_r · P@r, whose mean over the queries is MAP.

    Args:
        relevant: Shape (…, n), 1 where the document at that rank is relevant, else 0.
        total: R, shape (…): how many documents are relevant, found or not.
        k: Only the first k ranks are summed; R stays.

    Returns:
        Shape (…), in [0, 1]; 1 is best. 0 where no document is relevant.
    """
    values = np.asarray(relevant, dtype=np.float64)[..., :k]
    ranks = np.arange(1, values.shape[-1] + 1)
    return _share((values * values.cumsum(axis=-1) / ranks).sum(axis=-1), total)


def reciprocal_rank(relevant: ArrayLike, k: int | None = None) -> FloatArray:
    """Return RR = 1/rank of the first relevant document, whose mean over the queries is MRR.

    Args:
        relevant: Shape (…, n), 1 where the document at that rank is relevant, else 0.
        k: The cut-off; defaults to the whole list.

    Returns:
        Shape (…), in [0, 1]; 1 is best. 0 where none is found.
    """
    found = np.asarray(relevant, dtype=np.float64)[..., :k] > 0
    if not found.shape[-1]:
        return np.zeros(found.shape[:-1])
    first = found.argmax(axis=-1)
    return np.asarray(np.where(found.any(axis=-1), 1 / (first + 1), 0.0))


def _share(found: FloatArray, total: ArrayLike) -> FloatArray:
    whole = np.asarray(total, dtype=np.float64)
    return np.asarray(np.divide(found, whole, out=np.zeros_like(found), where=whole > 0))
