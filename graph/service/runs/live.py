"""Runs that this process does: their events, and how they end; ephemeral runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessageChunk

from fairqr.base.errors import FairqrError, RunCancelledError, RunTimeoutError
from fairqr.base.telemetry import continued
from fairqr.graph.service.problems import CANCELLED, class_and_place, problem_of
from fairqr.graph.service.records import Event, EventName, Kind, Run, RunSummary, Status
from fairqr.graph.step import Step
from fairqr.graph.stream import WHOLE_STATE, RunOutput, step_data

STOPPING = 1.0
"""Seconds that stopped runs have to end."""

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
