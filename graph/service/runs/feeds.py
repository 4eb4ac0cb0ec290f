"""The events of a run in memory: one writer, and many readers, each at its own pace."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from fairqr.graph.service.records import Event

LIMIT = 2000
"""The most events of a run in memory, pieces of text included."""


class Feed:
    """The latest events of a run.

    The writer never waits for readers. If a reader is so slow that it misses events, its reading
    ends, and it has to continue from the store.

    Args:
        limit: The most events to hold; the oldest go first.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._events: deque[Event] = deque()
        self._gone = 0
        """How many events were dropped."""
        self._before = 0
        self._changed = asyncio.Event()
        self.last = 0
        """The number of the last event."""
        self._closed = asyncio.Event()

    def tell(self, event: Event) -> None:
        """Add an event; a piece of text has the number 0."""
        self._events.append(event)
        self.last = event.number or self.last
        while len(self._events) > self._limit:
            self._gone += 1
            self._before = self._events.popleft().number or self._before
        self._wake()

    def close(self) -> None:
        """End the feed: readers stop after the last event."""
        self._closed.set()
        self._wake()

    @property
    def closed(self) -> bool:
        """Whether the feed has ended."""
        return self._closed.is_set()

    async def wait(self) -> None:
        """Wait until the feed has ended."""
        await self._closed.wait()

    def covers(self, after: int) -> bool:
        """Return whether the feed still holds all events after that number."""
        return self._before <= after

    async def read(self, after: int = 0) -> AsyncGenerator[Event, None]:
        """Yield the events after that number, until the feed ends.

        Args:
            after: The number of the last event that the reader has. Earlier pieces of text only go
                to readers that have none.
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
