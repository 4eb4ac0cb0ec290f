"""Transactions that are tried again while the database is away, and errors of its own kind."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa
import tenacity
from sqlalchemy.ext.asyncio import AsyncConnection

from fairqr.base.errors import StoreUnavailableError, one_line

if TYPE_CHECKING:
    from fairqr.graph.service.store.flavours import Flavour

__all__ = ["LASTING", "PATIENT", "Database", "all_ended", "heals", "lasting", "said"]

PATIENT = 5.0
"""Seconds that a caller waits for a database that is away."""

LASTING = 30.0
"""Seconds that what has happened in a run waits for it, so that a restart loses nothing."""

T = TypeVar("T")
Work = Callable[[AsyncConnection], Awaitable[T]]

_log = logging.getLogger(__name__)

_under_way: set[asyncio.Future[Any]] = set()

_HEALING_STATES = ("08", "40", "53", "55P03", "57")
"""Beginnings of PostgreSQL's codes: the connection, a deadlock, a full disk, a shutdown."""

_FOR_GOOD = ("password", "does not exist", "pg_hba.conf", "invalid")
"""In what PostgreSQL says when it refuses a connection, which comes without a code."""

_HEALING_CODES = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_PROTOCOL,
)


class Database:
    """Does work in transactions.

    Args:
        flavour: What SQLite and PostgreSQL do differently.
    """

    def __init__(self, flavour: Flavour) -> None:
        self.flavour = flavour

    async def write(self, work: Work[T], *, patience: float = PATIENT) -> T:
        """Do work in a transaction, again as a whole where it failed in a way that can heal.

        Whether a transaction was done is not known where the connection was lost at its end, so
        work must come to the same when it is done twice.

        Args:
            work: What to do. On SQLite nobody else writes meanwhile.
            patience: In seconds.

        Raises:
            StoreUnavailableError: The database did not come back in time, or refuses the work.
        """

        async def once() -> T:
            async with self.flavour.alone, self.flavour.engine.begin() as connection:
                return await work(connection)

        return await lasting(once, patience)

    async def read(self, work: Work[T], *, patience: float = PATIENT) -> T:
        """Do work that changes nothing, as :meth:`write` does."""

        async def once() -> T:
            async with self.flavour.reading.begin() as connection:
                return await work(connection)

        return await lasting(once, patience)


async def lasting(call: Callable[[], Awaitable[T]], patience: float, *, logged: bool = True) -> T:
    """Await ``call()``, again for so many seconds where the database is away or busy.

    Args:
        call: Makes a new attempt each time.
        patience: In seconds; an attempt that would begin later is not made.
        logged: Log what the database said.

    Raises:
        StoreUnavailableError: It did not come back in time, or refuses the work. The sentence names
            no place and no user, as it goes to whoever asked; its cause is what the database said.
    """
    retrying = tenacity.AsyncRetrying(
        stop=tenacity.stop_before_delay(patience),
        wait=tenacity.wait_exponential_jitter(multiplier=0.05, max=1.0, jitter=0.1),
        retry=tenacity.retry_if_exception(heals),
        sleep=asyncio.sleep,
        reraise=True,
    )

    async def attempt() -> T:
        # Whoever asked may go away. Cancelled between a statement and its commit, drivers leave
        # transactions open, and SQLite then stays locked for all.
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
            "The database of runs cannot be used at the moment; try again later."
        ) from error


async def all_ended() -> None:
    """Wait for work that goes on though nobody waits for it any more."""
    loop = asyncio.get_running_loop()
    while mine := [task for task in _under_way if task.get_loop() is loop]:
        await asyncio.wait(mine)


def _ended(task: asyncio.Future[Any]) -> None:
    _under_way.discard(task)
    if not task.cancelled():
        task.exception()  # nobody may be there to take it


def heals(error: BaseException) -> bool:
    """Tell whether the same work may succeed later."""
    if isinstance(error, sa.exc.DBAPIError) and error.connection_invalidated:
        return True
    if isinstance(error, sa.exc.TimeoutError):  # no connection of the pool was free
        return True
    cause = _origin(error)
    if isinstance(cause, sqlite3.Error):
        # The lowest byte is what an extended code is a kind of.
        return (getattr(cause, "sqlite_errorcode", None) or 0) & 0xFF in _HEALING_CODES
    if _is_of(cause, "OperationalError"):
        state = getattr(cause, "sqlstate", None)
        if state is not None:
            return str(state).startswith(_HEALING_STATES)
        return not any(sign in str(cause) for sign in _FOR_GOOD)
    return isinstance(cause, (TimeoutError, ConnectionError))


def _origin(error: BaseException) -> BaseException:
    """Return what the driver raised."""
    if isinstance(error, sa.exc.DBAPIError) and error.orig is not None:
        return error.orig
    return error


def said(error: BaseException) -> str:
    """Return what the database said, on one line, for people."""
    lines = str(_origin(error)).splitlines()
    return one_line(lines[0]) if lines else type(error).__name__


def _of_database(error: BaseException) -> bool:
    cause = _origin(error)
    # A constraint that is broken is a mistake here, which must be seen as one.
    if isinstance(cause, sqlite3.IntegrityError) or _is_of(cause, "IntegrityError"):
        return False
    return isinstance(
        cause, (sa.exc.SQLAlchemyError, sqlite3.Error, TimeoutError, OSError)
    ) or _is_of(cause, "Error")


def _is_of(error: BaseException, name: str) -> bool:
    """Tell whether an error is psycopg's, without loading psycopg where SQLite is all there is."""
    return any(
        kind.__name__ == name and kind.__module__.startswith("psycopg")
        for kind in type(error).__mro__
    )
