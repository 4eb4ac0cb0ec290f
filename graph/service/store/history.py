"""Reading runs and their events, and forgetting them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from fairqr.base.errors import InputError
from fairqr.graph.service.records import LIVE, Event, Kind, Run, RunSummary, Status
from fairqr.graph.service.store.database import LASTING, Database
from fairqr.graph.service.store.rows import checked_id, find, forget_threads, is_id, run_of
from fairqr.graph.service.store.tables import EVENTS, RUNS, SUMMARY

__all__ = ["History"]

_AT_ONCE = 500  # runs that are forgotten in one transaction


class History:
    """Runs of the past and the present."""

    _database: Database

    async def run(self, id: str, key: str) -> Run:
        """Return a run.

        Raises:
            RunNotFoundError: The key has no such run.
            StoreUnavailableError: The database cannot be used.
        """

        async def work(connection: AsyncConnection) -> Run:
            return run_of(checked_id(await find(connection, id), id, key))

        return await self._database.read(work)

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
            key: Its id.
            limit: So many at the most; from 1.
            before: Only those that were accepted earlier, in seconds since the epoch.
            kind: Only these.
            status: Only these.

        Raises:
            StoreUnavailableError: The database cannot be used.
        """
        query = sa.select(*SUMMARY).where(RUNS.c.key_id == key)
        if before is not None:
            query = query.where(RUNS.c.created < before)
        if kind is not None:
            query = query.where(RUNS.c.kind == kind)
        if status is not None:
            query = query.where(RUNS.c.status == status)
        query = query.order_by(RUNS.c.created.desc(), RUNS.c.id.desc()).limit(limit)

        async def work(connection: AsyncConnection) -> list[RunSummary]:
            found = await connection.execute(query)
            return [RunSummary(**row) for row in found.mappings()]

        return await self._database.read(work)

    async def delete(self, id: str, key: str) -> None:
        """Forget a run that is over, with its events.

        Raises:
            RunNotFoundError: The key has no such run.
            InputError: The run is not over.
            StoreUnavailableError: The database cannot be used.
        """

        async def work(connection: AsyncConnection) -> None:
            row = checked_id(await find(connection, id, lock=True), id, key)
            if row["status"] in LIVE:
                raise InputError(f"The run {id} is not over; cancel it first.")
            await connection.execute(RUNS.delete().where(RUNS.c.id == id))

        await self._database.write(work)

    async def add_events(self, id: str, worker: str, events: Sequence[Event]) -> bool:
        """Write what happened in a run; an event whose number is known is left as it was.

        Args:
            id: Of the run.
            worker: Who does it, or has done it.
            events: With numbers from 1.

        Returns:
            False where the run is another worker's by now, and nothing was written.

        Raises:
            StoreUnavailableError: The database cannot be used.
        """

        async def work(connection: AsyncConnection) -> bool:
            row = await find(connection, id, lock=True)
            if row is None or row["worker"] != worker or row["status"] == "queued":
                return False
            numbers = [event.number for event in events]
            known = await connection.execute(
                sa.select(EVENTS.c.number).where(
                    EVENTS.c.run_id == id, EVENTS.c.number.in_(numbers)
                )
            )
            there = set(known.scalars())
            new = [
                {"run_id": id, "number": event.number, "name": event.name, "data": event.data}
                for event in events
                if event.number not in there
            ]
            if new:
                await connection.execute(EVENTS.insert(), new)
            return True

        return await self._database.write(work, patience=LASTING)

    async def events(self, id: str, after: int = 0, limit: int = 100) -> list[Event]:
        """Return what is written of a run, in order.

        Args:
            id: Of the run; whose it is, is not asked here.
            after: Only events with higher numbers.
            limit: So many at the most.

        Raises:
            StoreUnavailableError: The database cannot be used.
        """

        async def work(connection: AsyncConnection) -> list[Event]:
            found = await connection.execute(
                sa.select(EVENTS.c.number, EVENTS.c.name, EVENTS.c.data)
                .where(EVENTS.c.run_id == id, EVENTS.c.number > after)
                .order_by(EVENTS.c.number)
                .limit(limit)
            )
            return [Event(**row) for row in found.mappings()]

        return await self._database.read(work) if is_id(id) else []

    async def forget(self, before: float) -> int:
        """Delete the runs that were over then, with their events.

        Args:
            before: In seconds since the epoch.

        Returns:
            How many they were.

        Raises:
            StoreUnavailableError: The database cannot be used.
        """

        async def work(connection: AsyncConnection) -> int:
            # Skipped is what another worker is just deleting.
            old = await connection.execute(
                sa.select(RUNS.c.id)
                .where(RUNS.c.finished < before, RUNS.c.status.not_in(LIVE))
                .limit(_AT_ONCE)
                .with_for_update(skip_locked=True)
            )
            ids = list(old.scalars())
            await connection.execute(RUNS.delete().where(RUNS.c.id.in_(ids)))
            return len(ids)

        async def threads(connection: AsyncConnection) -> None:
            await forget_threads(connection, self._database.flavour)

        total = 0
        while deleted := await self._database.write(work):
            total += deleted
        await self._database.write(threads)
        return total

    async def counts(self) -> dict[Status, int]:
        """Return how many runs wait and how many are under way, as far as there are any.

        Raises:
            StoreUnavailableError: The database cannot be used.
        """

        async def work(connection: AsyncConnection) -> dict[Status, int]:
            found = await connection.execute(
                sa.select(RUNS.c.status, sa.func.count())
                .where(RUNS.c.status.in_(LIVE))  # not all that are kept, at each look
                .group_by(RUNS.c.status)
            )
            return {cast("Status", status): count for status, count in found.all()}

        return await self._database.read(work)
