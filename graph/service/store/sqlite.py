"""Runs in a SQLite file, which several processes of one machine may share."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from fairqr.base.errors import ConfigError
from fairqr.base.settings import data_dir
from fairqr.graph.service.store.flavours import Flavour, Work

T = TypeVar("T")

_READERS = 3
_BUSY = 5.0  # seconds that SQLite waits while another process writes
_PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    # A power cut may lose the last moments. The end of a process loses nothing.
    "PRAGMA synchronous=NORMAL",
    "PRAGMA foreign_keys=ON",
)


def default_file() -> Path:
    """Return the default file of runs."""
    return data_dir() / "service" / "runs.sqlite"


class SQLite(Flavour):
    """A file. Only one transaction writes at a time, and processes cannot tell each other.

    Raises:
        ConfigError: It cannot be made there.
    """

    insert = staticmethod(insert)

    def __init__(self, file: Path | str) -> None:
        self._file = Path(file)
        self.place = str(self._file)
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # SQLite gives its other files the same rights.
            os.close(os.open(self._file, os.O_CREAT | os.O_RDWR, 0o600))
        except OSError as error:
            raise ConfigError(
                f"The database of runs cannot be kept in {self._file}: {error.strerror}; "
                "name a file that may be written."
            ) from None
        url = sa.URL.create("sqlite", database=str(self._file.absolute()))
        # We start transactions ourselves. Python's driver would start them late, and two
        # transactions that have both read could not both write.
        arguments = {"timeout": _BUSY, "isolation_level": None}
        self._engine = sa.create_engine(
            url,
            connect_args=arguments,
            pool_size=_READERS + 1,
            max_overflow=0,
            hide_parameters=True,  # errors would quote queries and documents
        )
        self._reading = self._engine.execution_options(begin="BEGIN")
        # One thread writes, so that writers of this process never wait for SQLite's lock.
        self._writer = ThreadPoolExecutor(1, "fairqr-write")
        self._readers = ThreadPoolExecutor(_READERS, "fairqr-read")
        sa.event.listen(self._engine, "connect", _prepare)
        sa.event.listen(self._engine, "begin", _begin)

    async def write(self, work: Work[T]) -> T:
        """Run work in a transaction while nobody else writes."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._writer, _done, self._engine, work)

    async def read(self, work: Work[T]) -> T:
        """Run work that only reads, in a transaction."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, _done, self._reading, work)

    async def close(self) -> None:
        """Close all connections."""
        self._writer.shutdown()
        self._readers.shutdown()
        self._engine.dispose()


def _done(engine: sa.Engine, work: Work[T]) -> T:
    with engine.begin() as connection:
        return work(connection)


def _prepare(connection: Any, record: Any) -> None:
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(pragma)
    cursor.close()


def _begin(connection: sa.Connection) -> None:
    begin = connection.get_execution_options().get("begin", "BEGIN IMMEDIATE")
    connection.exec_driver_sql(begin)
