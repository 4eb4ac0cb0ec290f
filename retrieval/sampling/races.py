"""Exact samples from Plackett–Luce as races of exponential clocks.

Item i arrives after a time T_i ~ Exp(rate w_i). The order of arrival is Plackett–Luce: the next one
is i with probability w_i over the weights of those that have not arrived. With log w_i + Gumbel
noise as −ln T_i this is the same as sorting by perturbed log weights (Yellott 1977).

All times are logarithms, ln T_i = ln E_i − ln w_i with E_i ~ Exp(1), so that weights may differ by
any factor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.sampling.tables import WeightTable

__all__ = ["HEAD", "LazyRace", "close_gaps", "dense_race", "race"]

IntArray = NDArray[np.intp]
Scalar = TypeVar("Scalar", bound=np.generic)

CELLS = 1 << 22
"""At most so many clocks are run at once; it bounds the memory to about 100 MB."""

HEAD = 8
"""Items with clocks of their own for each place in a lazy race.

With 8k of the heaviest, those of them that are not yet placed outweigh the at most k placed ones of
the tail by 7 to 1, whatever the weights. So few arrivals are repeats, and rounds are few.
"""

SHORT, SHORT_PER_PLACE = 100, 45
"""Both ways cost about the same, by measurement, at 100 items for k = 1, 140 for 5, 330 for 10, 900
for 20, 2,100 for 50 and 4,900 for 100."""

SOME = 1 << 15
"""So many items are enough to tell about how heavy the heaviest are."""

PRECISE = 1e6
"""Log weights further apart than this make noise of about 1 too coarse to be added to them."""

GAP = 750.0
"""exp(−750) is 0: across such a gap no item overtakes another, so a wider one changes nothing."""


def race(log_weights: FloatArray, samples: int, k: int, stream: np.random.Generator) -> IntArray:
    """Draw rankings in the quicker of the two ways.

    Args:
        log_weights: ln w, shape (n,), finite, up to a constant.
        samples: N, at least 1.
        k: From 1 to n.
        stream: Where the random numbers come from.

    Returns:
        Shape (N, k): positions, best first.
    """
    if log_weights.size < max(SHORT, SHORT_PER_PLACE * k - SHORT):
        return dense_race(log_weights, samples, k, stream)
    return LazyRace.of(log_weights, HEAD * k).sample(samples, k, stream)


def close_gaps(log_weights: FloatArray) -> FloatArray:
    """Return log weights of the same law, at most 0, from which noise is not rounded away.

    α = 32 gives logits up to 2^32, and α = 100 such that neighbouring floating point numbers are
    2^48 apart: equal items would then be told apart by their position alone.

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
    """Draw rankings with a clock for each item in each sample; as :func:`race`."""
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


@dataclass(frozen=True, slots=True, eq=False)
class LazyRace:
    """A race that does not touch every item in every sample.

    The heaviest items, the head, have clocks of their own. All others, the tail, arrive as one
    Poisson process of their total rate W: each arrival is item j with probability w_j/W, and one
    that came before is ignored. What is left of the process of each item is then one of rate w_j,
    whose first arrival is Exp(w_j), so the race is exact.

    Attributes:
        head: Positions, shape (h,); better ``HEAD`` times k of them than fewer.
        head_weights: Their log weights, gaps closed.
        tail: Of all items; the head has no weight there.
        tail_weight: ln W, on the scale of the head's.
    """

    head: IntArray
    head_weights: FloatArray
    tail: WeightTable
    tail_weight: float

    @classmethod
    def of(cls, log_weights: FloatArray, size: int) -> LazyRace:
        """Prepare races.

        Args:
            log_weights: Shape (n,), finite.
            size: Of the head, below n.
        """
        heaviest = _heaviest(log_weights, size + 1)
        head, first_of_tail = heaviest[1:], heaviest[0]
        tail = WeightTable.of(log_weights, head, log_weights[first_of_tail])
        # The tail's own weights get no noise, so its heaviest alone has a gap to close.
        closed = close_gaps(log_weights[heaviest])
        return cls(head, closed[1:], tail, float(closed[0]) + math.log(tail.total))

    def sample(
        self, samples: int, k: int, stream: np.random.Generator, arrivals: int | None = None
    ) -> IntArray:
        """Draw rankings; as :func:`race`.

        A round watches the race up to a certain arrival of the tail. Where fewer than k items have
        come by then the race goes on from there, with new clocks, since the exponential
        distribution has no memory.

        Args:
            samples: N, at least 1.
            k: At least 1, and at most the size of the head.
            stream: Where the random numbers come from.
            arrivals: How many arrivals of the tail a round watches, at least 1; as many as are
                likely to be enough where None. They change the time alone.
        """
        # One in eight may be a repeat, and a few more are cheaper than another round.
        arrivals = arrivals or k + k // 4 + 4
        drawn = np.full((samples, k), -1, dtype=np.intp)
        clocks = self.head.size + arrivals * self.tail.blocks.shape[1]
        at_once = max(1, CELLS // clocks)
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
        """Return who arrives, in order, with repeats; −1 for what is beyond the round's end.

        The first k of the head are enough: at least as many of them are new as places are open.
        """
        times = _log_exponentials(stream, (rows, self.head.size))
        times -= self.head_weights
        places, head_times = _earliest(times, k)

        waits = stream.standard_exponential((rows, arrivals)).cumsum(axis=1)
        tail_times = np.log(waits) - self.tail_weight
        tail = self.tail.draw((rows, arrivals), stream)

        times = np.hstack((head_times, tail_times))
        items = np.hstack((self.head[places], tail))
        items[times > tail_times[:, -1:]] = -1
        return _rows_of(items, times.argsort(axis=1))


def _heaviest(log_weights: FloatArray, size: int) -> IntArray:
    """Return the positions of the heaviest items, the lightest of them first.

    What is lighter than so many of some of the items is none of them, so a few items tell which
    others to look at.
    """
    some = log_weights[:: 1 + log_weights.size // SOME]
    if some.size < size:
        some = log_weights
    enough = np.partition(some, some.size - size)[some.size - size]
    likely = np.flatnonzero(log_weights >= enough)
    first = likely.size - size
    return likely[np.argpartition(log_weights[likely], first)[first:]]


def _log_exponentials(stream: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
    """Return logarithms of exponential variates; −∞ for one that is 0, which comes first."""
    drawn = stream.standard_exponential(shape)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(drawn, out=drawn))


def _earliest(times: FloatArray, k: int) -> tuple[IntArray, FloatArray]:
    """Return the places of the k earliest of each row, in order, and their times."""
    if k < times.shape[1]:
        places = np.argpartition(times, k - 1, axis=1)[:, :k]
        times = _rows_of(times, places)
        order = times.argsort(axis=1)
        return _rows_of(places, order), _rows_of(times, order)
    order = times.argsort(axis=1)
    return order, _rows_of(times, order)


def _first_distinct(items: IntArray, k: int) -> IntArray:
    """Return the first k distinct items of each row in order, −1 for those that are missing.

    Args:
        items: Shape (N, c); −1 is no item.
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
    """Return from each row of values what stands at the places of the same row."""
    return values[np.arange(len(values))[:, None], places]
