"""The runs of a process, of both kinds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from fairqr.base.errors import BusyError, FairqrError, RunInterruptedError, StoreUnavailableError
from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.problems import busy, told_in_log
from fairqr.graph.service.records import NOBODY, Event, Kind, Run, path_of
from fairqr.graph.service.runs.cleaning import clean
from fairqr.graph.service.runs.doing import Observer
from fairqr.graph.service.runs.durable import DurableRun, Execute
from fairqr.graph.service.runs.ephemeral import EphemeralRuns
from fairqr.graph.service.runs.outcomes import last_event
from fairqr.graph.service.runs.queues import queue_of
from fairqr.graph.service.runs.slots import Slots
from fairqr.graph.service.store import Store
from fairqr.graph.service.store.checkpoints import lasting

FOLLOW = 0.2
"""Seconds between two looks at a run that another process does."""

TICK = 1.0
"""Seconds between two looks for what is to be cancelled or done again."""

CLEAN_EVERY = 600.0
"""Seconds between two removals of old runs; less if ``retention`` is shorter."""

_log = logging.getLogger(__name__)


class Runs:
    """The runs that this process accepts, and those that it does.

    An ephemeral run belongs to its client: it only runs here, and nothing of it is stored. A
    durable run is in the store with its events, and any process can go on with it.

    Args:
        store: The store of durable runs.
        execute: Runs a durable run; always closed in the task that started it. None if this process
            does none.
        settings: The settings of the service.
        observer: Hears what happens to runs.

    Attributes:
        ephemeral: The ephemeral runs.
        doing: The durable runs under way here, by id.
    """

    def __init__(
        self, store: Store, execute: Execute | None, settings: ServiceSettings, observer: Observer
    ) -> None:
        self._store = store
        self._execute = execute
        self._settings = settings
        self._observer = observer
        self._slots = Slots(settings.concurrency)
        self._queue = queue_of(store, settings)
        self._stack = contextlib.AsyncExitStack()
        self._ticking: asyncio.Task[None] | None = None
        self._cleaned = 0.0
        self._away = -settings.lease
        """When the database was away last: after that, all workers look as if they were silent."""
        self._changed = asyncio.Event()
        self._ended = False
        self.doing: dict[str, DurableRun] = {}
        self.ephemeral = EphemeralRuns(settings, self._slots, observer)

    @property
    def accepting(self) -> bool:
        """Whether runs are accepted; false once :meth:`drain` was called."""
        return not self._slots.closed

    async def start(self) -> None:
        """Start doing runs, including those that wait in the store.

        Raises:
            ConfigError: Another process serves the same file.
        """
        if (execute := self._execute) is None:
            await self._queue.start(None)
        else:
            saver = await self._stack.enter_async_context(self._store.database.checkpoints())
            await self._queue.start(lambda id_: self._do(id_, execute, saver))
        self._ticking = asyncio.create_task(self._tick())

    async def drain(self, grace: float) -> None:
        """Accept no more runs, and give those under way ``grace`` seconds to end; stop the others.

        Durable ones that are stopped go on in another process, or at the next start.
        """
        self._slots.close()
        if self._ticking is not None:
            self._ticking.cancel()
        try:
            await asyncio.gather(self.ephemeral.drain(grace), self._queue.drain(grace))
        finally:
            self._ended = True
            for doing in self.doing.values():  # it does not stop
                doing.leave()
            await self._stack.aclose()
            self._tell()

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
                run,
                key,
                queue=limits.queue,
                live=limits.live,
                carrier=carrier or {},
                also=lambda connection: self._queue.enqueue(connection, run.id, kind),
            )
        except BusyError as error:
            self._observer.refused("live" if error.own else "queue")
            raise
        self._observer.accepted(run)
        self._queue.accepted(run.id, kind)
        return run

    async def events(self, id_: str, key: str, after: int = 0) -> AsyncGenerator[Event, None]:
        """Yield the past and future events of a run, until it is over.

        The last event is ``end`` or ``error``, unless the service stops first. The run then goes on
        elsewhere: follow it there. Pieces of text only come where the run is done in this process.

        Args:
            id_: The id of the run.
            key: The id of the key that asks.
            after: The number of the last event that the caller has.

        Raises:
            RunNotFoundError: The key has no such run.
            StoreUnavailableError: The database cannot be used.
        """
        while True:
            run = await self._store.run(id_, key)
            local = self.doing.get(id_)
            with local.following() if local else contextlib.nullcontext() as told:
                while stored := await self._store.events(id_, after):
                    for event in stored:
                        yield event
                        after = event.number
                if told is not None:
                    async for event in told:
                        if event.number == 0 or event.number > after:
                            yield event
                            after = event.number or after
                            if event.last:
                                return
            if not run.live:
                yield last_event(run, after + 1)
                return
            if self._ended:
                return
            if told is None:
                await self._pause()

    async def result(self, id_: str, key: str) -> Run:
        """Wait until a run is over, and return it.

        Raises:
            RunNotFoundError: The key has no such run.
            RunInterruptedError: The service stops, and the run continues elsewhere.
            StoreUnavailableError: The database cannot be used.
        """
        while (run := await self._store.run(id_, key)).live:
            if self._ended:
                raise RunInterruptedError(
                    f"The service stopped, but the run continues; read its result at "
                    f"{path_of(id_)}."
                )
            local = self.doing.get(id_)
            if local is not None and not local.over.is_set():
                await local.over.wait()
            else:
                await self._pause()
        return run

    async def cancel(self, id_: str, key: str) -> Run:
        """Cancel a run; a run that is over stays unchanged.

        Returns:
            The run as it is now. A run under way ends a little later.

        Raises:
            RunNotFoundError: The key has no such run.
            StoreUnavailableError: The database cannot be used.
        """
        run = await self._store.cancel(id_, key)
        if doing := self.doing.get(id_):
            doing.cancel()
        return run

    async def _do(self, id_: str, execute: Execute, saver: BaseCheckpointSaver[Any]) -> None:
        """Do a run when there is a slot."""
        if not await self._slots.take():
            return
        try:
            attempt = await lasting(lambda: self._store.begin(id_), StoreUnavailableError)
            if attempt is None:
                return
            caps = self._settings.caps
            seconds = caps.audit_seconds if attempt.run.kind == "audit" else caps.seconds
            run = self.doing[id_] = DurableRun(
                attempt, self._store, saver, execute, seconds, self._observer
            )
            self._tell()
            try:
                await run.do()
            finally:
                if self.doing.get(id_) is run:
                    del self.doing[id_]
                self._tell()
        finally:
            self._slots.give_back()

    async def _tick(self) -> None:
        """Cancel what is to be, hand out again what nobody does, and remove what is old."""
        while True:
            await asyncio.sleep(TICK)
            try:
                for id_, status in (await self._store.to_cancel()).items():
                    if doing := self.doing.get(id_):
                        doing.cancel()
                    elif status == "queued":
                        await self._store.cancel_waiting(id_)
                if keys := self.ephemeral.keys - {NOBODY}:
                    self.ephemeral.stop_runs_of(await self._store.revoked(keys))
                if asyncio.get_running_loop().time() > self._away + self._settings.lease:
                    await self._queue.put_back()
                await self._clean()
            except FairqrError as error:
                self._away = asyncio.get_running_loop().time()
                _log.warning("Runs wait: %s", error)
            except Exception as error:
                _log.error("Runs wait because of a bug in fairqr: %s", told_in_log(error))
                _log.debug("What went wrong", exc_info=error)

    async def _clean(self) -> None:
        now = asyncio.get_running_loop().time()
        if not self._cleaned or self._cleaned + min(CLEAN_EVERY, self._settings.retention) < now:
            await self._store.forget(self._settings.retention)
            await clean(self._store, self._settings)
            self._cleaned = now

    def _tell(self) -> None:
        """Wake those who wait for a run to begin or to end."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), FOLLOW)
