"""The runs of a process, of both kinds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fairqr.base.errors import FairqrError, RunInterruptedError
from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.problems import busy, told_in_log
from fairqr.graph.service.records import NOBODY, Event, Kind, Run, is_id, path_of
from fairqr.graph.service.runs.doing import STOPPING, Observer, last_event, wait_for
from fairqr.graph.service.runs.durable import DurableRun, Execute
from fairqr.graph.service.runs.ephemeral import EphemeralRuns
from fairqr.graph.service.runs.queues import LocalQueue, SharedQueue
from fairqr.graph.service.store import Store
from fairqr.graph.service.store.checkpoints import Checkpoints, lasting

SOON, FOLLOW = 0.02, 0.2
"""Seconds between the first two and between later looks at a run that another process does."""

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
        self._queue = (LocalQueue if store.database.file else SharedQueue)(store, settings)
        self._ticking: asyncio.Task[None] | None = None
        self._clean_at = 0.0
        self._away = -settings.lease
        """When the database was away last: after that, all workers look as if they were silent."""
        self._changed = asyncio.Event()
        self._ended = False
        self.doing: dict[str, DurableRun] = {}
        self.ephemeral = EphemeralRuns(settings, observer)

    @property
    def accepting(self) -> bool:
        """Whether runs are accepted; false once :meth:`drain` was called."""
        return not self.ephemeral.slots.closed

    async def start(self) -> None:
        """Start doing runs, including those that wait in the store.

        Raises:
            ConfigError: Another process serves the same file.
        """
        do = None
        if self._execute is not None:
            do = partial(self._do, self._execute, Checkpoints(self._store.database))
        await self._queue.start(do)
        self._ticking = asyncio.create_task(self._tick())

    async def drain(self, grace: float) -> None:
        """Accept no more runs, and give those under way ``grace`` seconds to end; stop the others.

        Durable ones that are stopped go on in another process, or at the next start.
        """
        self.ephemeral.slots.close()
        if self._ticking is not None:
            self._ticking.cancel()
        try:
            await asyncio.gather(
                self.ephemeral.drain(grace),
                self._queue.drain(grace, self.doing.keys()),
                wait_for({self._ticking}, STOPPING),
            )
        finally:
            self._ended = True
            for doing in self.doing.values():  # it does not stop
                doing.leave()
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
        limits = self._settings.limits
        if not self.accepting:
            raise busy("draining", limits.live)
        run = await self._store.accept(
            self._queue.enqueue,
            queue=limits.queue,
            live=limits.live,
            key_id=key,
            kind=kind,
            query=query,
            request=dict(request),
            carrier=dict(carrier or {}),
        )
        self._observer.accepted(run)
        return run

    async def events(self, id_: str, key: str, after: int = 0) -> AsyncGenerator[Event, None]:
        """Yield the past and future events of a run, until it is over.

        The last event is ``end`` or ``error``, unless the service stops first. The run then goes on
        elsewhere: follow it there. While the database is away, nothing comes. Pieces of an answer
        come where the run is done in this process, all of them to everybody who begins to follow.

        Args:
            id_: The id of the run.
            key: The id of the key that asks.
            after: The number of the last event that the caller has.

        Raises:
            RunNotFoundError: The key has no such run.
        """
        known: Run | None = None
        local: DurableRun | None = None
        told = 0
        async for run in self._looks(id_, key):
            while run is not known and (
                stored := await lasting(partial(self._store.events, id_, after))
            ):
                for event in stored:
                    yield event
                    after = event.number
            known, before, local = run, local, self.doing.get(id_)
            if local is not None:
                told = told if local is before else 0
                for piece in local.pieces[told:]:
                    yield piece
                told = len(local.pieces)
            if not run.live:
                yield last_event(run, after + 1)

    async def result(self, id_: str, key: str) -> Run:
        """Wait until a run is over, and return it.

        Raises:
            RunNotFoundError: The key has no such run.
            RunInterruptedError: The service stops, and the run continues elsewhere.
        """
        async for run in self._looks(id_, key, steps=False):
            if not run.live:
                return run
        raise RunInterruptedError(
            f"The service stopped, but the run continues; read its result at {path_of(id_)}."
        )

    async def _looks(self, id_: str, key: str, *, steps: bool = True) -> AsyncGenerator[Run, None]:
        """Yield a run now and whenever there is news of it, until it is over or the service stops.

        Args:
            id_: The id of the run.
            key: The id of the key that asks.
            steps: Whether the end of a step is news.
        """
        run: Run | None = None
        known: tuple[DurableRun | None, int] = (None, 0)
        pause = SOON
        while True:
            local, stopping = self.doing.get(id_), self._ended  # before we look into the store
            news, stored = self._changed, 0
            if local is not None:
                news, stored = local.news if steps else local.over, local.stored
            if run is None or local is None or known != (local, stored):
                known = local, stored
                run = await lasting(partial(self._store.run, id_, key))
            yield run
            if stopping or not run.live:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if local else pause):
                    await news.wait()
            pause = min(FOLLOW, 1.5 * pause)

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
            doing.stop()
        return run

    async def _do(self, execute: Execute, saver: Checkpoints, id_: str) -> None:
        """Do a run when there is a slot."""
        if not await self.ephemeral.slots.take():
            return
        try:
            attempt = await lasting(lambda: self._store.begin(id_))
            if attempt is None:
                return
            caps = self._settings.caps
            seconds = caps.audit_seconds if attempt.run.kind == "audit" else caps.seconds
            run = self.doing[id_] = DurableRun(
                attempt.run,
                seconds,
                attempt.carrier,
                self._observer,
                attempt,
                self._store,
                saver,
                execute,
            )
            self._tell()
            try:
                await run.do()
            finally:
                if self.doing.get(id_) is run:
                    del self.doing[id_]
                self._tell()
        finally:
            self.ephemeral.slots.release()

    async def _tick(self) -> None:
        """Cancel what is to be, hand out again what nobody does, and remove what is old."""
        loop, retention = asyncio.get_running_loop(), self._settings.retention
        while True:
            await asyncio.sleep(TICK)
            try:
                for id_ in {*await self._store.to_cancel()} & self.doing.keys():
                    self.doing[id_].stop()
                if keys := {run.key for run in self.ephemeral.under_way} - {NOBODY}:
                    self.ephemeral.stop_runs_of(await self._store.revoked(keys))
                if loop.time() > self._away + self._settings.lease:
                    await self._queue.put_back()
                if loop.time() > self._clean_at:
                    await self._clean(retention)
                    self._clean_at = loop.time() + min(CLEAN_EVERY, retention)
            except FairqrError as error:
                self._away = loop.time()
                _log.warning("Runs wait: %s", error)
            except Exception as error:
                _log.error("Runs wait because of a bug in fairqr: %s", told_in_log(error))
                _log.debug("What went wrong", exc_info=error)

    async def _clean(self, retention: float) -> None:
        """Remove old runs, old traces, and audits that failed or were cancelled.

        Audits that the database does not know are removed when they are old: a service with another
        database may share the folder.
        """
        await self._store.forget(retention)
        before = time.time() - retention
        traces = await asyncio.to_thread(_written, self._settings.traces)
        audits = await asyncio.to_thread(_written, self._settings.audits_folder)
        statuses = await self._store.statuses([path.name for path in audits])
        for path, written in (traces | audits).items():
            status = statuses.get(path.name)
            if written < before if status is None else status in ("failed", "cancelled"):
                await asyncio.to_thread(_remove, path)

    def _tell(self) -> None:
        """Wake those who wait for a run to begin or to end."""
        self._changed.set()
        self._changed = asyncio.Event()


def _written(folder: Path | None) -> dict[Path, float]:
    """Return when each file or folder of a run was last written to; users may keep others there."""
    found = {}
    with contextlib.suppress(OSError):  # another process removes one, or we may not
        for path in folder.iterdir() if folder else ():
            if is_id(path.stem):
                found[path] = path.stat().st_mtime
    return found


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):  # it was a folder, or another process has removed it
        path.unlink()
