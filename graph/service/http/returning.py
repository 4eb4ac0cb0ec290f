"""When clients that are refused may come again."""

from __future__ import annotations

import time
from collections.abc import Callable

APART = 0.04
"""Seconds between the return times of two clients of the same key."""

LATEST = 60.0
"""The longest wait in seconds that this adds up to."""

MOST_KEPT = 1_000
"""How many keys and addresses we remember before we forget those whose times have passed."""


class ReturnTimes:
    """Gives the refused clients of a key times to return, one after the other.

    If a thousand clients were all to return in two seconds, they would return all at once, and
    refusing them again would leave no time for the clients of other keys.

    Args:
        clock: Returns seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_times: dict[str, float] = {}
        """The last return time that we gave, by key or address."""

    def wait(self, client: str, shortest: float) -> float:
        """Return in how many seconds a client that is refused now may come again.

        Args:
            client: The key or the address that it counts for.
            shortest: The seconds after which the first of its clients may.
        """
        now = self._clock()
        if len(self._last_times) >= MOST_KEPT:
            self._forget_past_times(now)

        after_last = self._last_times.get(client, 0.0) + APART - now
        longest = max(shortest, LATEST)
        wait = min(max(shortest, after_last), longest)
        self._last_times[client] = now + wait
        return wait

    def _forget_past_times(self, now: float) -> None:
        self._last_times = {
            client: moment for client, moment in self._last_times.items() if moment > now
        }
