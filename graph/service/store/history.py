"""Reading, writing and deleting runs and their events."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

import sqlalchemy as sa

from fairqr.base.errors import InputError
from fairqr.graph.service.records import LIVE, Claim, Event, Kind, Run, RunSummary, Status, is_id
from fairqr.graph.service.store.database import LASTING, Database
from fairqr.graph.service.store.rows import find_own, rows_of, run_of
from fairqr.graph.service.store.tables import EVENTS, REPLIES, RUNS, SUMMARY

_AT_ONCE = 500  # runs deleted in one transaction


class History:
    """Past and present runs."""

    _database: Database

    async def run(self, id: str, key: str) -> Run:
        """Return a run.

        Raises:
            RunNotFoundError: The key has no such run.
            StoreUnavailableError: The database cannot be used.
        """

        def work(connection: sa.Connection) -> Run:
            return run_of(find_own(connection, id, key))

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
            key: The id of the key.
            limit: The most runs to return.
            before: Only runs accepted before this, in seconds since the epoch.
            kind: Only runs of this kind.
            status: Only runs with this status.

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

        def work(connection: sa.Connection) -> list[RunSummary]:
            found = connection.execute(query)
            return [RunSummary(**row) for row in found.mappings()]

        return await self._database.read(work)

    async def statuses(self, ids: Collection[str]) -> dict[str, Status]:
        """Return the statuses of runs, by id; unknown ids are left out.

        Raises:
            StoreUnavailableError: The database cannot be used.
        """

        def work(connection: sa.Connection) -> dict[str, Status]:
            found = connection.execute(
                sa.select(RUNS.c.id, RUNS.c.status).where(RUNS.c.id.in_(ids))
            )
            return {row.id: row.status for row in found.all()}

        return await self._database.read(work)

    async def delete(self, id: str, key: str) -> Run:
        """Delete a run that is over, with its events, and return it.

        Raises:
            RunNotFoundError: The key has no such run.
            InputError: The run is not over.
            StoreUnavailableError: The database cannot be used.
        """

        def work(connection: sa.Connection) -> Run:
            row = find_own(connection, id, key, lock=True)
            if row["status"] in LIVE:
                raise InputError(f"The run {id} is not over; cancel it first.")
            connection.execute(RUNS.delete().where(RUNS.c.id == id))
            return run_of(row)

        return await self._database.write(work)

    async def add(
        self,
        claim: Claim,
        events: Sequence[Event] = (),
        replies: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ) -> bool:
        """Write what happened in a run; what is known already stays unchanged.

        Args:
            claim: The claim on the run.
            events: Events, with numbers from 1.
            replies: Replies of models as plain data, by the key of the question; the key counts
                how often it was asked before.

        Returns:
            False if the claim does not hold any more, or the run is over; nothing was written.

        Raises:
            StoreUnavailableError: The database cannot be used.
        """
        flavour = self._database.flavour
        id, ticket = claim.run.id, claim.ticket
        event_rows = rows_of(id, events)
        reply_rows = [{"run_id": id, "id": key, "reply": dict(of)} for key, of in replies.items()]

        def work(connection: sa.Connection) -> bool:
            mine = sa.select(RUNS.c.id).where(
                RUNS.c.id == id, RUNS.c.ticket == ticket, RUNS.c.status == "running"
            )
            if connection.execute(mine.with_for_update()).first() is None:
                return False
            flavour.add(connection, EVENTS, event_rows)
            flavour.add(connection, REPLIES, reply_rows)
            if event_rows:
                flavour.tell(connection, id)
            return True

        return await self._database.write(work, patience=LASTING)

    async def events(
        self, id: str, after: int = 0, limit: int = 100, *, private: bool = False
    ) -> list[Event]:
        """Return the stored events of a run, in order.

        Args:
            id: The id of the run. We do not check whose run it is.
            after: Only events with higher numbers.
            limit: The most events to return.
            private: Whether to include what only resuming needs.

        Raises:
            StoreUnavailableError: The database cannot be used.
        """
        columns = [EVENTS.c.number, EVENTS.c.name, EVENTS.c.data]
        if private:
            columns.append(EVENTS.c.private)

        def work(connection: sa.Connection) -> list[Event]:
            found = connection.execute(
                sa.select(*columns)
                .where(EVENTS.c.run_id == id, EVENTS.c.number > after)
                .order_by(EVENTS.c.number)
                .limit(limit)
            )
            return [Event(**row) for row in found.mappings()]

        return await self._database.read(work) if is_id(id) else []

    async def replies(self, id: str) -> dict[str, dict[str, Any]]:
        """Return the replies of models in a live run, by key.

        Raises:
            StoreUnavailableError: The database cannot be used.
        """

        def work(connection: sa.Connection) -> dict[str, dict[str, Any]]:
            found = connection.execute(
                sa.select(REPLIES.c.id, REPLIES.c.reply).where(REPLIES.c.run_id == id)
            )
            return {row.id: row.reply for row in found.all()}

        return await self._database.read(work)

    async def forget(self, seconds: float) -> int:
        """Delete the runs that ended more than this many seconds ago, by the database's clock.

        Returns:
            The number of deleted runs.

        Raises:
            StoreUnavailableError: The database cannot be used.
        """

        def work(connection: sa.Connection) -> int:
            # Skip what another worker is just deleting.
            old = connection.execute(
                sa.select(RUNS.c.id)
                .where(
                    RUNS.c.finished < self._database.flavour.now() - seconds,
                    RUNS.c.status.not_in(LIVE),
                )
                .limit(_AT_ONCE)
                .with_for_update(skip_locked=True)
            )
            ids = list(old.scalars())
            connection.execute(RUNS.delete().where(RUNS.c.id.in_(ids)))
            return len(ids)

        total = 0
        while deleted := await self._database.write(work):
            total += deleted
        return total

    async def counts(self) -> dict[Status, int]:
        """Return the numbers of live runs, by status; zeros are left out.

        Raises:
            StoreUnavailableError: The database cannot be used.
        """

        def work(connection: sa.Connection) -> dict[Status, int]:
            found = connection.execute(
                sa.select(RUNS.c.status, sa.func.count())
                .where(RUNS.c.status.in_(LIVE))  # do not count all past runs each time
                .group_by(RUNS.c.status)
            )
            return {cast("Status", status): count for status, count in found.all()}

        return await self._database.read(work)
