"""Where the database is, and how we connect to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import aiosqlite
import psycopg
from psycopg.conninfo import conninfo_to_dict

from fairqr.base.errors import ConfigError, StoreUnavailableError
from fairqr.base.settings import data_dir

SCHEMA = "fairqr"
"""The schema of our tables in PostgreSQL, and of the tables of procrastinate and LangGraph."""

CONNECT = 5
"""Seconds until a connection is open."""

STATEMENT = 20_000
"""Milliseconds that a statement in PostgreSQL may take."""

MEMORY = ":memory:"
"""SQLite's name of a database in memory."""


def file_of(url: str) -> Path | None:
    """Return the file of a URL, or None if it names no file.

    Raises:
        ConfigError: It names a database in memory.
    """
    if not url:
        return data_dir() / "service" / "runs.sqlite"
    scheme, _, path = url.partition(":///")
    if scheme.partition("+")[0] != "sqlite":
        return None

    if path in ("", MEMORY):
        raise ConfigError(
            "Runs cannot be kept in memory, where each connection would have its own; name a file, "
            "such as sqlite:////var/lib/fairqr/runs.sqlite."
        )
    return Path(path).expanduser()


def make_file(file: Path) -> None:
    """Make the file of a database, which only its owner may read.

    Raises:
        ConfigError: It cannot be made.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # SQLite gives its other files the same rights.
        os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise ConfigError(
            f"The database of runs cannot be kept in {file}: {error.strerror}; name a file that "
            "may be written."
        ) from None


def status_of(file: Path) -> os.stat_result | None:
    """Return the status of a file; None if it does not exist."""
    try:
        return file.stat()
    except OSError:
        return None


def identity_of(status: os.stat_result | None) -> tuple[int, int] | None:
    """Return what distinguishes a file from another file of the same name."""
    if status is None:
        return None
    return status.st_dev, status.st_ino


def require_log(file: Path, connection_info: dict[Any, Any]) -> None:
    """Refuse to write into a write-ahead log that was removed.

    SQLite makes it with the first connection, and removes it with the last one. Meanwhile it stays
    the same file; if somebody removes it, what is written is lost unless the service ends in good
    order, and another process would begin another one.

    Args:
        file: The database.
        connection_info: Values that are kept for a connection as long as it is open.

    Raises:
        StoreUnavailableError: It was removed.
    """
    log_file = file.with_name(f"{file.name}-wal")
    identity = identity_of(status_of(log_file))
    if identity is None or identity != connection_info.setdefault("log", identity):
        raise StoreUnavailableError(
            "The log beside the file of runs, whose name ends in -wal, was removed; stop the "
            "service in good order, which keeps its runs, and start it again."
        )


def arguments_of(url: str) -> dict[str, Any]:
    """Return the arguments of a connection to the PostgreSQL of a URL.

    Raises:
        ConfigError: The URL cannot be read.
    """
    arguments = _parsed(url)
    if arguments is None:
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
        **arguments,
        "options": f"{arguments.get('options', '')} {options}".strip(),
    }


def _parsed(url: str) -> dict[str, Any] | None:
    """Return the parts of a URL of PostgreSQL; None if it is of another kind or misread."""
    scheme, _, rest = url.partition("://")
    if scheme.partition("+")[0] not in ("postgresql", "postgres"):
        return None
    try:
        parts: dict[str, Any] = conninfo_to_dict(f"postgresql://{rest}")
    except psycopg.ProgrammingError:
        return None
    for name in ("host", "port", "dbname"):
        if "@" in str(parts.get(name, "")):  # of a password that is not escaped
            return None
    return parts


async def open_wholly(opening: Coroutine[Any, Any, Any]) -> Any:
    """Open a connection; if the caller is cancelled, close it, and leave no half of it open.

    A server waits for the other half, and meanwhile nobody can drop a database there.
    """
    task = asyncio.ensure_future(opening)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):  # it could not be opened
            connection = await task
            await connection.close()
        raise


async def connect_to_file(file: Path, **options: Any) -> aiosqlite.Connection:
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


class _Connection(aiosqlite.Connection):
    """A connection that rolls back before it is closed.

    SQLAlchemy closes it if its user is cancelled. In the middle of a transaction, it would keep its
    lock for a while.
    """

    async def close(self) -> None:
        try:
            with contextlib.suppress(ValueError, sqlite3.Error):  # it is closed already, or broken
                await self.rollback()
        finally:
            await super().close()  # or its thread would keep the process from ending
