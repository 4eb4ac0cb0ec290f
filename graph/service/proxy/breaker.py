"""Stops trying for a while where re-ranking an index mostly fails, as circuit breakers do."""

from __future__ import annotations

import logging
import time
from collections import deque

SPAN = 60.0
"""Seconds whose outcomes count."""

FAILURES = 10
"""So many failures in a span open the breaker, if they are at least half of what was tried."""

LASTING = 5.0
"""Seconds that failures go on at least; what is over sooner, such as one stall, is no reason."""

PAUSES = (60.0, 300.0)
"""Seconds that it stays open at first, and each time that it opens again soon after."""

log = logging.getLogger(__name__)


class Breaker:
    """Counts failures of one index, and is open where they are too many.

    Args:
        index: The index, for the log.
    """

    def __init__(self, index: str) -> None:
        self._index = index
        self._outcomes: deque[tuple[float, bool]] = deque()
        self._open_until = 0.0
        self._openings = 0

    @property
    def is_open(self) -> bool:
        """Whether nothing is tried at present."""
        if not self._open_until:
            return False
        if time.monotonic() < self._open_until:
            return True
        log.warning("Searches of '%s' are re-ranked again.", self._index)
        self._open_until = 0.0
        return False

    def add(self, *, failed: bool) -> None:
        """Count what was tried, and open where it mostly fails."""
        if self.is_open:  # it was tried before
            return
        now = time.monotonic()
        self._outcomes.append((now, failed))
        while self._outcomes[0][0] < now - SPAN:
            self._outcomes.popleft()

        failed_at = [tried_at for tried_at, has_failed in self._outcomes if has_failed]
        failures = len(failed_at)
        successes = len(self._outcomes) - failures
        if not failed:
            if successes >= FAILURES:
                self._openings = 0  # it has recovered
            return
        fails_mostly = failures >= FAILURES and failures >= successes
        fails_for_long = now - failed_at[0] >= LASTING
        if fails_mostly and fails_for_long:
            self._open(failures)

    def _open(self, failures: int) -> None:
        pause = PAUSES[min(self._openings, len(PAUSES) - 1)]
        outcomes = len(self._outcomes)
        self._open_until = time.monotonic() + pause
        self._openings += 1
        self._outcomes.clear()
        log.warning(
            "Searches of '%s' are not re-ranked for %.0f s: %s of the last %s failed or were late.",
            self._index,
            pause,
            failures,
            outcomes,
        )
