"""Transactions that we retry while the database is away."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa
import tenacity

from fairqr.base.errors import StoreUnavailableError, one_line

if TYPE_CHECKING:
    from fairqr.graph.service.store.flavours import Flavour, Work

PATIENT = 5.0
"""Seconds that a caller waits while the database is away."""

LASTING = 30.0
"""Seconds that events of a run wait for the database, so that its restart loses nothing."""

T = TypeVar("T")

_log = logging.getLogger(__name__)

_under_way: set[asyncio.Future[Any]] = set()

_HEALING_STATES = ("08", "40", "53", "55P03", "57")
"""Prefixes of PostgreSQL's codes: connection, deadlock, full disk, shutdown."""

_FOR_GOOD = ("password", "does not exist", "pg_hba.conf", "invalid")
"""Words in PostgreSQL's messages when it refuses a connection; these have no code."""

_HEALING_CODES = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_PROTOCOL,
)


class Database:
    """Runs work in transactions.

    Args:
        flavour: The kind of database.
    """

    def __init__(self, flavour: Flavour) -> None:
        self.flavour = flavour

    async def write(self, work: Work[T], *, patience: float = PATIENT) -> T:
        """Run work in a transaction; retry it as a whole after temporary failures.

        If the connection is lost at the end, the transaction may have succeeded, so running the
        work twice must have the same effect as once.

        Args:
            work: The work.
            patience: The seconds to keep retrying.

        Raises:
            StoreUnavailableError: The database did not come back in time, or refuses the work.
        """
        return await lasting(lambda: self.flavour.write(work), patience)

    async def read(self, work: Work[T], *, patience: float = PATIENT) -> T:
        """Run work that only reads; see :meth:`write`."""
        return await lasting(lambda: self.flavour.read(work), patience)

    async def close(self) -> None:
        """Wait for work whose callers were cancelled, and close all connections."""
        loop = asyncio.get_running_loop()
        while mine := [task for task in _under_way if task.get_loop() is loop]:
            await asyncio.wait(mine)
        await self.flavour.close()


async def lasting(call: Callable[[], Awaitable[T]], patience: float, *, logged: bool = True) -> T:
    """Await ``call()``; retry it while the database is away or busy.

    Args:
        call: Makes an attempt.
        patience: The seconds after which we make no more attempts.
        logged: Whether to log the database's message.

    Raises:
        StoreUnavailableError: It did not come back in time, or refuses the work. The sentence goes
            to clients, so it names no place and no user; the cause has the database's message.
    """
    retrying = tenacity.AsyncRetrying(
        stop=tenacity.stop_before_delay(patience),
        wait=tenacity.wait_exponential_jitter(multiplier=0.05, max=1.0, jitter=0.1),
        retry=tenacity.retry_if_exception(heals),
        sleep=asyncio.sleep,
        reraise=True,
    )

    async def attempt() -> T:
        # The caller may be cancelled. Between a statement and its commit, psycopg would then leave
        # the transaction open; and work that waits for SQLite's writer would not be done.
        task = asyncio.ensure_future(call())
        _under_way.add(task)
        task.add_done_callback(_ended)
        return await asyncio.shield(task)

    try:
        return await retrying(attempt)
    except Exception as error:
        if not _of_database(error):
            raise
        if logged:
            _log.warning("The database of runs: %s", said(error))
        raise StoreUnavailableError(
            "The database of runs is not available; try again later."
        ) from error


def _ended(task: asyncio.Future[Any]) -> None:
    _under_way.discard(task)
    if not task.cancelled():
        task.exception()  # marks it as retrieved, since the caller may be gone


def heals(error: BaseException) -> bool:
    """Return whether the same work may succeed later."""
    if isinstance(error, sa.exc.DBAPIError) and error.connection_invalidated:
        return True
    if isinstance(error, sa.exc.TimeoutError):  # the pool had no free connection
        return True
    cause = _origin(error)
    if isinstance(cause, sqlite3.Error):
        # The lowest byte of an extended code is the basic code.
        return (getattr(cause, "sqlite_errorcode", None) or 0) & 0xFF in _HEALING_CODES
    if _is_of(cause, "OperationalError"):
        state = getattr(cause, "sqlstate", None)
        if state is not None:
            return str(state).startswith(_HEALING_STATES)
        return not any(sign in str(cause) for sign in _FOR_GOOD)
    return isinstance(cause, (TimeoutError, ConnectionError))


def _origin(error: BaseException) -> BaseException:
    """Return the driver's own error."""
    if isinstance(error, sa.exc.DBAPIError) and error.orig is not None:
        return error.orig
    return error


def said(error: BaseException) -> str:
    """Return the database's message, on one line."""
    lines = str(_origin(error)).splitlines()
    return one_line(lines[0]) if lines else type(error).__name__


def _of_database(error: BaseException) -> bool:
    cause = _origin(error)
    # A violated constraint is a bug, and must look like one.
    if isinstance(cause, sqlite3.IntegrityError) or _is_of(cause, "IntegrityError"):
        return False
    return isinstance(
        cause, (sa.exc.SQLAlchemyError, sqlite3.Error, TimeoutError, OSError)
    ) or _is_of(cause, "Error")


def _is_of(error: BaseException, name: str) -> bool:
    """Return whether an error is psycopg's, without importing psycopg for SQLite."""
    return any(
        kind.__name__ == name and kind.__module__.startswith("psycopg")
        for kind in type(error).__mro__
    )
