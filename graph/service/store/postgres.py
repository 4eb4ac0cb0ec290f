"""Runs in PostgreSQL, which workers on several machines can share, in the schema ``fairqr``."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, TypeVar

import psycopg
import sqlalchemy as sa
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import create_async_engine

from fairqr.base.errors import ConfigError, StoreUnavailableError
from fairqr.graph.service.store.flavours import Flavour, Work
from fairqr.graph.service.store.tables import RUNS

T = TypeVar("T")

SCHEMA = "fairqr"

_CONNECT = 5  # seconds
_STATEMENT = 20_000  # milliseconds
_MIGRATION = 120.0  # seconds to wait while another worker migrates
_CONNECTIONS = 5

_MIGRATING, _ACCEPTING = 0x6661_6972_0001, 0x6661_6972_0002  # names of locks
_TRY = f"SELECT pg_try_advisory_lock({_MIGRATING})"

_AFTER_START = 3.0
"""Seconds after the server's start in which no lease ends: workers could not renew before."""


class PostgreSQL(Flavour):
    """A database on a server.

    Raises:
        ConfigError: A part of the URL is wrong.
    """

    insert = staticmethod(insert)

    def __init__(self, url: str) -> None:
        if sys.platform == "win32":
            raise ConfigError(
                "The service cannot keep its runs in PostgreSQL on Windows, where psycopg does not "
                "work with asyncio; run it in WSL, or name a SQLite file."
            )
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
            f"-c search_path={SCHEMA} -c statement_timeout={_STATEMENT} "
            f"-c idle_in_transaction_session_timeout={_STATEMENT}"
        )
        self._arguments: dict[str, Any] = {
            "connect_timeout": _CONNECT,
            "application_name": "fairqr",
            # So that we notice if the server vanishes.
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 15_000,
            **given,
            "options": f"{given.get('options', '')} {options}".strip(),
        }
        self._engine = create_async_engine(
            "postgresql+psycopg://",
            async_creator=self._connect,
            pool_size=_CONNECTIONS,
            max_overflow=0,
            pool_timeout=_CONNECT,
            hide_parameters=True,
        )

    async def write(self, work: Work[T]) -> T:
        """Run work in a transaction; run it again at once if the connection was dead."""
        try:
            return await self._done(work)
        except sa.exc.DBAPIError as error:
            if not error.connection_invalidated:
                raise
        return await self._done(work)  # this error made the pool drop all connections

    async def read(self, work: Work[T]) -> T:
        """Run work that only reads, in a transaction."""
        return await self.write(work)

    async def _done(self, work: Work[T]) -> T:
        async with self._engine.begin() as connection:
            return await connection.run_sync(work)

    async def close(self) -> None:
        """Close all connections."""
        await self._engine.dispose()

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(**self._arguments)

    def now(self) -> sa.ColumnElement[float]:
        """Return the time by the server's clock, since those of workers differ."""
        return sa.cast(sa.func.extract("epoch", sa.func.clock_timestamp()), sa.Double)

    def silent(self) -> sa.ColumnElement[bool]:
        """Return whether the lease of a run has ended."""
        started = sa.cast(sa.func.extract("epoch", sa.func.pg_postmaster_start_time()), sa.Double)
        return sa.func.greatest(RUNS.c.lease, started + _AFTER_START) < self.now()

    def accepting(self, connection: sa.Connection) -> None:
        """Keep others from accepting runs until the end of the transaction."""
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ACCEPTING)))

    @contextlib.asynccontextmanager
    async def migrating(self) -> AsyncIterator[None]:
        """Keep others from migrating meanwhile, and create the schema."""
        async with await self._connect() as connection:
            await connection.set_autocommit(True)
            try:
                async with asyncio.timeout(_MIGRATION):
                    # Polling, since statement_timeout would end a statement that waits.
                    while not await _first(connection, _TRY):  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
            except TimeoutError:
                raise StoreUnavailableError(
                    "Another process has been migrating the database of runs for "
                    f"{_MIGRATION:g} s; stop it, and start again."
                ) from None
            # Look first: a user without the right to create schemas may still use one.
            if not await _first(connection, f"SELECT to_regnamespace('{SCHEMA}')"):
                await connection.execute(f"CREATE SCHEMA {SCHEMA}")
            yield  # the lock ends with the connection

    def tell(self, connection: sa.Connection, text: str) -> None:
        """Notify all workers when the transaction commits."""
        connection.execute(sa.select(sa.func.pg_notify(SCHEMA, text)))

    async def heard(self) -> AsyncGenerator[str, None]:
        """Yield the notifications, while the connection lasts."""
        async with await self._connect() as connection:
            await connection.set_autocommit(True)
            await connection.execute(f"LISTEN {SCHEMA}")
            async for told in connection.notifies():
                yield told.payload


async def _first(connection: psycopg.AsyncConnection[Any], statement: str) -> Any:
    row = await (await connection.execute(statement)).fetchone()
    return row[0] if row else None
