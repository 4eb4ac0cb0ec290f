"""Attempts at runs, and the part of the store that they write with."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from pydantic import Field
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from fairqr.graph.journal import Write
from fairqr.graph.service.records import LIVE, Event, Kind, Run, Status
from fairqr.graph.service.store.database import CONNECTIONS, Database
from fairqr.graph.service.store.tables import ENDED, EVENTS, REPLIES, RUNS

IS_LIVE = RUNS.c.status.in_(LIVE)
"""The condition that a run is not over."""


class Attempt(Run):
    """An attempt at a run. The store takes what it writes while no later one has started."""

    attempts: int = Field(0, description="The number of this attempt, from 1.")
    handed_over: int = Field(description="How many earlier attempts have said that they end.")
    carrier: dict[str, str] = Field(description="The headers of the caller's trace.")
    cancel: bool = Field(description="Whether the run is to be cancelled.")
    version: str | None = Field(
        description=(
            "The version of the index that the run's checkpoints are over; None if there are none."
        )
    )
    step_keys: dict[int, str | None] = Field(
        description=(
            "The keys of the steps that earlier attempts have stored, by the numbers of their "
            "events."
        )
    )
    replies: dict[str, dict[str, Any]] = Field(
        description="The replies of models in earlier attempts, by key."
    )

    @property
    def last(self) -> int:
        """The number of the last event that earlier attempts have stored."""
        return max(self.step_keys, default=0)


class AttemptStore:
    """What attempts at runs read and write.

    All methods raise StoreUnavailableError if the database cannot be used.

    Args:
        database: Where the runs are.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self._checkpointing = asyncio.Semaphore(CONNECTIONS - 2)

        # The columns of LangGraph's tables with the id of the run.
        names = ["checkpoints"]
        if database.file:
            names += ["writes"]
        else:
            names += ["checkpoint_blobs", "checkpoint_writes"]
        tables = [sa.table(name, sa.column("thread_id")) for name in names]
        self._checkpoints = [table.c.thread_id for table in tables]

    async def claim(self, id: str) -> Attempt | None:
        """Begin the next attempt at a run; earlier ones cannot write any more.

        Returns:
            The attempt; None if the run is over or gone.
        """
        claiming = RUNS.update().where(RUNS.c.id == id, IS_LIVE)
        claiming = claiming.values(
            status="running",
            attempts=RUNS.c.attempts + 1,
            started=sa.func.coalesce(RUNS.c.started, self._now_after(RUNS.c.created)),
        ).returning(*RUNS.c)
        stored_steps = sa.select(EVENTS.c.number, EVENTS.c.step).where(EVENTS.c.run_id == id)
        kept_replies = sa.select(REPLIES.c.id, REPLIES.c.reply).where(REPLIES.c.run_id == id)

        step_keys: dict[int, str | None] = {}
        replies: dict[str, dict[str, Any]] = {}
        async with self.database.begin() as connection:
            claimed = await connection.execute(claiming)
            row = claimed.mappings().first()
            if row is None:
                return None
            if row["attempts"] > 1:
                for number, step in await connection.execute(stored_steps):
                    step_keys[number] = step
                for reply_id, reply in await connection.execute(kept_replies):
                    replies[reply_id] = reply

        columns = {name: row[name] for name in row if name in Attempt.model_fields}
        return Attempt(**columns, step_keys=step_keys, replies=replies)

    async def add(
        self,
        run: Run,
        events: Sequence[Event],
        replies: Mapping[str, Mapping[str, Any]],
        version: str | None = None,
        writes: Sequence[Write] = (),
    ) -> bool:
        """Write what happened in a run; rows that are there already stay unchanged.

        Args:
            run: The run of an attempt.
            events: Events; pieces of text, whose number is 0, are not kept.
            replies: Replies of models as plain data, by the key of the question; the key counts
                how often it was asked before.
            version: The version of the index that the checkpoints are over, if there are any.
            writes: Checkpoints, and what steps have changed.

        Returns:
            False if a later attempt has started or the run is over; nothing was written.
        """
        values = {"version": version}
        written = await self._write(run, values, events, replies, writes=writes)
        return written is not None

    async def start_over(self, run: Run) -> bool:
        """Delete the checkpoints of a run; see :meth:`add`."""
        written = await self._write(run, {"version": None}, deleted=self._checkpoints)
        return written is not None

    async def finish(
        self, run: Run, events: Sequence[Event] = (), has_checkpoints: bool = True
    ) -> Run | None:
        """Write the last events of a run and its end; see :meth:`add`.

        Args:
            run: The run at its end.
            events: Events that are not stored yet.
            has_checkpoints: Whether there may be checkpoints of the run.

        Returns:
            The run with the time of its end; None if nothing was written.
        """
        values = {
            "status": run.status,
            "result": run.result,
            "problem": run.problem,
            "finished": self._now_after(RUNS.c.started),
        }
        # Only live runs need their replies and checkpoints.
        deleted: list[sa.ColumnClause[Any]] = [REPLIES.c.run_id]
        if has_checkpoints:
            deleted += self._checkpoints
        written = await self._write(run, values, events, deleted=deleted)
        if written is None:
            return None
        return run.model_copy(update={"finished": written.finished})

    async def release(self, run: Run) -> bool:
        """Hand a run over to the next attempt, or end it if it is to be; see :meth:`add`."""
        values = {
            "handed_over": RUNS.c.handed_over + 1,
            "status": sa.case((RUNS.c.cancel, "cancelled"), else_="queued"),
            "finished": sa.case((RUNS.c.cancel, self._now_after(RUNS.c.started))),
        }
        return await self._write(run, values) is not None

    def _now_after(self, earlier: sa.ColumnElement[float]) -> sa.ColumnElement[float]:
        """Return the time now, or an earlier time of the run if the clock was set back since."""
        now = self.database.now()
        return sa.case((now > earlier, now), else_=earlier)

    async def _write(
        self,
        run: Run,
        values: Mapping[str, Any],
        events: Sequence[Event] = (),
        replies: Mapping[str, Mapping[str, Any]] | None = None,
        deleted: Sequence[sa.ColumnClause[Any]] = (),
        writes: Sequence[Write] = (),
    ) -> Any:
        """Write something of an attempt in one transaction.

        Args:
            run: The run of the attempt.
            values: What changes in its row.
            events: See :meth:`add`.
            replies: See :meth:`add`.
            deleted: The columns with the ids of runs of the tables from which to delete the run.
            writes: See :meth:`add`.

        Returns:
            The time of its end and its status; None if the attempt may not write any more.
        """
        is_last_attempt = sa.and_(
            RUNS.c.id == run.id, RUNS.c.attempts == run.attempts, RUNS.c.status == "running"
        )
        updating = RUNS.update().where(is_last_attempt).values(**values)
        updating = updating.returning(RUNS.c.finished, RUNS.c.status)
        event_rows = [{"run_id": run.id, **event.model_dump()} for event in events if event.number]
        reply_rows = []
        for id_, reply in (replies or {}).items():
            reply_rows.append({"run_id": run.id, "id": id_, "reply": reply})

        # Serialising a checkpoint takes a thread. While it waits for one, some connections stay
        # free, so that keys are still checked.
        turn = self._checkpointing if writes else contextlib.nullcontext()
        async with turn, self.database.begin() as connection:
            driver: Any = await self.database.driver_of(connection) if writes else None
            # In PostgreSQL, before the row is locked: LangGraph's saver uses a pipeline, in which a
            # process that is frozen keeps its locks.
            if not self.database.file:
                for write in writes:
                    await write(driver)

            written = (await connection.execute(updating)).first()
            if written is None:
                await connection.rollback()
                return None
            await self._insert_new(connection, EVENTS, event_rows)
            await self._insert_new(connection, REPLIES, reply_rows)
            await delete_rows(connection, [run.id], *deleted)
            if written.finished is not None:
                await self._count_end(connection, run.kind, written.status)

            # In SQLite, last: the saver commits each of them.
            if self.database.file:
                for write in writes:
                    if not driver.in_transaction:
                        await driver.execute("BEGIN IMMEDIATE")
                    await write(driver)
            return written

    async def _insert_new(
        self, connection: AsyncConnection, table: sa.Table, rows: Sequence[Mapping[str, Any]]
    ) -> None:
        """Insert rows into a table, unless they are there."""
        if not rows:
            return
        # If it returned nothing, psycopg would open a pipeline, too.
        inserting = self._insert(table).on_conflict_do_nothing().returning(table.c.run_id)
        await connection.execute(inserting, rows)

    async def _count_end(
        self, connection: AsyncConnection, kind: Kind, status: Status, number: int = 1
    ) -> None:
        """Count that runs have ended; see :meth:`count_ended`."""
        inserting = self._insert(ENDED).values(kind=kind, status=status, number=number)
        increased = {"number": ENDED.c.number + number}
        await connection.execute(
            inserting.on_conflict_do_update(index_elements=["kind", "status"], set_=increased)
        )

    @property
    def _insert(self) -> Any:
        """The statement that inserts, as the database's dialect has it."""
        return sqlite.insert if self.database.file else postgresql.insert


async def delete_rows(connection: AsyncConnection, ids: Sequence[str], *columns: Any) -> None:
    """Delete the rows of some runs from tables, named by their columns with the id of the run."""
    for column in columns:
        await connection.execute(sa.delete(column.table).where(column.in_(ids)))
