"""The store of runs: opening, checking and closing it."""

from __future__ import annotations

import sqlalchemy as sa

from fairqr.base.errors import StoreUnavailableError
from fairqr.graph.service.store.database import Database, lasting, said
from fairqr.graph.service.store.flavours import Flavour, flavour_of
from fairqr.graph.service.store.history import History
from fairqr.graph.service.store.keys import Keys
from fairqr.graph.service.store.migrations import migrate
from fairqr.graph.service.store.queue import Queue

_OPEN = 5.0  # seconds that a server may still be starting


class Store(Queue, History, Keys):
    """Runs, events, replies and access keys, in SQLite or PostgreSQL.

    If the database is away, callers wait for 5 s, and events of runs for 30 s.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tickets = {}

    @classmethod
    async def open(cls, url: str = "") -> Store:
        """Open a database; create or upgrade it if necessary.

        Several processes may do so at the same time.

        Args:
            url: ``sqlite:///path`` or ``postgresql://user:password@host:port/name``; empty for the
                file ``service/runs.sqlite`` in the data folder.

        Raises:
            ConfigError: The URL is wrong.
            StoreUnavailableError: The database does not respond, refuses, or has a newer version.
        """
        flavour = flavour_of(url)
        database = Database(flavour)
        try:
            await lasting(lambda: _made(flavour), _OPEN, logged=False)
        except BaseException as error:
            await database.close()
            if isinstance(error, StoreUnavailableError) and error.__cause__ is not None:
                raise StoreUnavailableError(
                    f"The database of runs at {flavour.place} cannot be used: "
                    f"{said(error.__cause__).rstrip('.')}; check its URL, and that it is running."
                ) from error
            raise
        return cls(database)

    async def check(self) -> None:
        """Check that the database responds now.

        Raises:
            StoreUnavailableError: It does not.
        """

        def work(connection: sa.Connection) -> None:
            connection.execute(sa.select(sa.literal(1)))

        await self._database.read(work, patience=0)

    async def close(self) -> None:
        """Finish pending writes, and close all connections."""
        await self._database.close()


async def _made(flavour: Flavour) -> None:
    async with flavour.migrating():
        await flavour.write(migrate)
