"""Remembers the newest values by key, up to a number of them, for a limited time."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Kept(Generic[K, V]):
    """Remembers values by key. Several threads may share it.

    Args:
        most: How many values are kept; beyond that, the one that was used least recently goes.
        seconds: For how long a value is kept after it was added.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._lock = threading.Lock()
        self._values: dict[K, tuple[float, V]] = {}

    def __len__(self) -> int:
        return len(self._values)

    def add(self, key: K, value: V) -> None:
        """Keep a value, in place of an earlier one of this key."""
        with self._lock:
            self._values.pop(key, None)
            self._values[key] = (time.monotonic(), value)
            if len(self._values) > self._most:
                del self._values[next(iter(self._values))]

    def get(self, key: K) -> V | None:
        """Return the value of a key; None if there is none, or it is too old."""
        with self._lock:
            entry = self._values.pop(key, None)
            if entry is None or time.monotonic() - entry[0] > self._seconds:
                return None
            self._values[key] = entry
            return entry[1]

    def clear(self) -> None:
        """Forget all values."""
        with self._lock:
            self._values.clear()
