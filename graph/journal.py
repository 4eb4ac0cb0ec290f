"""Replies of models, kept beside the states of a run.

A step may ask many questions, and its state is kept when all are answered. What is answered before
is written as a pending write of the state that the step began with; LangGraph passes over it, since
it is of none of its tasks, and it goes when the thread is deleted.
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
"""What asking again would not mend; a server that was away is asked again."""


class Replies:
    """What models answered in a thread since its last state.

    Args:
        saver: Where the thread is kept.
        thread: Its name.
    """

    def __init__(self, saver: BaseCheckpointSaver[Any], thread: str) -> None:
        self._saver = saver
        self._thread = thread
        self._kept: dict[str, Any] = {}

    async def load(self, states: Iterable[RunnableConfig]) -> None:
        """Read what is kept beside states: that of a graph, and those of graphs inside it."""
        self._kept = {}
        for state in states:
            kept = await self._saver.aget_tuple(state)
            writes = (kept.pending_writes if kept else None) or []
            self._kept |= {id_: value for id_, channel, value in writes if channel == _CHANNEL}

    def get(self, id_: str) -> Any:
        """Return the record that is kept under an id; None where none is."""
        return self._kept.get(id_)

    async def put(self, graph: str, checkpoint: str, id_: str, record: Mapping[str, Any]) -> None:
        """Keep a record beside the state of that id, in the namespace of its graph."""
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
        # The namespace of a step is that of its graph, and then its own part.
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
    """Let the steps that run inside keep the replies of models there."""
    token = _replies.set(replies)
    try:
        yield
    finally:
        _replies.reset(token)


@contextmanager
def step_journal(info: ExecutionInfo | None) -> Iterator[None]:
    """Keep what models answer in a step.

    Args:
        info: Of the step, whose ids are the same when it is done again; None outside of a graph.
    """
    replies = _replies.get()
    journal: Journal | None = None
    if replies is not None and info is not None:
        journal = _StepJournal(replies, info)
    with journaled(journal):
        yield
