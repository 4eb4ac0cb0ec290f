"""Slots for scarce resources, such as runs: keys take turns, and no key takes all of them."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fairqr.graph.service.records import NOBODY


class Slots:
    """A number of slots. A free one goes to the waiting key that holds the fewest.

    Of keys that hold equally many, the key goes first that has waited longest since its last turn.

    Args:
        number: How many slots there are.
        share: The largest part of the slots that one key may hold, in (0, 1]; at least one slot.
            Callers without a key have no such bound.
    """

    def __init__(self, number: int, share: float) -> None:
        self._free = number
        self._most_per_key = most_of(number, share)
        self._counts: Counter[str] = Counter()
        """How many slots each key holds."""
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """The turns that callers wait for, by key; the keys are in the order of their turns."""
        self._is_open = False

    async def acquire(self, key: str) -> None:
        """Wait for a slot."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, deque()).append(turn)
        self._grant()
        try:
            await turn
        except asyncio.CancelledError:
            was_granted = turn.done() and not turn.cancelled()  # at the same moment
            if was_granted:
                self.release(key)
            else:
                self._forget(key, turn)
            raise

    def release(self, key: str) -> None:
        """Give a slot back."""
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]  # keys and addresses come and go
        self._free += 1
        self._grant()

    @asynccontextmanager
    async def hold(self, key: str) -> AsyncIterator[None]:
        """Hold a slot."""
        await self.acquire(key)
        try:
            yield
        finally:
            self.release(key)

    def open(self) -> None:
        """Let all callers in, now and later, as when there is nothing more to wait for."""
        self._is_open = True
        self._grant()

    def _grant(self) -> None:
        """Give free slots to the callers that wait, in the order of their turns."""
        while (key := self._next_key()) is not None:
            turns = self._waiting.pop(key)
            turn = turns.popleft()
            if turns:
                self._waiting[key] = turns  # behind the other keys
            if turn.cancelled():  # the caller has left, and will see so in a moment
                continue
            self._counts[key] += 1
            self._free -= 1
            turn.set_result(None)

    def _next_key(self) -> str | None:
        """Return the key that gets the next slot, if one is free for any key that waits."""
        if self._is_open:
            return next(iter(self._waiting), None)
        if self._free <= 0:
            return None
        candidates = [key for key in self._waiting if self._may_have_more(key)]
        return min(candidates, key=lambda key: self._counts[key], default=None)

    def _may_have_more(self, key: str) -> bool:
        return key == NOBODY or self._counts[key] < self._most_per_key

    def _forget(self, key: str, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(key, deque())
        if turn not in turns:  # it came up after the caller had left
            return
        turns.remove(turn)
        if not turns:
            del self._waiting[key]


def most_of(number: int, share: float) -> int:
    """Return how many of a number of slots one key may have; at least one."""
    return max(1, int(number * share))
