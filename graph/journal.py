"""Replies of models, kept beside the states of a run.

A step may ask many questions, but its state is only saved when all are answered. So each reply is
saved at once, as a pending write of the state that the step started from. LangGraph ignores it,
because it belongs to none of its tasks, and removes it when the thread is deleted.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from fairqr.agents.journal import Journal, journaled
from fairqr.agents.replies import Reply, Usage

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.runtime import ExecutionInfo

__all__ = ["Replies", "kept_replies", "step_journal"]

_CHANNEL = "fairqr.reply"
_FINAL = ("ok", "parse_error", "refused", "invalid_request", "unsupported")
"""Asking again would not change these statuses. After others, such as a timeout, we ask again."""


class Replies:
    """The replies of models in a thread since its last saved state.

    Args:
        saver: The checkpointer that keeps the thread.
        thread: The name of the thread.
    """

    def __init__(self, saver: BaseCheckpointSaver[Any], thread: str) -> None:
        self._saver = saver
        self._thread = thread
        self._kept: dict[str, Any] = {}

    async def load(self, states: Iterable[RunnableConfig]) -> None:
        """Read the replies beside these states: of a graph, and of the graphs inside it."""
        self._kept = {}
        for state in states:
            kept = await self._saver.aget_tuple(state)
            writes = (kept.pending_writes if kept else None) or []
            self._kept |= {id_: value for id_, channel, value in writes if channel == _CHANNEL}

    def get(self, id_: str) -> Any:
        """Return the record with an id, or None if there is none."""
        return self._kept.get(id_)

    async def put(self, graph: str, checkpoint: str, id_: str, record: Mapping[str, Any]) -> None:
        """Save a record beside the state with that id, in the namespace of its graph."""
        config: Any = {
            "configurable": {
                "thread_id": self._thread,
                "checkpoint_ns": graph,
                "checkpoint_id": checkpoint,
            }
        }
        await self._saver.aput_writes(config, [(_CHANNEL, dict(record))], id_)


class _StepJournal:
    """The replies of one step; see :class:`fairqr.agents.journal.Journal`."""

    def __init__(self, replies: Replies, step: ExecutionInfo) -> None:
        self._replies = replies
        # The namespace of a step is the namespace of its graph, followed by a part of its own.
        self._graph = step.checkpoint_ns.rpartition("|")[0]
        self._checkpoint = step.checkpoint_id
        self._task = step.task_id
        self._asked: Counter[str] = Counter()

    async def once(
        self,
        key: str,
        check: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        ask: Callable[[], Awaitable[Reply]],
    ) -> Reply:
        short = hashlib.sha256(key.encode()).hexdigest()[:32]
        id_ = f"{self._task}:{short}:{self._asked[short]}"
        self._asked[short] += 1
        if (kept := self._replies.get(id_)) is not None:
            try:
                return _reply_of(kept, check)
            except (KeyError, TypeError, ValueError):
                pass  # another version of fairqr wrote it
        reply = await ask()
        if reply.status in _FINAL:
            record = {**dataclasses.asdict(reply), "value": dict(reply.value)}
            await self._replies.put(self._graph, self._checkpoint, id_, record)
        return reply


def _reply_of(
    record: Mapping[str, Any], check: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> Reply:
    if record["status"] not in _FINAL:
        raise ValueError("no such status")
    value = check(record["value"]) if record["status"] == "ok" else {}
    return Reply(record["status"], value, record["message"], Usage(**record["usage"]))


_replies: ContextVar[Replies | None] = ContextVar("fairqr_replies", default=None)


@contextmanager
def kept_replies(replies: Replies | None) -> Iterator[None]:
    """Let the steps that run inside keep replies there."""
    token = _replies.set(replies)
    try:
        yield
    finally:
        _replies.reset(token)


@contextmanager
def step_journal(info: ExecutionInfo | None) -> Iterator[None]:
    """Keep the replies of models in a step.

    Args:
        info: The step. Its ids are the same when it is done again. None outside of a graph.
    """
    replies = _replies.get()
    journal: Journal | None = None
    if replies is not None and info is not None:
        journal = _StepJournal(replies, info)
    with journaled(journal):
        yield
