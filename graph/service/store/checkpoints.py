"""LangGraph's checkpointers, for runs whose events have to be kept as well.

What a run has to tell is stored before a checkpoint that makes its step one of the past. So nothing
that was done is never told, and whoever has lost a run writes no checkpoint of it any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import psycopg
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from psycopg_pool import PoolClosed

from fairqr.base.errors import StoreUnavailableError
from fairqr.graph.steps import run_journal

PAUSE = 0.5
"""Seconds between two attempts while the database is away."""

_AWAY = (
    StoreUnavailableError,
    psycopg.OperationalError,
    psycopg.InterfaceError,
    sqlite3.OperationalError,
)

T = TypeVar("T")


async def lasting(call: Callable[[], Awaitable[T]]) -> T:
    """Await ``call()``; repeat it while the database is away."""
    while True:
        try:
            return await call()
        except PoolClosed:
            raise
        except _AWAY:
            await asyncio.sleep(PAUSE)


class LastingSaver(BaseCheckpointSaver[Any]):
    """Reads and writes again what fails while the database is away."""

    async def aget_tuple(self, config: Any) -> Any:
        """Return the last checkpoint of a thread."""
        read = super().aget_tuple
        return await lasting(lambda: self._once(read, config))

    async def aput(self, *given: Any) -> Any:
        """Keep a checkpoint."""
        return await self._kept(super().aput, *given)

    async def aput_writes(self, *given: Any) -> None:
        """Keep what a step changed, before all steps beside it have ended."""
        await self._kept(super().aput_writes, *given)

    async def _once(self, call: Callable[..., Awaitable[T]], *given: Any) -> T:
        """Make an attempt."""
        return await call(*given)

    async def _kept(self, call: Callable[..., Awaitable[T]], *given: Any) -> T:
        """Store what the run has to tell, and then its checkpoint.

        One follows the other: a checkpoint is of no use without the changes of the steps before it.
        """
        journal = run_journal()

        async def attempt() -> T:
            if journal is not None:  # each time, as the run may be another's after an outage
                await journal.flush(sure=True)
            return await self._once(call, *given)

        async with journal.in_order if journal else contextlib.nullcontext():
            return await lasting(attempt)


class PostgresCheckpoints(LastingSaver, AsyncPostgresSaver):
    """Checkpoints in PostgreSQL."""


class SqliteCheckpoints(LastingSaver, AsyncSqliteSaver):
    """Checkpoints in SQLite."""

    async def _once(self, call: Callable[..., Awaitable[T]], *given: Any) -> T:
        """Make an attempt that leaves no transaction open if it fails or is cancelled."""
        try:
            return await call(*given)
        except BaseException:
            await asyncio.shield(self._rolled_back())
            raise

    async def _rolled_back(self) -> None:
        async with self.lock:
            await self.conn.rollback()
