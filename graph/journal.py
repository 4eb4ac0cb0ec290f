"""What a durable run keeps besides LangGraph's checkpoints: its steps for others, and replies."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from fairqr.agents.models.cache import surroundings
from fairqr.agents.models.replies import Reply, Validate


class RunJournal(ABC):
    """The journal of one run; see :class:`fairqr.agents.models.cache.Journal`.

    Attributes:
        saver: LangGraph's checkpointer, which keeps where the run is.
        resumed: Whether there are checkpoints to go on from.
        in_order: Held while something of a checkpoint is written.
    """

    saver: BaseCheckpointSaver[Any]
    resumed: bool
    in_order: asyncio.Lock

    @abstractmethod
    async def begin_over(self, version: str) -> None:
        """Forget the checkpoints if they are over another version of the index."""

    @abstractmethod
    async def once(self, key: str, check: Validate, ask: Callable[[], Awaitable[Reply]]) -> Reply:
        """Return the kept reply to a question, or ask it and keep the reply."""

    @abstractmethod
    def ended(self, key: str, name: str, update: Mapping[str, Any]) -> None:
        """Take note that a step has ended.

        Args:
            key: The same each time the step runs, also after a crash.
            name: The name of the node.
            update: What it changed in the state.
        """

    @abstractmethod
    async def flush(self, *, sure: bool = False) -> None:
        """Keep for good what was noted; before that, no checkpoint may follow.

        Args:
            sure: Make sure that the run is still this process's, even if there is nothing to keep.

        Raises:
            asyncio.CancelledError: It is not.
        """


def run_journal() -> RunJournal | None:
    """Return the journal of the current run, or None if it has none."""
    journal = surroundings().journal
    return journal if isinstance(journal, RunJournal) else None
