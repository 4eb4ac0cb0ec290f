"""Exact samples from Plackett–Luce as races of exponential clocks.

Item i arrives after a time T_i ~ Exp(rate w_i). The order of arrival is Plackett–Luce: the next
item is i with probability w_i over the total weight of the items still missing. With log w_i +
Gumbel noise as −ln T_i, this is the same as sorting by perturbed log weights (Yellott 1977).

All times are logarithms, ln T_i = ln E_i − ln w_i with E_i ~ Exp(1), so weights may differ by any
factor.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fairqr.retrieval.fairness.exposure import FloatArray

IntArray = NDArray[np.intp]
Scalar = TypeVar("Scalar", bound=np.generic)

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
        return _rows_of(items, times.argsort(axis=1))

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
    times = _rows_of(times, places)
    order = times.argsort(axis=1)
    return _rows_of(places, order), _rows_of(times, order)


def _first_distinct(items: IntArray, k: int) -> IntArray:
    """Return the first k distinct items of each row in order, padded with −1.

    Args:
        items: Shape (N, c); −1 means no item.
        k: How many, at most c.
    """
    order = items.argsort(axis=1, kind="stable")
    sorted_items = _rows_of(items, order)
    again = np.zeros(items.shape, dtype=bool)
    again[:, 1:] = sorted_items[:, 1:] == sorted_items[:, :-1]
    again |= sorted_items < 0
    kept = items.copy()
    kept[np.arange(len(items))[:, None], order] = np.where(again, -1, sorted_items)
    # False sorts before True, and a stable sort keeps the order of arrival.
    return _rows_of(kept, (kept < 0).argsort(axis=1, kind="stable")[:, :k])


def _rows_of(values: NDArray[Scalar], places: IntArray) -> NDArray[Scalar]:
    """Return from each row of values those at the positions in the same row of places."""
    return values[np.arange(len(values))[:, None], places]
