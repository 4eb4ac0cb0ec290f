"""Exact tests and intervals of counts: how many of so many independent trials succeeded."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fairqr.base.errors import InputError
from fairqr.base.statistics import Interval

__all__ = [
    "binomial_interval",
    "binomial_tail",
    "detectable_share",
    "least_majority",
    "sign_test",
]


def binomial_tail(successes: int, trials: int, share: float = 0.5) -> float:
    """Return P(X ≥ successes) for X ~ Binomial(trials, share), summed exactly.

    Args:
        successes: Any; certain at 0 or below, impossible above ``trials``.
        trials: Independent; at least 0.
        share: The chance of each to succeed, in [0, 1].

    Raises:
        InputError: The number of trials or the share is out of range.
    """
    if trials < 0 or not 0 <= share <= 1:
        raise InputError(
            f"A binomial has at least 0 trials and a share in [0, 1], not {trials} and {share:g}."
        )
    if successes <= 0:
        return 1.0
    if successes > trials or share == 0:
        return 0.0
    if share == 1:
        return 1.0
    numbers = np.arange(1, trials + 1, dtype=np.float64)
    # ln of the coefficients 0 to trials: each is the one before, times (trials − i + 1) / i.
    steps = np.log(trials - numbers + 1) - np.log(numbers)
    logs = np.concatenate([[0.0], np.cumsum(steps)])
    places = np.arange(trials + 1)
    logs = logs + places * math.log(share) + (trials - places) * math.log1p(-share)
    return min(1.0, float(np.exp(logs[successes:]).sum()))


def sign_test(wins: int, losses: int) -> float | None:
    """Return the exact two-sided sign test: p of wins against losses, were each a fair coin's.

    Twice the chance of the more frequent of the two to be at least as frequent (Dixon & Mood 1946).
    What is neither, a tie, is left out before.

    Args:
        wins: At least 0.
        losses: At least 0.

    Returns:
        None where there is neither a win nor a loss.
    """
    if wins + losses == 0:
        return None
    return min(1.0, 2 * binomial_tail(max(wins, losses), wins + losses))


def binomial_interval(successes: int, trials: int, level: float = 0.95) -> Interval | None:
    """Return the exact interval of a share (Clopper & Pearson 1934).

    Its ends are the shares at which as many successes, or more (or fewer), have a chance of
    (1−level)/2. It holds the true share at least as often as it says, if the trials are
    independent.

    Args:
        successes: From 0 to ``trials``.
        trials: Independent.
        level: In (0, 1).

    Returns:
        None without trials.

    Raises:
        InputError: The level or the number of successes is out of range.
    """
    if not 0 < level < 1:
        raise InputError(f"The level of an interval is between 0 and 1, such as 0.95, not {level}.")
    if not 0 <= successes <= trials:
        raise InputError(f"There cannot be {successes} successes in {trials} trials.")
    if trials == 0:
        return None
    rest = (1 - level) / 2
    low = _root(lambda share: binomial_tail(successes, trials, share) - rest) if successes else 0.0
    high = 1.0
    if successes < trials:
        high = _root(lambda share: binomial_tail(successes + 1, trials, share) - (1 - rest))
    return Interval(low, high, level, 0)


def detectable_share(trials: int, *, alpha: float = 0.05, power: float = 0.8) -> float | None:
    """Return the smallest share of wins that the sign test would have found, with that power.

    Args:
        trials: Wins and losses together.
        alpha: The p at or below which something is found.
        power: The chance of finding it, in (½, 1).

    Returns:
        In (½, 1); None where not even unanimity would be significant (fewer than 6 trials at 5 %).
    """
    critical = least_majority(trials, alpha)
    if critical is None:
        return None
    return _root(lambda share: binomial_tail(critical, trials, share) - power)


def least_majority(trials: int, alpha: float = 0.05) -> int | None:
    """Return the fewest wins among so many trials that the sign test calls significant, or None."""
    if trials <= 0 or 2 * binomial_tail(trials, trials) > alpha:
        return None
    low, high = trials // 2, trials  # low is never enough, high always is
    while high - low > 1:
        middle = (low + high) // 2
        if 2 * binomial_tail(middle, trials) <= alpha:
            high = middle
        else:
            low = middle
    return high


def _root(rising: Callable[[float], float]) -> float:
    """Return where a function that rises on [0, 1] is 0, by halving."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if rising(middle) < 0:
            low = middle
        else:
            high = middle
    return high
