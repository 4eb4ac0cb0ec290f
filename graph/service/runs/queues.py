"""What hands durable runs to the processes that do them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import sqlalchemy as sa
from filelock import FileLock, Timeout
from procrastinate.exceptions import ConnectorException
from sqlalchemy.ext.asyncio import AsyncConnection

from fairqr.base.errors import ConfigError, NotAllowedError, StoreUnavailableError
from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.runs.live import STOPPING, wait_for
from fairqr.graph.service.runs.slots import Slots
from fairqr.graph.service.store import Store
from fairqr.graph.service.store.database import PUTTING_BACK
from fairqr.graph.service.store.store import Queued

Do = Callable[[str, str], Awaitable[None]]
"""Does a run, given its id and its key's; if it is cancelled, it goes on elsewhere or later."""

AGAIN = 0.5
"""Seconds before a worker that ended is started again."""

_log = logging.getLogger(__name__)


class LocalQueue:
    """All runs are done by the one process that serves a SQLite file, or by none."""

    def __init__(self, store: Store, settings: ServiceSettings) -> None:
        self._store = store
        self._works = settings.work
        self._do: Do | None = None
        self._audits = Slots(settings.audit_concurrency, share=1.0)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._lock = FileLock(f"{store.database.file}.lock")

    async def start(self, do: Do | None) -> None:
        """Do runs, those too that an earlier process has left.

        Raises:
            ConfigError: Another process serves this file.
        """
        if do is None:
            return
        file = self._store.database.file
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ConfigError(
                f"Another process serves the runs in {file}; stop it, or name another database."
            ) from None
        self._do = do
        await self.put_back()

    async def enqueue(self, connection: AsyncConnection | None, run: Queued) -> None:
        """Do a run as soon as there is a slot, and once the transaction that accepts it is over.

        A transaction keeps all others waiting.

        Raises:
            NotAllowedError: This process does none, and nobody else could.
        """
        if not self._works:
            raise NotAllowedError(
                "This service keeps no runs, and does no audits, since it has no PostgreSQL "
                "database; ask without 'keep', and wait for the result."
            )
        if self._do is not None and run.id not in self._tasks:
            task = self._tasks[run.id] = asyncio.create_task(self._done(self._do, run))
            task.add_done_callback(lambda _: self._tasks.pop(run.id))

    async def _done(self, do: Do, run: Queued) -> None:
        turn = self._audits.held(run.key) if run.kind == "audit" else contextlib.nullcontext()
        async with turn:
            await do(run.id, run.key)

    async def put_back(self) -> None:
        """Do the runs that are not over and have no task, as those that a process has left."""
        for run in await self._store.unfinished() if self._works else ():
            await self.enqueue(None, run)

    async def drain(self, grace: float, under_way: Collection[str]) -> None:
        """Stop runs after ``grace`` seconds; the next process goes on with them."""
        self._do = None
        await wait_for(self._tasks.values(), grace)
        for task in self._tasks.values():
            task.cancel()
        await wait_for(self._tasks.values(), STOPPING)
        self._lock.release()


def _tell_briefly(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log in one line that the end of a job could not be written: another worker took it over."""
    if isinstance(context.get("exception"), ConnectorException):
        _log.warning("The queue of runs: %s", type(context["exception"]).__name__)
    else:
        loop.default_exception_handler(context)


_FORSAKEN = sa.text(
    """DELETE FROM procrastinate_jobs AS job WHERE status <> 'todo' AND NOT EXISTS (
        SELECT FROM procrastinate_workers AS worker WHERE worker.id = job.worker_id
            AND worker.last_heartbeat > now() - make_interval(secs => :silent))"""
)
"""The jobs of workers that are silent."""

_WITHOUT_JOB = sa.text(
    """SELECT id, kind, key_id FROM runs WHERE status IN ('queued', 'running') AND NOT EXISTS (
        SELECT FROM procrastinate_jobs WHERE queueing_lock = runs.id)"""
)

_BEAT = sa.text(
    """UPDATE procrastinate_workers SET last_heartbeat = now() WHERE id IN (
        SELECT worker_id FROM procrastinate_jobs WHERE queueing_lock = ANY(:ids))"""
)
_LOCK = sa.select(sa.func.pg_try_advisory_xact_lock(PUTTING_BACK))


class SharedQueue:
    """Runs in PostgreSQL, done by the workers of procrastinate in any number of processes."""

    def __init__(self, store: Store, settings: ServiceSettings) -> None:
        self._store = store
        self._settings = settings
        self._draining = False
        self._app = store.database.queue(4)
        self._workers: list[asyncio.Task[None]] = []

    async def start(self, do: Do | None) -> None:
        """Open the queue; with ``do``, work on it."""
        await self._app.open_async()
        asyncio.get_running_loop().set_exception_handler(_tell_briefly)
        # It says with tracebacks what we say in a line when the database is away.
        logging.getLogger("procrastinate").setLevel(logging.CRITICAL)
        if do is not None:
            self._app.task(name="fairqr.run")(do)
            runs = self._work("runs", self._settings.concurrency)
            audits = self._work("audits", self._settings.audit_concurrency)
            self._workers = [asyncio.create_task(it) for it in (runs, audits)]

    async def enqueue(self, connection: AsyncConnection, run: Queued) -> None:
        """Defer the job of a run in a transaction; procrastinate notifies its workers.

        The first run of a key comes before the second of any other.
        """
        await self._app.configure_task(
            "fairqr.run",
            queue="audits" if run.kind == "audit" else "runs",
            priority=-run.before,
            queueing_lock=run.id,
            connection=await self._store.database.driver_of(connection),
        ).defer_async(id_=run.id, key=run.key)

    async def put_back(self) -> None:
        """Defer new jobs for runs whose worker is silent, and for those that have lost theirs.

        A worker that wakes up may still end the old job, but that is none of the run any more.
        """
        async with self._store.database.begin() as connection:
            if not await connection.scalar(_LOCK):  # somebody else is just doing it
                return
            await connection.execute(_FORSAKEN, {"silent": self._settings.lease})
            for row in (await connection.execute(_WITHOUT_JOB)).all():
                await self.enqueue(connection, Queued(*row))

    async def drain(self, grace: float, under_way: Collection[str]) -> None:
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
                    async with self._store.database.begin() as connection:
                        await connection.execute(_BEAT, {"ids": [*under_way]})
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
