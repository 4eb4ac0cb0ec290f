"""The events of a run in memory: one writes, and many read, each at its own pace."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from fairqr.graph.service.records import Event

__all__ = ["Feed"]

LIMIT = 2000
"""How many events of a run are held in memory at the most, pieces of text included."""


class Feed:
    """The last events of a run.

    Whoever writes never waits for those who read. For one who reads so slowly that events are gone
    before they were read, the reading ends; the store has them.

    Args:
        after: The number of the last event that was told elsewhere before; 0 for none.
        limit: How many events are held at the most; the oldest go first.
    """

    def __init__(self, after: int = 0, limit: int = LIMIT) -> None:
        self._limit = limit
        self._events: deque[Event] = deque()
        self._gone = 0
        """How many events were held once, and are not any more."""
        self._before = after
        self._changed = asyncio.Event()
        self.last = after
        """The number of the last event that was told."""
        self._closed = asyncio.Event()

    def tell(self, event: Event) -> None:
        """Add an event; one without a number is a piece of text."""
        self._events.append(event)
        self.last = event.number or self.last
        while len(self._events) > self._limit:
            self._gone += 1
            self._before = self._events.popleft().number or self._before
        self._wake()

    def close(self) -> None:
        """Let those who read come to the end: nothing will be told here any more."""
        self._closed.set()
        self._wake()

    @property
    def closed(self) -> bool:
        """Whether nothing will be told here any more."""
        return self._closed.is_set()

    async def wait(self) -> None:
        """Wait until it is closed."""
        await self._closed.wait()

    def covers(self, after: int) -> bool:
        """Tell whether all events after that number are held, as far as they have happened."""
        return self._before <= after

    async def read(self, after: int = 0) -> AsyncGenerator[Event, None]:
        """Yield the events after that number, as they happen, until the feed is closed.

        Args:
            after: The number of the last event that the reader knows. Pieces of text that were told
                before are for those only who know none.
        """
        told = self._gone + len(self._events)
        place = self._gone
        while True:
            if place < self._gone:
                return
            changed = self._changed
            while self._gone <= place < self._gone + len(self._events):
                event = self._events[place - self._gone]
                known = event.number <= after if event.number else bool(after) and place < told
                place += 1
                if not known:
                    yield event
            if place < self._gone:
                continue
            if self.closed and place == self._gone + len(self._events):
                return
            if changed is self._changed:
                await changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
