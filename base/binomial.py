"""Exact tests and intervals for the number of successes among independent trials."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fairqr.base.errors import InputError
from fairqr.base.statistics import Interval, check_level


def binomial_tail(successes: int, trials: int, share: float = 0.5) -> float:
    """Return P(X ≥ successes) for X ~ Binomial(trials, share), summed exactly.

    Args:
        successes: Any number; the tail is 1 at 0 or below, and 0 above ``trials``.
        trials: The number of independent trials, at least 0.
        share: The chance that one trial succeeds, in [0, 1].

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
    # The logarithms of the binomial coefficients: each is the previous one · (trials − i + 1) / i.
    steps = np.log(trials - numbers + 1) - np.log(numbers)
    logs = np.concatenate([[0.0], np.cumsum(steps)])
    places = np.arange(trials + 1)
    logs = logs + places * math.log(share) + (trials - places) * math.log1p(-share)
    return min(1.0, float(np.exp(logs[successes:]).sum()))


def sign_test(wins: int, losses: int) -> float | None:
    """Return the p value of the exact two-sided sign test of wins against losses.

    It is twice the chance that a fair coin gives at least as many of the more frequent outcome
    (Dixon & Mood 1946). The caller leaves ties out.

    Args:
        wins: At least 0.
        losses: At least 0.

    Returns:
        The p value, or None if there are neither wins nor losses.
    """
    if wins + losses == 0:
        return None
    return min(1.0, 2 * binomial_tail(max(wins, losses), wins + losses))


def binomial_interval(successes: int, trials: int, level: float = 0.95) -> Interval | None:
    """Return the exact interval of a share (Clopper & Pearson 1934).

    At its lower end, this many successes or more have a chance of (1−level)/2; at its upper end,
    this many or fewer do. If the trials are independent, it contains the true share with at least
    the stated level.

    Args:
        successes: From 0 to ``trials``.
        trials: The number of independent trials.
        level: In (0, 1).

    Returns:
        The interval, or None without trials.

    Raises:
        InputError: The level or the number of successes is out of range.
    """
    check_level(level)
    if not 0 <= successes <= trials:
        raise InputError(f"There cannot be {successes} successes in {trials} trials.")
    if trials == 0:
        return None
    rest = (1 - level) / 2
    low = _root(lambda share: binomial_tail(successes, trials, share) - rest) if successes else 0.0
    high = 1.0
    if successes < trials:
        high = _root(lambda share: binomial_tail(successes + 1, trials, share) - (1 - rest))
    return Interval(low, high, level)


def detectable_share(trials: int, *, alpha: float = 0.05, power: float = 0.8) -> float | None:
    """Return the smallest share of wins that the sign test detects with this power.

    Args:
        trials: Wins and losses together.
        alpha: The largest p value that counts as significant.
        power: The chance to detect the share, in (½, 1).

    Returns:
        A share in (½, 1), or None if not even unanimity is significant (fewer than 6 trials at
        5 %).
    """
    critical = least_majority(trials, alpha)
    if critical is None:
        return None
    return _root(lambda share: binomial_tail(critical, trials, share) - power)


def least_majority(trials: int, alpha: float = 0.05) -> int | None:
    """Return the fewest wins among ``trials`` that are significant, or None if no number is."""
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
    """Return the zero of a function that rises on [0, 1], by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if rising(middle) < 0:
            low = middle
        else:
            high = middle
    return high
