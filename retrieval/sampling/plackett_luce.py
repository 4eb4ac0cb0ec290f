"""Plackett–Luce: a distribution over rankings in which higher scores tend to come first.

The places are filled one by one, each with probability proportional to the weights of the remaining
items (Luce 1959; Plackett 1975). "Towards Fair RAG" (Kim & Diaz 2024) computes the weights from
retrieval scores, min-max normalised to s in [1, 2], and a sharpness α:

* ``logits``: P(next = i) ∝ exp(s_i^α). The paper's formula was illegible in our copy; this form
  reproduces its published disparities, so it is the default.
* ``worths``: P(next = i) ∝ s_i^α, which is close to uniform for the paper's α of 1 to 8.

α = 0 is uniform; a large α ranks by score, with ties in random order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairqr.base.errors import InputError
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.rerankers.base import min_max
from fairqr.retrieval.sampling.races import race

Form = Literal["logits", "worths"]
"""How scores become weights; see the module's docstring."""

LARGEST_ALPHA = 1000.0
"""2^1000 is still a valid floating point number."""


@dataclass(frozen=True, slots=True, eq=False)
class PlackettLuce:
    """A Plackett–Luce distribution over the rankings of n items.

    Create one with :meth:`of` or :meth:`from_log_weights`. Items are identified by their positions,
    0 to n − 1. Items without mass come last, uniformly among themselves.

    Attributes:
        log_weights: ln w, shape (n,), up to a constant; −∞ means no mass. Read-only.
    """

    log_weights: FloatArray

    @classmethod
    def of(cls, scores: ArrayLike, alpha: float, form: Form = "logits") -> PlackettLuce:
        """Return the policy of a retriever.

        Args:
            scores: Shape (n,), finite; their scale and sign do not matter. Equal scores give the
                uniform distribution.
            alpha: From 0, uniform, to 1000; see the module's docstring.
            form: How scores become weights.

        Raises:
            InputError: There are no scores, one is not finite, or alpha or the form is invalid.
        """
        is_number = isinstance(alpha, int | float | np.integer | np.floating)
        if not (is_number and 0 <= alpha <= LARGEST_ALPHA):
            raise InputError(
                f"The exponent alpha must be from 0 to {LARGEST_ALPHA:g}, not {alpha!r:.20}: "
                "0 ranks at random, large values rank by score."
            )
        if form not in get_args(Form):
            raise InputError(
                f"There is no form '{form}' of Plackett–Luce; choose logits or worths."
            )
        weights = min_max(_scores(scores))
        weights += 1
        if form == "logits":
            np.power(weights, alpha, out=weights)
        else:
            np.log(weights, out=weights)
            weights *= alpha
        return cls._kept(weights)

    @classmethod
    def from_log_weights(cls, log_weights: ArrayLike) -> PlackettLuce:
        """Return the distribution with these weights.

        Args:
            log_weights: ln w, shape (n,), finite or −∞.

        Raises:
            InputError: There are no weights, or one is NaN or +∞.
        """
        weights = _numbers(log_weights).copy()
        _check_pool(weights)
        # NaN is not below ∞ either.
        if not weights.max() < np.inf:
            raise InputError(
                "A log weight must be a finite number, or -inf for an item without mass."
            )
        return cls._kept(weights)

    @classmethod
    def _kept(cls, weights: FloatArray) -> PlackettLuce:
        weights.flags.writeable = False
        return cls(weights)

    @property
    def n(self) -> int:
        """The number of items."""
        return self.log_weights.size

    def sample(self, samples: int, k: int, stream: np.random.Generator) -> NDArray[np.intp]:
        """Draw independent rankings, cut at k.

        Exact except for floating point rounding; see :mod:`fairqr.retrieval.sampling.races`.

        Args:
            samples: N, at least 1.
            k: The cut-off, at least 1.
            stream: The source of random numbers; see
                :func:`fairqr.retrieval.sampling.streams.stream_of`.

        Returns:
            The positions of distinct items in each row, best first, shape (N, min(k, n)).

        Raises:
            InputError: N or k is below 1, or not a whole number.
        """
        if not _is_count(samples):
            raise InputError(
                f"The number of rankings must be a whole number of at least 1, not {samples}."
            )
        _check_cut(k)
        k = min(k, self.n)
        heavy = self._heavy
        if heavy.all():
            return race(self.log_weights, samples, k, stream)
        first = min(k, int(np.count_nonzero(heavy)))
        drawn = np.empty((samples, k), dtype=np.intp)
        if first:
            places = race(self.log_weights[heavy], samples, first, stream)
            drawn[:, :first] = np.flatnonzero(heavy)[places]
        if first < k:
            weightless = np.flatnonzero(~heavy)
            places = race(np.zeros(weightless.size), samples, k - first, stream)
            drawn[:, first:] = weightless[places]
        return drawn

    def log_probability(self, ranking: ArrayLike) -> float:
        """Return ln P of a ranking, or of all rankings that start with a partial one.

        Args:
            ranking: Distinct positions, best first, shape (r,), r from 0 to n.

        Returns:
            At most 0; −∞ if an item without mass is before one with mass.

        Raises:
            InputError: It is not a ranking of these items.
        """
        return float(self.placement_log_probabilities(ranking).sum())

    def placement_log_probabilities(self, ranking: ArrayLike) -> FloatArray:
        """Return ln P of the item at each place, given the items before it, shape (r,).

        Argument and errors are as in :meth:`log_probability`.
        """
        places = self._checked(ranking)
        heavy = self._heavy
        weights = self.log_weights[places]
        here = heavy[places]
        left = heavy.copy()
        left[places] = False

        logs = np.full(places.size, -np.inf)
        logs[here] = -_log_odds(weights[here], self.log_weights[left])
        # Items without mass only have a chance when no others are left; then all are equal.
        before = np.arange(places.size)
        due = ~here & (np.cumsum(here) == np.count_nonzero(heavy))
        logs[due] = -np.log(self.n - before[due])
        return logs

    @property
    def _heavy(self) -> NDArray[np.bool_]:
        """The items that have mass, as a mask."""
        return self.log_weights > -np.inf

    def _checked(self, ranking: ArrayLike) -> NDArray[np.intp]:
        places = np.asarray(ranking)
        if not places.size:
            return np.empty(0, dtype=np.intp)
        if (
            places.ndim != 1
            or not np.issubdtype(places.dtype, np.integer)
            or not 0 <= int(places.min()) <= int(places.max()) < self.n
            or np.unique(places).size < places.size
        ):
            raise InputError(f"A ranking must have distinct positions from 0 to {self.n - 1}.")
        return places.astype(np.intp)


def deterministic(scores: ArrayLike, k: int) -> NDArray[np.intp]:
    """Return the one ranking by score: the positions of the min(k, n) best, best first.

    Ties go to the first position.

    Args:
        scores: Shape (n,), finite.
        k: The cut-off, at least 1.

    Raises:
        InputError: There are no scores, one is not finite, or k is below 1.
    """
    values = -_scores(scores)
    _check_cut(k)
    if k < values.size:
        # All positions that may be among the first k, in order.
        places = np.flatnonzero(values <= np.partition(values, k - 1)[k - 1])
    else:
        places = np.arange(values.size)
    return places[values[places].argsort(kind="stable")[:k]]


def _log_odds(placed: FloatArray, left: FloatArray) -> FloatArray:
    """Return ln((w_i + … + w_r + W)/w_i) for each item of a ranking, shape (r,).

    We only use differences of log weights, since the weights themselves may overflow.

    Args:
        placed: ln w of the items in the ranking, shape (r,).
        left: ln w of the items that are not in it; W is the sum of their weights.
    """
    odds = np.empty_like(placed)
    # ln of the total weight after an item, divided by its own; −∞ if nothing follows.
    rest = -np.inf
    with np.errstate(over="ignore"):
        if placed.size and left.size:
            heaviest = left.max()
            rest = heaviest - placed[-1] + np.log(np.exp(left - heaviest).sum())
        for place in reversed(range(placed.size)):
            odds[place] = np.logaddexp(0.0, rest)
            if place:
                rest = placed[place] - placed[place - 1] + odds[place]
    return odds


def _scores(scores: ArrayLike) -> FloatArray:
    values = _numbers(scores)
    _check_pool(values)
    if not np.isfinite(values).all():
        raise InputError("A score is not a finite number; correct it, or leave the document out.")
    return values


def _numbers(values: ArrayLike) -> FloatArray:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):  # Text, ragged lists, 10**400.
        raise InputError(
            "Some values are not floating point numbers; give a list with one number for each item."
        ) from None


def _check_pool(values: FloatArray) -> None:
    if values.ndim != 1 or not values.size:
        raise InputError("There is nothing to rank; give a list with one number for each item.")


def _check_cut(k: int) -> None:
    if not _is_count(k):
        raise InputError(f"The cut-off k must be a whole number of at least 1, not {k}.")


def _is_count(value: object) -> bool:
    return isinstance(value, int | np.integer) and int(value) >= 1
