"""langgraph's savers of checkpoints, made to last.

A checkpoint is written whole or not at all, also where the run is cancelled meanwhile; a database
that is away is waited for; and texts hold whatever characters they like.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)

from fairqr.graph.service.store.database import LASTING, lasting

__all__ = ["LastingSaver", "escaped", "unescaped"]

T = TypeVar("T")

_ESCAPED = "\ufdd0"
"""No character, and never one: it marks a text that is written as JSON."""


class LastingSaver(BaseCheckpointSaver[Any]):
    """What is put before one of langgraph's savers, as the first of two base classes.

    Attributes:
        alone: Held while something is written.
    """

    alone: contextlib.AbstractAsyncContextManager[Any]

    async def setup(self) -> None:
        """Make the tables; nothing happens where they are."""
        await super().setup()  # type: ignore[misc]

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a thread's last checkpoint.

        Raises:
            StoreUnavailableError: The database is away.
        """
        read = super().aget_tuple
        found = await lasting(lambda: read(config), LASTING)
        if found is not None:
            _change(found.checkpoint, unescaped)
        return found

    async def alist(self, config: RunnableConfig | None, **wanted: Any) -> Any:
        """Yield a thread's checkpoints, the newest first."""
        async for found in super().alist(config, **wanted):
            _change(found.checkpoint, unescaped)
            yield found

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Write a checkpoint.

        Raises:
            StoreUnavailableError: The database is away.
        """
        write, given = super().aput, checkpoint.copy()
        _change(given, escaped)
        return await self._whole(lambda: write(config, given, metadata, new_versions))

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Write what a step came to.

        Raises:
            StoreUnavailableError: The database is away.
        """
        write = super().aput_writes
        await self._whole(lambda: write(config, writes, task_id, task_path))

    async def adelete_thread(self, thread_id: str) -> None:
        """Forget a thread.

        Raises:
            StoreUnavailableError: The database is away.
        """
        delete = super().adelete_thread
        await self._whole(lambda: delete(thread_id))

    async def _whole(self, call: Callable[[], Awaitable[T]]) -> T:
        async def once() -> T:
            async with self.alone:
                try:
                    return await call()
                except BaseException:
                    await self._undo()
                    raise

        return await lasting(once, LASTING)

    async def _undo(self) -> None:
        """Leave no transaction open."""


def escaped(value: Any) -> Any:
    """Return a text so that PostgreSQL takes it; anything else as it is."""
    if isinstance(value, str) and (
        "\0" in value or value.startswith(_ESCAPED) or any("\ud800" <= c <= "\udfff" for c in value)
    ):
        return _ESCAPED + json.dumps(value)
    return value


def unescaped(value: Any) -> Any:
    """Return what :func:`escaped` was given."""
    if isinstance(value, str) and value.startswith(_ESCAPED):
        return json.loads(value[1:])
    return value


def _change(checkpoint: Checkpoint, how: Callable[[Any], Any]) -> None:
    # Only these stand in a column of JSON; what is within others is written as bytes.
    values = checkpoint["channel_values"]
    checkpoint["channel_values"] = {name: how(value) for name, value in values.items()}
