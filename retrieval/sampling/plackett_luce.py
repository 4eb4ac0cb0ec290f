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
import math
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

HEAD = 8
"""How many items have their own clocks for each place in a lazy race.

With the 8k heaviest items, those not yet placed outweigh the at most k placed items of the tail by
7 to 1, whatever the weights. So there are few repeated arrivals, and few rounds.
"""

SHORT, SHORT_PER_PLACE = 100, 45
"""Both methods take about equally long, as measured, at 100 items for k = 1, 140 for 5, 330 for
10, 900 for 20, 2,100 for 50 and 4,900 for 100."""

BLOCKS = 1 << 14
"""This many sums are fast to build and to search; adding up a million one by one is not."""

SOME = 1 << 15
"""This many items are enough to estimate how heavy the heaviest are."""

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
    drawn = np.empty((samples, min(k, useful.size)), dtype=np.intp)
    filled = 0
    for items in (np.flatnonzero(useful), np.flatnonzero(~useful)):
        places = min(items.size, drawn.shape[1] - filled)
        if places:
            orders = race(np.zeros(items.size), samples, places, stream)
            drawn[:, filled : filled + places] = items[orders]
            filled += places
    return drawn


def deterministic(scores: ArrayLike, k: int) -> IntArray:
    """Return the one ranking by score: the positions of the min(k, n) best, best first.

    Ties go to the first position.

    Raises:
        InputError: A score is not finite.
    """
    return np.argsort(-_finite(scores), kind="stable")[:k]


def _finite(scores: ArrayLike) -> FloatArray:
    values = np.asarray(scores, dtype=np.float64)
    if not np.isfinite(values).all():
        raise InputError("A score is not a finite number; correct it, or leave the document out.")
    return values


def race(log_weights: FloatArray, samples: int, k: int, stream: np.random.Generator) -> IntArray:
    """Draw rankings by the faster of the two methods.

    Args:
        log_weights: ln w, shape (n,), finite, up to a constant.
        samples: N, at least 1.
        k: From 1 to n.
        stream: The source of random numbers.

    Returns:
        The positions, best first, shape (N, k).
    """
    if log_weights.size < max(SHORT, SHORT_PER_PLACE * k - SHORT):
        return dense_race(log_weights, samples, k, stream)
    return LazyRace(log_weights, HEAD * k).sample(samples, k, stream)


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
        steps = np.minimum(np.diff(log_weights[order]), GAP)
    closed = np.empty_like(log_weights)
    closed[order] = np.concatenate(([0.0], np.cumsum(steps)))
    return np.asarray(closed - closed.max())


def dense_race(
    log_weights: FloatArray, samples: int, k: int, stream: np.random.Generator
) -> IntArray:
    """Draw rankings with a clock for each item in each sample; see :func:`race`."""
    n = log_weights.size
    log_weights = close_gaps(log_weights)
    at_once = max(1, CELLS // n)
    drawn = np.empty((samples, k), dtype=np.intp)
    for start in range(0, samples, at_once):
        part = drawn[start : start + at_once]
        times = _log_exponentials(stream, (len(part), n))
        times -= log_weights
        part[:] = _earliest(times, k)[0]
    return drawn


class LazyRace:
    """A race that does not touch every item in every sample.

    The heaviest items, the head, have their own clocks. All others, the tail, arrive as one Poisson
    process with their total rate W: each arrival is item j with probability w_j/W, and we ignore an
    item that came before. What is left of each item's process has rate w_j, and its first arrival
    is Exp(w_j), so the race is exact.

    Args:
        log_weights: Shape (n,), finite.
        size: The size of the head, below n; preferably ``HEAD`` times the places to fill.
    """

    def __init__(self, log_weights: FloatArray, size: int) -> None:
        heaviest = _heaviest(log_weights, size + 1)
        # The tail's own weights get no noise, so only its heaviest needs its gap closed.
        closed = close_gaps(log_weights[heaviest])
        self._head, self._head_weights = heaviest[1:], closed[1:]

        n = log_weights.size
        length = -(-n // BLOCKS)
        weights = np.zeros(-(-n // length) * length)
        used = weights[:n]
        with np.errstate(over="ignore"):
            np.subtract(log_weights, log_weights[heaviest[0]], out=used)
            np.exp(used, out=used)
        used[self._head] = 0
        # Item j of the tail is at (j // length, j % length). Anything below 1e−16 of the total is
        # lost in rounding; it would be drawn about as rarely.
        self._blocks = weights.reshape(-1, length)
        self._cumulative = self._blocks.sum(axis=1).cumsum()
        self._total = float(self._cumulative[-1])
        self._tail_weight = float(closed[0]) + math.log(self._total)

    def sample(
        self, samples: int, k: int, stream: np.random.Generator, arrivals: int | None = None
    ) -> IntArray:
        """Draw rankings; see :func:`race`.

        A round watches the race up to a certain arrival of the tail. If fewer than k items have
        come by then, the race continues from there with new clocks, since the exponential
        distribution has no memory.

        Args:
            samples: N, at least 1.
            k: At least 1, and at most the size of the head.
            stream: The source of random numbers.
            arrivals: How many arrivals of the tail a round watches, at least 1; by default as many
                as are probably enough. This only affects the time.
        """
        # One in eight may be a repeat, and a few more are cheaper than another round.
        arrivals = arrivals or k + k // 4 + 4
        drawn = np.full((samples, k), -1, dtype=np.intp)
        at_once = max(1, CELLS // (self._head.size + arrivals * self._blocks.shape[1]))
        for start in range(0, samples, at_once):
            part = drawn[start : start + at_once]
            open_rows = np.arange(len(part))
            placed = part[:, :0]
            while open_rows.size:
                arrived = np.hstack((placed, self._round(open_rows.size, k, arrivals, stream)))
                placed = _first_distinct(arrived, k)
                part[open_rows] = placed
                unfinished = placed[:, -1] < 0
                open_rows, placed = open_rows[unfinished], placed[unfinished]
        return drawn

    def _round(self, rows: int, k: int, arrivals: int, stream: np.random.Generator) -> IntArray:
        """Return who arrives, in order, with repeats; −1 beyond the end of the round.

        The first k of the head are enough: at least as many of them are new as places are open.
        """
        times = _log_exponentials(stream, (rows, self._head.size))
        times -= self._head_weights
        places, head_times = _earliest(times, k)

        waits = stream.standard_exponential((rows, arrivals)).cumsum(axis=1)
        tail_times = np.log(waits) - self._tail_weight

        times = np.hstack((head_times, tail_times))
        items = np.hstack((self._head[places], self._tail((rows, arrivals), stream)))
        items[times > tail_times[:, -1:]] = -1
        return np.take_along_axis(items, times.argsort(axis=1), axis=1)

    def _tail(self, shape: tuple[int, int], stream: np.random.Generator) -> IntArray:
        """Draw items of the tail by weight: first a block by its sum, then an item in it."""
        reached = self._cumulative.searchsorted(stream.random(shape) * self._total, side="right")
        # Rounding may reach the total, which belongs to the last block with any weight.
        block = np.minimum(reached, self._cumulative.searchsorted(self._total))
        length = self._blocks.shape[1]
        if length == 1:
            return np.asarray(block)
        within = self._blocks[block].cumsum(axis=-1)
        total = within[..., -1:]
        passed = (within <= stream.random((*shape, 1)) * total) & (within < total)
        return np.asarray(block * length + passed.sum(axis=-1))


def _heaviest(log_weights: FloatArray, size: int) -> IntArray:
    """Return the positions of the heaviest items, the lightest of them first.

    An item lighter than this many of a sample of items cannot be one of them, so a sample shows
    which items to look at.
    """
    some = log_weights[:: 1 + log_weights.size // SOME]
    if some.size < size:
        some = log_weights
    enough = np.partition(some, some.size - size)[some.size - size]
    likely = np.flatnonzero(log_weights >= enough)
    first = likely.size - size
    return likely[np.argpartition(log_weights[likely], first)[first:]]


def _log_exponentials(stream: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
    """Return logarithms of exponential variates; −∞ for a 0, which comes first."""
    drawn = stream.standard_exponential(shape)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(drawn, out=drawn))


def _earliest(times: FloatArray, k: int) -> tuple[IntArray, FloatArray]:
    """Return the positions of the k earliest in each row, in order, and their times."""
    places = np.argpartition(times, k - 1, axis=1)[:, :k]
    times = np.take_along_axis(times, places, axis=1)
    order = times.argsort(axis=1)
    return np.take_along_axis(places, order, axis=1), np.take_along_axis(times, order, axis=1)


def _first_distinct(items: IntArray, k: int) -> IntArray:
    """Return the first k distinct items of each row in order, padded with −1.

    Args:
        items: Shape (N, c); −1 means no item.
        k: How many, at most c.
    """
    order = items.argsort(axis=1, kind="stable")
    sorted_items = np.take_along_axis(items, order, axis=1)
    again = np.zeros(items.shape, dtype=bool)
    again[:, 1:] = sorted_items[:, 1:] == sorted_items[:, :-1]
    again |= sorted_items < 0
    kept = items.copy()
    kept[np.arange(len(items))[:, None], order] = np.where(again, -1, sorted_items)
    # False sorts before True, and a stable sort keeps the order of arrival.
    return np.take_along_axis(kept, (kept < 0).argsort(axis=1, kind="stable")[:, :k], axis=1)
