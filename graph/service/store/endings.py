"""The ends of runs: by their worker, by their owner, or because nobody resumes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import sqlalchemy as sa

from fairqr.base.errors import RunCancelledError, RunInterruptedError
from fairqr.graph.service.problems import CANCELLED, problem_of
from fairqr.graph.service.records import LIVE, Claim, Event, Run, Status, path_of
from fairqr.graph.service.store.database import LASTING, Database
from fairqr.graph.service.store.rows import CANCEL, QUEUED, find, find_own, rows_of, run_of
from fairqr.graph.service.store.tables import EVENTS, REPLIES, RUNS

LOSSES = 5
"""After this many workers went silent during a run, we blame the run and fail it."""

_LIVE = RUNS.c.status.in_(LIVE)
_CANCELLED = RunCancelledError(CANCELLED)


class Endings:
    """Ends of runs."""

    _database: Database

    async def finish(
        self,
        claim: Claim,
        status: Status,
        *,
        events: Sequence[Event] = (),
        result: dict[str, Any] | None = None,
        problem: dict[str, Any] | None = None,
    ) -> bool:
        """Write the last events and the end of a run, and delete what only resuming it needs.

        Args:
            claim: The claim on the run.
            status: ``done``, ``failed`` or ``cancelled``.
            events: Events that are not stored yet.
            result: The result of a successful run.
            problem: Why it failed or was cancelled.

        Returns:
            False if the claim does not hold any more.

        Raises:
            StoreUnavailableError: The database cannot be used.
        """

        def work(connection: sa.Connection) -> bool:
            row = find(connection, claim.run.id, lock=True)
            if row is None or row["ticket"] != claim.ticket:
                return False
            if row["status"] in LIVE:
                self._database.flavour.add(connection, EVENTS, rows_of(row["id"], events))
                self._write_end(connection, row, status, claim.ticket, result, problem)
            return True

        return await self._database.write(work, patience=LASTING)

    async def release(self, claim: Claim) -> bool:
        """Put a run back into the queue.

        Returns:
            False if the claim does not hold any more, and the run is not in the queue.

        Raises:
            StoreUnavailableError: The database cannot be used.
        """

        def work(connection: sa.Connection) -> bool:
            row = find(connection, claim.run.id, lock=True)
            if row is None or row["ticket"] != claim.ticket:
                return row is not None and row["status"] == "queued"
            if row["status"] == "running":
                if row["cancel"]:  # no other worker would see it
                    self._end(connection, row, "cancelled", _CANCELLED)
                else:
                    connection.execute(
                        RUNS.update()
                        .where(RUNS.c.id == row["id"])
                        .values(status="queued", worker=None, lease=None, ticket=None)
                    )
                    self._database.flavour.tell(connection, QUEUED)
            return True

        return await self._database.write(work, patience=LASTING)

    async def ask_to_cancel(self, id: str, key: str) -> Run:
        """Cancel a waiting run, or ask the worker of a running one to stop.

        Returns:
            The run as it is now; a run that is over stays unchanged.

        Raises:
            RunNotFoundError: The key has no such run.
            StoreUnavailableError: The database cannot be used.
        """

        def work(connection: sa.Connection) -> Run:
            row = find_own(connection, id, key, lock=True)
            self._cancel(connection, row)
            return run_of(cast("Any", find(connection, id)))

        return await self._database.write(work)

    def _cancel(self, connection: sa.Connection, row: Any) -> None:
        if row["status"] == "queued":
            self._end(connection, row, "cancelled", _CANCELLED)
        elif row["status"] == "running":
            connection.execute(RUNS.update().where(RUNS.c.id == row["id"]).values(cancel=True))
            self._database.flavour.tell(connection, CANCEL + row["id"])

    async def sweep(self) -> list[str]:
        """Fail the runs during which five workers went silent: nobody will resume them.

        Returns:
            Their ids.

        Raises:
            StoreUnavailableError: The database cannot be used.
        """

        def work(connection: sa.Connection) -> list[str]:
            found = connection.execute(
                sa.select(RUNS)
                .where(_LIVE, RUNS.c.losses >= LOSSES, self._database.flavour.silent())
                .limit(200)
                .with_for_update(skip_locked=True)
            )
            ids = []
            for row in found.mappings().all():
                error = RunInterruptedError(
                    "Every worker that started this run stopped before its end; ask for less."
                )
                self._end(connection, row, "failed", error)
                ids.append(row["id"])
            return ids

        return await self._database.write(work)

    def _end(self, connection: sa.Connection, row: Any, status: Status, error: Exception) -> None:
        """End a run that no worker does."""
        problem = problem_of(error, path_of(row["id"]))
        self._write_end(connection, row, status, None, None, problem)
        _tell_the_end(connection, row["id"], problem)

    def _write_end(
        self,
        connection: sa.Connection,
        row: Any,
        status: Status,
        ticket: str | None,
        result: dict[str, Any] | None,
        problem: dict[str, Any] | None,
    ) -> None:
        connection.execute(
            RUNS.update()
            .where(RUNS.c.id == row["id"])
            .values(
                status=status,
                worker=None,
                lease=None,
                ticket=ticket,  # to recognise the end if its worker writes it twice
                finished=self._database.flavour.now(),
                result=result,
                problem=problem,
            )
        )
        _forget_what_resuming_needs(connection, row["id"])
        self._database.flavour.tell(connection, row["id"])


def _forget_what_resuming_needs(connection: sa.Connection, id: str) -> None:
    """Delete what only a live run needs: replies of models, and private parts of its steps."""
    connection.execute(REPLIES.delete().where(REPLIES.c.run_id == id))
    private = EVENTS.update().where(EVENTS.c.run_id == id, EVENTS.c.private.is_not(None))
    connection.execute(private.values(private=None))


def _tell_the_end(connection: sa.Connection, id: str, problem: dict[str, Any]) -> None:
    """Write the last event of a run that ends without a worker, for its followers."""
    last = connection.execute(
        sa.select(EVENTS.c.number, EVENTS.c.name)
        .where(EVENTS.c.run_id == id)
        .order_by(EVENTS.c.number.desc())
        .limit(1)
    )
    row = last.first()
    if row is None or row.name not in ("end", "error"):
        number = 1 if row is None else row.number + 1
        connection.execute(
            EVENTS.insert().values(run_id=id, number=number, name="error", data=problem)
        )
