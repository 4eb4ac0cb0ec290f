"""The queue: accepting and claiming runs, and leases.

The row of a run names the worker that does it, and the ticket of its claim. If the worker does not
renew its lease in time, another one may claim the run, and nothing that comes of the first claim is
written any more.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from fairqr.graph.service.problems import busy
from fairqr.graph.service.records import LIVE, Claim, Kind, Run
from fairqr.graph.service.store.database import LASTING, Database
from fairqr.graph.service.store.endings import LOSSES
from fairqr.graph.service.store.rows import QUEUED, run_of
from fairqr.graph.service.store.tables import RUNS

_OUTCOME = 60.0
"""Seconds after which a failed claim can no longer take effect."""

_QUEUED = RUNS.c.status == "queued"
_RUNNING = RUNS.c.status == "running"
_LIVE = RUNS.c.status.in_(LIVE)


@dataclass(frozen=True, slots=True)
class Renewal:
    """The runs of a worker after a renewal.

    Attributes:
        mine: The ids of the runs that it still has. Other workers may have taken the rest.
        cancel: The ids of those that it has to cancel.
    """

    mine: set[str]
    cancel: set[str]


class Queue:
    """Runs that wait or are under way."""

    _database: Database
    _tickets: dict[str, float]  # of claims with unknown outcome, and until when it may come

    def heard(self) -> AsyncGenerator[str, None]:
        """Yield the notifications of workers, while the connection lasts.

        A text is :data:`QUEUED`, :data:`CANCEL` with the id of a run, or the id of a run in which
        something happened. SQLite has no notifications.
        """
        return self._database.flavour.heard()

    async def accept(
        self,
        run: Run,
        key: str,
        *,
        queue: int,
        live: int,
        carrier: dict[str, str],
    ) -> None:
        """Put a run into the queue.

        Args:
            run: The run, with the status ``queued``.
            key: The id of the key that asked for it.
            queue: The most runs of all keys that may wait.
            live: The most live runs of this key.
            carrier: The headers of the caller's trace.

        Raises:
            BusyError: One of these limits is reached.
            StoreUnavailableError: The database cannot be used.
        """

        def work(connection: sa.Connection) -> None:
            self._database.flavour.accepting(connection)
            known = connection.execute(sa.select(RUNS.c.id).where(RUNS.c.id == run.id))
            if known.first() is not None:  # this is a retry
                return
            counted = connection.execute(
                sa.select(
                    sa.func.count().filter(RUNS.c.key_id == key),
                    sa.func.count().filter(_QUEUED),
                ).where(_LIVE)
            )
            own, waiting = counted.one()
            if own >= live:
                raise busy("live", live)
            if waiting >= queue:
                raise busy("queue", live)
            connection.execute(
                RUNS.insert().values(
                    **run.model_dump(),
                    key_id=key,
                    carrier=carrier,
                    losses=0,
                    cancel=False,
                )
            )
            self._database.flavour.tell(connection, QUEUED)

        await self._database.write(work)

    async def claim(
        self, worker: str, lease: float, *, without: Collection[Kind] = ()
    ) -> Claim | None:
        """Claim the oldest run that waits, or that another worker has lost; None if there is none.

        Args:
            worker: The id of this process, which no other process has.
            lease: The seconds until the worker must renew the claim.
            without: Kinds of runs to leave for others.

        Raises:
            StoreUnavailableError: The database cannot be used. If the claim succeeded nevertheless,
                the next claim returns its run.
        """
        ticket = secrets.token_hex(8)
        now = time.monotonic()
        mislaid = list(self._tickets)
        settled = [one for one, until in self._tickets.items() if until <= now]
        tried = False

        def work(connection: sa.Connection) -> Claim | None:
            nonlocal tried
            row: Any = None
            if tried:  # the first attempt may have succeeded
                taken = connection.execute(
                    sa.select(RUNS).where(
                        _RUNNING, RUNS.c.worker == worker, RUNS.c.ticket == ticket
                    )
                )
                row = taken.mappings().first()
            tried = True
            if row is None:
                row = self._oldest(connection, worker, mislaid, without)
                if row is None:
                    return None
                again = row["ticket"] is not None and row["ticket"] in mislaid
                taken = connection.execute(
                    RUNS.update()
                    .where(RUNS.c.id == row["id"])
                    .values(
                        status="running",
                        worker=worker,
                        lease=self._until(lease),
                        ticket=ticket,
                        attempts=RUNS.c.attempts + int(not again),
                        losses=RUNS.c.losses + int(row["status"] == "running" and not again),
                        started=sa.func.coalesce(RUNS.c.started, self._database.flavour.now()),
                    )
                    .returning(*RUNS.c)
                )
                row = taken.mappings().one()
            return Claim(run=run_of(row), ticket=ticket, key=row["key_id"], carrier=row["carrier"])

        try:
            claim = await self._database.write(work)
        except BaseException:
            self._tickets[ticket] = time.monotonic() + _OUTCOME
            raise
        if claim is None:  # so none of these took effect
            for one in settled:
                self._tickets.pop(one, None)
        return claim

    def _oldest(
        self,
        connection: sa.Connection,
        worker: str,
        mislaid: list[str],
        without: Collection[Kind],
    ) -> Any:
        taken = sa.and_(_RUNNING, RUNS.c.worker == worker, RUNS.c.ticket.in_(mislaid))
        # Not its own runs, which it can still write.
        lost = sa.and_(
            _RUNNING,
            RUNS.c.worker != worker,
            RUNS.c.losses < LOSSES,
            self._database.flavour.silent(),
        )
        new = sa.and_(sa.or_(_QUEUED, lost), RUNS.c.kind.not_in(without))
        found = connection.execute(
            sa.select(RUNS.c.id, RUNS.c.status, RUNS.c.ticket)
            .where(_LIVE, sa.or_(taken, new))
            .order_by(RUNS.c.created, RUNS.c.id)
            .limit(1)
            .with_for_update(skip_locked=True)
        )
        return found.mappings().first()

    async def renew(self, worker: str, lease: float) -> Renewal:
        """Extend all leases of a worker.

        We also extend a lease that has ended if nobody took the run.

        Args:
            worker: The id of the worker.
            lease: The seconds until it must renew them again.

        Raises:
            StoreUnavailableError: The database cannot be used.
        """

        def work(connection: sa.Connection) -> Renewal:
            renewed = connection.execute(
                RUNS.update()
                .where(RUNS.c.worker == worker, _RUNNING)
                .values(lease=self._until(lease))
                .returning(RUNS.c.id, RUNS.c.cancel)
            )
            rows = renewed.all()
            return Renewal({row.id for row in rows}, {row.id for row in rows if row.cancel})

        return await self._database.write(work, patience=LASTING)

    def _until(self, lease: float) -> sa.ColumnElement[float]:
        return self._database.flavour.now() + lease
