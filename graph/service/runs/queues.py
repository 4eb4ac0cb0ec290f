"""What hands durable runs to the processes that do them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any

import sqlalchemy as sa
from filelock import FileLock, Timeout
from procrastinate.connector import BaseConnector
from procrastinate.exceptions import ConnectorException
from procrastinate.jobs import Job
from procrastinate.manager import JobManager
from sqlalchemy.ext.asyncio import AsyncConnection

from fairqr.base.errors import ConfigError, NotAllowedError, StoreUnavailableError
from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.records import Kind
from fairqr.graph.service.runs.live import STOPPING, wait_for
from fairqr.graph.service.slots import most_of
from fairqr.graph.service.store import Store
from fairqr.graph.service.store.database import PUTTING_BACK
from fairqr.graph.service.store.store import Queued

Do = Callable[[str, str, Kind], Coroutine[Any, Any, None]]
"""Does a run, given its id, its key's and its kind; it waits for a slot.

If it is cancelled, the run goes on elsewhere or later.
"""

AGAIN = 0.5
"""Seconds before a worker that ended is started again."""

POLL = 0.25
"""Seconds between two looks for a job. A new one is announced; a key that has room again is not."""

_log = logging.getLogger(__name__)


class LocalQueue:
    """All runs are done by the one process that serves a SQLite file, or by none."""

    def __init__(self, store: Store, settings: ServiceSettings) -> None:
        self._store = store
        self._works = settings.work
        self._do: Do | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._lock = FileLock(f"{store.database.file}.lock")

    async def start(self, do: Do | None) -> None:
        """Do runs, including those that an earlier process did not finish.

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
            NotAllowedError: This process does no runs, and no other one could.
        """
        if not self._works:
            raise NotAllowedError(
                "This service keeps no runs, and does no audits, since it has no PostgreSQL "
                "database; ask without 'keep', and wait for the result."
            )
        if self._do is None or run.id in self._tasks:
            return
        task = asyncio.create_task(self._do(run.id, run.key, run.kind))
        self._tasks[run.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(run.id))

    async def put_back(self) -> None:
        """Do the live runs that have no task, such as those that an earlier process left."""
        if not self._works:
            return
        for run in await self._store.unfinished():
            await self.enqueue(None, run)

    async def drain(self, grace: float, under_way: Collection[str]) -> None:
        """Stop runs after ``grace`` seconds; the next process goes on with them."""
        self._do = None
        await wait_for(self._tasks.values(), grace)
        for task in self._tasks.values():
            task.cancel()
        await wait_for(self._tasks.values(), STOPPING)
        self._lock.release()


def _log_briefly(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
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
        SELECT FROM procrastinate_jobs WHERE queueing_lock = runs.id) ORDER BY created"""
)

_BEAT = sa.text(
    """UPDATE procrastinate_workers SET last_heartbeat = now() WHERE id IN (
        SELECT worker_id FROM procrastinate_jobs WHERE queueing_lock = ANY(:ids))"""
)
_LOCK = sa.select(sa.func.pg_try_advisory_xact_lock(PUTTING_BACK))

# A run that was deleted has no key; its job ends at once.
_NEXT = """
    WITH held AS (
        SELECT key_id, count(*) AS jobs, count(*) FILTER (WHERE worker_id = %(worker)s) AS own
        FROM procrastinate_jobs AS job JOIN runs ON runs.id = job.queueing_lock
        WHERE job.status = 'doing' AND job.queue_name = %(queue)s
        GROUP BY key_id
    ), next AS (
        SELECT job.id
        FROM procrastinate_jobs AS job
        LEFT JOIN runs ON runs.id = job.queueing_lock
        LEFT JOIN held ON held.key_id = runs.key_id
        LEFT JOIN LATERAL (
            SELECT before.started FROM runs AS before
            WHERE before.key_id = runs.key_id AND before.started IS NOT NULL
                AND (before.kind = 'audit') = (runs.kind = 'audit')
            ORDER BY before.created DESC LIMIT 1
        ) AS turn ON true
        WHERE job.status = 'todo' AND job.queue_name = %(queue)s
            AND (coalesce(held.own, 0) < %(most)s OR runs.key_id = '')
        ORDER BY coalesce(held.jobs, 0), turn.started NULLS FIRST, job.id
        LIMIT 1 FOR UPDATE OF job SKIP LOCKED
    )
    UPDATE procrastinate_jobs AS job SET status = 'doing', worker_id = %(worker)s
    FROM next WHERE job.id = next.id RETURNING job.*
"""


class JobsInTurns(JobManager):
    """Takes jobs in turns of keys, over all processes, by the rule of :class:`Slots`.

    Args:
        connector: Of procrastinate.
        most: How many jobs of one key a worker of each queue takes at most. Runs without a key
            have no such bound.
    """

    def __init__(self, connector: BaseConnector, most: Mapping[str, int]) -> None:
        super().__init__(connector)
        self._most = most

    async def fetch_job(self, queues: Iterable[str] | None, worker_id: int) -> Job | None:
        """Take the next job of a queue, if there is one that may be taken."""
        (queue,) = queues or ()
        rows = await self.connector.execute_query_all_async(
            _NEXT, queue=queue, worker=worker_id, most=self._most[queue]
        )
        return Job.from_row(rows[0]) if rows else None


class SharedQueue:
    """Runs in PostgreSQL, done by the workers of procrastinate in any number of processes."""

    def __init__(self, store: Store, settings: ServiceSettings) -> None:
        self._store = store
        self._settings = settings
        self._draining = False
        self._app = store.database.queue(4)
        self._concurrency = {"runs": settings.concurrency, "audits": settings.audit_concurrency}
        most_per_key = {
            "runs": most_of(settings.concurrency, settings.traffic.share),
            "audits": settings.audit_concurrency,
        }
        self._app.job_manager = JobsInTurns(self._app.connector, most_per_key)
        self._workers: list[asyncio.Task[None]] = []

    async def start(self, do: Do | None) -> None:
        """Open the queue; with ``do``, work on it."""
        await self._app.open_async()
        asyncio.get_running_loop().set_exception_handler(_log_briefly)
        # It says with tracebacks what we say in a line when the database is away.
        logging.getLogger("procrastinate").setLevel(logging.CRITICAL)
        if do is None:
            return
        self._app.task(name="fairqr.run")(do)
        for queue in self._concurrency:
            self._workers.append(asyncio.create_task(self._work(queue)))

    async def enqueue(self, connection: AsyncConnection, run: Queued) -> None:
        """Defer the job of a run in a transaction; procrastinate notifies its workers."""
        queue = "audits" if run.kind == "audit" else "runs"
        task = self._app.configure_task(
            "fairqr.run",
            queue=queue,
            queueing_lock=run.id,
            connection=await self._store.database.driver_of(connection),
        )
        await task.defer_async(id_=run.id, key=run.key, kind=run.kind)

    async def put_back(self) -> None:
        """Defer new jobs for runs whose worker is silent, and for those that have lost theirs.

        A worker that wakes up may still end the old job, which does not affect the run any more.
        """
        async with self._store.database.begin() as connection:
            is_ours = await connection.scalar(_LOCK)
            if not is_ours:  # another process is just doing it
                return
            await connection.execute(_FORSAKEN, {"silent": self._settings.lease})
            rows = await connection.execute(_WITHOUT_JOB)
            for row in rows.all():
                await self.enqueue(connection, Queued(*row))

    async def drain(self, grace: float, under_way: Collection[str]) -> None:
        """End the workers, and hand over what they did not finish in time."""
        self._draining = True
        for worker in self._workers:
            worker.cancel()

        try:
            await self._wait_for_workers(grace + STOPPING, under_way)
            if self._workers:
                await self.put_back()
        except StoreUnavailableError:
            pass  # others find out
        finally:
            await self._app.close_async()

    async def _wait_for_workers(self, seconds: float, under_way: Collection[str]) -> None:
        """Wait until all workers have ended, but no longer than this.

        Meanwhile we send their heartbeats: procrastinate does not any more, and other processes
        would take over the runs under way.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        workers = {*self._workers}
        while workers:
            remaining = deadline - loop.time()
            if remaining <= 0:
                return
            timeout = min(remaining, self._settings.lease / 3)
            _, workers = await asyncio.wait(workers, timeout=timeout)
            if workers:
                async with self._store.database.begin() as connection:
                    await connection.execute(_BEAT, {"ids": [*under_way]})

    async def _work(self, queue: str) -> None:
        """Work on a queue; begin again whenever procrastinate ends its worker.

        It does so if a heartbeat fails, as when the database was away.
        """
        lease = self._settings.lease
        while not self._draining:
            try:
                await self._app.run_worker_async(
                    queues=[queue],
                    name=queue,
                    concurrency=self._concurrency[queue],
                    install_signal_handlers=False,
                    fetch_job_polling_interval=POLL,
                    update_heartbeat_interval=lease / 3,
                    stalled_worker_timeout=lease,
                    shutdown_graceful_timeout=self._settings.grace,
                    delete_jobs="always",
                )
            except Exception as error:
                _log.warning("The queue of runs: %s", type(error).__name__)
            await asyncio.sleep(AGAIN)
