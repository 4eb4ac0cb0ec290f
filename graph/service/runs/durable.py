"""Attempts at durable runs: their events, their checkpoints and replies, and their end."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

from langgraph.checkpoint.base import BaseCheckpointSaver

from fairqr.agents.models.replies import Reply, Usage, Validate
from fairqr.base.errors import RunCancelledError, RunInterruptedError
from fairqr.graph.journal import RunJournal, Write
from fairqr.graph.service.problems import CANCELLED
from fairqr.graph.service.records import Event, Run
from fairqr.graph.service.runs.live import LiveRun, event_data, failed, last_event
from fairqr.graph.service.store import Attempt, Store
from fairqr.graph.service.store.database import lasting
from fairqr.graph.step import Step
from fairqr.graph.stream import RunOutput

MOMENT = 0.02
"""Seconds that events wait for others, with which they are stored."""

CHECKPOINTED = 0.25
"""Seconds between two transactions with checkpoints. A killed run may do so much once more."""

HANDING_OVER = 4.0
"""Seconds that each part of handing a run over may take; without a database, its lease does it."""

LOSSES = 5
"""After this many attempts that ended without a word, we blame the run and fail it."""

_FINAL = ("ok", "parse_error", "refused", "invalid_request", "unsupported")
"""The statuses of replies that asking again would not change.

After others, such as a timeout, we ask again.
"""

T = TypeVar("T")


@dataclass(eq=False)
class DurableRun(LiveRun, RunJournal):
    """An attempt at a stored run. Its events are kept first, and its end is written once.

    Attributes:
        run: The attempt, as it is in the store.
        store: Keeps its events and its end.
        saver: Keeps its checkpoints.
        resumed: Whether there are checkpoints to go on from.
    """

    run: Attempt
    store: Store
    saver: BaseCheckpointSaver[Any]

    def __post_init__(self) -> None:
        self.stop_problem = RunCancelledError(CANCELLED) if self.run.cancel else None
        self.last = self.run.last
        self.resumed = False
        self._noted_keys = {key for key in self.run.step_keys.values() if key}
        """The keys of the steps that were noted or stored."""
        self._stored_replies: set[str] = set()
        """The ids of the questions whose replies this attempt has kept."""

        # These are to be stored.
        self._events: list[Event] = []
        self._replies: dict[str, dict[str, Any]] = {}
        self._writes: list[Write] = []

        self._flushing = asyncio.Lock()
        self._soon: asyncio.Task[None] | None = None
        self._checkpoint_at = time.monotonic() + CHECKPOINTED
        self._has_checkpoints = self.run.attempts > 1
        self._lost = False
        self._version = self.run.version

    async def do(self, execute_stored: ExecuteStored) -> None:
        """Do the run to its end.

        Raises:
            asyncio.CancelledError: It goes on elsewhere or later.
        """
        self.task = asyncio.current_task()
        try:
            final = await self.drive(self._stored_outputs(execute_stored))
            self.task = None  # it is not to be stopped any more
            try:
                await self._finish(final)
            except Exception as error:  # the result or an event cannot be written
                self.last -= sum(event.number > 0 for event in self._events)
                self._events.clear()
                await self._finish(failed(self.run, error, self.path))
        except asyncio.CancelledError:
            if not self._lost:
                await asyncio.shield(self._hand_over())
            raise
        finally:
            self.leave()
            if self._soon is not None:
                self._soon.cancel()

    async def _stored_outputs(
        self, execute_stored: ExecuteStored
    ) -> AsyncGenerator[RunOutput, None]:
        if self.stop_problem is not None:
            raise self.stop_problem
        earlier_attempts = self.run.attempts - 1
        losses = earlier_attempts - self.run.handed_over
        if losses > LOSSES:
            raise RunInterruptedError(
                "Every worker that started this run stopped before its end; ask for less."
            )

        if earlier_attempts > 0:
            config: Any = {"configurable": {"thread_id": self.run.id, "checkpoint_ns": ""}}
            self.resumed = await self.saver.aget_tuple(config) is not None
        self._note(self.first_event())
        async with contextlib.aclosing(execute_stored(self.run, self)) as outputs:
            async for output in outputs:
                yield output

    def step_from_stream(self, step: Step) -> None:
        """Note a step of an audit, which has no nodes; for others, see :meth:`step_from_node`."""
        if self.run.kind == "audit":
            self._note(self.event("step", event_data(self.run.kind, step)))

    def publish_piece(self, piece: Event) -> None:
        """Publish a piece of an answer, after what comes before it."""
        if self._events:
            self._events.append(piece)
        else:
            self.publish(piece)

    async def start_over(self, version: str) -> None:
        """Forget the checkpoints if they are over another version of the index."""
        self._version = version
        if self.run.version in (None, version):
            return
        self.resumed = False
        self._noted_keys.clear()
        await self._lasting(partial(self.store.start_over, self.run))

    async def once(self, key: str, check: Validate, ask: Callable[[], Awaitable[Reply]]) -> Reply:
        """Return the kept reply to a question, or ask it and keep the reply."""
        id_ = hashlib.sha256(key.encode()).hexdigest()[:32]
        stored = self.run.replies.get(id_)
        if stored is not None:
            value = check(stored["value"]) if stored["status"] == "ok" else {}
            return Reply(stored["status"], value, stored["message"], Usage(**stored["usage"]))

        reply = await ask()
        if reply.status in _FINAL and id_ not in self._stored_replies:
            self._stored_replies.add(id_)
            self._replies[id_] = {**asdict(reply), "value": dict(reply.value)}
            await self.flush()
        return reply

    def step_from_node(self, step: Step) -> None:
        """Note a step that a node itself reports, unless an earlier attempt has stored it.

        LangGraph streams a step only after it has kept the changes of its node.
        """
        if step.key not in self._noted_keys:
            self._noted_keys.add(step.key)
            self._note(self.event("step", event_data(self.run.kind, step), step.key))

    def write(self, write: Write) -> None:
        """Take note of a checkpoint, or a part of one."""
        self._writes.append(write)
        self._note()

    async def settled(self) -> bool:
        """Store the checkpoints that were noted; return whether there are any of the run."""
        if self._writes:
            await self.flush(checkpoints=True)
        return self._has_checkpoints

    def _note(self, *events: Event) -> None:
        self._events += events
        if self._soon is None or self._soon.done():
            self._soon = asyncio.create_task(self._flush_soon())

    async def _flush_soon(self) -> None:
        while self._events or self._writes:
            await asyncio.sleep(MOMENT)
            try:
                await self.flush(checkpoints=time.monotonic() > self._checkpoint_at)
            except Exception as error:  # something cannot be written
                self.stop(error)
                return

    async def flush(self, checkpoints: bool = False) -> None:
        """Store what was noted, all of it or nothing, and then publish it.

        Args:
            checkpoints: Whether to store checkpoints, too. They never say more than was published.

        Raises:
            asyncio.CancelledError: The run is not this process's any more.
        """
        async with self._flushing:
            events = [*self._events]
            replies = dict(self._replies)
            writes = [*self._writes] if checkpoints else []
            if writes:
                self._has_checkpoints = True

            if events or replies or writes:
                add = partial(self.store.add, self.run, events, replies, self._version, writes)
                if not await self._lasting(add):
                    raise asyncio.CancelledError
                del self._events[: len(events)]
                del self._writes[: len(writes)]
                for id_ in replies:
                    self._replies.pop(id_, None)
                self.publish(*events)
            if writes:
                self._checkpoint_at = time.monotonic() + CHECKPOINTED

    async def _finish(self, final: Run) -> None:
        async with self._flushing:  # at the end, nothing needs to be stored any more but events
            if self.is_over:  # this process has left it to the next one
                return
            finish = partial(self.store.finish, final, self._events, self._has_checkpoints)
            stored = await self._lasting(finish)
            if stored:
                self.publish(*self._events, last_event(stored, self.last + 1))
                self._events = []
                self._replies = {}
                self._writes = []
                self.on_finished(stored)

    async def _hand_over(self) -> None:
        # What cannot be stored now, the next attempt does again.
        with contextlib.suppress(Exception, asyncio.CancelledError):
            async with asyncio.timeout(HANDING_OVER):
                await self.flush(checkpoints=True)
        # What cannot be released now, the end of its lease hands over.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HANDING_OVER):
                await self._lasting(partial(self.store.release, self.run))

    async def _lasting(self, write: Callable[[], Awaitable[T]]) -> T | None:
        """Write something, also if the database is away for a while.

        Returns:
            None or False if a later attempt has started; this one ends then.
        """
        if self._lost:
            return None
        written = await lasting(write)
        if written:
            return written
        if self.task is not None and not self._lost:
            self._lost = True
            self.task.cancel()
        return None


ExecuteStored = Callable[[Run, DurableRun], AsyncGenerator[RunOutput, None]]
"""Runs a stored run from its last checkpoint on."""
