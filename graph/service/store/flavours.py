"""The differences between SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

import sqlalchemy as sa

from fairqr.base.errors import ConfigError
from fairqr.graph.service.store.tables import RUNS

T = TypeVar("T")
Work = Callable[[sa.Connection], T]
"""Statements of one transaction. They must not wait for anything but the database."""


class Flavour(ABC):
    """A kind of database. The methods that are not abstract suit a file that one machine uses.

    Attributes:
        insert: Makes an ``INSERT`` that can leave out rows that are there.
        place: Where the database is, for people; without user and password.
    """

    insert: Callable[[sa.TableClause], Any]
    place: str

    @abstractmethod
    async def write(self, work: Work[T]) -> T:
        """Run work in a transaction."""

    @abstractmethod
    async def read(self, work: Work[T]) -> T:
        """Run work that only reads, in a transaction."""

    @abstractmethod
    async def close(self) -> None:
        """Close all connections."""

    def now(self) -> sa.ColumnElement[float]:
        """Return the time in seconds since the epoch, by a clock that all workers share."""
        return sa.literal(time.time(), sa.Double)

    def silent(self) -> sa.ColumnElement[bool]:
        """Return whether the lease of a run has ended."""
        return RUNS.c.lease < self.now()

    def accepting(self, connection: sa.Connection) -> None:  # noqa: B027
        """Keep others from accepting runs until the end of the transaction."""

    def migrating(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Keep others from migrating meanwhile, and make what migrating needs."""
        return contextlib.nullcontext()

    def add(
        self, connection: sa.Connection, table: sa.TableClause, rows: list[dict[str, Any]]
    ) -> None:
        """Insert rows; those that are there already stay unchanged."""
        if rows:
            connection.execute(self.insert(table).on_conflict_do_nothing(), rows)

    def tell(self, connection: sa.Connection, text: str) -> None:  # noqa: B027
        """Notify all workers when the transaction commits."""

    async def heard(self) -> AsyncGenerator[str, None]:
        """Yield the notifications, while the connection lasts.

        Some are missed: all of them on SQLite, and those before the first item is requested. So
        also look at the database from time to time.
        """
        await asyncio.Event().wait()
        yield ""


def flavour_of(url: str) -> Flavour:
    """Return the kind of database that a URL names, without connecting.

    Args:
        url: ``sqlite:///path`` or ``postgresql://user:password@host:port/name``; empty for the file
            ``service/runs.sqlite`` in the data folder.

    Raises:
        ConfigError: The URL is of another kind, or a part of it is wrong.
    """
    from fairqr.graph.service.store.sqlite import SQLite, default_file

    if not url:
        return SQLite(default_file())
    kind, colon, rest = url.partition("://")
    if colon and kind.partition("+")[0] in ("postgresql", "postgres"):
        from fairqr.graph.service.store.postgres import PostgreSQL

        return PostgreSQL(f"postgresql://{rest}")
    path = rest.removeprefix("/")
    if colon and kind.partition("+")[0] == "sqlite" and path and rest != path:
        return SQLite(os.path.expanduser(path))
    # Do not quote the URL, which may contain a password.
    raise ConfigError(
        "The URL of the database of runs is not supported; write sqlite:///path or "
        "postgresql://user:password@host:port/name."
    )
