"""Limits on how many requests a server gets at a time, and how many a second."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque


class Limits:
    """Lets through as many requests as a server should get; use ``async with limits:`` for each.

    The limits apply to all event loops of the process together. Requests go in the order of their
    arrival.

    Args:
        concurrency: How many requests may run at a time.
        requests_per_second: The most requests a second, evenly spaced; no limit by default.
    """

    def __init__(self, concurrency: int, requests_per_second: float | None = None) -> None:
        self._free = concurrency
        self._spacing = 1 / requests_per_second if requests_per_second else 0.0
        self._next_start = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._lock = threading.Lock()

    async def __aenter__(self) -> None:
        await self._take_place()
        try:
            if (seconds := self._seconds_to_start()) > 0:
                await asyncio.sleep(seconds)
        except BaseException:
            self._give_place()
            raise

    async def __aexit__(self, *error: object) -> None:
        self._give_place()

    async def _take_place(self) -> None:
        with self._lock:
            if self._free:
                self._free -= 1
                return
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            with self._lock:
                given = turn not in self._waiting
                if not given:
                    self._waiting.remove(turn)
            if given:  # We got the place while the wait was cancelled.
                self._give_place()
            raise

    def _give_place(self) -> None:
        """Give a place to the request that has waited longest, in any loop."""
        with self._lock:
            while self._waiting:
                turn = self._waiting.popleft()
                try:
                    turn.get_loop().call_soon_threadsafe(_wake, turn)
                except RuntimeError:  # Its loop is closed; nobody waits there any more.
                    continue
                return
            self._free += 1

    def _seconds_to_start(self) -> float:
        if not self._spacing:
            return 0.0
        with self._lock:
            now = time.monotonic()
            start = max(now, self._next_start)
            self._next_start = start + self._spacing
        return start - now


def _wake(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
