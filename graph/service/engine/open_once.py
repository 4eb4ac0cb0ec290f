"""Things that take long to open: each is opened once and kept."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from fairqr.base.errors import one_line

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class KeptOpen(Generic[K, V]):
    """Open things by key. If there are too many, we close the least recently used.

    Args:
        size: How many to keep.
        close: Closes one of them; optional.
    """

    def __init__(self, size: int, close: Callable[[V], Awaitable[None]] | None = None) -> None:
        self._size = size
        self._close = close
        self._opened: dict[K, asyncio.Task[V]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def get(self, key: K, opening: Callable[[], Awaitable[V]]) -> V:
        """Return the thing of a key; open it if necessary.

        Callers that come while it is being opened wait for it. If opening fails, all of them get
        the error, and the next caller tries again.
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
        """Close the thing of a key in the background, if it is open."""
        if (task := self._opened.pop(key, None)) is not None:
            self._forget(task)

    async def aclose(self) -> None:
        """Close and forget everything, and stop what is being opened.

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
        """Close what a task opened, in the background."""

        async def close() -> None:
            try:
                await self._close_opened(task)
            except Exception as error:
                log.warning("An engine or a model could not be closed: %s", one_line(error))

        closing = asyncio.create_task(close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _close_opened(self, task: asyncio.Task[V]) -> None:
        """Wait for a task and close what it opened; after a failure there is nothing to close."""
        await asyncio.wait([task])
        if self._close and not task.cancelled() and task.exception() is None:
            await self._close(task.result())
