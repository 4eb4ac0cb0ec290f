"""Waking everyone who waits for something to happen in a run."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class News:
    """Wakes the watchers of a run when something happens in it."""

    def __init__(self) -> None:
        self._watched: defaultdict[str, set[asyncio.Event]] = defaultdict(set)

    @contextmanager
    def watching(self, id_: str) -> Iterator[asyncio.Event]:
        """Return an event that is set when something happens in a run; clear it before each look.

        Args:
            id_: The id of the run.
        """
        event = asyncio.Event()
        self._watched[id_].add(event)
        try:
            yield event
        finally:
            self._watched[id_].discard(event)
            if not self._watched[id_]:
                del self._watched[id_]

    def tell(self, id_: str) -> None:
        """Wake the watchers of a run."""
        for event in self._watched.get(id_, ()):
            event.set()

    def tell_all(self) -> None:
        """Wake all watchers."""
        for id_ in self._watched:
            self.tell(id_)
