"""Draws rankings: by Plackett–Luce over scores, by score alone, or with useful items first.

Plackett–Luce fills the places one by one, each with probability proportional to the weights of the
remaining items (Luce 1959; Plackett 1975). "Towards Fair RAG" (Kim & Diaz 2024) computes the
weights from retrieval scores, min-max normalised to s in [1, 2], and a sharpness α:

* ``logits``: P(next = i) ∝ exp(s_i^α). The paper's formula was illegible in our copy; this form
  reproduces its published disparities, so it is the default.
* ``worths``: P(next = i) ∝ s_i^α, which is close to uniform for the paper's α of 1 to 8.

α = 0 is uniform; a large α ranks by score, with ties in random order.

Items are identified by their positions, 0 to n − 1.

Samples are exact, as races of exponential clocks. Item i arrives after a time T_i ~ Exp(rate w_i).
The order of arrival is Plackett–Luce: the next item is i with probability w_i over the total weight
of the items still missing. With log w_i + Gumbel noise as −ln T_i, this is the same as sorting by
perturbed log weights (Yellott 1977).

All times are logarithms, ln T_i = ln E_i − ln w_i with E_i ~ Exp(1), so weights may differ by any
factor.
"""

from __future__ import annotations

import hashlib
import json
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairqr.base.errors import InputError
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.rerankers.base import min_max

IntArray = NDArray[np.intp]

Form = Literal["logits", "worths"]
"""How scores become weights; see the module's docstring."""

LARGEST_ALPHA = 1000.0
"""2^1000 is still a valid floating point number."""

CELLS = 1 << 22
"""The most clocks to run at once; limits memory to about 100 MB."""

PRECISE = 1e6
"""If log weights are further apart than this, noise of about 1 is lost when added to them."""

GAP = 750.0
"""exp(−750) is 0: no item overtakes another across such a gap, so a wider one changes nothing."""


def stream_of(seed: int, *names: str) -> np.random.Generator:
    """Return the stream of random numbers for these names, e.g. a retriever and a query's id.

    The stream starts at a hash of the seed and the names, in order. Equal arguments give equal
    numbers, whatever was drawn before; different arguments give independent numbers.

    Args:
        seed: Any whole number.
        *names: What the numbers are for; ``("a", "b")`` and ``("ab",)`` have different streams.
    """
    # JSON keeps the names apart, whatever characters they contain.
    digest = hashlib.sha256(json.dumps([int(seed), *names]).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))


def sample_plackett_luce(
    scores: ArrayLike,
    alpha: float,
    samples: int,
    k: int,
    stream: np.random.Generator,
    form: Form = "logits",
) -> IntArray:
    """Draw independent rankings, cut at k; exact except for floating point rounding.

    Args:
        scores: Shape (n,), n at least 1; their scale and sign do not matter.
        alpha: From 0, uniform, to 1000; see the module's docstring.
        samples: N, at least 1.
        k: The cut-off, at least 1.
        stream: The source of random numbers; see :func:`stream_of`.
        form: How scores become weights.

    Returns:
        The positions of distinct items in each row, best first, shape (N, min(k, n)).

    Raises:
        InputError: A score is not finite.
    """
    weights = log_weights_of(scores, alpha, form)
    return race(weights, samples, min(k, weights.size), stream)


def log_weights_of(scores: ArrayLike, alpha: float, form: Form = "logits") -> FloatArray:
    """Return ln w of each document, shape (n,); see :func:`sample_plackett_luce`."""
    weights = min_max(_finite(scores))
    weights += 1
    if form == "logits":
        return np.power(weights, alpha, out=weights)
    return np.multiply(np.log(weights, out=weights), alpha, out=weights)


def sample_oracle(
    useful: NDArray[np.bool_], samples: int, k: int, stream: np.random.Generator
) -> IntArray:
    """Draw rankings uniformly from the m!(n−m)! orders that put the m useful of n items first.

    Their exposure is the target of expected exposure, so each ranking has the highest EE-R
    ("Towards Fair RAG", Kim & Diaz 2024). With m = 0 or m = n, all orders are equally likely.
    Arguments and result are as in :func:`sample_plackett_luce`, except for ``useful``: True for the
    useful items, shape (n,).
    """
    length = min(k, useful.size)
    rankings = np.empty((samples, length), dtype=np.intp)
    filled = 0
    for items in (np.flatnonzero(useful), np.flatnonzero(~useful)):
        count = min(items.size, length - filled)
        if count:
            orders = race(np.zeros(items.size), samples, count, stream)
            rankings[:, filled : filled + count] = items[orders]
            filled += count
    return rankings


def deterministic(scores: ArrayLike, k: int) -> IntArray:
    """Return the one ranking by score: the positions of the min(k, n) best, best first.

    Ties go to the first position.

    Raises:
        InputError: A score is not finite.
    """
    return np.argsort(-_finite(scores), kind="stable")[:k]


def _finite(scores: ArrayLike) -> FloatArray:
    """Return scores as an array, and refuse those that are not finite."""
    values = np.asarray(scores, dtype=np.float64)
    if not np.isfinite(values).all():
        raise InputError("A score is not a finite number; correct it, or leave the document out.")
    return values


def close_gaps(log_weights: FloatArray) -> FloatArray:
    """Return log weights with the same distribution, at most 0, that rounding does not affect.

    α = 32 gives logits up to 2^32, and α = 100 logits at which neighbouring floating point numbers
    are 2^48 apart: equal items would then only be ordered by position.

    Args:
        log_weights: Shape (n,), finite.
    """
    with np.errstate(over="ignore"):
        shifted: FloatArray = log_weights - log_weights.max()
        if shifted.min() >= -PRECISE:
            return shifted
        order = np.argsort(log_weights)
        gaps = np.minimum(np.diff(log_weights[order]), GAP)
    closed = np.empty_like(log_weights)
    closed[order] = np.concatenate(([0.0], np.cumsum(gaps)))
    return np.asarray(closed - closed.max())


def race(log_weights: FloatArray, samples: int, k: int, stream: np.random.Generator) -> IntArray:
    """Draw rankings, with a clock for each item in each sample.

    Args:
        log_weights: ln w, shape (n,), finite, up to a constant.
        samples: N, at least 1.
        k: From 1 to n.
        stream: The source of random numbers.

    Returns:
        The positions, best first, shape (N, k).
    """
    n = log_weights.size
    log_weights = close_gaps(log_weights)
    rankings = np.empty((samples, k), dtype=np.intp)
    samples_at_once = max(1, CELLS // n)
    for start in range(0, samples, samples_at_once):
        batch = rankings[start : start + samples_at_once]
        times = stream.standard_exponential((len(batch), n))
        with np.errstate(divide="ignore"):  # The logarithm of a 0 is −∞, which comes first.
            np.log(times, out=times)
        times -= log_weights
        # We only sort the first k.
        earliest = np.argpartition(times, k - 1, axis=1)[:, :k]
        order = np.take_along_axis(times, earliest, axis=1).argsort(axis=1)
        batch[:] = np.take_along_axis(earliest, order, axis=1)
    return rankings
