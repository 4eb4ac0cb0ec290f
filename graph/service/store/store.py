"""Runs, their events and replies, and access keys, in SQLite or PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from fairqr.base.errors import InputError, RunCancelledError, RunNotFoundError
from fairqr.graph.service.problems import CANCELLED, busy, problem_of
from fairqr.graph.service.records import (
    LIVE,
    Event,
    Kind,
    Run,
    RunSummary,
    Status,
    is_id,
    path_of,
)
from fairqr.graph.service.store.database import Database
from fairqr.graph.service.store.keys import Keys
from fairqr.graph.service.store.tables import EVENTS, LAYOUT, REPLIES, RUNS

DELETED_AT_ONCE = 500
"""How many old runs are deleted in one transaction."""

TRIAL = 16_384
"""Bytes."""

_ACCEPTING = 0x6661_6972_0003
_SUMMARY = [RUNS.c[name] for name in RunSummary.model_fields]
_COUNTED_IN = RUNS.c.status.in_(LIVE)


_OLD_JOBS = sa.text(
    """DELETE FROM procrastinate_jobs AS job WHERE status <> 'todo'
        AND queueing_lock NOT IN (SELECT id FROM runs WHERE status IN ('queued', 'running'))
        AND NOT EXISTS (SELECT FROM procrastinate_workers AS worker
            WHERE worker.id = job.worker_id AND last_heartbeat > now() - interval '1 minute')"""
)
"""What procrastinate leaves if a worker ends between a run's end and its job's."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt at a run. The store takes what it writes while no later one has begun.

    Attributes:
        run: The run, as the attempt found it; ``attempts`` is the number of this one, from 1.
        key: The id of the key that asked for it.
        carrier: The headers of the caller's trace.
        cancel: Whether the run is to be cancelled.
        lost: How many earlier attempts ended without a word.
        version: Of the index that the run's checkpoints are over; None if there are none.
    """

    run: Run
    key: str
    carrier: dict[str, str]
    cancel: bool
    lost: int
    version: str | None


class Store(Keys):
    """The database of the service. All methods raise StoreUnavailableError if it cannot be used."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @classmethod
    async def open(cls, url: str = "") -> Store:
        """Open a database; create or upgrade it if necessary.

        Args:
            url: As :class:`Database` takes it.

        Raises:
            ConfigError: The URL is wrong.
        """
        database = Database(url)
        try:
            await database.prepare()
        except BaseException:
            await database.close()
            raise
        return cls(database)

    async def close(self) -> None:
        """Close all connections."""
        await self.database.close()

    async def check(self) -> None:
        """Check that something can be written now."""
        async with self.database.write() as connection:
            # As much as an event, and nothing that could be written in the place of what is there.
            await connection.execute(LAYOUT.update().values(trial=os.urandom(TRIAL)))

    async def accept(
        self,
        run: Run,
        key: str,
        *,
        queue: int,
        live: int,
        carrier: Mapping[str, str] = MappingProxyType({}),
        also: Callable[[AsyncConnection], Awaitable[None]] | None = None,
    ) -> None:
        """Accept a run.

        Args:
            run: The run, with the status ``queued``.
            key: The id of the key that asked for it.
            queue: The most runs of all keys that may wait.
            live: The most live runs of this key.
            carrier: The headers of the caller's trace.
            also: What else to write in the same transaction.

        Raises:
            BusyError: One of these limits is reached.
        """
        counts = sa.select(
            sa.func.count().filter(RUNS.c.key_id == key),
            sa.func.count().filter(RUNS.c.status == "queued"),
        ).where(_COUNTED_IN)
        async with self.database.write() as connection:
            if not self.database.file:  # two would both count before either is there
                await connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ACCEPTING)))
            own, waiting = (await connection.execute(counts)).one()
            if own >= live:
                raise busy("live", live)
            if waiting >= queue:
                raise busy("queue", live)
            values = run.model_dump() | {"key_id": key, "carrier": dict(carrier)}
            await connection.execute(RUNS.insert().values(**values))
            if also is not None:
                await also(connection)

    async def begin(self, id: str) -> Attempt | None:
        """Begin the next attempt at a run, and end what earlier ones may write.

        Returns:
            The attempt; None if the run is over or gone.
        """
        begun = (
            RUNS.update()
            .where(RUNS.c.id == id, _COUNTED_IN)
            .values(
                status="running",
                attempts=RUNS.c.attempts + 1,
                started=sa.func.coalesce(RUNS.c.started, self.database.now()),
            )
            .returning(*RUNS.c)
        )
        async with self.database.write() as connection:
            row = (await connection.execute(begun)).mappings().first()
        if row is None:
            return None
        lost = row["attempts"] - 1 - row["handed_over"]
        return Attempt(
            _run_of(row), row["key_id"], row["carrier"], row["cancel"], lost, row["version"]
        )

    async def add(
        self,
        run: Run,
        events: Sequence[Event] = (),
        replies: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ) -> bool:
        """Write what happened in a run; what is there already stays unchanged.

        Args:
            run: The run of an attempt.
            events: Events, with numbers from 1.
            replies: Replies of models as plain data, by the key of the question; the key counts
                how often it was asked before.

        Returns:
            False if a later attempt has begun or the run is over; nothing was written.
        """
        async with self._writing(run) as connection:
            if connection is None:
                return False
            await self._insert(connection, EVENTS, _rows_of(run.id, events))
            kept = [{"run_id": run.id, "id": id_, "reply": it} for id_, it in replies.items()]
            await self._insert(connection, REPLIES, kept)
        return True

    async def begin_over(self, run: Run, version: str) -> bool:
        """Write the version of the index of a run; see :meth:`add`."""
        async with self._writing(run, version=version) as connection:
            return connection is not None

    async def finish(self, run: Run, events: Sequence[Event] = ()) -> bool:
        """Write the last events of a run and its end; see :meth:`add`.

        Args:
            run: The run at its end.
            events: Events that are not stored yet.
        """
        end = {"status": run.status, "result": run.result, "problem": run.problem}
        async with self._writing(run, finished=self.database.now(), **end) as connection:
            if connection is None:
                return False
            await self._insert(connection, EVENTS, _rows_of(run.id, events))
            await connection.execute(REPLIES.delete().where(REPLIES.c.run_id == run.id))
        return True

    async def release(self, run: Run) -> bool:
        """Hand a run over to the next attempt; see :meth:`add`."""
        handed = RUNS.c.handed_over + 1
        async with self._writing(run, status="queued", handed_over=handed) as connection:
            return connection is not None

    @asynccontextmanager
    async def _writing(self, run: Run, **values: Any) -> AsyncIterator[AsyncConnection | None]:
        """Open a transaction in which only this attempt may write; None if it may not."""
        async with self.database.write() as connection:
            mine = RUNS.update().where(
                RUNS.c.id == run.id, RUNS.c.attempts == run.attempts, RUNS.c.status == "running"
            )
            # Also without values: it locks the row.
            kept = await connection.execute(mine.values(values or {"status": "running"}))
            yield connection if kept.rowcount else None

    async def _insert(
        self, connection: AsyncConnection, table: sa.Table, rows: list[dict[str, Any]]
    ) -> None:
        """Insert rows that are not there yet.

        It is one statement: for several, psycopg would open a pipeline, in which a process that is
        frozen keeps its locks.
        """
        if rows:
            dialect = sqlite if self.database.file else postgresql
            await connection.execute(dialect.insert(table).values(rows).on_conflict_do_nothing())

    async def cancel(self, id: str, key: str) -> Run:
        """Cancel a run: at once if it waits, otherwise whoever does it ends it.

        Returns:
            The run as it is now; a run that is over stays unchanged.

        Raises:
            RunNotFoundError: The key has no such run.
        """
        async with self.database.write() as connection:
            await _own(connection, id, key)
            await self._cancel(connection, id)
            return _run_of(await _own(connection, id, key))

    async def cancel_waiting(self, id: str) -> None:
        """Cancel a run of any key, if it waits."""
        async with self.database.write() as connection:
            await self._cancel(connection, id)

    async def _cancel(self, connection: AsyncConnection, id: str) -> None:
        live = RUNS.update().where(RUNS.c.id == id, _COUNTED_IN)
        await connection.execute(live.values(cancel=True))
        problem = problem_of(RunCancelledError(CANCELLED), path_of(id))
        ended = live.where(RUNS.c.status == "queued").values(
            status="cancelled", finished=self.database.now(), problem=problem
        )
        await connection.execute(ended)

    async def to_cancel(self) -> dict[str, Status]:
        """Return the statuses of live runs that are to be cancelled, by id."""
        query = sa.select(RUNS.c.id, RUNS.c.status).where(_COUNTED_IN, RUNS.c.cancel)
        async with self.database.read() as connection:
            return {row.id: row.status for row in await connection.execute(query)}

    async def unfinished(self) -> list[tuple[str, Kind]]:
        """Return the ids and kinds of all live runs, the oldest first."""
        query = sa.select(RUNS.c.id, RUNS.c.kind).where(_COUNTED_IN).order_by(RUNS.c.created)
        async with self.database.read() as connection:
            return [(row.id, row.kind) for row in await connection.execute(query)]

    async def run(self, id: str, key: str) -> Run:
        """Return a run.

        Raises:
            RunNotFoundError: The key has no such run.
        """
        async with self.database.read() as connection:
            return _run_of(await _own(connection, id, key))

    async def runs(
        self,
        key: str,
        *,
        limit: int = 50,
        before: float | None = None,
        kind: Kind | None = None,
        status: Status | None = None,
    ) -> list[RunSummary]:
        """Return a key's runs, the newest first.

        Args:
            key: The id of the key.
            limit: The most runs to return.
            before: Only runs accepted before this, in seconds since the epoch.
            kind: Only runs of this kind.
            status: Only runs with this status.
        """
        query = sa.select(*_SUMMARY).where(RUNS.c.key_id == key)
        if before is not None:
            query = query.where(RUNS.c.created < before)
        if kind is not None:
            query = query.where(RUNS.c.kind == kind)
        if status is not None:
            query = query.where(RUNS.c.status == status)
        query = query.order_by(RUNS.c.created.desc(), RUNS.c.id.desc()).limit(limit)
        async with self.database.read() as connection:
            return [RunSummary(**row) for row in (await connection.execute(query)).mappings()]

    async def statuses(self, ids: Collection[str]) -> dict[str, Status]:
        """Return the statuses of runs, by id; unknown ids are left out."""
        query = sa.select(RUNS.c.id, RUNS.c.status).where(RUNS.c.id.in_(ids))
        async with self.database.read() as connection:
            return {row.id: row.status for row in await connection.execute(query)}

    async def events(self, id: str, after: int = 0, limit: int = 100) -> list[Event]:
        """Return the stored events of a run, in order.

        Args:
            id: The id of the run. We do not check whose run it is.
            after: Only events with higher numbers.
            limit: The most events to return.
        """
        if not is_id(id):
            return []
        query = (
            sa.select(EVENTS.c.number, EVENTS.c.name, EVENTS.c.step, EVENTS.c.data)
            .where(EVENTS.c.run_id == id, EVENTS.c.number > after)
            .order_by(EVENTS.c.number)
            .limit(limit)
        )
        async with self.database.read() as connection:
            return [Event(**row) for row in (await connection.execute(query)).mappings()]

    async def steps(self, id: str) -> tuple[int, set[str]]:
        """Return the number of the last event of a run, and the keys of the steps that it tells."""
        query = sa.select(EVENTS.c.number, EVENTS.c.step).where(EVENTS.c.run_id == id)
        async with self.database.read() as connection:
            rows = (await connection.execute(query)).all()
        return max((row.number for row in rows), default=0), {row.step for row in rows if row.step}

    async def replies(self, id: str) -> dict[str, dict[str, Any]]:
        """Return the replies of models in a live run, by key."""
        query = sa.select(REPLIES.c.id, REPLIES.c.reply).where(REPLIES.c.run_id == id)
        async with self.database.read() as connection:
            return {row.id: row.reply for row in await connection.execute(query)}

    async def delete(self, id: str, key: str) -> Run:
        """Delete a run that is over, with its events, and return it.

        Raises:
            RunNotFoundError: The key has no such run.
            InputError: The run is not over.
        """
        async with self.database.write() as connection:
            row = await _own(connection, id, key)
            if row["status"] in LIVE:
                raise InputError(f"The run {id} is not over; cancel it first.")
            await connection.execute(RUNS.delete().where(RUNS.c.id == id))
            return _run_of(row)

    async def forget(self, seconds: float) -> int:
        """Delete the runs that ended more than this many seconds ago, by the database's clock.

        Returns:
            The number of deleted runs.
        """
        total = 0
        while True:
            old = (
                sa.select(RUNS.c.id)
                .where(RUNS.c.finished < self.database.now() - seconds, ~_COUNTED_IN)
                .limit(DELETED_AT_ONCE)
                .with_for_update(skip_locked=True)  # what another process is just deleting
            )
            async with self.database.write() as connection:
                ids = list(await connection.scalars(old))
                await connection.execute(RUNS.delete().where(RUNS.c.id.in_(ids)))
            total += len(ids)
            if len(ids) < DELETED_AT_ONCE:
                await self._forget_rests()
                return total

    async def _forget_rests(self) -> None:
        """Delete what only live runs need, where a crash has left it."""
        live = sa.select(RUNS.c.id).where(_COUNTED_IN)
        names = ["checkpoints", "writes"]
        if not self.database.file:
            names = ["checkpoints", "checkpoint_blobs", "checkpoint_writes"]
        threads = [sa.table(name, sa.column("thread_id")) for name in names]
        async with self.database.write() as connection:
            await connection.execute(REPLIES.delete().where(REPLIES.c.run_id.not_in(live)))
            for table in threads:
                await connection.execute(table.delete().where(table.c.thread_id.not_in(live)))
            if not self.database.file:
                await connection.execute(_OLD_JOBS)

    async def counts(self) -> dict[Status, int]:
        """Return the numbers of live runs, by status; zeros are left out."""
        # Past runs are not counted each time.
        query = sa.select(RUNS.c.status, sa.func.count()).where(_COUNTED_IN)
        async with self.database.read() as connection:
            found = await connection.execute(query.group_by(RUNS.c.status))
            return {cast("Status", status): count for status, count in found.all()}


async def _own(connection: AsyncConnection, id: str, key: str) -> Any:
    """Return the row of a run that belongs to the key.

    Raises:
        RunNotFoundError: There is none, or it belongs to another key; the message does not say
            which.
    """
    row = None
    if is_id(id):  # PostgreSQL refuses some other texts
        query = sa.select(RUNS).where(RUNS.c.id == id, RUNS.c.key_id == key)
        row = (await connection.execute(query)).mappings().first()
    if row is None:
        named = f" {id}" if is_id(id) else " of that name"
        raise RunNotFoundError(
            f"There is no run{named}; it may belong to another key, or have been deleted."
        )
    return row


def _run_of(row: Any) -> Run:
    return Run(**{name: row[name] for name in Run.model_fields})


def _rows_of(id: str, events: Sequence[Event]) -> list[dict[str, Any]]:
    return [{"run_id": id, **event.model_dump()} for event in events]
