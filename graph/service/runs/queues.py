"""What hands durable runs to the processes that do them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from fairqr.base.errors import ConfigError, StoreUnavailableError
from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.records import Kind
from fairqr.graph.service.store import Store
from fairqr.graph.service.store.database import PUTTING_BACK

Do = Callable[[str], Awaitable[None]]
"""Does a run, given its id; if it is cancelled, the run goes on elsewhere or later."""

STOPPING = 1.0
"""Seconds that stopped runs have to end."""

AGAIN = 0.5
"""Seconds before a worker that ended is started again."""

_log = logging.getLogger(__name__)


async def _nothing(id_: str) -> None:
    """Do no run."""


class RunQueue(Protocol):
    """Hands accepted runs to a process that does them."""

    async def start(self, do: Do | None) -> None:
        """Start handing out runs.

        Args:
            do: Does a run here; None if this process does none.
        """

    async def enqueue(self, connection: AsyncConnection, id_: str, kind: Kind) -> None:
        """Write that a run waits, in the transaction that accepts it."""

    def accepted(self, id_: str, kind: Kind) -> None:
        """Take note that this transaction is over."""

    async def put_back(self) -> None:
        """Hand out the runs again that nobody does any more."""

    async def drain(self, grace: float) -> None:
        """Hand out no more runs, and stop those under way after ``grace`` seconds."""


class LocalQueue:
    """All runs are done by the one process that serves a SQLite file."""

    def __init__(self, store: Store, settings: ServiceSettings) -> None:
        self._store = store
        self._audits = asyncio.Semaphore(settings.audit_concurrency)
        self._do: Do = _nothing
        self._draining = False
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._lock: Any = None

    async def start(self, do: Do | None) -> None:
        """Take what an earlier process has left.

        Raises:
            ConfigError: Another process serves this file, or this one is to do no runs.
        """
        from filelock import FileLock, Timeout

        file = self._store.database.file
        if do is None:
            raise ConfigError(
                "Runs in a SQLite file are done by the process that serves it; name a PostgreSQL "
                "database to do them elsewhere."
            )
        self._lock = FileLock(f"{file}.lock")
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ConfigError(
                f"Another process serves the runs in {file}; stop it, or name another database."
            ) from None
        self._do = do
        await self.put_back()

    async def enqueue(self, connection: AsyncConnection, id_: str, kind: Kind) -> None:
        """Do nothing: the run itself says that it waits."""

    def accepted(self, id_: str, kind: Kind) -> None:
        """Do a run as soon as there is a slot."""
        if id_ not in self._tasks and not self._draining:
            task = self._tasks[id_] = asyncio.create_task(self._done(id_, kind))
            task.add_done_callback(lambda _: self._tasks.pop(id_))

    async def _done(self, id_: str, kind: Kind) -> None:
        if kind != "audit":
            return await self._do(id_)
        async with self._audits:
            return await self._do(id_)

    async def put_back(self) -> None:
        """Do the runs that are not over and have no task, as those that a process has left."""
        for id_, kind in await self._store.unfinished():
            self.accepted(id_, kind)

    async def drain(self, grace: float) -> None:
        """Stop runs after ``grace`` seconds; the next process goes on with them."""
        self._draining = True
        if self._tasks:
            await asyncio.wait([*self._tasks.values()], timeout=grace)
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait([*self._tasks.values()], timeout=STOPPING)
        if self._lock is not None:
            self._lock.release()


_QUEUES: dict[bool, str] = {False: "runs", True: "audits"}

_UNATTENDED = sa.text(
    """SELECT id, kind FROM runs WHERE status IN ('queued', 'running') AND NOT EXISTS (
        SELECT FROM procrastinate_jobs AS job
        LEFT JOIN procrastinate_workers AS worker ON worker.id = job.worker_id
        WHERE job.queueing_lock = runs.id AND (job.status = 'todo' OR job.status = 'doing'
            AND worker.last_heartbeat > now() - make_interval(secs => :silent)))"""
)
"""Runs that are not over, without a job that waits or whose worker is alive."""

_BEAT = sa.text(
    """UPDATE procrastinate_workers SET last_heartbeat = now() WHERE id IN (
        SELECT worker_id FROM procrastinate_jobs WHERE queueing_lock = ANY(:ids))"""
)
_DELETE = sa.text("DELETE FROM procrastinate_jobs WHERE queueing_lock = :id")
_LOCK = sa.select(sa.func.pg_try_advisory_xact_lock(PUTTING_BACK))


class SharedQueue:
    """Runs in PostgreSQL, done by the workers of procrastinate in any number of processes."""

    def __init__(self, store: Store, settings: ServiceSettings) -> None:
        import procrastinate

        self._store = store
        self._settings = settings
        connector = procrastinate.PsycopgConnector(
            kwargs=store.database.arguments, min_size=1, max_size=4
        )
        self._app = procrastinate.App(connector=connector)
        self._task = self._app.task(name="fairqr.run")(self._done)
        self._do: Do = _nothing
        self._here: set[str] = set()
        self._draining = False
        self._workers: list[asyncio.Task[None]] = []

    async def start(self, do: Do | None) -> None:
        """Open the queue; with ``do``, work on it."""
        await self._app.open_async()
        if do is not None:
            self._do = do
            settings = self._settings
            self._workers = [
                asyncio.create_task(self._work(_QUEUES[False], settings.concurrency)),
                asyncio.create_task(self._work(_QUEUES[True], settings.audit_concurrency)),
            ]

    async def enqueue(self, connection: AsyncConnection, id_: str, kind: Kind) -> None:
        """Defer the job of a run."""
        driver = (await connection.get_raw_connection()).driver_connection
        await self._task.configure(
            queue=_QUEUES[kind == "audit"], queueing_lock=id_, connection=driver
        ).defer_async(id_=id_)

    def accepted(self, id_: str, kind: Kind) -> None:
        """Do nothing: procrastinate notifies its workers."""

    async def put_back(self) -> None:
        """Defer new jobs for runs whose worker is silent, and for those that have lost theirs.

        A worker that wakes up may still end the old job, but that is none of the run any more.
        """
        async with self._store.database.write() as connection:
            if not await connection.scalar(_LOCK):  # somebody else is just doing it
                return
            found = await connection.execute(_UNATTENDED, {"silent": self._settings.lease})
            for id_, kind in found.all():
                await connection.execute(_DELETE, {"id": id_})
                await self.enqueue(connection, id_, kind)

    async def drain(self, grace: float) -> None:
        """End the workers, and hand over what they did not finish in time."""
        self._draining = True
        for worker in self._workers:
            worker.cancel()
        loop = asyncio.get_running_loop()
        end, left = loop.time() + grace + STOPPING, {*self._workers}
        try:
            while left and (rest := end - loop.time()) > 0:
                _, left = await asyncio.wait(left, timeout=min(rest, self._settings.lease / 3))
                if left:  # procrastinate's own heart has stopped, and somebody else would take over
                    async with self._store.database.write() as connection:
                        await connection.execute(_BEAT, {"ids": [*self._here]})
            if self._workers:
                await self.put_back()
        except StoreUnavailableError:
            pass  # others find out
        finally:
            await self._app.close_async()

    async def _work(self, queue: str, concurrency: int) -> None:
        """Work on a queue; begin again whenever procrastinate ends its worker.

        It does so if a heartbeat fails, as when the database was away.
        """
        lease = self._settings.lease
        while not self._draining:
            try:
                await self._app.run_worker_async(
                    queues=[queue],
                    name=queue,
                    concurrency=concurrency,
                    install_signal_handlers=False,
                    fetch_job_polling_interval=1.0,
                    update_heartbeat_interval=lease / 3,
                    stalled_worker_timeout=lease,
                    shutdown_graceful_timeout=self._settings.grace,
                    delete_jobs="always",
                )
            except Exception as error:
                _log.warning("The queue of runs: %s", type(error).__name__)
            await asyncio.sleep(AGAIN)

    async def _done(self, id_: str) -> None:
        self._here.add(id_)
        try:
            await self._do(id_)
        finally:
            self._here.discard(id_)


def queue_of(store: Store, settings: ServiceSettings) -> RunQueue:
    """Return the queue of a database."""
    return LocalQueue(store, settings) if store.database.file else SharedQueue(store, settings)
