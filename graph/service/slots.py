"""Slots for what is scarce, as for runs: keys take turns, and none takes all."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fairqr.graph.service.records import NOBODY


class Slots:
    """A number of slots. A free one goes to the key that holds the fewest, of those that wait.

    Of keys that hold as many, the one goes first that has waited longest since its last turn.

    Args:
        number: How many slots there are.
        share: The largest part of them that one key may hold, in (0, 1]; at least one slot. It
            bounds nobody without a key.
    """

    def __init__(self, number: int, share: float) -> None:
        self._free = number
        self._most = most_of(number, share)
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Those who wait, by key; the keys are in the order of their turns."""
        self._is_open = False

    async def acquire(self, key: str) -> None:
        """Wait for a slot."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, deque()).append(turn)
        self._grant()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was granted at the same moment
                self.release(key)
            else:
                self._forget(key, turn)
            raise

    def release(self, key: str) -> None:
        """Give a slot back."""
        self._held[key] -= 1
        if not self._held[key]:
            del self._held[key]  # keys and addresses come and go
        self._free += 1
        self._grant()

    @asynccontextmanager
    async def held(self, key: str) -> AsyncIterator[None]:
        """Hold a slot."""
        await self.acquire(key)
        try:
            yield
        finally:
            self.release(key)

    def open(self) -> None:
        """Let all in who wait, and all who come, as when there is nothing more to wait for."""
        self._is_open = True
        self._grant()

    def _grant(self) -> None:
        while (key := self._next()) is not None:
            turns = self._waiting.pop(key)
            turn = turns.popleft()
            if turns:
                self._waiting[key] = turns  # behind the other keys
            if turn.cancelled():  # whoever waited has left, and will see so in a moment
                continue
            self._held[key] += 1
            self._free -= 1
            turn.set_result(None)

    def _next(self) -> str | None:
        """Return whose turn it is, if there is a slot for anybody who waits."""
        if self._is_open:
            return next(iter(self._waiting), None)
        if self._free <= 0:
            return None
        able = [key for key in self._waiting if key == NOBODY or self._held[key] < self._most]
        return min(able, key=lambda key: self._held[key], default=None)

    def _forget(self, key: str, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(key, deque())
        if turn not in turns:  # it had its turn after whoever waited had left
            return
        turns.remove(turn)
        if not turns:
            del self._waiting[key]


def most_of(number: int, share: float) -> int:
    """Return how many of a number of places one key may take; at least one."""
    return max(1, int(number * share))
