"""Measures of Fair RAG on one query: who is exposed, and what answers are worth.

"Towards Fair RAG" (Kim & Diaz 2024), on the expected exposure of Diaz et al. (2020). A query has a
pool of n documents, m of them useful. N rankings are sampled; the generator reads the first k of
each, all alike (the machine user: MU(r) = 1 up to k, else 0).

* ε_i = (1/N) Σ_s MU(rank of i in s): what document i is exposed. Sums to min(k, n).

What answers use is measured in :mod:`fairqr.evaluation.rag.measures.attribution`.

Everything is of one query; means over queries come later. A value is a number or a typed reason.

Two conventions go by name. ``bounds``, the default, is right: (value − least)/(greatest − least) of
what rankings of the query can reach. ``fair-rag`` gives the numbers of the paper and its code.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from fairqr.base.errors import InputError
from fairqr.evaluation.expected_exposure import ExpectedExposure, expected_exposure
from fairqr.evaluation.scores import Reason, Score, Undefined
from fairqr.retrieval.exposure import Discount, FloatArray

__all__ = [
    "Normalization",
    "disparity",
    "expected_utility",
    "item_exposure",
    "loss",
    "machine_user",
    "mean_of_rows",
    "normalised_utility",
    "not_useful",
    "relevance",
]

Normalization = Literal["bounds", "fair-rag"]


def machine_user(samples: ArrayLike, useful: ArrayLike, k: int) -> ExpectedExposure:
    """Return EE-D, EE-R and EE-L of sampled rankings, not normalised, with what can be reached.

    Args:
        samples: Shape (N, min(k, n)): positions of documents, best first.
        useful: Shape (n,): which documents are useful.
        k: How many documents the generator reads; with k > n it reads all n.

    Raises:
        InputError: There is no ranking or no document, or a position is none of a document.
    """
    return expected_exposure(samples, useful, Discount("top_k", k), k)


def item_exposure(samples: ArrayLike, n: int, times: ArrayLike | None = None) -> FloatArray:
    """Return ε, the expected exposure of each document, shape (n,), each in [0, 1].

    Args:
        samples: Shape (N, r), each row cut at k.
        n: How many documents the pool has.
        times: Shape (N,): how often each row was drawn; once where None.
    """
    ranked = np.asarray(samples, dtype=np.intp)
    return mean_of_rows(ranked, np.ones(ranked.shape), n, times)


def disparity(
    found: ExpectedExposure,
    normalization: Normalization = "bounds",
    *,
    unbiased: bool = False,
) -> Score:
    """Return EE-D = Σ ε_i², normalised; the low end is fair, all documents getting the same.

    ``bounds``: (EE-D − k²/n)/(k − k²/n), in [0, 1]; 1 for one fixed ranking, 0 for a uniform
    policy. ``fair-rag``: EE-D/k, in [k/n, 1]. A few samples overstate it; the unbiased estimate
    takes pairs of different samples, is right on average, and can be below the low end.

    Returns:
        Undefined for k ≥ n, where all rankings expose alike; the unbiased one also for one sample.
    """
    value = found.unbiased_disparity if unbiased else found.disparity
    return found.normalised(
        value, found.bounds.disparity, by_use=False, from_zero=normalization == "fair-rag"
    )


def relevance(found: ExpectedExposure, normalization: Normalization = "bounds") -> Score:
    """Return EE-R = Σ ε_i·ε*_i, normalised; high is good: exposure goes where usefulness is.

    ``bounds``: 0 with the useful documents always last, 1 with them always first, as the oracle
    has them. ``fair-rag``: the lower bound is 0, and the sum is over useful documents only, as in
    the paper's code, so that the oracle stays below 1 where m < k. Upper bound (App. C of the
    paper): m + (k−m)²/(n−m) if m ≤ k, else k²/m.

    Returns:
        Undefined for m = 0, m = n and k ≥ n.
    """
    published = normalization == "fair-rag"
    value = found.useful_relevance if published else found.relevance
    return found.normalised(value, found.bounds.relevance, from_zero=published)


def loss(found: ExpectedExposure) -> Score:
    """Return EE-L = Σ (ε_i − ε*_i)², by what can be reached, in [0, 1]; 0 is fair.

    1 is the fixed ranking with the useful documents last. The paper normalises no EE-L.

    Returns:
        Undefined for m = 0, m = n and k ≥ n.
    """
    return found.without_room(found.bounds.relevance) or found.loss / found.bounds.loss[1]


def not_useful(exposure: ArrayLike, useful: ArrayLike) -> Score:
    """Return Σ_{i not useful} ε_i / Σ ε_i: the share of exposure that goes to what does not help.

    In [0, 1], low is better; no ranking is below max(0, k−m)/k. Also for attributed exposure: the
    share of use.

    Args:
        exposure: Shape (n,), of any kind.
        useful: Shape (n,).

    Returns:
        Undefined where nothing has exposure.
    """
    values = np.asarray(exposure, dtype=np.float64)
    total = float(values.sum())
    if total <= 0:
        return Undefined(Reason.NO_ATTRIBUTION)
    return float(values[~np.asarray(useful, dtype=bool)].sum()) / total


def expected_utility(utilities: ArrayLike, times: ArrayLike) -> Score:
    """Return EU (eq. 7): the mean utility of the answers, each as often as its ranking was drawn.

    High is good; in units of the task's utility. Failed generations are to be left out before.

    Args:
        utilities: Shape (A,).
        times: Shape (A,).

    Returns:
        Undefined without answers.
    """
    values, weights = np.asarray(utilities, dtype=np.float64), np.asarray(times, dtype=np.float64)
    if not weights.sum():
        return Undefined(Reason.NO_ANSWER)
    return float(weights @ values / weights.sum())


def normalised_utility(
    expected: Score, greatest: Score, normalization: Normalization = "bounds"
) -> Score:
    """Return EU/u_max, u_max being the best that any answer to the query was worth (App. C.3).

    1 is best. It is above 1 only where u_max leaves out the answers that EU is of.

    Args:
        expected: EU.
        greatest: u_max, see :mod:`fairqr.evaluation.rag.measures.utility_bounds`.
        normalization: ``fair-rag`` gives 1 for u_max = 0, as the paper's code does.

    Returns:
        Undefined where either is, and for u_max = 0: an answer worth nothing is not perfect.
    """
    if isinstance(expected, Undefined):
        return expected
    if isinstance(greatest, Undefined):
        return greatest
    if greatest <= 0:
        return 1.0 if normalization == "fair-rag" else Undefined(Reason.NO_UTILITY)
    return expected / greatest


def mean_of_rows(
    rankings: ArrayLike, gained: ArrayLike, n: int, times: ArrayLike | None = None
) -> FloatArray:
    """Return what each of n documents gains on average over rankings, shape (n,).

    Args:
        rankings: Shape (N, r): positions.
        gained: Shape (N, r): what each place of each ranking is worth.
        n: How many documents the pool has.
        times: Shape (N,): how often each ranking was drawn; once where None.

    Raises:
        InputError: There is no ranking.
    """
    ranked = np.asarray(rankings, dtype=np.intp)
    if ranked.ndim != 2 or not len(ranked):
        raise InputError("Exposure needs at least one ranking of documents.")
    weights = np.ones(len(ranked)) if times is None else np.asarray(times, dtype=np.float64)
    values = np.asarray(gained, dtype=np.float64) * weights[:, None]
    total = np.bincount(ranked.ravel(), values.ravel(), n)
    return np.asarray(total / weights.sum(), dtype=np.float64)
