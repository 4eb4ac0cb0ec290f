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
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from psycopg_pool import PoolTimeout

from fairqr.graph.journal import run_journal

PAUSE = 0.5
"""Seconds between two attempts while the database is away."""

T = TypeVar("T")


async def lasting(call: Callable[[], Awaitable[T]], *failures: type[Exception]) -> T:
    """Await ``call()``; repeat it while the database is away.

    Args:
        call: Makes an attempt.
        failures: What it raises if the database is away.
    """
    while True:
        try:
            return await call()
        except failures:
            await asyncio.sleep(PAUSE)


async def _kept(call: Callable[[], Awaitable[T]]) -> T:
    """Store what the run has to tell, and then its checkpoint.

    One follows the other: a checkpoint is of no use without the changes of the steps before it.
    """
    journal = run_journal()
    async with journal.in_order if journal else contextlib.nullcontext():
        if journal is not None:
            await journal.flush()
        return await lasting(call, psycopg.Error, PoolTimeout, sqlite3.Error)


class PostgresCheckpoints(AsyncPostgresSaver):
    """Checkpoints in PostgreSQL."""

    async def aput(self, *given: Any) -> Any:
        """Keep a checkpoint."""
        return await _kept(lambda: AsyncPostgresSaver.aput(self, *given))

    async def aput_writes(self, *given: Any) -> None:
        """Keep what a step changed, before all steps beside it have ended."""
        await _kept(lambda: AsyncPostgresSaver.aput_writes(self, *given))


class SqliteCheckpoints(AsyncSqliteSaver):
    """Checkpoints in SQLite."""

    async def aput(self, *given: Any) -> Any:
        """Keep a checkpoint."""
        return await _kept(lambda: AsyncSqliteSaver.aput(self, *given))

    async def aput_writes(self, *given: Any) -> None:
        """Keep what a step changed, before all steps beside it have ended."""
        await _kept(lambda: AsyncSqliteSaver.aput_writes(self, *given))
