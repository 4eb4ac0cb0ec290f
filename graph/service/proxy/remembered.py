"""Remembers for a while of which indexes something was seen."""

from __future__ import annotations

import time


class Remembered:
    """The indexes of which something was seen not long ago.

    Args:
        seconds: How long that counts.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seen_at: dict[str, float] = {}

    def add(self, *indexes: str) -> None:
        """Remember indexes."""
        for index in indexes:
            self._seen_at[index] = time.monotonic()

    def __contains__(self, index: str) -> bool:
        """Return whether it was seen of an index."""
        seen_at = self._seen_at.get(index)
        return seen_at is not None and time.monotonic() - seen_at < self._seconds
