"""A run of either kind that this process does: its events, what is kept, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, TypeVar

from langchain_core.messages import AIMessageChunk
from langgraph.checkpoint.base import BaseCheckpointSaver

from fairqr.agents.models.replies import Reply, Usage, Validate
from fairqr.base.errors import FairqrError, RunCancelledError, RunInterruptedError, RunTimeoutError
from fairqr.base.telemetry import continued
from fairqr.graph.journal import RunJournal, Write
from fairqr.graph.service.problems import CANCELLED, class_and_place, problem_of
from fairqr.graph.service.records import Event, EventName, Kind, Run, RunSummary, Status
from fairqr.graph.service.store import Attempt, Store
from fairqr.graph.service.store.database import lasting
from fairqr.graph.step import Step
from fairqr.graph.stream import WHOLE_STATE, RunOutput, step_data

STOPPING = 1.0
"""Seconds that stopped runs have to end."""

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

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class LiveRun(ABC):
    """A run that this process does, within its time limit and to one end.

    Attributes:
        run: The run, as it starts, and in the end as it ended.
        path: What its problems are about.
        seconds: The time limit.
        carrier: The headers of the caller's trace.
        on_finished: Called with the run at its end, which is stored by then; it must not raise.
        is_over: Whether this process is done with the run.
        stop_problem: The problem for which the run was stopped; None if it was not.
        task: Does the run; None before and after it can be stopped.
        last: The number of the last event.
    """

    run: Run
    path: str
    seconds: float
    carrier: Mapping[str, str]
    on_finished: Callable[[Run], None]
    is_over: bool = field(default=False, init=False)
    stop_problem: Exception | None = field(default=None, init=False)
    task: asyncio.Task[Any] | None = field(default=None, init=False)
    last: int = field(default=0, init=False)
    # The limits bound the events of a run, so this list stays small.
    _published: list[Event] = field(default_factory=list, init=False)
    _news: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def events(self, after: int = 0) -> AsyncGenerator[Event, None]:
        """Yield the run's events, pieces of text too, until this process is done with it.

        Args:
            after: Only events with higher numbers.
        """
        position = 0
        while True:
            news = self._news
            while position < len(self._published):
                event = self._published[position]
                position += 1
                is_piece = event.number == 0
                is_new = event.number > after
                if is_piece or is_new or event.last:
                    yield event
            if self.is_over:
                return
            await news.wait()

    def publish(self, *events: Event) -> None:
        """Send events to those who follow the run."""
        self._published += events
        self._news.set()
        self._news = asyncio.Event()

    def leave(self) -> None:
        """Say that this process is done with the run."""
        self.is_over = True
        self.publish()

    def stop(self, problem: Exception | None = None) -> None:
        """End the run, unless it is over or was stopped before.

        Args:
            problem: The problem of the run; by default it was cancelled.
        """
        if self.stop_problem is None and self.task is not None:
            self.stop_problem = problem or RunCancelledError(CANCELLED)
            self.task.cancel()

    def event(self, name: EventName, data: dict[str, Any], step: str | None = None) -> Event:
        """Return the next event of the run."""
        self.last += 1
        return Event(number=self.last, name=name, data=data, step=step)

    def first_event(self) -> Event:
        """Return the event that says what runs."""
        return self.event("run", self.run.model_dump(include=set(RunSummary.model_fields)))

    async def drive(self, outputs: AsyncGenerator[RunOutput, None]) -> Run:
        """Take all outputs of the run, publish them, and return the run at its end.

        Args:
            outputs: What the run yields; closed in the end.

        Raises:
            asyncio.CancelledError: The task was cancelled, and nobody has stopped the run.
        """
        limit = asyncio.timeout(self.seconds)
        try:
            async with limit, contextlib.aclosing(outputs):
                with continued(self.carrier):
                    result = await self._publish_all(outputs)
            if result is None:
                raise LookupError(f"The {self.run.kind} has no result.")
            return self.run.model_copy(update={"status": "done", "result": result})
        except asyncio.CancelledError:
            if self.stop_problem is None or self.task is None:
                raise
            self.task.uncancel()
            return failed(self.run, self.stop_problem, self.path)
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                error = RunTimeoutError(
                    f"The run took longer than {self.seconds:g} seconds; ask for less, or for more "
                    "time, which the limits 'seconds' and 'audit_seconds' bound."
                )
            return failed(self.run, error, self.path)

    async def _publish_all(self, outputs: AsyncGenerator[RunOutput, None]) -> dict[str, Any] | None:
        """Publish all outputs of the run, and return its result, which the last step has."""
        kind = self.run.kind
        name = "result" if kind == "search" else kind
        result: dict[str, Any] | None = None
        async for output in outputs:
            if isinstance(output, Step):
                result = output.update.get(name) or result
                if output.name != WHOLE_STATE:  # else no node has just ended
                    self.step_from_stream(output)
            elif isinstance(output, AIMessageChunk):
                data = {"text": str(output.text)}
                self.publish_piece(Event(number=0, name="token", data=data))
        return result

    @abstractmethod
    def step_from_stream(self, step: Step) -> None:
        """Take note of a step that is among the outputs of the run."""

    def publish_piece(self, piece: Event) -> None:
        """Publish a piece of an answer."""
        self.publish(piece)


@dataclass(eq=False)
class EphemeralRun(LiveRun):
    """A run that ends with its client: nothing of it is stored, and nobody resumes it.

    Use it as a context manager to follow it. Leaving that stops the run.

    Attributes:
        key: The id of the key that asked.
    """

    key: str

    async def __aenter__(self) -> AsyncGenerator[Event, None]:
        """Return all events; the last one is ``end`` or ``error``."""
        return self.events()

    async def __aexit__(self, *_: object) -> None:
        """Stop the run if it is not over."""
        self.stop()

    async def do(self, outputs: AsyncGenerator[RunOutput, None]) -> None:
        """Do the run to its end."""
        self.publish(self.first_event())
        self.conclude(await self.drive(outputs))

    def step_from_stream(self, step: Step) -> None:
        """Publish a step."""
        self.publish(self.event("step", event_data(self.run.kind, step)))

    def conclude(self, final: Run | None = None) -> None:
        """End the run if it is not over; by default, with the problem it was stopped for."""
        if self.is_over:
            return
        if final is None:
            problem = self.stop_problem or RunCancelledError(CANCELLED)
            final = failed(self.run, problem, self.path)

        finished = max(time.time(), final.started or 0.0)  # the clock may be set back
        self.run = final.model_copy(update={"finished": finished})
        self.publish(last_event(self.run, self.last + 1))
        self.leave()
        self.on_finished(self.run)


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


def event_data(kind: Kind, step: Step) -> dict[str, Any]:
    """Return the data of the event of a step."""
    if kind != "audit":
        return step_data(kind, step)
    if step.name == "audit":
        return {"step": step.name}
    return {"step": step.name, **step.update}


async def wait_for(tasks: Iterable[asyncio.Task[Any] | None], seconds: float) -> None:
    """Wait until tasks have ended, but no longer than this."""
    unfinished = {task for task in tasks if task is not None}
    if unfinished:
        await asyncio.wait(unfinished, timeout=seconds)


def last_event(run: Run, number: int) -> Event:
    """Return the last event of a run. It follows from the run, so we do not store it."""
    if run.status == "done":
        return Event(number=number, name="end", data={"run": run.id, "result": run.result})
    return Event(number=number, name="error", data=run.problem or {})


def failed(run: Run, error: Exception, path: str) -> Run:
    """Return a run that has just failed, or was cancelled if the error says so.

    A bug is logged, without anything that may be private.
    """
    if not isinstance(error, FairqrError):
        _log.error("Run %s failed because of a bug in fairqr: %s", run.id, class_and_place(error))
    status: Status = "cancelled" if isinstance(error, RunCancelledError) else "failed"
    return run.model_copy(update={"status": status, "problem": problem_of(error, path)})
