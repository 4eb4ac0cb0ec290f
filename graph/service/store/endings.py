"""The ends of runs: by their worker, by their owner, or because nobody resumes them."""

from __future__ import annotations

from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from fairqr.base.errors import RunCancelledError, RunInterruptedError
from fairqr.graph.service.problems import CANCELLED, problem_of
from fairqr.graph.service.records import LIVE, Run, Status, path_of
from fairqr.graph.service.store.database import LASTING, Database
from fairqr.graph.service.store.rows import CANCEL, QUEUED, find, find_own, run_of
from fairqr.graph.service.store.tables import EVENTS, REPLIES, RUNS

__all__ = ["LOSSES", "Endings"]

LOSSES = 5
"""After this many workers went silent during a run, we blame the run and fail it."""

_LIVE = RUNS.c.status.in_(LIVE)
_CANCELLED = RunCancelledError(CANCELLED)


class Endings:
    """Ends of runs."""

    _database: Database

    async def finish(
        self,
        id: str,
        worker: str,
        status: Status,
        *,
        result: dict[str, Any] | None = None,
        problem: dict[str, Any] | None = None,
    ) -> bool:
        """Write the end of a run, and delete what only resuming it needs.

        Args:
            id: The id of the run.
            worker: The worker that did the run.
            status: ``done``, ``failed`` or ``cancelled``.
            result: The result of a successful run.
            problem: Why it failed or was cancelled.

        Returns:
            False if another worker has the run by now.

        Raises:
            StoreUnavailableError: The database cannot be used.
        """

        async def work(connection: AsyncConnection) -> bool:
            row = await find(connection, id, lock=True)
            if row is None or row["worker"] != worker:
                return False
            if row["status"] in LIVE:
                await self._write_end(connection, row, status, worker, result, problem)
            return True

        return await self._database.write(work, patience=LASTING)

    async def release(self, id: str, worker: str) -> bool:
        """Put a run back into the queue.

        Returns:
            False if another worker has the run by now.

        Raises:
            StoreUnavailableError: The database cannot be used.
        """

        async def work(connection: AsyncConnection) -> bool:
            row = await find(connection, id, lock=True)
            if row is None or row["worker"] != worker:
                return row is not None and row["status"] == "queued"
            if row["status"] == "running":
                if row["cancel"]:  # no other worker would see it
                    await self._end(connection, row, "cancelled", _CANCELLED)
                else:
                    await connection.execute(
                        RUNS.update()
                        .where(RUNS.c.id == id)
                        .values(status="queued", worker=None, lease=None, ticket=None)
                    )
                    await self._database.flavour.tell(connection, QUEUED)
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

        async def work(connection: AsyncConnection) -> Run:
            row = await find_own(connection, id, key, lock=True)
            await self._cancel(connection, row)
            return run_of(cast("Any", await find(connection, id)))

        return await self._database.write(work)

    async def _cancel(self, connection: AsyncConnection, row: Any) -> None:
        if row["status"] == "queued":
            await self._end(connection, row, "cancelled", _CANCELLED)
        elif row["status"] == "running":
            await connection.execute(
                RUNS.update().where(RUNS.c.id == row["id"]).values(cancel=True)
            )
            await self._database.flavour.tell(connection, CANCEL + row["id"])

    async def sweep(self) -> list[str]:
        """Fail the runs during which five workers went silent: nobody will resume them.

        Returns:
            Their ids.

        Raises:
            StoreUnavailableError: The database cannot be used.
        """

        async def work(connection: AsyncConnection) -> list[str]:
            found = await connection.execute(
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
                await self._end(connection, row, "failed", error)
                ids.append(row["id"])
            return ids

        return await self._database.write(work)

    async def _end(
        self, connection: AsyncConnection, row: Any, status: Status, error: Exception
    ) -> None:
        """End a run that no worker does."""
        problem = problem_of(error, path_of(row["id"]))
        await self._write_end(connection, row, status, None, None, problem)
        await _tell_the_end(connection, row["id"], problem)

    async def _write_end(
        self,
        connection: AsyncConnection,
        row: Any,
        status: Status,
        worker: str | None,
        result: dict[str, Any] | None,
        problem: dict[str, Any] | None,
    ) -> None:
        await connection.execute(
            RUNS.update()
            .where(RUNS.c.id == row["id"])
            .values(
                status=status,
                worker=worker,
                lease=None,
                ticket=None,
                finished=self._database.flavour.now(),
                result=result,
                problem=problem,
            )
        )
        await _forget_what_resuming_needs(connection, row["id"])
        await self._database.flavour.tell(connection, row["id"])


async def _forget_what_resuming_needs(connection: AsyncConnection, id: str) -> None:
    """Delete what only a live run needs: replies of models, and private parts of its steps."""
    await connection.execute(REPLIES.delete().where(REPLIES.c.run_id == id))
    private = EVENTS.update().where(EVENTS.c.run_id == id, EVENTS.c.private.is_not(None))
    await connection.execute(private.values(private=None))


async def _tell_the_end(connection: AsyncConnection, id: str, problem: dict[str, Any]) -> None:
    """Write the last event of a run that ends without a worker, for its followers."""
    last = await connection.execute(
        sa.select(EVENTS.c.number, EVENTS.c.name)
        .where(EVENTS.c.run_id == id)
        .order_by(EVENTS.c.number.desc())
        .limit(1)
    )
    row = last.first()
    if row is None or row.name not in ("end", "error"):
        number = 1 if row is None else row.number + 1
        await connection.execute(
            EVENTS.insert().values(run_id=id, number=number, name="error", data=problem)
        )
