"""What SQLite and PostgreSQL do differently."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncGenerator
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from fairqr.base.errors import ConfigError

__all__ = ["Flavour", "flavour_of"]


class Flavour(Protocol):
    """A kind of database.

    Attributes:
        engine: For work that writes.
        reading: For work that does not; the same connections.
        alone: Held by work that writes.
        place: Where it is, for people; without a user or a password.
    """

    engine: AsyncEngine
    reading: AsyncEngine
    alone: contextlib.AbstractAsyncContextManager[Any]
    place: str

    def now(self) -> sa.ColumnElement[float]:
        """Return the time, in seconds since the epoch, by the clock that all workers go by."""

    def silent(self) -> sa.ColumnElement[bool]:
        """Return whether the worker of a run has lost it."""

    async def accepting(self, connection: AsyncConnection) -> None:
        """Let nobody else accept runs until the end of the transaction."""

    def migrating(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Let nobody else migrate meanwhile."""

    async def tell(self, connection: AsyncConnection, text: str) -> None:
        """Let all workers hear of something, when the transaction is done."""

    def heard(self) -> AsyncGenerator[str, None]:
        """Yield what workers tell, for as long as the connection holds.

        Nothing is yielded if workers cannot tell each other, or if they tell it before the first
        item is asked for: look from time to time, too.
        """

    async def close(self) -> None:
        """Close all connections."""


def flavour_of(url: str) -> Flavour:
    """Return the kind of database that a URL names; nothing is connected yet.

    Args:
        url: ``sqlite:///path`` or ``postgresql://user:password@host:port/name``; empty for the file
            ``service/runs.sqlite`` in the data folder.

    Raises:
        ConfigError: It names neither, or a part of it is wrong.
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
    # What could not be read may hold a password.
    raise ConfigError(
        "The URL of the database of runs is none that can be used; write sqlite:///path or "
        "postgresql://user:password@host:port/name."
    )
