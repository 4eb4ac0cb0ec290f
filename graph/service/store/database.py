"""The database: SQLite in a file for one process, or PostgreSQL for several machines.

LangGraph's checkpointers use it, too, in the transactions of a run's events.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import aiosqlite
import procrastinate
import psycopg
import sqlalchemy as sa
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from fairqr.base.errors import ConfigError, StoreUnavailableError, one_line
from fairqr.base.settings import data_dir
from fairqr.graph.journal import run_journal
from fairqr.graph.service.records import NOBODY
from fairqr.graph.service.slots import Slots
from fairqr.graph.service.store.tables import make_tables

SCHEMA = "fairqr"
"""The schema of our tables in PostgreSQL, and of those of procrastinate and LangGraph."""

CONNECTIONS = 5
SHARE = 0.8
"""The largest part of the connections that one key may have."""

CONNECT = 5  # seconds
WAIT = 30  # seconds until a transaction begins

STATEMENT = 20_000  # milliseconds

PREPARING, PUTTING_BACK, ACCEPTING = 0x6661_6972_0001, 0x6661_6972_0002, 0x6661_6972_0003
"""The names of locks in PostgreSQL."""

PREPARED_WITHIN = 120.0
"""Seconds to wait while another process prepares the database."""

PAUSE = 0.5
"""Seconds between two attempts while the database is away."""

_BUGS = (
    *(sa.exc.IntegrityError, sa.exc.DataError),
    *(psycopg.IntegrityError, psycopg.DataError),
    *(sqlite3.IntegrityError, sqlite3.DataError),
)
"""Failures that are not the database's, and have to look like what they are."""

_FAILURES = (
    sa.exc.DBAPIError,
    sa.exc.TimeoutError,
    # Those of the drivers without SQLAlchemy's class, as those of connecting.
    sqlite3.Error,
    psycopg.Error,
    procrastinate.exceptions.ConnectorException,
    OSError,
)

current_key_id: ContextVar[str] = ContextVar("fairqr_key_id", default=NOBODY)
"""For whom a transaction is: the id of a key, or an address. Callers take turns."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


MEMORY = ":memory:"
"""What SQLite takes for a database in memory."""

_DAMAGED = re.compile("malformed|not a database")
"""What SQLite says of a damaged file."""

STARTUP = "startup parameter"
"""What a pooler says of the options of a connection."""

TOLD_EVERY = 10.0
"""Seconds between two lines of the log that say that the database is away."""


async def lasting(call: Callable[[], Awaitable[T]]) -> T:
    """Await ``call()``; repeat it while the database is away."""
    while True:
        try:
            return await call()
        except StoreUnavailableError:
            await asyncio.sleep(PAUSE)


class Database:
    """Transactions, and the place of LangGraph's checkpoints.

    Args:
        url: ``sqlite:///path`` or ``postgresql://user:password@host:port/name``; empty for the file
            ``service/runs.sqlite`` in the data folder.

    Attributes:
        file: The file; None for PostgreSQL.
        arguments: What connects to PostgreSQL; empty for SQLite.
        place: Where the database is, for people; without user and password.

    Raises:
        ConfigError: The URL is of another kind, a part of it is wrong, or the file cannot be made.
    """

    def __init__(self, url: str = "") -> None:
        self.arguments: dict[str, Any] = {}
        self._tell_at = 0.0
        self._is_damaged = False
        self.file = _file_of(url)
        if self.file is not None:
            self.place = str(self.file)
            _make_file(self.file)
            self._identity = _identity_of(_status_of(self.file))
            self._was_filled = False
        else:
            self.arguments = _arguments_of(url)
            place = (self.arguments.get(part, "") for part in ("host", "port", "dbname"))
            self.place = "{}:{}/{}".format(*place)
        self._slots = Slots(1 if self.file else CONNECTIONS, SHARE)
        self._engine = create_async_engine(
            "sqlite+aiosqlite://" if self.file else "postgresql+psycopg://",
            async_creator=lambda: _whole(self._connected()),
            # Two transactions in a file would only wait for each other's lock.
            poolclass=sa.AsyncAdaptedQueuePool,
            pool_size=1 if self.file else CONNECTIONS,
            max_overflow=0,
            pool_timeout=CONNECT,
            pool_pre_ping=not self.file,
            hide_parameters=True,  # errors would quote queries and documents
        )
        if self.file:
            # We begin transactions ourselves: the driver would begin them late, and one that has
            # read could not write after one of another process.
            begin = "BEGIN IMMEDIATE"
            sa.event.listen(self._engine.sync_engine, "begin", lambda it: it.exec_driver_sql(begin))

    async def _connected(self) -> Any:
        if self.file:
            return await _connected(self.file, isolation_level=None)
        return await psycopg.AsyncConnection.connect(**self.arguments)

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        """Open a transaction, which is committed at the end.

        What drivers say of a failure is logged, every few seconds.

        Raises:
            StoreUnavailableError: The database cannot be used. The sentence names no place and no
                user; the cause has the database's message.
        """
        if self.file is not None:
            self._require_sound(self.file)
        try:
            async with self._turn(), self._engine.begin() as connection:
                if self.file is not None:
                    _require_log(self.file, connection.info)
                yield connection
        except _BUGS:
            raise
        except _FAILURES as error:
            if self.file is not None and _DAMAGED.search(_said(error)):
                self._is_damaged = True
            if time.monotonic() > self._tell_at:  # each request would say the same
                self._tell_at = time.monotonic() + TOLD_EVERY
                _log.warning("The database of runs: %s", _said(error))
            raise StoreUnavailableError(
                "The database of runs is not available; try again later."
            ) from error

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Hold one of the connections; who asks for many waits behind those who ask for few.

        Raises:
            OSError: There is none for a long time.
        """
        whose = current_key_id.get()
        try:
            async with asyncio.timeout(WAIT):
                await self._slots.acquire(whose)
        except TimeoutError:
            raise OSError("All connections are taken.") from None
        try:
            yield
        finally:
            self._slots.release(whose)

    def _require_sound(self, file: Path) -> None:
        """Refuse a file that is damaged, or another one than was opened.

        SQLite would go on with what it has read before, and what it writes would be lost.

        Raises:
            StoreUnavailableError: It is.
        """
        if self._is_damaged:
            raise StoreUnavailableError(
                "The file of runs is damaged; put back a copy, and start the service again."
            )
        found = _status_of(file)
        is_filled = found is not None and found.st_size > 0
        is_emptied = self._was_filled and not is_filled
        self._was_filled |= is_filled
        if _identity_of(found) != self._identity or is_emptied:
            raise StoreUnavailableError(
                "The file of runs was removed or replaced; start the service again."
            )

    async def driver_of(self, connection: AsyncConnection) -> Any:
        """Return the driver's connection of a transaction, for LangGraph and procrastinate."""
        return (await connection.get_raw_connection()).driver_connection

    def now(self) -> sa.ColumnElement[float]:
        """Return the time in seconds since the epoch, by a clock that all processes share."""
        if self.file:
            return sa.literal(time.time(), sa.Double)
        return sa.cast(sa.func.extract("epoch", sa.func.clock_timestamp()), sa.Double)

    async def prepare(self) -> None:
        """Make or upgrade the tables, and those of LangGraph and procrastinate.

        Several processes may do so at the same time.

        Raises:
            StoreUnavailableError: The database does not respond, refuses, or is a newer one.
        """
        try:
            if not self.file:
                await self._require_sessions()
            async with contextlib.nullcontext() if self.file else self._alone():
                async with self._engine.begin() as connection:
                    await connection.run_sync(make_tables)
                await self._prepare_checkpoints()
        except _FAILURES as error:
            if STARTUP in str(error):  # PgBouncer does not pass them on
                raise self._pooled() from error
            raise StoreUnavailableError(
                f"The database of runs at {self.place} cannot be used: {_said(error).rstrip('.')}; "
                "check its URL, and that it is running."
            ) from error

    async def _require_sessions(self) -> None:
        """Check that a connection stays one session, with its own settings, as queues need it.

        Raises:
            ConfigError: A pooler stands between that gives each transaction another session.
        """
        one = await self._connected()
        other = await self._connected()
        try:
            await one.set_autocommit(True)
            session = "SELECT pg_backend_pid(), current_setting('search_path')"
            first = await (await one.execute(session)).fetchone()
            await other.execute("SELECT 1")  # begins a transaction, perhaps where the first one was
            async with asyncio.timeout(CONNECT):
                again = await (await one.execute(session)).fetchone()
            if first != again or first[1] != SCHEMA:
                raise self._pooled()
        except (TimeoutError, psycopg.errors.ProtocolViolation):
            # The only session is taken, or there are no transactions.
            raise self._pooled() from None
        finally:
            await other.close()
            await one.close()

    def _pooled(self) -> ConfigError:
        return ConfigError(
            f"The database of runs at {self.place} is behind a pooler, such as PgBouncer, which "
            "keeps neither sessions nor their settings; name PostgreSQL itself."
        )

    async def _prepare_checkpoints(self) -> None:
        connection = await self._connected()
        try:
            saver: Any = Checkpoints(self).saver(connection)
            if self.file:
                saver.is_setup = False
            else:
                await connection.set_autocommit(True)  # PostgreSQL makes its indexes so
            await saver.setup()
        finally:
            await connection.close()

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Keep other processes from preparing the server meanwhile; make what is not ours."""
        async with self._engine.connect() as plain:
            connection = await plain.execution_options(isolation_level="AUTOCOMMIT")
            end = time.monotonic() + PREPARED_WITHIN
            # Polling, since a statement that waits holds up the index that LangGraph makes.
            while not await connection.scalar(sa.select(sa.func.pg_try_advisory_lock(PREPARING))):
                if time.monotonic() > end:
                    raise TimeoutError("another process is still preparing it")
                await asyncio.sleep(0.05)
            try:
                # Look first: a user without the right to create schemas may still use one.
                if not await connection.scalar(sa.select(sa.func.to_regnamespace(SCHEMA))):
                    await connection.execute(sa.text(f"CREATE SCHEMA {SCHEMA}"))
                yield
                there = sa.select(sa.func.to_regclass("procrastinate_jobs"))
                if not await connection.scalar(there):
                    async with self.queue(1).open_async() as app:
                        await app.schema_manager.apply_schema_async()
            finally:
                await connection.scalar(sa.select(sa.func.pg_advisory_unlock(PREPARING)))

    def queue(self, connections: int) -> procrastinate.App:
        """Return procrastinate's queue in PostgreSQL; the caller opens it."""
        connector = procrastinate.PsycopgConnector(
            kwargs=self.arguments, min_size=1, max_size=connections
        )
        return procrastinate.App(connector=connector)

    async def close(self) -> None:
        """Close all connections."""
        await self._engine.dispose()


class Checkpoints(BaseCheckpointSaver[Any]):
    """The checkpoints of durable runs, which LangGraph's own savers read and write.

    A checkpoint is written in a transaction of its run, never before the events of its steps; in
    SQLite, some of its parts follow at once. So nothing is done and never published, and whoever
    has lost a run writes no checkpoint of it any more.

    Args:
        database: Where they are.
    """

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database
        self._versions = self.saver()

    def saver(self, connection: Any = None) -> AsyncSqliteSaver | AsyncPostgresSaver:
        """Return LangGraph's saver on a connection of the driver, whose tables are there."""
        if not self._database.file:
            return AsyncPostgresSaver(connection)
        saver = AsyncSqliteSaver(connection)
        saver.is_setup = True
        return saver

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Return the next version of a channel."""
        return self._versions.get_next_version(current, channel)

    async def aget_tuple(self, config: Any) -> Any:
        """Return the last checkpoint of a thread."""
        journal = run_journal()  # None if somebody looks from outside of the run
        if journal is not None and not await journal.settled():
            return None
        return await self._read(lambda saver: saver.aget_tuple(config))

    async def aget_delta_channel_history(self, **about: Any) -> Any:
        """Return what the steps of a thread have added to channels that grow."""
        return await self._read(lambda saver: saver.aget_delta_channel_history(**about))

    async def aput(self, config: Any, checkpoint: Any, *given: Any) -> Any:
        """Keep a checkpoint soon, together with the events of the run."""
        journal: Any = run_journal()  # only durable runs have these checkpoints
        journal.write(lambda driver: self.saver(driver).aput(config, checkpoint, *given))
        return {"configurable": {**config["configurable"], "checkpoint_id": checkpoint["id"]}}

    async def aput_writes(self, *given: Any) -> None:
        """Keep what a step changed soon, even if steps beside it have not ended."""
        journal: Any = run_journal()
        journal.write(lambda driver: self.saver(driver).aput_writes(*given))

    async def _read(self, call: Callable[[Any], Awaitable[Any]]) -> Any:
        async def read() -> Any:
            async with self._database.begin() as connection:
                return await call(self.saver(await self._database.driver_of(connection)))

        return await lasting(read)


def _file_of(url: str) -> Path | None:
    """Return the file of a URL, or None if it names no file.

    Raises:
        ConfigError: It names a database in memory.
    """
    if not url:
        return data_dir() / "service" / "runs.sqlite"
    kind, _, path = url.partition(":///")
    if kind.partition("+")[0] == "sqlite" and path in ("", MEMORY):
        raise ConfigError(
            "Runs cannot be kept in memory, where each connection would have its own; name a file, "
            "such as sqlite:////var/lib/fairqr/runs.sqlite."
        )
    return Path(path).expanduser() if kind.partition("+")[0] == "sqlite" and path else None


def _make_file(file: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # SQLite gives its other files the same rights.
        os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise ConfigError(
            f"The database of runs cannot be kept in {file}: {error.strerror}; name a file that "
            "may be written."
        ) from None


def _arguments_of(url: str) -> dict[str, Any]:
    """Return what connects to the PostgreSQL of a URL."""
    kind, _, rest = url.partition("://")
    given: dict[str, Any] | None = None
    if kind.partition("+")[0] in ("postgresql", "postgres"):
        with contextlib.suppress(psycopg.ProgrammingError):
            given = conninfo_to_dict(f"postgresql://{rest}")
    if given is None or any("@" in str(given.get(it, "")) for it in ("host", "port", "dbname")):
        # Do not quote the URL or what the driver says, which may contain a part of the password.
        raise ConfigError(
            "The URL of the database of runs cannot be read; write sqlite:///path or "
            "postgresql://user:password@host:port/name, with %40 for an @ in the password, %2F for "
            "a /, and so on."
        )
    options = (
        f"-c search_path={SCHEMA} -c statement_timeout={STATEMENT} "
        f"-c idle_in_transaction_session_timeout={STATEMENT}"
    )
    return {
        "connect_timeout": CONNECT,
        "application_name": "fairqr",
        # So that we notice if the server vanishes.
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 15_000,
        **given,
        "options": f"{given.get('options', '')} {options}".strip(),
    }


def _status_of(file: Path) -> os.stat_result | None:
    """Return what the system says of a file; None if there is none."""
    try:
        return file.stat()
    except OSError:
        return None


def _identity_of(found: os.stat_result | None) -> tuple[int, int] | None:
    """Return what tells a file from another one of its name."""
    return None if found is None else (found.st_dev, found.st_ino)


def _require_log(file: Path, of_connection: dict[Any, Any]) -> None:
    """Refuse to write into a write-ahead log that has no name any more.

    SQLite makes it with the first connection, and removes it with the last one. Meanwhile it stays
    the same file; if somebody removes it, what is written is lost unless the service ends in good
    order, and another process would begin another one.

    Args:
        file: The database.
        of_connection: What is kept of a connection as long as it is open.

    Raises:
        StoreUnavailableError: It was removed.
    """
    found = _identity_of(_status_of(file.with_name(f"{file.name}-wal")))
    if found is None or found != of_connection.setdefault("log", found):
        raise StoreUnavailableError(
            "The log beside the file of runs, whose name ends in -wal, was removed; stop the "
            "service in good order, which keeps its runs, and start it again."
        )


def _said(error: BaseException) -> str:
    """Return the driver's message, on one line."""
    origin = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    lines = str(origin).splitlines()
    return one_line(lines[0]) if lines else type(error).__name__


async def _whole(opening: Coroutine[Any, Any, Any]) -> Any:
    """Open a connection; if whoever asks is cancelled, close it, and leave no half of it open.

    A server waits for the other half, and meanwhile nobody can drop a database there.
    """
    task = asyncio.ensure_future(opening)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):  # it could not be opened
            await (await task).close()
        raise


class _Connection(aiosqlite.Connection):
    """A connection that rolls back before it is closed.

    SQLAlchemy closes it if whoever asks is cancelled. In the middle of a transaction, it would keep
    its lock for a while.
    """

    async def close(self) -> None:
        try:
            with contextlib.suppress(ValueError, sqlite3.Error):  # it is closed already, or broken
                await self.rollback()
        finally:
            await super().close()  # or its thread would keep the process from ending


async def _connected(file: Path, **options: Any) -> aiosqlite.Connection:
    """Open a SQLite file with options of :func:`sqlite3.connect`."""

    def connect() -> sqlite3.Connection:
        connection: sqlite3.Connection = sqlite3.connect(file, **options)
        for _ in range(20 * CONNECT):
            with contextlib.suppress(sqlite3.OperationalError):  # another process is just doing it
                connection.execute("PRAGMA journal_mode=WAL")
                break
            time.sleep(0.05)
        else:
            connection.execute("PRAGMA journal_mode=WAL")
        # A power cut may lose the last moments. The end of a process loses nothing.
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA foreign_keys=ON")
        return connection

    return await _Connection(connect, 64)
