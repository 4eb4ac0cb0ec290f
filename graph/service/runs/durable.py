"""One attempt at a durable run: what it tells is kept, and its end is written once."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

from langchain_core.messages import AIMessageChunk
from langgraph.checkpoint.base import BaseCheckpointSaver

from fairqr.agents.models.replies import Reply, Usage, Validate
from fairqr.base.errors import RunCancelledError, RunInterruptedError
from fairqr.graph.service.problems import CANCELLED
from fairqr.graph.service.records import Event, Run, path_of
from fairqr.graph.service.runs.doing import LiveRun, failed
from fairqr.graph.service.store import Attempt, Store
from fairqr.graph.service.store.checkpoints import lasting
from fairqr.graph.steps import RunJournal, Write
from fairqr.graph.stream import RunEvent, Step, step_data

T = TypeVar("T")

LOSSES = 5
"""After this many attempts that ended without a word, we blame the run and fail it."""

_FINAL = ("ok", "parse_error", "refused", "invalid_request", "unsupported")
"""Asking again would not change these statuses. After others, such as a timeout, we ask again."""


@dataclass(eq=False)
class DurableRun(LiveRun, RunJournal):
    """An attempt at a run in this process.

    Attributes:
        attempt: What the store knows of the attempt.
        store: Keeps what it tells and its end.
        saver: Keeps where it is.
        execute: Runs the run.
        resumed: Whether there are checkpoints to go on from.
        news: Set when there is something more to tell of the run; then there is another one.
        stored: How often something of it was stored.
        pieces: The events with pieces of its answer, which are not stored.
    """

    attempt: Attempt
    store: Store
    saver: BaseCheckpointSaver[Any]
    execute: Execute

    def __post_init__(self) -> None:
        self.stopped = RunCancelledError(CANCELLED) if self.attempt.cancel else None
        self.last = self.attempt.last
        self.resumed = False
        self.news = asyncio.Event()
        self.stored = 0
        self.pieces: list[Event] = []
        self._known = set(self.attempt.steps)
        """The keys of the steps that were told."""
        self._asked: Counter[str] = Counter()
        self._kept: dict[str, dict[int, dict[str, Any]]] = {}
        """The replies of earlier attempts, by question and by how often it was asked before."""
        for id_, reply in self.attempt.replies.items():
            short, _, number = id_.partition(":")
            self._kept.setdefault(short, {})[int(number)] = reply
        self._events: list[Event] = []
        self._replies: dict[str, dict[str, Any]] = {}
        self._writes: list[Write] = []
        self._flushing = asyncio.Lock()
        self._lost = False
        self._version = self.attempt.version

    async def do(self) -> None:
        """Do the run to its end.

        Raises:
            asyncio.CancelledError: It goes on elsewhere or later.
        """
        self.task, path = asyncio.current_task(), path_of(self.run.id)
        try:
            final = await self.outcome(self._happenings(), path)
            self.task = None  # it is not to be stopped any more
            try:
                await self._finish(final)
            except Exception as error:  # the result or an event cannot be written
                self.last -= len(self._events)
                self._events.clear()
                await self._finish(failed(self.run, error, path))
        except asyncio.CancelledError:
            if not self._lost:
                await asyncio.shield(self._lasting(lambda: self.store.release(self.run)))
            raise
        finally:
            self.leave()

    async def _finish(self, final: Run) -> None:
        if self.over.is_set():  # this process has left it to the next one
            return
        if over := await self._lasting(lambda: self.store.finish(final, self._events)):
            self.observer.finished(over)

    async def begin_over(self, version: str) -> None:
        """Forget the checkpoints if they are over another version of the index."""
        self._version = version
        if self.attempt.version not in (None, version):
            self.resumed = False
            self._known.clear()
            await self._lasting(lambda: self.store.begin_over(self.run))

    async def once(self, key: str, check: Validate, ask: Callable[[], Awaitable[Reply]]) -> Reply:
        """Return the kept reply to a question, or ask it and keep the reply."""
        short = hashlib.sha256(key.encode()).hexdigest()[:32]
        number = self._asked[short]  # if a question is asked twice, keep both replies
        self._asked[short] += 1
        kept = self._kept.get(short, {})
        # Steps of before this attempt do not ask again, so that its numbers are lower than before;
        # and what they knew by a cache of their process is known by the last reply.
        found = kept.get(number) or (kept[max(kept)] if kept and number > max(kept) else None)
        if found is not None and (number in kept or found["status"] == "ok"):
            value = check(found["value"]) if found["status"] == "ok" else {}
            return Reply(found["status"], value, found["message"], Usage(**found["usage"]))
        reply = await ask()
        if reply.status in _FINAL:
            stored = {**asdict(reply), "value": dict(reply.value)}
            self._replies[f"{short}:{number}"] = stored
            await self.flush()
        return reply

    def ended(self, key: str, name: str, update: Mapping[str, Any]) -> None:
        """Tell that a step has ended, unless an earlier attempt did."""
        if key not in self._known:
            self._known.add(key)
            data = step_data(self.run.kind, Step(name, dict(update)))
            self._events.append(self.event("step", data, key))

    def write(self, write: Write) -> None:
        """Take note of a checkpoint."""
        self._writes.append(write)

    async def flush(self) -> None:
        """Store what waits, and publish it; see :meth:`RunJournal.flush`."""
        async with self._flushing:
            events, replies, writes = [*self._events], dict(self._replies), [*self._writes]
            if events or replies or writes:
                add = partial(self.store.add, self.run, events, replies, self._version, writes)
                if not await self._lasting(add):
                    raise asyncio.CancelledError
                del self._events[: len(events)], self._writes[: len(writes)]
                self._replies = {k: v for k, v in self._replies.items() if k not in replies}
                self.stored += 1
                self._tell()

    async def _happenings(self) -> AsyncGenerator[RunEvent, None]:
        if self.stopped is not None:
            raise self.stopped
        if self.attempt.lost > LOSSES:
            raise RunInterruptedError(
                "Every worker that started this run stopped before its end; ask for less."
            )
        if self.run.attempts > 1:
            config: Any = {"configurable": {"thread_id": self.run.id, "checkpoint_ns": ""}}
            self.resumed = await self.saver.aget_tuple(config) is not None
        self.observer.begun(self.run)
        self._events.append(self.first_event())
        async with contextlib.aclosing(self.execute(self.run, self)) as happenings:
            async for event in happenings:
                yield event

    async def hear(self, event: RunEvent) -> None:
        """Tell of a piece of an answer, and of a step of an audit.

        An audit is no graph, whose nodes tell of their ends.
        """
        if isinstance(event, AIMessageChunk):
            self.pieces.append(Event(number=0, name="token", data={"text": str(event.text)}))
            self._tell()
        if self.run.kind == "audit" and isinstance(event, Step):
            self._events.append(self.event("step", step_data(self.run.kind, event)))
            await self.flush()

    def leave(self) -> None:
        """Say that this process is done with the run."""
        self.over.set()
        self.stored += 1
        self._tell()

    def _tell(self) -> None:
        self.news.set()
        self.news = asyncio.Event()

    async def _lasting(self, write: Callable[[], Awaitable[T]]) -> T | None:
        """Write something, also if the database is away for a while.

        Returns:
            None or False if a later attempt has begun; this one ends then.
        """
        if self._lost or not (written := await lasting(write)):
            if not self._lost and self.task is not None:
                self._lost = True
                self.task.cancel()
            return None
        return written


Execute = Callable[[Any, DurableRun], AsyncGenerator[RunEvent, None]]
"""Runs a run from its last checkpoint on; yields what happens."""
