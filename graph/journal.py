"""What keeps a durable run: its checkpoints, and the replies of models."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, cast

from langgraph.checkpoint.base import BaseCheckpointSaver

from fairqr.agents.models.cache import Journal, surroundings
from fairqr.graph.step import Step

Write = Callable[[Any], Awaitable[Any]]
"""Writes something on a connection of the database."""


class RunJournal(Journal, Protocol):
    """The journal of a durable run.

    Attributes:
        saver: LangGraph's checkpointer, which keeps where the run is.
        resumed: Whether there are checkpoints to go on from.
    """

    saver: BaseCheckpointSaver[Any]
    resumed: bool

    async def start_over(self, version: str) -> None:
        """Forget the checkpoints if they are over another version of the index."""

    def step_from_node(self, step: Step) -> None:
        """Take note of a step that a node itself reports at its end, before its changes are kept.

        So checkpoints never say more than was published.
        """

    def write(self, write: Write) -> None:
        """Take note of a checkpoint, or a part of one; it is kept a moment later."""

    async def settled(self) -> bool:
        """Keep the checkpoints that were noted; return whether there are any of the run."""


def run_journal() -> RunJournal | None:
    """Return the journal of the current run, or None if it has none."""
    return cast("RunJournal | None", surroundings().journal)
