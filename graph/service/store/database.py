"""The database: SQLite in a file for one process, or PostgreSQL for several machines.

LangGraph's checkpointers use it, too, in the transactions of a run's events.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import procrastinate
import psycopg
import sqlalchemy as sa
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from fairqr.base.errors import ConfigError, StoreUnavailableError, one_line
from fairqr.graph.journal import run_journal
from fairqr.graph.service.records import NOBODY
from fairqr.graph.service.slots import Slots
from fairqr.graph.service.store.connections import (
    CONNECT,
    SCHEMA,
    arguments_of,
    connect_to_file,
    file_of,
    identity_of,
    make_file,
    open_wholly,
    require_log,
    status_of,
)
from fairqr.graph.service.store.tables import make_tables

CONNECTIONS = 5
"""How many connections to PostgreSQL a process has."""

SHARE = 0.8
"""The largest part of the connections that one key may have."""

WAIT = 30
"""Seconds until a transaction begins."""

# The names of locks in PostgreSQL.
PREPARING = 0x6661_6972_0001
PUTTING_BACK = 0x6661_6972_0002
ACCEPTING = 0x6661_6972_0003

PREPARED_WITHIN = 120.0
"""Seconds to wait while another process prepares the database."""

PAUSE = 0.5
"""Seconds between two attempts while the database is away."""

_BUGS = (
    sa.exc.IntegrityError,
    sa.exc.DataError,
    psycopg.IntegrityError,
    psycopg.DataError,
    sqlite3.IntegrityError,
    sqlite3.DataError,
)
"""Failures that are bugs of ours, and have to look like bugs."""

_FAILURES = (
    sa.exc.DBAPIError,
    sa.exc.TimeoutError,
    # Some failures of the drivers come without SQLAlchemy's class, such as those of connecting.
    sqlite3.Error,
    psycopg.Error,
    procrastinate.exceptions.ConnectorException,
    OSError,
)

current_key_id: ContextVar[str] = ContextVar("fairqr_key_id", default=NOBODY)
"""The id of the key, or the address, that a transaction is for. Callers take turns."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


_DAMAGED = re.compile("malformed|not a database")
"""A part of SQLite's message about a damaged file."""

STARTUP = "startup parameter"
"""A part of a pooler's message about the options of a connection."""

LOG_EVERY = 10.0
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
        arguments: The arguments of a connection to PostgreSQL; empty for SQLite.
        place: Where the database is, for people; without user and password.

    Raises:
        ConfigError: The URL is of another kind, a part of it is wrong, or the file cannot be made.
    """

    def __init__(self, url: str = "") -> None:
        self.arguments: dict[str, Any] = {}
        self._next_log_at = 0.0
        self._is_damaged = False
        self.file = file_of(url)
        if self.file is not None:
            self.place = str(self.file)
            make_file(self.file)
            self._identity = identity_of(status_of(self.file))
            self._was_filled = False
        else:
            self.arguments = arguments_of(url)
            parts = [self.arguments.get(part, "") for part in ("host", "port", "dbname")]
            self.place = "{}:{}/{}".format(*parts)

        connections = 1 if self.file else CONNECTIONS
        self._slots = Slots(connections, SHARE)
        self._engine = create_async_engine(
            "sqlite+aiosqlite://" if self.file else "postgresql+psycopg://",
            async_creator=lambda: open_wholly(self._connect()),
            # Two transactions in a file would only wait for each other's lock.
            poolclass=sa.AsyncAdaptedQueuePool,
            pool_size=connections,
            max_overflow=0,
            pool_timeout=CONNECT,
            pool_pre_ping=not self.file,
            hide_parameters=True,  # errors would quote queries and documents
        )
        if self.file:
            # We begin transactions ourselves: the driver would begin them late, and one that has
            # read could not write after one of another process.
            sa.event.listen(self._engine.sync_engine, "begin", _begin_immediately)

    async def _connect(self) -> Any:
        """Open a connection of the driver."""
        if self.file:
            return await connect_to_file(self.file, isolation_level=None)
        return await psycopg.AsyncConnection.connect(**self.arguments)

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        """Open a transaction, which is committed at the end.

        The driver's message about a failure is logged, every few seconds.

        Raises:
            StoreUnavailableError: The database cannot be used. The sentence names no place and no
                user; the cause has the database's message.
        """
        if self.file is not None:
            self._require_sound(self.file)
        try:
            async with self._turn(), self._engine.begin() as connection:
                if self.file is not None:
                    require_log(self.file, connection.info)
                yield connection
        except _BUGS:
            raise
        except _FAILURES as error:
            message = _message_of(error)
            if self.file is not None and _DAMAGED.search(message):
                self._is_damaged = True
            self._log_failure(message)
            raise StoreUnavailableError(
                "The database of runs is not available; try again later."
            ) from error

    def _log_failure(self, message: str) -> None:
        """Log a failure, unless one was just logged: each request would log the same."""
        if time.monotonic() > self._next_log_at:
            self._next_log_at = time.monotonic() + LOG_EVERY
            _log.warning("The database of runs: %s", message)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Hold one of the connections; keys take turns.

        Raises:
            OSError: None became free for a long time.
        """
        key = current_key_id.get()
        try:
            async with asyncio.timeout(WAIT):
                await self._slots.acquire(key)
        except TimeoutError:
            raise OSError("All connections are taken.") from None
        try:
            yield
        finally:
            self._slots.release(key)

    def _require_sound(self, file: Path) -> None:
        """Refuse a file that is damaged, or that has replaced the one that was opened.

        SQLite would go on with what it has read before, and what it writes would be lost.

        Raises:
            StoreUnavailableError: It is.
        """
        if self._is_damaged:
            raise StoreUnavailableError(
                "The file of runs is damaged; put back a copy, and start the service again."
            )

        status = status_of(file)
        is_filled = status is not None and status.st_size > 0
        is_emptied = self._was_filled and not is_filled
        self._was_filled |= is_filled
        is_replaced = identity_of(status) != self._identity
        if is_replaced or is_emptied:
            raise StoreUnavailableError(
                "The file of runs was removed or replaced; start the service again."
            )

    async def driver_of(self, connection: AsyncConnection) -> Any:
        """Return the driver's connection of a transaction, for LangGraph and procrastinate."""
        raw = await connection.get_raw_connection()
        return raw.driver_connection

    def now(self) -> sa.ColumnElement[float]:
        """Return the time in seconds since the epoch, by a clock that all processes share."""
        if self.file:
            return sa.literal(time.time(), sa.Double)
        return sa.cast(sa.func.extract("epoch", sa.func.clock_timestamp()), sa.Double)

    async def prepare(self) -> None:
        """Make or upgrade our tables, and the tables of LangGraph and procrastinate.

        Several processes may do so at the same time.

        Raises:
            StoreUnavailableError: The database does not respond, refuses, or is a newer one.
            ConfigError: A pooler is in front of it.
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
            message = _message_of(error).rstrip(".")
            raise StoreUnavailableError(
                f"The database of runs at {self.place} cannot be used: {message}; "
                "check its URL, and that it is running."
            ) from error

    async def _require_sessions(self) -> None:
        """Check that a connection stays one session, with its own settings, as queues need it.

        Raises:
            ConfigError: A pooler stands between that gives each transaction another session.
        """
        first = await self._connect()
        second = await self._connect()
        try:
            await first.set_autocommit(True)
            query = "SELECT pg_backend_pid(), current_setting('search_path')"
            cursor = await first.execute(query)
            session = await cursor.fetchone()

            # It begins a transaction, perhaps where the first connection was.
            await second.execute("SELECT 1")
            async with asyncio.timeout(CONNECT):
                cursor = await first.execute(query)
                later_session = await cursor.fetchone()
            if session != later_session or session[1] != SCHEMA:
                raise self._pooled()
        except (TimeoutError, psycopg.errors.ProtocolViolation):
            # The only session is taken, or there are no transactions.
            raise self._pooled() from None
        finally:
            await second.close()
            await first.close()

    def _pooled(self) -> ConfigError:
        """Return the error for a database behind a pooler."""
        return ConfigError(
            f"The database of runs at {self.place} is behind a pooler, such as PgBouncer, which "
            "keeps neither sessions nor their settings; name PostgreSQL itself."
        )

    async def _prepare_checkpoints(self) -> None:
        """Make LangGraph's tables."""
        connection = await self._connect()
        try:
            saver: Any = Checkpoints(self).saver(connection)
            if self.file:
                saver.is_setup = False
            else:
                await connection.set_autocommit(True)  # LangGraph's indexes need it in PostgreSQL
            await saver.setup()
        finally:
            await connection.close()

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Keep other processes from preparing the server meanwhile.

        We also make the schema, and procrastinate's tables.
        """
        async with self._engine.connect() as plain:
            connection = await plain.execution_options(isolation_level="AUTOCOMMIT")
            await _lock_preparation(connection)
            try:
                # Look first: a user without the right to create schemas may still use one.
                schema = sa.select(sa.func.to_regnamespace(SCHEMA))
                if not await connection.scalar(schema):
                    await connection.execute(sa.text(f"CREATE SCHEMA {SCHEMA}"))
                yield
                jobs = sa.select(sa.func.to_regclass("procrastinate_jobs"))
                if not await connection.scalar(jobs):
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


async def _lock_preparation(connection: AsyncConnection) -> None:
    """Take the lock for preparing the database.

    Raises:
        TimeoutError: Another process has it for a long time.
    """
    deadline = time.monotonic() + PREPARED_WITHIN
    lock = sa.select(sa.func.pg_try_advisory_lock(PREPARING))
    # Polling, since a statement that waits holds up the index that LangGraph makes.
    while not await connection.scalar(lock):
        if time.monotonic() > deadline:
            raise TimeoutError("another process is still preparing it")
        await asyncio.sleep(0.05)


def _begin_immediately(connection: sa.Connection) -> None:
    """Begin a transaction in SQLite that may write."""
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _message_of(error: BaseException) -> str:
    """Return the driver's message, on one line."""
    origin = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    lines = str(origin).splitlines()
    return one_line(lines[0]) if lines else type(error).__name__


class Checkpoints(BaseCheckpointSaver[Any]):
    """The checkpoints of durable runs, which LangGraph's own savers read and write.

    A checkpoint is written in a transaction of its run, never before the events of its steps; in
    SQLite, some of its parts follow at once. So every step that is done is published, and a process
    that has lost a run writes no checkpoint of it any more.

    Args:
        database: Where they are.
    """

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database
        self._versions = self.saver()

    def saver(self, connection: Any = None) -> AsyncSqliteSaver | AsyncPostgresSaver:
        """Return LangGraph's saver on a connection of the driver; its tables exist already."""
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
        journal = run_journal()  # None outside of a run
        if journal is not None and not await journal.settled():
            return None
        return await self._read(lambda saver: saver.aget_tuple(config))

    async def aget_delta_channel_history(self, **options: Any) -> Any:
        """Return what the steps of a thread have added to channels that grow."""
        return await self._read(lambda saver: saver.aget_delta_channel_history(**options))

    async def aput(self, config: Any, checkpoint: Any, *arguments: Any) -> Any:
        """Keep a checkpoint soon, together with the events of the run."""
        journal: Any = run_journal()  # only durable runs have these checkpoints
        journal.write(lambda driver: self.saver(driver).aput(config, checkpoint, *arguments))
        return {"configurable": {**config["configurable"], "checkpoint_id": checkpoint["id"]}}

    async def aput_writes(self, *arguments: Any) -> None:
        """Keep what a step changed soon, even if steps beside it have not ended."""
        journal: Any = run_journal()
        journal.write(lambda driver: self.saver(driver).aput_writes(*arguments))

    async def _read(self, call: Callable[[Any], Awaitable[Any]]) -> Any:
        """Return what a call of LangGraph's saver gives, also if the database is away a while."""

        async def read() -> Any:
            async with self._database.begin() as connection:
                driver = await self._database.driver_of(connection)
                return await call(self.saver(driver))

        return await lasting(read)
