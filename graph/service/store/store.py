"""Runs, their events and replies, and access keys, in SQLite or PostgreSQL."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Self

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from fairqr.base.errors import (
    AccessError,
    InputError,
    RunCancelledError,
    RunNotFoundError,
    one_line,
)
from fairqr.graph.service.configuration import Traffic
from fairqr.graph.service.problems import CANCELLED, REVOKED, busy, problem_of
from fairqr.graph.service.records import (
    KEY_ID,
    KEY_START,
    SCOPES,
    AccessKey,
    Event,
    Kind,
    Run,
    RunSummary,
    Scope,
    Status,
    is_id,
    path_of,
)
from fairqr.graph.service.store.attempts import IS_LIVE, AttemptStore, delete_rows
from fairqr.graph.service.store.database import ACCEPTING, Database
from fairqr.graph.service.store.tables import ENDED, EVENTS, KEYS, LAYOUT, RUNS

DELETED_AT_ONCE = 50
"""How many old runs are deleted in one transaction."""

TRIAL = 16_384
"""Bytes that a check writes."""

_SECRET = re.compile(rf"{KEY_START}([0-9a-f]{{{KEY_ID}}})_[A-Za-z0-9_-]{{43}}", re.ASCII)
_LONGEST_NAME = 100
"""The most characters of the name of a key."""


class Queued(NamedTuple):
    """A run in a queue.

    Attributes:
        key: The id of the key that asked for it.
    """

    id: str
    kind: Kind
    key: str


Enqueue = Callable[[AsyncConnection, Queued], Awaitable[None]]
"""Hands a run to whoever does it."""


class Store(AttemptStore):
    """The database of the service. All methods raise StoreUnavailableError if it cannot be used."""

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls, url: str = "") -> AsyncIterator[Self]:
        """Open a database, and close it in the end; create it if necessary.

        Args:
            url: As :class:`Database` takes it.

        Raises:
            ConfigError: The URL is wrong.
        """
        database = Database(url)
        try:
            await database.prepare()
            yield cls(database)
        finally:
            await database.close()

    async def check(self) -> None:
        """Check that something can be written now."""
        # As much as an event, and nothing that could be written in the place of the last trial.
        trial = os.urandom(TRIAL)
        async with self.database.begin() as connection:
            await connection.execute(LAYOUT.update().values(trial=trial))

    async def _all(self, query: sa.Select[Any]) -> Sequence[Mapping[str, Any]]:
        """Return all rows of a query."""
        async with self.database.begin() as connection:
            rows = await connection.execute(query)
            return [dict(row) for row in rows.mappings()]

    # --- runs, as their keys see them -------------------------------------------------------------

    async def accept(self, enqueue: Enqueue, traffic: Traffic, key: str, **values: Any) -> Run:
        """Accept a run.

        Args:
            enqueue: Hands it to whoever does it, in the same transaction.
            traffic: How many runs may wait, and how many of this key may be live.
            key: The id of the key that asked for it.
            values: The other columns of its row. If the key has a run with the same
                ``idempotency``, that one is returned, and none is accepted.

        Raises:
            BusyError: One of these limits is reached.
            InputError: The key has used ``idempotency`` for another request.
            AccessError: The key was revoked while its request was on its way.
        """
        # A transaction that revokes the key meanwhile waits, and then cancels this run, too.
        revoked = sa.select(KEYS.c.revoked).where(KEYS.c.id == key).with_for_update(read=True)
        counts = sa.select(
            sa.func.count().filter(RUNS.c.key_id == key),
            sa.func.count().filter(RUNS.c.status == "queued"),
        ).where(IS_LIVE)
        async with self.database.begin() as connection:
            if not self.database.file:  # two would both count before either is there
                await connection.execute(sa.select(sa.func.pg_advisory_xact_lock(ACCEPTING)))
            if await connection.scalar(revoked) is not None:
                raise AccessError(REVOKED)
            if values.get("idempotency") is not None:
                repeated = await _repeated_run(connection, key, values)
                if repeated is not None:
                    return repeated

            live_of_key, waiting = (await connection.execute(counts)).one()
            if live_of_key >= traffic.live:
                raise busy("live", traffic.live)
            if waiting >= traffic.queue:
                raise busy("queue", traffic.live)

            values |= {"id": uuid.uuid4().hex, "key_id": key, "created": self.database.now()}
            accepting = RUNS.insert().values(status="queued", **values).returning(*RUNS.c)
            rows = await connection.execute(accepting)
            run = _run_of(rows.mappings().one())
            await enqueue(connection, Queued(run.id, run.kind, key))
            return run

    async def run(self, id: str, key: str) -> Run:
        """Return a run.

        Raises:
            RunNotFoundError: The key has no such run.
        """
        async with self.database.begin() as connection:
            return await _run_of_key(connection, id, key)

    async def runs(
        self, key: str, *, limit: int = 50, before: float | None = None, **only: str | None
    ) -> list[RunSummary]:
        """Return a key's runs, the newest first.

        Args:
            key: The id of the key.
            limit: The most runs to return.
            before: Only runs accepted before this, in seconds since the epoch.
            only: Only runs of this ``kind`` or with this ``status``; None means all.
        """
        query = sa.select(*(RUNS.c[name] for name in RunSummary.model_fields))
        filters = {name: value for name, value in only.items() if value is not None}
        query = query.filter_by(key_id=key, **filters)
        if before is not None:
            query = query.where(RUNS.c.created < before)
        query = query.order_by(RUNS.c.created.desc(), RUNS.c.id.desc()).limit(limit)
        return [RunSummary(**row) for row in await self._all(query)]

    async def events(self, id: str, after: int = 0, limit: int = 100) -> list[Event]:
        """Return the stored events of a run, in order.

        Args:
            id: The id of the run. We do not check whose run it is.
            after: Only events with higher numbers.
            limit: The most events to return.
        """
        query = sa.select(*(EVENTS.c[name] for name in Event.model_fields))
        query = query.where(EVENTS.c.run_id == id, EVENTS.c.number > after)
        query = query.order_by(EVENTS.c.number).limit(limit)
        return [Event(**row) for row in await self._all(query)]

    async def last_number(self, id: str) -> int:
        """Return the number of the last stored event of a run; 0 if there is none."""
        query = sa.select(sa.func.max(EVENTS.c.number)).where(EVENTS.c.run_id == id)
        async with self.database.begin() as connection:
            return await connection.scalar(query) or 0

    async def cancel(self, id: str, key: str) -> Run:
        """Cancel a run: at once if it waits, otherwise whoever does it ends it.

        Returns:
            The run as it is now; a run that is over stays unchanged.

        Raises:
            RunNotFoundError: The key has no such run.
        """
        async with self.database.begin() as connection:
            await _run_of_key(connection, id, key)
            await self._cancel(connection, RUNS.c.id == id)
            return await _run_of_key(connection, id, key)

    async def _cancel(self, connection: AsyncConnection, condition: sa.ColumnElement[bool]) -> None:
        """Cancel live runs: those that wait end now, and processes end those under way."""
        waits = RUNS.c.status == "queued"
        cancelling = (
            RUNS.update()
            .values(
                cancel=True,
                status=sa.case((waits, "cancelled"), else_=RUNS.c.status),
                finished=sa.case((waits, self._now_after(RUNS.c.created))),
            )
            .where(IS_LIVE, condition)
            .returning(RUNS.c.kind, RUNS.c.status)
        )
        rows = await connection.execute(cancelling)
        ended = Counter(row.kind for row in rows.all() if row.status == "cancelled")
        for kind in sorted(ended):  # in one order, so that no two transactions wait for each other
            await self._count_end(connection, kind, "cancelled", ended[kind])

    async def delete(self, id: str, key: str) -> Run:
        """Delete a run that is over, with its events, and return it.

        Raises:
            RunNotFoundError: The key has no such run.
            InputError: The run is not over.
        """
        async with self.database.begin() as connection:
            run = await _run_of_key(connection, id, key)
            if run.live:
                raise InputError(f"The run {id} is not over; cancel it first.")
            await delete_rows(connection, [id], RUNS.c.id, *self._checkpoints)
            return run

    # --- what processes look for ------------------------------------------------------------------

    async def to_cancel(self) -> list[str]:
        """Return the ids of the runs under way that are to be cancelled."""
        query = sa.select(RUNS.c.id).where(IS_LIVE, RUNS.c.cancel)
        return [row["id"] for row in await self._all(query)]

    async def unfinished(self) -> list[Queued]:
        """Return all live runs, the oldest first."""
        query = sa.select(RUNS.c.id, RUNS.c.kind, RUNS.c.key_id.label("key"))
        query = query.where(IS_LIVE).order_by(RUNS.c.created)
        return [Queued(**row) for row in await self._all(query)]

    async def counts(self) -> dict[Status, int]:
        """Return the numbers of live runs, by status; zeros are left out."""
        # Past runs are not counted each time.
        query = sa.select(RUNS.c.status, sa.func.count().label("number"))
        rows = await self._all(query.where(IS_LIVE).group_by(RUNS.c.status))
        return {row["status"]: row["number"] for row in rows}

    async def count_ended(self) -> dict[tuple[Kind, Status], int]:
        """Return how many runs ever ended, by kind and status."""
        rows = await self._all(sa.select(ENDED))
        return {(row["kind"], row["status"]): row["number"] for row in rows}

    async def forget(self, seconds: float, most_per_key: int) -> list[str]:
        """Delete ended runs that are old, or too many of one key.

        Args:
            seconds: How long ago they ended at most, by the database's clock.
            most_per_key: How many of a key stay, those that ended last.

        Returns:
            The ids of the deleted runs.
        """
        is_old = RUNS.c.finished < self.database.now() - seconds
        deleted = list[str]()
        while batch := await self._delete_ended(is_old):
            deleted += batch

        surplus = await self._surplus(most_per_key)
        for start in range(0, len(surplus), DELETED_AT_ONCE):
            batch = surplus[start : start + DELETED_AT_ONCE]
            deleted += await self._delete_ended(RUNS.c.id.in_(batch))
        return deleted

    async def _surplus(self, most_per_key: int) -> list[str]:
        """Return the ids of all ended runs except the last ones of each key."""
        newest_first = (RUNS.c.finished.desc(), RUNS.c.id)
        age_rank = sa.func.row_number().over(partition_by=RUNS.c.key_id, order_by=newest_first)
        ended_runs = sa.select(RUNS.c.id, age_rank.label("age_rank")).where(~IS_LIVE).subquery()
        rows = await self._all(
            sa.select(ended_runs.c.id).where(ended_runs.c.age_rank > most_per_key)
        )
        return [row["id"] for row in rows]

    async def _delete_ended(self, condition: sa.ColumnElement[bool]) -> list[str]:
        """Delete some of the ended runs that a condition is true of, and return their ids."""
        # Another process may be deleting some just now.
        ended_runs = sa.select(RUNS.c.id).where(condition, ~IS_LIVE)
        ended_runs = ended_runs.limit(DELETED_AT_ONCE).with_for_update(skip_locked=True)
        async with self.database.begin() as connection:
            ids = list(await connection.scalars(ended_runs))
            await delete_rows(connection, ids, RUNS.c.id, *self._checkpoints)
        return ids

    # --- access keys: we only keep their SHA-256 --------------------------------------------------

    async def create_key(self, name: str, scopes: Sequence[Scope]) -> tuple[AccessKey, str]:
        """Make an access key.

        Args:
            name: Who or what it is for; one line of at most 100 characters.
            scopes: What it may do. ``admin`` includes ``run``, and ``run`` includes ``read``; the
                returned key names them all.

        Returns:
            The key, and its secret, which nobody can read again.

        Raises:
            InputError: The name cannot be shown, or there is no such scope.
        """
        is_short = len(name) <= _LONGEST_NAME and name.isprintable()
        if not name.strip() or not is_short:
            raise InputError(f"The name of a key is one line of 1 to {_LONGEST_NAME} characters.")
        if not scopes or not set(scopes) <= set(SCOPES):
            names = one_line(", ".join(scopes), 40)
            raise InputError(f"There is no scope '{names}'; choose from {', '.join(SCOPES)}.")

        highest = max(SCOPES.index(scope) for scope in scopes)
        id_ = secrets.token_hex(6)
        secret = f"{KEY_START}{id_}_{secrets.token_urlsafe(32)}"
        inserting = KEYS.insert().values(
            id=id_,
            name=name.strip(),
            scopes=SCOPES[: highest + 1],
            created=self.database.now(),
            sha256=_sha256(secret),
        )
        async with self.database.begin() as connection:
            rows = await connection.execute(inserting.returning(*KEYS.c))
            access_key = AccessKey(**rows.mappings().one())
            return access_key, secret

    async def keys(self) -> list[AccessKey]:
        """Return all access keys, the oldest first, including revoked ones."""
        query = sa.select(KEYS).order_by(KEYS.c.created, KEYS.c.id)
        return [AccessKey(**row) for row in await self._all(query)]

    async def revoke_key(self, id_: str) -> AccessKey:
        """Revoke an access key for good, and cancel its runs.

        A key that was revoked before stays unchanged.

        Args:
            id_: The id of the key.

        Raises:
            InputError: The key does not exist.
        """
        may_exist = re.fullmatch(r"[0-9a-f]{12}", id_, re.ASCII) is not None
        if may_exist:  # PostgreSQL refuses some other texts
            async with self.database.begin() as connection:
                revoking = KEYS.update().where(KEYS.c.id == id_, KEYS.c.revoked.is_(None))
                await connection.execute(revoking.values(revoked=self.database.now()))
                await self._cancel(connection, RUNS.c.key_id == id_)
        for key in await self.keys():
            if key.id == id_:
                return key
        raise InputError(f"There is no access key '{one_line(id_, 12)}'; see 'fairqr keys list'.")

    async def revoked(self, ids: Collection[str]) -> set[str]:
        """Return which of these keys are revoked."""
        query = sa.select(KEYS.c.id).where(KEYS.c.id.in_(ids), KEYS.c.revoked.is_not(None))
        return {row["id"] for row in await self._all(query)}

    async def key_for(self, secret: str) -> AccessKey | None:
        """Return the access key of a secret, or None if it does not exist or was revoked."""
        match = _SECRET.fullmatch(secret)
        if match is None:
            return None
        rows = await self._all(sa.select(KEYS).where(KEYS.c.id == match[1]))

        # An unknown id takes as long as a wrong secret.
        expected = rows[0]["sha256"] if rows else "0" * 64
        is_right = hmac.compare_digest(_sha256(secret), expected)
        if not rows or not is_right:
            return None
        if rows[0]["revoked"] is not None:
            return None
        return AccessKey(**rows[0])


def _sha256(secret: str) -> str:
    # The secret has 256 random bits, so a slow hash would add nothing.
    return hashlib.sha256(secret.encode()).hexdigest()


async def _repeated_run(
    connection: AsyncConnection, key: str, values: Mapping[str, Any]
) -> Run | None:
    """Return the run of a request that a key repeats, if it has one.

    Raises:
        InputError: It was another request.
    """
    idempotency = values["idempotency"]
    query = sa.select(RUNS).where(RUNS.c.key_id == key, RUNS.c.idempotency == idempotency)
    row = (await connection.execute(query)).mappings().first()
    if row is None:
        return None
    is_same = row["kind"] == values["kind"] and row["request"] == values["request"]
    if not is_same:
        raise InputError(
            f"The Idempotency-Key belongs to another request, whose run is {row['id']}; send a new "
            "one."
        )
    return _run_of(row)


async def _run_of_key(connection: AsyncConnection, id: str, key: str) -> Run:
    """Return a run that belongs to the key.

    Raises:
        RunNotFoundError: There is no such run, or it belongs to another key; the message does not
            say which.
    """
    row = None
    if is_id(id):  # PostgreSQL refuses some other texts
        query = sa.select(RUNS).where(RUNS.c.id == id, RUNS.c.key_id == key)
        row = (await connection.execute(query)).mappings().first()
    if row is None:
        raise RunNotFoundError(
            "There is no such run; it may belong to another key, or have been deleted."
        )
    return _run_of(row)


def _run_of(row: sa.RowMapping) -> Run:
    """Return the run of a row."""
    values = {name: row[name] for name in Run.model_fields}
    was_cancelled_in_queue = row["status"] == "cancelled" and row["problem"] is None
    if was_cancelled_in_queue:
        values["problem"] = problem_of(RunCancelledError(CANCELLED), path_of(row["id"]))
    return Run(**values)
