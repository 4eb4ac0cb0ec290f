"""Things that take a while to open, each opened once and kept for a while."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterator
from typing import Generic, TypeVar

from fairqr.base.errors import one_line

__all__ = ["KeptOpen"]

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class KeptOpen(Generic[K, V]):
    """What was opened, by its key; those asked for longest ago are closed and forgotten.

    Args:
        size: How many are kept.
        close: Closes one of them; by default there is nothing to close.
    """

    def __init__(self, size: int, close: Callable[[V], Awaitable[None]] | None = None) -> None:
        self._size = size
        self._close = close
        self._opened: dict[K, asyncio.Task[V]] = {}
        self._closing: set[asyncio.Task[None]] = set()

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
            self._forget(self._opened.pop(next(iter(self._opened))))
        return await asyncio.shield(task)

    def forget(self, key: K) -> None:
        """Close in the background what a key stands for, if it is open."""
        if (task := self._opened.pop(key, None)) is not None:
            self._forget(task)

    def __iter__(self) -> Iterator[V]:
        """Return what is open."""
        for task in [*self._opened.values()]:
            if task.done() and not task.cancelled() and task.exception() is None:
                yield task.result()

    async def aclose(self) -> None:
        """Close and forget everything, and give up what is being opened.

        Raises:
            Exception: The first error of closing, after all others have been closed.
        """
        opened = [*self._opened.values()]
        self._opened.clear()
        for task in opened:
            task.cancel()
        closing = [self._close_opened(task) for task in opened]
        results = await asyncio.gather(*closing, *self._closing, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _forget(self, task: asyncio.Task[V]) -> None:
        """Close in the background what is no longer kept."""

        async def close() -> None:
            try:
                await self._close_opened(task)
            except Exception as error:
                log.warning("What was opened could not be closed: %s", one_line(error))

        closing = asyncio.create_task(close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _close_opened(self, task: asyncio.Task[V]) -> None:
        """Close what a task opened, as soon as it has; there is nothing to close if it failed."""
        await asyncio.wait([task])
        if self._close and not task.cancelled() and task.exception() is None:
            await self._close(task.result())
