"""Following a run, whichever worker does it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fairqr.base.errors import RunInterruptedError
from fairqr.graph.service.records import Event, Run, path_of
from fairqr.graph.service.runs.execution import Execution
from fairqr.graph.service.runs.outcomes import last_event
from fairqr.graph.service.runs.worker import Worker
from fairqr.graph.service.store import Store

__all__ = ["Following"]

FOLLOW = 0.5
"""Seconds between two looks at another worker's run, without news of it."""


class Following:
    """Follows runs: those of this process from memory, others from the store.

    Args:
        store: The store of runs.
        worker: The worker of this process.
    """

    def __init__(self, store: Store, worker: Worker) -> None:
        self._store = store
        self._worker = worker

    async def events(self, id_: str, key: str, after: int = 0) -> AsyncGenerator[Event, None]:
        """Yield the past and future events of a run, until it is over.

        The last event is ``end`` or ``error``, unless the service stops first. The run then
        continues on another worker: follow it there.

        Args:
            id_: The id of the run.
            key: The id of the key that asks.
            after: The number of the last event that the caller has.

        Raises:
            RunNotFoundError: The key has no such run.
            StoreUnavailableError: The database cannot be used.
        """
        with self._worker.news.watching(id_) as changed:
            while True:
                changed.clear()
                local = self._local(id_, key)
                if local is not None and _has_more(local, after):
                    async with aclosing(local.feed.read(after)) as feed:
                        async for event in feed:
                            yield event
                            if event.last:
                                return
                            after = event.number or after
                    continue
                run = await self._store.run(id_, key)
                stored = await self._store.events(id_, after)
                for event in stored:
                    yield event
                    if event.last:
                        return
                    after = event.number
                if not stored and not run.live:
                    yield last_event(run, after + 1)
                    return
                if not stored:
                    if self._worker.ended:
                        return
                    await _set(changed)

    async def result(self, id_: str, key: str) -> Run:
        """Wait until a run is over, and return it.

        Raises:
            RunNotFoundError: The key has no such run.
            RunInterruptedError: The service stops, and the run continues elsewhere.
            StoreUnavailableError: The database cannot be used.
        """
        with self._worker.news.watching(id_) as changed:
            while True:
                changed.clear()
                local = self._local(id_, key)
                if local is not None:
                    await local.feed.wait()
                    if local.final is not None:
                        return local.final
                run = await self._store.run(id_, key)
                if not run.live:
                    return run
                if self._worker.ended:
                    raise RunInterruptedError(
                        f"The service stopped, but the run continues; read its result at "
                        f"{path_of(id_)}."
                    )
                await _set(changed)

    def _local(self, id_: str, key: str) -> Execution | None:
        """Return the execution of a key's run in this process, if there is one."""
        local = self._worker.doing.get(id_)
        return local if local is not None and local.key == key else None


async def _set(changed: asyncio.Event) -> None:
    """Wait for news, but only for a moment, since not all changes make news."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(FOLLOW):
            await changed.wait()


def _has_more(local: Execution, after: int) -> bool:
    """Return whether memory has what follows an event."""
    feed = local.feed
    return feed.covers(after) and not (feed.closed and feed.last <= after)
