"""Measures of what answers use of what they read, on one query.

"Towards Fair RAG" (Kim & Diaz 2024). a(i, ŷ) = 1 if answer ŷ used document i, which an attributor
says. The attributed exposure of a document is (reconstructed)

    ε^a_i = (1/N) Σ_s MU(rank of i in s)·a(i, ŷ_s),

how often it was read and used; see :mod:`fairqr.evaluation.rag.measures.retrieval` for MU and ε.
Sums to k·EAR, and is never above ε of the same rankings.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fairqr.evaluation.rag.measures.retrieval import mean_of_rows
from fairqr.evaluation.scores import Reason, Score, Undefined
from fairqr.retrieval.exposure import FloatArray

__all__ = [
    "attributed_disparity",
    "attributed_exposure",
    "attribution_share",
    "expected_attribution_rate",
]


def expected_attribution_rate(attributed: ArrayLike, judged: ArrayLike, times: ArrayLike) -> Score:
    """Return EAR (eq. 9): the mean over samples of AR, the share of documents read that were used.

    AR = (1/k) Σ_{i in the first k} a(i, ŷ), in [0, 1] (eq. 8). High: answers use what they are
    given. A document without a verdict is left out of its answer's AR; an answer without any
    verdict is left out of the mean.

    Args:
        attributed: Shape (A, k): which documents of each ranking the answer used.
        judged: Shape (A, k): for which of them that is known.
        times: Shape (A,): how often each ranking was drawn.

    Returns:
        Undefined where nothing is known.
    """
    known = np.asarray(judged, dtype=bool)
    used = (np.asarray(attributed, dtype=bool) & known).sum(axis=-1)
    counts = known.sum(axis=-1)
    weights = np.where(counts > 0, np.asarray(times, dtype=np.float64), 0.0)
    if not weights.sum():
        return Undefined(Reason.NO_VERDICT)
    return float(weights @ (used / np.maximum(counts, 1)) / weights.sum())


def attributed_exposure(
    rankings: ArrayLike, attributed: ArrayLike, times: ArrayLike, n: int
) -> FloatArray:
    """Return ε^a (eq. 10, reconstructed): how often each document was read and used, shape (n,).

    ε^a_i ≤ ε_i of the same rankings; the sum is k·EAR where every verdict is known. A document
    without a verdict counts as not used.

    Args:
        rankings: Shape (A, k): positions.
        attributed: Shape (A, k).
        times: Shape (A,).
        n: How many documents the pool has.

    Raises:
        InputError: There is no answer.
    """
    return mean_of_rows(rankings, attributed, n, times)


def attributed_disparity(exposure: ArrayLike, k: int) -> float:
    """Return EAE-D/k = Σ (ε^a_i)² / k (eq. 11, reconstructed; on one scale with EE-D/k).

    In [0, 1], and never above EE-D/k of the same rankings: where little is used it is low, and
    looks fair. See :func:`attribution_share`.

    Args:
        exposure: ε^a.
        k: How many documents are read, at most n.
    """
    values = np.asarray(exposure, dtype=np.float64)
    return float(values @ values) / k


def attribution_share(exposure: ArrayLike) -> Score:
    """Return EAE-D/(k·EAR) = Σ (ε^a_i)² / Σ ε^a_i, in (0, 1] (reconstructed).

    The chance that what was used in one sample is used in one that is drawn again, itself included:
    1 where the same documents are used always, low where use is spread. With k·EAR taken as the sum
    of ε^a, which it is where every verdict is known, it stays in (0, 1].

    Returns:
        Undefined for EAR = 0.
    """
    values = np.asarray(exposure, dtype=np.float64)
    total = float(values.sum())
    return float(values @ values) / total if total > 0 else Undefined(Reason.NO_ATTRIBUTION)
