"""Things that take a while to open, each opened once and kept for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterator
from typing import Generic, TypeVar

__all__ = ["KeptOpen"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class KeptOpen(Generic[K, V]):
    """What was opened, by its key; those asked for longest ago are forgotten.

    Args:
        size: How many are kept.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._opened: dict[K, asyncio.Task[V]] = {}

    async def get(self, key: K, opening: Callable[[], Awaitable[V]]) -> V:
        """Return what a key stands for, opened now where it is not yet.

        Who asks while another one opens it waits for that. Where opening fails, all who wait are
        told, and the next one tries again.
        """
        task = self._opened.pop(key, None)
        if task is None or (task.done() and (task.cancelled() or task.exception())):

            async def run() -> V:
                return await opening()

            task = asyncio.create_task(run())
            # Nobody may be left to take the error.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._opened[key] = task
        while len(self._opened) > self._size:
            del self._opened[next(iter(self._opened))]
        return await asyncio.shield(task)

    def __iter__(self) -> Iterator[V]:
        """Return what is open."""
        for task in [*self._opened.values()]:
            if task.done() and not task.cancelled() and task.exception() is None:
                yield task.result()

    def clear(self) -> None:
        """Forget everything, and give up what is being opened."""
        for task in self._opened.values():
            task.cancel()
        self._opened.clear()
