"""Runs, their events and replies, and access keys, in SQLite or PostgreSQL."""

from __future__ import annotations

import asyncio
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
from pydantic import Field
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from fairqr.base.errors import (
    AccessError,
    InputError,
    RunCancelledError,
    RunNotFoundError,
    one_line,
)
from fairqr.graph.journal import Write
from fairqr.graph.service.configuration import Traffic
from fairqr.graph.service.problems import CANCELLED, REVOKED, busy, problem_of
from fairqr.graph.service.records import (
    KEY_ID,
    KEY_START,
    LIVE,
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
from fairqr.graph.service.store.database import ACCEPTING, CONNECTIONS, Database
from fairqr.graph.service.store.tables import ENDED, EVENTS, KEYS, LAYOUT, REPLIES, RUNS

DELETED_AT_ONCE = 50
"""How many old runs are deleted in one transaction."""

TRIAL = 16_384
"""Bytes."""

_LIVE = RUNS.c.status.in_(LIVE)

_SECRET = re.compile(rf"{KEY_START}([0-9a-f]{{{KEY_ID}}})_[A-Za-z0-9_-]{{43}}", re.ASCII)
_NAME = 100  # characters


class Queued(NamedTuple):
    """What a queue knows of a run.

    Attributes:
        key: The id of the key that asked for it.
    """

    id: str
    kind: Kind
    key: str


Enqueue = Callable[[AsyncConnection, Queued], Awaitable[None]]
"""Hands a run to whoever does it."""


class Attempt(Run):
    """An attempt at a run. The store takes what it writes while no later one has started."""

    attempts: int = Field(0, description="The number of this one, from 1.")

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


class Store:
    """The database of the service. All methods raise StoreUnavailableError if it cannot be used."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._checkpointing = asyncio.Semaphore(CONNECTIONS - 2)
        names = ("writes",) if database.file else ("checkpoint_blobs", "checkpoint_writes")
        # LangGraph's tables, by the column with the id of the run.
        tables = [sa.table(name, sa.column("thread_id")) for name in ("checkpoints", *names)]
        self._checkpoints = [table.c.thread_id for table in tables]

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
        async with self.database.begin() as connection:
            # As much as an event, and nothing that could be written in the place of what is there.
            await connection.execute(LAYOUT.update().values(trial=os.urandom(TRIAL)))

    async def _all(self, query: sa.Select[Any]) -> Sequence[Mapping[str, Any]]:
        async with self.database.begin() as connection:
            return [dict(row) for row in (await connection.execute(query)).mappings()]

    # --- runs, as their keys see them -------------------------------------------------------------

    async def accept(self, enqueue: Enqueue, traffic: Traffic, key: str, **values: Any) -> Run:
        """Accept a run.

        Args:
            enqueue: Hands it to whoever does it, in the same transaction.
            traffic: How many runs may wait, and how many of this key may be live.
            key: The id of the key that asked for it.
            values: What the other columns of the table say of it. If the key has a run with the
                same ``idempotency``, that one is returned, and none is accepted.

        Raises:
            BusyError: One of these limits is reached.
            InputError: The key has used ``idempotency`` for another request.
            AccessError: The key was revoked while its request was on its way.
        """
        # Who revokes the key meanwhile waits, and then cancels this run, too.
        revoked = sa.select(KEYS.c.revoked).where(KEYS.c.id == key).with_for_update(read=True)
        counts = sa.select(
            sa.func.count().filter(RUNS.c.key_id == key),
            sa.func.count().filter(RUNS.c.status == "queued"),
        ).where(_LIVE)
        async with self.database.begin() as connection:
            if not self.database.file:  # two would both count before either is there
                await connection.execute(sa.select(sa.func.pg_advisory_xact_lock(ACCEPTING)))
            if await connection.scalar(revoked) is not None:
                raise AccessError(REVOKED)
            if values.get("idempotency") is not None:
                repeated = await _repeated_run(connection, key, values)
                if repeated is not None:
                    return repeated
            own, waiting = (await connection.execute(counts)).one()
            if own >= traffic.live:
                raise busy("live", traffic.live)
            if waiting >= traffic.queue:
                raise busy("queue", traffic.live)
            values |= {"id": uuid.uuid4().hex, "key_id": key, "created": self.database.now()}
            accepted = RUNS.insert().values(status="queued", **values).returning(*RUNS.c)
            run = _run_of((await connection.execute(accepted)).mappings().one())
            await enqueue(connection, Queued(run.id, run.kind, key))
            return run

    async def run(self, id: str, key: str) -> Run:
        """Return a run.

        Raises:
            RunNotFoundError: The key has no such run.
        """
        async with self.database.begin() as connection:
            return await _own(connection, id, key)

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
        wanted = {name: value for name, value in only.items() if value is not None}
        query = query.filter_by(key_id=key, **wanted)
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
        return [Event(**it) for it in await self._all(query.order_by(EVENTS.c.number).limit(limit))]

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
            await _own(connection, id, key)
            await self._cancel(connection, RUNS.c.id == id)
            return await _own(connection, id, key)

    async def _cancel(self, connection: AsyncConnection, which: sa.ColumnElement[bool]) -> None:
        """Cancel live runs: those that wait end now, and processes see to those under way."""
        waits = RUNS.c.status == "queued"
        cancelling = (
            RUNS.update()
            .values(
                cancel=True,
                status=sa.case((waits, "cancelled"), else_=RUNS.c.status),
                finished=sa.case((waits, self._now_after(RUNS.c.created))),
            )
            .where(_LIVE, which)
            .returning(RUNS.c.kind, RUNS.c.status)
        )
        rows = (await connection.execute(cancelling)).all()
        ended = Counter(row.kind for row in rows if row.status == "cancelled")
        for kind in sorted(ended):  # in one order, so that no two transactions wait for each other
            await self._count_end(connection, kind, "cancelled", ended[kind])

    async def delete(self, id: str, key: str) -> Run:
        """Delete a run that is over, with its events, and return it.

        Raises:
            RunNotFoundError: The key has no such run.
            InputError: The run is not over.
        """
        async with self.database.begin() as connection:
            run = await _own(connection, id, key)
            if run.live:
                raise InputError(f"The run {id} is not over; cancel it first.")
            await _delete(connection, [id], RUNS.c.id, *self._checkpoints)
            return run

    # --- attempts ---------------------------------------------------------------------------------

    async def claim(self, id: str) -> Attempt | None:
        """Begin the next attempt at a run, and end what earlier ones may write.

        Returns:
            The attempt; None if the run is over or gone.
        """
        claiming = RUNS.update().where(RUNS.c.id == id, _LIVE)
        claiming = claiming.values(
            status="running",
            attempts=RUNS.c.attempts + 1,
            started=sa.func.coalesce(RUNS.c.started, self._now_after(RUNS.c.created)),
        )
        stored = sa.select(EVENTS.c.number, EVENTS.c.step).where(EVENTS.c.run_id == id)
        kept = sa.select(REPLIES.c.id, REPLIES.c.reply).where(REPLIES.c.run_id == id)
        async with self.database.begin() as connection:
            found = await connection.execute(claiming.returning(*RUNS.c))
            if (row := found.mappings().first()) is None:
                return None
            again = row["attempts"] > 1
            events = (await connection.execute(stored)).all() if again else ()
            replies = (await connection.execute(kept)).all() if again else ()
        more = {"step_keys": dict(map(tuple, events)), "replies": dict(map(tuple, replies))}
        return Attempt(**{name: row[name] for name in row if name in Attempt.model_fields}, **more)

    async def add(
        self,
        run: Run,
        events: Sequence[Event],
        replies: Mapping[str, Mapping[str, Any]],
        version: str | None = None,
        writes: Sequence[Write] = (),
    ) -> bool:
        """Write what happened in a run; what is there already stays unchanged.

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
        return await self._write(run, values, events, replies, writes=writes) is not None

    async def start_over(self, run: Run) -> bool:
        """Delete the checkpoints of a run; see :meth:`add`."""
        values = {"version": None}
        return await self._write(run, values, deleted=self._checkpoints) is not None

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
        end = {name: getattr(run, name) for name in ("status", "result", "problem")}
        end["finished"] = self._now_after(RUNS.c.started)
        # Only what is live needs them.
        deleted = [REPLIES.c.run_id, *(self._checkpoints if has_checkpoints else ())]
        written = await self._write(run, end, events, deleted=deleted)
        return written and run.model_copy(update={"finished": written.finished})

    async def release(self, run: Run) -> bool:
        """Hand a run over to the next attempt, or end it if it is to be; see :meth:`add`."""
        values = {
            "handed_over": RUNS.c.handed_over + 1,
            "status": sa.case((RUNS.c.cancel, "cancelled"), else_="queued"),
            "finished": sa.case((RUNS.c.cancel, self._now_after(RUNS.c.started))),
        }
        return await self._write(run, values) is not None

    def _now_after(self, earlier: sa.ColumnElement[float]) -> sa.ColumnElement[float]:
        """Return the time, or that of something earlier if the clock was set back meanwhile."""
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
        """Write something of an attempt in one transaction; None if it may not write any more."""
        mine = RUNS.update().where(
            RUNS.c.id == run.id, RUNS.c.attempts == run.attempts, RUNS.c.status == "running"
        )
        mine = mine.values(**values).returning(RUNS.c.finished, RUNS.c.status)
        event_rows = [{"run_id": run.id, **event.model_dump()} for event in events if event.number]
        kept = [{"run_id": run.id, "id": id_, "reply": it} for id_, it in (replies or {}).items()]
        insert = self._insert
        # To make a checkpoint plain data takes a thread. If none is free, keys are still checked.
        few = self._checkpointing if writes else contextlib.nullcontext()
        async with few, self.database.begin() as connection:
            driver: Any = await self.database.driver_of(connection) if writes else None
            # In PostgreSQL, before the row is locked: LangGraph's saver uses a pipeline, in which a
            # process that is frozen keeps its locks.
            for write in () if self.database.file else writes:
                await write(driver)
            if (written := (await connection.execute(mine)).first()) is None:
                await connection.rollback()
                return None
            for table, rows in ((EVENTS, event_rows), (REPLIES, kept)):
                if rows:
                    # Without what it returns, psycopg would open a pipeline, too.
                    adding = insert(table).on_conflict_do_nothing().returning(table.c.run_id)
                    await connection.execute(adding, rows)
            await _delete(connection, [run.id], *deleted)
            if written.finished is not None:
                await self._count_end(connection, run.kind, written.status)
            # In SQLite, last: the saver commits each of them.
            for write in writes if self.database.file else ():
                if not driver.in_transaction:
                    await driver.execute("BEGIN IMMEDIATE")
                await write(driver)
            return written

    async def _count_end(
        self, connection: AsyncConnection, kind: Kind, status: Status, number: int = 1
    ) -> None:
        """Count that runs have ended; see :meth:`count_ended`."""
        first = self._insert(ENDED).values(kind=kind, status=status, number=number)
        more = {"number": ENDED.c.number + number}
        await connection.execute(
            first.on_conflict_do_update(index_elements=["kind", "status"], set_=more)
        )

    @property
    def _insert(self) -> Any:
        """The statement that inserts, as the database's dialect has it."""
        return sqlite.insert if self.database.file else postgresql.insert

    # --- what processes look for ------------------------------------------------------------------

    async def to_cancel(self) -> list[str]:
        """Return the ids of the runs under way that are to be cancelled."""
        query = sa.select(RUNS.c.id).where(_LIVE, RUNS.c.cancel)
        return [row["id"] for row in await self._all(query)]

    async def unfinished(self) -> list[Queued]:
        """Return all live runs, the oldest first."""
        query = sa.select(RUNS.c.id, RUNS.c.kind, RUNS.c.key_id.label("key"))
        return [
            Queued(**row) for row in await self._all(query.where(_LIVE).order_by(RUNS.c.created))
        ]

    async def counts(self) -> dict[Status, int]:
        """Return the numbers of live runs, by status; zeros are left out."""
        # Past runs are not counted each time.
        query = sa.select(RUNS.c.status, sa.func.count().label("number")).where(_LIVE)
        found = await self._all(query.group_by(RUNS.c.status))
        return {row["status"]: row["number"] for row in found}

    async def count_ended(self) -> dict[tuple[Kind, Status], int]:
        """Return how many runs ever ended, by kind and status."""
        found = await self._all(sa.select(ENDED))
        return {(row["kind"], row["status"]): row["number"] for row in found}

    async def forget(self, seconds: float, most: int) -> list[str]:
        """Delete ended runs, which are old or too many of one key.

        Args:
            seconds: How long ago they ended at most, by the database's clock.
            most: How many of a key stay, those that ended last.

        Returns:
            The ids of the deleted runs.
        """
        old = RUNS.c.finished < self.database.now() - seconds
        deleted = list[str]()
        while some := await self._delete_ended(old):
            deleted += some
        surplus = await self._surplus(most)
        for start in range(0, len(surplus), DELETED_AT_ONCE):
            some = surplus[start : start + DELETED_AT_ONCE]
            deleted += await self._delete_ended(RUNS.c.id.in_(some))
        return deleted

    async def _surplus(self, most: int) -> list[str]:
        """Return the ids of all ended runs but the last ones of each key."""
        newest_first = (RUNS.c.finished.desc(), RUNS.c.id)
        place = sa.func.row_number().over(partition_by=RUNS.c.key_id, order_by=newest_first)
        ended = sa.select(RUNS.c.id, place.label("place")).where(~_LIVE).subquery()
        rows = await self._all(sa.select(ended.c.id).where(ended.c.place > most))
        return [row["id"] for row in rows]

    async def _delete_ended(self, which: sa.ColumnElement[bool]) -> list[str]:
        """Delete some of the ended runs that a condition is true of, and return their ids."""
        # Another process may be deleting some just now.
        ended = sa.select(RUNS.c.id).where(which, ~_LIVE)
        ended = ended.limit(DELETED_AT_ONCE).with_for_update(skip_locked=True)
        async with self.database.begin() as connection:
            ids = list(await connection.scalars(ended))
            await _delete(connection, ids, RUNS.c.id, *self._checkpoints)
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
        if not (name.strip() and len(name) <= _NAME and name.isprintable()):
            raise InputError(f"The name of a key is one line of 1 to {_NAME} characters.")
        if not scopes or not {*scopes} <= {*SCOPES}:
            given = one_line(", ".join(scopes), 40)
            raise InputError(f"There is no scope '{given}'; choose from {', '.join(SCOPES)}.")
        highest = max(SCOPES.index(scope) for scope in scopes)
        id_ = secrets.token_hex(6)
        secret = f"{KEY_START}{id_}_{secrets.token_urlsafe(32)}"
        made = KEYS.insert().values(
            id=id_,
            name=name.strip(),
            scopes=SCOPES[: highest + 1],
            created=self.database.now(),
            sha256=_sha256(secret),
        )
        async with self.database.begin() as connection:
            found = await connection.execute(made.returning(*KEYS.c))
            return AccessKey(**found.mappings().one()), secret

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
        if re.fullmatch(r"[0-9a-f]{12}", id_, re.ASCII):  # PostgreSQL refuses some other texts
            async with self.database.begin() as connection:
                revoked = KEYS.update().where(KEYS.c.id == id_, KEYS.c.revoked.is_(None))
                await connection.execute(revoked.values(revoked=self.database.now()))
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
        if (form := _SECRET.fullmatch(secret)) is None:
            return None
        found = await self._all(sa.select(KEYS).where(KEYS.c.id == form[1]))
        # An unknown id takes as long as a wrong secret.
        expected = found[0]["sha256"] if found else "0" * 64
        same = hmac.compare_digest(_sha256(secret), expected)
        if not same or not found or found[0]["revoked"] is not None:
            return None
        return AccessKey(**found[0])


def _sha256(secret: str) -> str:
    # The secret has 256 random bits, so a slow hash would add nothing.
    return hashlib.sha256(secret.encode()).hexdigest()


async def _delete(connection: AsyncConnection, ids: Sequence[str], *columns: Any) -> None:
    """Delete the rows of some runs from tables, named by their columns with the id of the run."""
    for column in columns:
        await connection.execute(sa.delete(column.table).where(column.in_(ids)))


async def _repeated_run(
    connection: AsyncConnection, key: str, values: Mapping[str, Any]
) -> Run | None:
    """Return the run of a request that a key repeats, if it has one.

    Raises:
        InputError: It was another request.
    """
    query = sa.select(RUNS).where(RUNS.c.key_id == key, RUNS.c.idempotency == values["idempotency"])
    row = (await connection.execute(query)).mappings().first()
    if row is None:
        return None
    if (row["kind"], row["request"]) != (values["kind"], values["request"]):
        raise InputError(
            f"The Idempotency-Key belongs to another request, whose run is {row['id']}; send a new "
            "one."
        )
    return _run_of(row)


async def _own(connection: AsyncConnection, id: str, key: str) -> Run:
    """Return a run that belongs to the key.

    Raises:
        RunNotFoundError: There is none, or it belongs to another key; the message does not say
            which.
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


def _run_of(row: Any) -> Run:
    values = {name: row[name] for name in Run.model_fields}
    if row["status"] == "cancelled" and row["problem"] is None:  # nobody was doing it
        values["problem"] = problem_of(RunCancelledError(CANCELLED), path_of(row["id"]))
    return Run(**values)
