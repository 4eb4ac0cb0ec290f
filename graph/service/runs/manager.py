"""The runs of a process, of both kinds."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from fairqr.base.errors import BusyError, RunInterruptedError
from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.problems import busy
from fairqr.graph.service.records import NOBODY, Event, Kind, Run, path_of
from fairqr.graph.service.runs.doing import Observer
from fairqr.graph.service.runs.ephemeral import EphemeralRuns
from fairqr.graph.service.runs.execution import Execute, Execution
from fairqr.graph.service.runs.outcomes import last_event
from fairqr.graph.service.runs.slots import Slots
from fairqr.graph.service.runs.worker import Worker
from fairqr.graph.service.store import Store

FOLLOW = 0.5
"""Seconds between two looks at another worker's run, without news of it."""


class Runs:
    """The runs that this process accepts, and those that it does.

    An ephemeral run belongs to its client: it only runs here, and nothing of it is stored. A
    durable run is in the store with its events, and any worker can resume it.

    Args:
        store: The store of durable runs.
        execute: Runs a durable run; always closed in the task that started it.
        settings: The settings of the service.
        observer: Hears what happens to runs.

    Attributes:
        ephemeral: The ephemeral runs.
    """

    def __init__(
        self, store: Store, execute: Execute, settings: ServiceSettings, observer: Observer
    ) -> None:
        self._store = store
        self._settings = settings
        self._observer = observer
        self._slots = Slots(settings.concurrency)
        self.ephemeral = EphemeralRuns(settings, self._slots, observer)
        self._worker = Worker(
            store, execute, settings, observer, self._slots, self._end_runs_of_revoked_keys
        )

    @property
    def accepting(self) -> bool:
        """Whether runs are accepted; false once :meth:`drain` was called."""
        return not self._slots.closed

    async def start(self) -> None:
        """Start doing runs, including those that wait in the store."""
        self._worker.start()

    async def drain(self, grace: float) -> None:
        """Accept no more runs, and stop within ``grace`` + 2 seconds; see :meth:`Worker.drain`."""
        self._slots.close()
        await asyncio.gather(self.ephemeral.drain(grace), self._worker.drain(grace))

    async def submit(
        self,
        kind: Kind,
        request: Mapping[str, Any],
        *,
        key: str,
        query: str,
        carrier: Mapping[str, str] | None = None,
    ) -> Run:
        """Accept a durable run.

        Args:
            kind: The kind of the run.
            request: The checked request, for ``execute``.
            key: The id of the key that asks.
            query: The query, for lists of runs.
            carrier: The headers of the client's trace.

        Raises:
            BusyError: The key or the service has too many runs, or the service is stopping.
            StoreUnavailableError: The database cannot be used.
        """
        run = Run(
            id=uuid.uuid4().hex,
            kind=kind,
            status="queued",
            query=query,
            created=time.time(),
            request=dict(request),
        )
        limits = self._settings.limits
        if not self.accepting:
            self._observer.refused("draining")
            raise busy("draining", limits.live)
        try:
            await self._store.accept(
                run, key, queue=limits.queue, live=limits.live, carrier=dict(carrier or {})
            )
        except BusyError as error:
            self._observer.refused("live" if error.own else "queue")
            raise
        self._observer.accepted(run)
        self._worker.wake(run.id)
        return run

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

    async def cancel(self, id_: str, key: str) -> Run:
        """Cancel a run; a run that is over stays unchanged.

        Returns:
            The run as it is now. A run under way ends a little later.

        Raises:
            RunNotFoundError: The key has no such run.
            StoreUnavailableError: The database cannot be used.
        """
        run = await self._store.ask_to_cancel(id_, key)
        if doing := self._worker.doing.get(id_):
            doing.stop("cancel")
        return run

    async def _end_runs_of_revoked_keys(self) -> None:
        """Stop ephemeral runs of revoked keys; revoking cancels durable ones."""
        if keys := self.ephemeral.keys - {NOBODY}:
            self.ephemeral.stop_runs_of(await self._store.revoked(keys))

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
