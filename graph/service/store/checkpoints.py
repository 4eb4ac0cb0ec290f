"""LangGraph's checkpointers, in the transactions of what a run has to tell."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from fairqr.base.errors import StoreUnavailableError
from fairqr.graph.steps import run_journal

if TYPE_CHECKING:
    from fairqr.graph.service.store.database import Database

PAUSE = 0.5
"""Seconds between two attempts while the database is away."""

T = TypeVar("T")


async def lasting(call: Callable[[], Awaitable[T]]) -> T:
    """Await ``call()``; repeat it while the database is away."""
    while True:
        try:
            return await call()
        except StoreUnavailableError:
            await asyncio.sleep(PAUSE)


class Checkpoints(BaseCheckpointSaver[Any]):
    """The checkpoints of durable runs, which LangGraph's own savers read and write.

    A checkpoint is written in a transaction of its run, never before what its steps have told; in
    SQLite, some of its parts follow at once. So nothing that was done is never told, and whoever
    has lost a run writes no checkpoint of it any more.

    Args:
        database: Where they are.
    """

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database
        self._versions = self.saver()

    def saver(self, connection: Any = None) -> AsyncSqliteSaver | AsyncPostgresSaver:
        """Return LangGraph's saver on a connection of the driver, whose tables are there."""
        if not self._database.file:
            return AsyncPostgresSaver(connection)
        saver = AsyncSqliteSaver(connection)
        saver.is_setup = True
        return saver

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Return the next version of a channel."""
        return self._versions.get_next_version(current, channel)

    async def aget_tuple(self, config: Any) -> Any:
        """Return the last checkpoint of a thread."""
        journal = run_journal()  # None if somebody looks from outside of the run
        if journal is not None and not await journal.settled():
            return None
        return await self._read(lambda saver: saver.aget_tuple(config))

    async def aget_delta_channel_history(self, **about: Any) -> Any:
        """Return what the steps of a thread have added to channels that grow."""
        return await self._read(lambda saver: saver.aget_delta_channel_history(**about))

    async def aput(self, config: Any, checkpoint: Any, *given: Any) -> Any:
        """Keep a checkpoint soon, together with what the run has to tell."""
        journal: Any = run_journal()  # only durable runs have these checkpoints
        journal.write(lambda driver: self.saver(driver).aput(config, checkpoint, *given))
        return {"configurable": {**config["configurable"], "checkpoint_id": checkpoint["id"]}}

    async def aput_writes(self, *given: Any) -> None:
        """Keep what a step changed soon, even if steps beside it have not ended."""
        journal: Any = run_journal()
        journal.write(lambda driver: self.saver(driver).aput_writes(*given))

    async def _read(self, call: Callable[[Any], Awaitable[Any]]) -> Any:
        async def read() -> Any:
            async with self._database.begin() as connection:
                return await call(self.saver(await self._database.driver_of(connection)))

        return await lasting(read)
