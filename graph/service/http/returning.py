"""When clients that are refused may come again."""

from __future__ import annotations

import time
from collections.abc import Callable

APART = 0.04
"""Seconds between the times that two clients of the same key are told."""
LATEST = 60.0
"""The longest wait in seconds that this adds up to."""
MOST_KEPT = 1_000
"""So many keys and addresses are remembered before those whose times have passed are forgotten."""


class ReturnTimes:
    """Tells refused clients of a key to return one after the other.

    If a thousand clients were all told to return in two seconds, they would return all at once, and
    refusing them again would leave no time for the clients of other keys.

    Args:
        clock: Returns seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[str, float] = {}
        """The last time that a client was told, by whose it is."""

    def wait(self, whose: str, least: float) -> float:
        """Return in how many seconds a client that is refused now may come again.

        Args:
            whose: The key or the address that it counts for.
            least: The seconds after which the first of them may.
        """
        now = self._clock()
        if len(self._last) >= MOST_KEPT:
            self._last = {name: told for name, told in self._last.items() if told > now}
        wait = max(least, self._last.get(whose, 0.0) + APART - now)
        wait = min(wait, max(least, LATEST))
        self._last[whose] = now + wait
        return wait
