"""What clicks say: how likely each rank is looked at, and which of two arms gets more of them.

Pure functions of arrays. The model of clicks is the position-based one (Craswell, Zoeter, Taylor
and Ramsey 2008, 10.1145/1341531.1341545): a document is clicked if its rank is looked at and it
attracts, P(click) = θ(rank) · γ(document). So θ is a discount that one's own users give.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairqr.base.errors import InputError

Floats = NDArray[np.float64]
Integers = NDArray[np.intp]

STEPS = 100
"""Newton's method takes at most so many steps."""

CLOSE = 1e-10
"""It ends once no logarithm moves by more."""


@dataclass(frozen=True, slots=True)
class Examination:
    """How likely the ranks are looked at, as shares of the first.

    Attributes:
        ranks: The ranks, from 1 on, in their order.
        values: θ of each rank, shape (n,); 1 for the first rank.
        low, high: The ends of their intervals, shape (n,).
    """

    ranks: Integers
    values: Floats
    low: Floats
    high: Floats


def examination(
    units: ArrayLike,
    ranks: ArrayLike,
    clicks: ArrayLike,
    *,
    shown: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    confidence: float = 0.95,
) -> Examination:
    """Estimate how likely each rank is looked at, from what stood at several ranks.

    Within a unit, what attracts is the same at all ranks, whatever it is. Then the clicks of a unit
    are split over its ranks in proportion to shown · θ, given how many there are, and the
    likelihood of that split is the Poisson regression with a fixed effect for each unit (Hausman,
    Hall and Griliches 1984, 10.2307/1911191). It only needs the model's means to be right
    (Wooldridge 1999, 10.1016/S0304-4076(98)00033-5), so clicks may depend on each other within a
    cluster; intervals are of log θ, by the sandwich over clusters.

    What a unit is says where the estimate comes from:

    * *By intervention*: the rank r whose document was swapped with the first by the toss of a coin,
      in those lists for which the coin was tossed, whatever it showed (Joachims, Swaminathan and
      Schnabel 2017, 10.1145/3018661.3018699). Chance makes the documents of both ranks alike.
    * *By regression*: a query with a document that stood at several ranks by itself. This holds if
      what moved it has nothing to do with how much it attracts at that time.

    Args:
        units: The unit of each observation, shape (n,), as whole numbers.
        ranks: Its rank, from 1 on.
        clicks: How often it was clicked there.
        shown: How often it was shown there; once by default.
        clusters: What observations that depend on each other share, such as the list that both
            stood in; by default the unit.
        confidence: How often the interval should hold the true value.

    Raises:
        InputError: The arrays do not fit each other, or some rank cannot be compared with the
            first: no unit with clicks links them, or it was never clicked.
    """
    rows = np.column_stack([np.asarray(it).ravel() for it in (units, ranks, clicks)])
    if not len(rows) or rows[:, 1].min() < 1:
        raise InputError("Give at least one observation, with ranks from 1 on.")
    counted = rows[:, 2].astype(np.float64)
    times = np.ones(len(rows)) if shown is None else np.asarray(shown, dtype=np.float64)
    _, unit = np.unique(rows[:, 0], return_inverse=True)
    known, rank = np.unique(rows[:, 1].astype(np.intp), return_inverse=True)
    grouped = unit if clusters is None else np.unique(np.asarray(clusters), return_inverse=True)[1]
    size = (int(unit.max()) + 1, len(known))
    exposed = _table(unit, rank, times, size)
    clicked = _table(unit, rank, counted, size)
    _require_links(known, exposed, clicked)

    logs = _fitted(exposed, clicked)
    split = _split(exposed, logs)
    totals = clicked.sum(axis=1)
    bread = np.linalg.inv(_information(split, totals)[1:, 1:])

    # The score of an observation, without what the effect of its unit explains.
    expected = totals[unit] * split[unit, rank] * times / exposed[unit, rank]
    residuals = counted - expected
    scores = _table(grouped, rank, residuals, (int(grouped.max()) + 1, len(known)))
    for column in range(len(known)):
        scores[:, column] -= np.bincount(grouped, residuals * split[unit, column])
    scores = scores[:, 1:]
    many = len(scores)
    meat = scores.T @ scores * (many / max(1, many - 1))
    errors = np.sqrt(np.diag(bread @ meat @ bread))

    reach = NormalDist().inv_cdf((1 + confidence) / 2) * np.append(0.0, errors)
    return Examination(known, np.exp(logs), np.exp(logs - reach), np.exp(logs + reach))


def _table(rows: Integers, columns: Integers, values: Floats, size: tuple[int, int]) -> Floats:
    """Return the sum of the values of each row and column."""
    places = rows * size[1] + columns
    sums = np.bincount(places, values, size[0] * size[1]).astype(np.float64)
    return sums.reshape(size)


def _require_links(known: Integers, exposed: Floats, clicked: Floats) -> None:
    """Check that units with clicks link each rank with the first.

    Raises:
        InputError: They do not.
    """
    if known[0] != 1:
        raise InputError("Nothing was shown at the first rank, with which others are compared.")
    counts = exposed[clicked.sum(axis=1) > 0] > 0
    linked = (counts.T.astype(np.int64) @ counts) > 0
    reached = np.zeros(len(known), dtype=bool)
    reached[0] = True
    for _ in known:
        reached |= linked[reached].any(axis=0)
    never = known[clicked.sum(axis=0) == 0]
    if len(never):
        raise InputError(f"Nothing at rank {never[0]} was clicked; leave it out, or wait for more.")
    if not reached.all():
        raise InputError(
            f"Nothing that was clicked links rank {known[~reached][0]} with the first; leave it "
            "out, or swap documents at random."
        )


def _split(exposed: Floats, logs: Floats) -> Floats:
    """Return the share of each rank in the clicks of each unit, by the model."""
    mass = exposed * np.exp(logs)
    return np.asarray(mass / mass.sum(axis=1, keepdims=True))


def _information(split: Floats, totals: Floats) -> Floats:
    """Return the Fisher information on log θ of all ranks, given the clicks of each unit."""
    return np.asarray(np.diag(totals @ split) - split.T @ (split * totals[:, None]))


def _fitted(exposed: Floats, clicked: Floats) -> Floats:
    """Return log θ of all ranks, that of the first being 0, by Newton's method.

    The likelihood is concave. Steps are limited, so that it is never left behind.
    """
    logs = np.zeros(exposed.shape[1])
    totals = clicked.sum(axis=1)
    for _ in range(STEPS):
        split = _split(exposed, logs)
        gradient = (clicked.sum(axis=0) - totals @ split)[1:]
        step = np.linalg.solve(_information(split, totals)[1:, 1:], gradient)
        step = np.clip(step, -1.0, 1.0)
        logs[1:] += step
        if np.abs(step).max(initial=0.0) < CLOSE:
            break
    return logs


@dataclass(frozen=True, slots=True)
class SequentialDifference:
    """How much more the fair arm is clicked, at any time that one looks.

    Attributes:
        value: The difference: clicks of a unit of the fair arm − one of the engine's.
        low, high: The ends of an interval that holds the true difference at all times together with
            the given confidence, in the limit of many units.
        units: How many units there are.
        decision: ``differs`` if 0 is outside; ``alike`` if all of it is within the margin; else
            ``go on``. Once it is not ``go on``, one may stop.
    """

    value: float
    low: float
    high: float
    units: int
    decision: str


def sequential_difference(
    clicks: ArrayLike,
    is_fair: ArrayLike,
    *,
    share: ArrayLike,
    margin: float,
    confidence: float = 0.95,
    tuned_to: int = 1_000,
) -> SequentialDifference:
    """Compare the clicks of two arms, as often as one likes while they come in.

    Looking at an ordinary test again and again, until it rejects, rejects in the end whatever is
    true. This is the asymptotic confidence sequence of Waudby-Smith, Arbour, Sinha, Kennedy and
    Ramdas (2024, 10.1214/24-AOS2408, theorem 2.2), for the mean of
    (clicks − the mean before) · (1/share for the fair arm, −1/(1 − share) for the other), whose
    expectation is the difference since chance chose the arm.

    Args:
        clicks: The clicks of each unit that chance put into an arm, in the order of time, shape
            (n,).
        is_fair: Whether it is in the fair arm.
        share: The probability of the fair arm, above 0 and below 1; one number, or that of each
            unit, shape (n,).
        margin: A difference that does not matter, above 0.
        confidence: How often the interval should hold the true value at all times.
        tuned_to: The number of units at which the interval is narrowest for what it promises.

    Raises:
        InputError: A number is out of its range, or there are fewer than two units.
    """
    counted = np.asarray(clicks, dtype=np.float64)
    fair = np.asarray(is_fair, dtype=bool)
    chance = np.asarray(share, dtype=np.float64)
    if not ((chance > 0) & (chance < 1)).all() or margin <= 0:
        raise InputError("The share lies between 0 and 1, and the margin above 0.")
    size = len(counted)
    if size < 2 or len(fair) != size:
        raise InputError("Give the clicks and the arm of at least two units.")
    before = np.append(0.0, np.cumsum(counted)[:-1]) / np.maximum(1, np.arange(size))
    weighed = (counted - before) * np.where(fair, 1 / chance, -1 / (1 - chance))
    value = float(weighed.mean())
    spread = float(weighed.std())
    alpha = 1 - confidence
    tuning = (-2 * math.log(alpha) + math.log(-2 * math.log(alpha)) + 1) / tuned_to
    grown = size * tuning + 1
    reach = spread * math.sqrt(2 * grown / (size**2 * tuning) * math.log(math.sqrt(grown) / alpha))
    low = value - reach
    high = value + reach
    decision = "go on"
    if low > 0 or high < 0:
        decision = "differs"
    elif -margin < low and high < margin:
        decision = "alike"
    return SequentialDifference(value, low, high, size, decision)
