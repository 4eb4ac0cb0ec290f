"""The database: SQLite in a file for one process, or PostgreSQL for several machines."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import sqlalchemy as sa
from langgraph.checkpoint.base import BaseCheckpointSaver
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from fairqr.base.errors import ConfigError, StoreUnavailableError, one_line
from fairqr.base.settings import data_dir
from fairqr.graph.service.store.tables import (
    EVENTS,
    KEYS,
    LAYOUT,
    METADATA,
    REPLIES,
    RUNS,
    VERSION,
)

if TYPE_CHECKING:
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

SCHEMA = "fairqr"
"""The schema of our tables in PostgreSQL, and of those of procrastinate and LangGraph."""

CONNECTIONS = 5
CONNECT = 5  # seconds
STATEMENT = 20_000  # milliseconds

PREPARING, PUTTING_BACK = 0x6661_6972_0001, 0x6661_6972_0002
"""The names of locks in PostgreSQL."""

PREPARED_WITHIN = 120.0
"""Seconds to wait while another process prepares the database."""

_PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    # A power cut may lose the last moments. The end of a process loses nothing.
    "PRAGMA synchronous=NORMAL",
    "PRAGMA foreign_keys=ON",
)

_log = logging.getLogger(__name__)


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
        self.file: Path | None = None
        self.arguments: dict[str, Any] = {}
        # Also those of the drivers without SQLAlchemy's class, as those of connecting.
        self._failures: tuple[type[Exception], ...] = (
            sa.exc.DBAPIError,
            sa.exc.TimeoutError,
            sqlite3.Error,
            OSError,
        )
        kind, colon, rest = url.partition("://")
        path = rest.removeprefix("/")
        if not url:
            self._engine = self._in_file(data_dir() / "service" / "runs.sqlite")
        elif colon and kind.partition("+")[0] in ("postgresql", "postgres"):
            self._engine = self._on_server(f"postgresql://{rest}")
        elif colon and kind.partition("+")[0] == "sqlite" and path and rest != path:
            self._engine = self._in_file(Path(os.path.expanduser(path)))
        else:  # do not quote the URL, which may contain a password
            raise ConfigError(
                "The URL of the database of runs is not supported; write sqlite:///path or "
                "postgresql://user:password@host:port/name."
            )
        self._reader = self._engine.execution_options(begin="BEGIN")
        self._writing = asyncio.Lock() if self.file else contextlib.nullcontext()

    def _in_file(self, file: Path) -> AsyncEngine:
        self.file, self.place = file, str(file)
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # SQLite gives its other files the same rights.
            os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
        except OSError as error:
            raise ConfigError(
                f"The database of runs cannot be kept in {file}: {error.strerror}; "
                "name a file that may be written."
            ) from None
        engine = create_async_engine(
            sa.URL.create("sqlite+aiosqlite", database=str(file.absolute())),
            # We begin transactions ourselves: the driver would begin them late, and two that have
            # both read could not both write.
            async_creator=lambda: _whole(_connected(file, isolation_level=None)),
            pool_size=CONNECTIONS,
            max_overflow=0,
            hide_parameters=True,  # errors would quote queries and documents
        )
        sa.event.listen(engine.sync_engine, "begin", _begin)
        return engine

    def _on_server(self, url: str) -> AsyncEngine:
        if sys.platform == "win32":
            raise ConfigError(
                "The service cannot keep its runs in PostgreSQL on Windows, where psycopg does not "
                "work with asyncio; run it in WSL, or name a SQLite file."
            )
        import psycopg
        from procrastinate.exceptions import ConnectorException
        from psycopg.conninfo import conninfo_to_dict

        self._failures += (psycopg.Error, ConnectorException)
        try:
            given = conninfo_to_dict(url)
        except psycopg.ProgrammingError:
            given = {"host": "@"}
        place = [str(given.get(part, "")) for part in ("host", "port", "dbname")]
        if any("@" in part for part in place):
            # The message of the driver may contain a part of the password.
            raise ConfigError(
                "The URL of the database of runs cannot be read; write "
                "postgresql://user:password@host:port/name, with %40 for an @ in the password, "
                "%2F for a /, and so on."
            )
        self.place = "{}:{}/{}".format(*place)
        options = (
            f"-c search_path={SCHEMA} -c statement_timeout={STATEMENT} "
            f"-c idle_in_transaction_session_timeout={STATEMENT}"
        )
        self.arguments = {
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
        return create_async_engine(
            "postgresql+psycopg://",
            async_creator=lambda: _whole(psycopg.AsyncConnection.connect(**self.arguments)),
            pool_size=CONNECTIONS,
            max_overflow=0,
            pool_timeout=CONNECT,
            pool_pre_ping=True,
            hide_parameters=True,
        )

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """Open a transaction, which is committed at the end.

        Raises:
            StoreUnavailableError: The database cannot be used.
        """
        async with self._writing, self.told(), self._engine.begin() as connection:
            yield connection

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """Open a transaction that only reads; see :meth:`write`."""
        async with self.told(), self._reader.begin() as connection:
            yield connection

    @asynccontextmanager
    async def told(self) -> AsyncIterator[None]:
        """Turn the failures of drivers into one sentence for clients; log what they say.

        Raises:
            StoreUnavailableError: The code inside failed because of the database. The sentence
                names no place and no user; the cause has the database's message.
        """
        try:
            yield
        except (sa.exc.IntegrityError, sa.exc.DataError):  # a bug, and has to look like one
            raise
        except self._failures as error:
            _log.warning("The database of runs: %s", _said(error))
            raise StoreUnavailableError(
                "The database of runs is not available; try again later."
            ) from error

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
            if self.file:
                async with self.write() as connection:
                    await connection.run_sync(_make_tables)
                async with self.checkpoints():  # this makes its tables
                    pass
            else:
                await self._prepare_server()
        except StoreUnavailableError as error:
            if error.__cause__ is None:
                raise
            raise StoreUnavailableError(
                f"The database of runs at {self.place} cannot be used: "
                f"{_said(error.__cause__).rstrip('.')}; check its URL, and that it is running."
            ) from error

    async def _prepare_server(self) -> None:
        import procrastinate

        async with self.told(), self._lasting_lock() as connection:
            # Look first: a user without the right to create schemas may still use one.
            if not await connection.scalar(sa.text(f"SELECT to_regnamespace('{SCHEMA}')::text")):
                await connection.execute(sa.text(f"CREATE SCHEMA {SCHEMA}"))
            async with self.write() as own:
                await own.run_sync(_make_tables)
            async with self.checkpoints() as saver:
                await cast("AsyncPostgresSaver", saver).setup()
            is_there = sa.text("SELECT to_regclass('procrastinate_jobs')::text")
            if not await connection.scalar(is_there):
                connector = procrastinate.PsycopgConnector(
                    kwargs=self.arguments, min_size=1, max_size=1
                )
                async with procrastinate.App(connector=connector).open_async() as app:
                    await app.schema_manager.apply_schema_async()

    @asynccontextmanager
    async def _lasting_lock(self) -> AsyncIterator[AsyncConnection]:
        """Keep other processes from preparing the database meanwhile."""
        async with self._engine.connect() as plain:
            connection = await plain.execution_options(isolation_level="AUTOCOMMIT")
            lock = sa.select(sa.func.pg_try_advisory_lock(PREPARING))
            end = time.monotonic() + PREPARED_WITHIN
            # Polling, since statement_timeout would end a statement that waits.
            while not await connection.scalar(lock):
                if time.monotonic() > end:
                    raise StoreUnavailableError(
                        "Another process has been preparing the database of runs for "
                        f"{PREPARED_WITHIN:g} s; stop it, and start again."
                    )
                await asyncio.sleep(0.05)
            try:
                yield connection
            finally:
                await connection.scalar(sa.select(sa.func.pg_advisory_unlock(PREPARING)))

    @asynccontextmanager
    async def checkpoints(self) -> AsyncIterator[BaseCheckpointSaver[Any]]:
        """Open the checkpointer of LangGraph that keeps where durable runs are.

        Raises:
            StoreUnavailableError: The database cannot be used.
        """
        from fairqr.graph.service.store import checkpoints

        if self.file:
            async with self.told():
                connection = await _connected(self.file)
            saver = checkpoints.SqliteCheckpoints(connection)
            try:
                async with self.told():
                    await saver.setup()
                yield saver
            finally:
                async with saver.lock:  # not within what it writes
                    await connection.close()
            return
        from psycopg.rows import dict_row
        from psycopg_pool import AsyncConnectionPool

        settings = {**self.arguments, "autocommit": True, "row_factory": dict_row}
        # The saver does one thing at a time.
        pool: Any = AsyncConnectionPool(
            kwargs=settings,
            min_size=1,
            max_size=1,
            open=False,
            timeout=CONNECT,
            check=AsyncConnectionPool.check_connection,
        )
        async with pool:
            yield checkpoints.PostgresCheckpoints(pool)

    async def close(self) -> None:
        """Close all connections."""
        await self._engine.dispose()


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


async def _connected(file: Path, **options: Any) -> Any:
    """Open a SQLite file; the connection rolls back before it is closed.

    SQLAlchemy closes it if whoever asks is cancelled. In the middle of a transaction, it would keep
    its lock for a while.

    Args:
        file: The file.
        options: Options of :func:`sqlite3.connect`.
    """
    import aiosqlite

    class Connection(aiosqlite.Connection):
        async def close(self) -> None:
            with contextlib.suppress(ValueError):  # it is closed already
                await self.rollback()
            await super().close()

    def connect() -> sqlite3.Connection:
        connection: sqlite3.Connection = sqlite3.connect(file, **options)
        for pragma in _PRAGMAS:
            connection.execute(pragma)
        return connection

    return await Connection(connect, 64)


def _begin(connection: sa.Connection) -> None:
    begin = connection.get_execution_options().get("begin", "BEGIN IMMEDIATE")
    connection.exec_driver_sql(begin)


_LAST_OF_1_0 = 4

_OLD: dict[sa.Table, tuple[str, ...]] = {
    RUNS: (
        *("id", "key_id", "kind", "status", "query", "created", "started", "finished"),
        *("attempts", "cancel", "request", "result", "problem", "carrier"),
    ),
    EVENTS: ("run_id", "number", "name", "data"),
    KEYS: ("id", "name", "scopes", "created", "revoked", "sha256"),
}
"""What is taken over from fairqr 1.0, and the columns that it had then."""


def _make_tables(connection: sa.Connection) -> None:
    """Make the tables; take the keys and the finished runs of fairqr 1.0 over, if there are any.

    Raises:
        StoreUnavailableError: A newer fairqr has used the database, or one before 1.0.
    """
    if sa.inspect(connection).has_table("migrations"):
        version = connection.scalar(sa.text("SELECT max(version) FROM migrations"))
        _require(version == _LAST_OF_1_0, version)
        for table in (*_OLD, REPLIES):
            connection.execute(sa.text(f"ALTER TABLE {table.name} RENAME TO old_{table.name}"))
        METADATA.create_all(connection)
        old = {
            table: sa.table(f"old_{table.name}", *map(sa.column, columns))
            for table, columns in _OLD.items()
        }
        over = old[RUNS].c.status.in_(("done", "failed", "cancelled"))
        finished = sa.select(old[RUNS].c.id).where(over)
        taken = {RUNS: over, EVENTS: old[EVENTS].c.run_id.in_(finished), KEYS: sa.true()}
        for table, which in taken.items():
            columns = [table.c[name] for name in _OLD[table]]
            copied = sa.select(*old[table].c).where(which)
            connection.execute(table.insert().from_select(columns, copied))
        for name in ("old_events", "old_replies", "old_runs", "old_access_keys", "migrations"):
            connection.execute(sa.text(f"DROP TABLE {name}"))
    METADATA.create_all(connection)
    version = connection.scalar(sa.select(LAYOUT.c.version))
    if version is None:
        connection.execute(LAYOUT.insert().values(version=VERSION))
    else:
        _require(version == VERSION, version)


def _require(known: bool, version: int) -> None:
    if not known:
        raise StoreUnavailableError(
            f"The database of runs has version {version}, and this fairqr knows only {VERSION} and "
            f"{_LAST_OF_1_0}; use the fairqr that wrote it, or name another database."
        )
