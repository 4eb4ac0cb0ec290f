"""A run of either kind that this process does, and how runs end."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from fairqr.base.errors import FairqrError, RunCancelledError, RunTimeoutError
from fairqr.base.telemetry import continued
from fairqr.graph.service.problems import CANCELLED, problem_of, told_in_log
from fairqr.graph.service.records import Event, EventName, Run, RunSummary, Status
from fairqr.graph.stream import RunEvent, Step

STOPPING = 1.0
"""Seconds that stopped runs have to end."""

_log = logging.getLogger(__name__)


class Observer:
    """Hears what happens to runs; its methods must not raise. This one ignores everything."""

    def accepted(self, run: Run) -> None:
        """A run was accepted."""

    def begun(self, run: Run) -> None:
        """A worker starts or resumes a run."""

    def finished(self, run: Run) -> None:
        """A run is over; the end of a durable one is stored."""


@dataclass(eq=False)
class LiveRun(ABC):
    """A run that this process does, within its time limit and to one end.

    Attributes:
        run: The run, as it starts.
        seconds: The time limit.
        carrier: The headers of the caller's trace.
        observer: Hears what happens to the run.
        over: Set when this process is done with the run.
        stopped: Why the run is to end, if somebody has stopped it.
        task: Does the run; None before and after it can be stopped.
        last: The number of the last event.
    """

    run: Run
    seconds: float
    carrier: Mapping[str, str]
    observer: Observer
    over: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    stopped: FairqrError | None = field(default=None, init=False)
    task: asyncio.Task[Any] | None = field(default=None, init=False)
    last: int = field(default=0, init=False)

    def stop(self, why: FairqrError | None = None) -> None:
        """End the run, unless it is over or was stopped before.

        Args:
            why: The problem of the run; by default it was cancelled.
        """
        if self.stopped is None and self.task is not None:
            self.stopped = why or RunCancelledError(CANCELLED)
            self.task.cancel()

    def event(self, name: EventName, data: dict[str, Any], step: str | None = None) -> Event:
        """Return the next event of the run."""
        self.last += 1
        return Event(number=self.last, name=name, data=data, step=step)

    def first_event(self) -> Event:
        """Return the event that says what runs."""
        return self.event("run", self.run.model_dump(include=set(RunSummary.model_fields)))

    async def outcome(self, happenings: AsyncGenerator[RunEvent, None], path: str) -> Run:
        """Do the run, and return it at its end.

        Args:
            happenings: What happens in the run; closed in the end.
            path: What a problem is about.

        Raises:
            asyncio.CancelledError: The task was cancelled, and nobody has stopped the run.
        """
        try:
            return done(self.run, await self._result(happenings))
        except asyncio.CancelledError:
            if self.stopped is None or self.task is None:
                raise
            self.task.uncancel()
            return failed(self.run, self.stopped, path)
        except Exception as error:
            return failed(self.run, error, path)

    async def _result(self, happenings: AsyncGenerator[RunEvent, None]) -> dict[str, Any]:
        kind = self.run.kind
        name = "result" if kind == "search" else kind  # in the update of the last step
        result: dict[str, Any] | None = None
        limit = asyncio.timeout(self.seconds)
        try:
            async with limit, aclosing(happenings):
                with continued(self.carrier):
                    async for event in happenings:
                        if isinstance(event, Step):
                            result = event.update.get(name) or result
                        await self.hear(event)
        except TimeoutError:
            if not limit.expired():
                raise
            raise RunTimeoutError(
                f"The run took longer than {self.seconds:g} seconds; ask for less, or for more "
                "time, which the caps 'seconds' and 'audit_seconds' limit."
            ) from None
        if result is None:
            raise LookupError(name)
        return result

    @abstractmethod
    async def hear(self, event: RunEvent) -> None:
        """Tell followers of something that happens in the run."""


async def wait_for(tasks: Iterable[asyncio.Task[Any] | None], seconds: float) -> None:
    """Wait until tasks have ended, but no longer than this."""
    if left := {task for task in tasks if task is not None}:
        await asyncio.wait(left, timeout=seconds)


def last_event(run: Run, number: int) -> Event:
    """Return the last event of a run. It follows from the run, so we do not store it."""
    if run.status == "done":
        return Event(number=number, name="end", data={"run": run.id, "result": run.result})
    return Event(number=number, name="error", data=run.problem or {})


def done(run: Run, result: dict[str, Any]) -> Run:
    """Return a run that has just come to its result."""
    return run.model_copy(update={"status": "done", "result": result})


def failed(run: Run, error: Exception, path: str) -> Run:
    """Return a run that has just failed, or was cancelled if the error says so.

    A bug is logged, without anything that may be private.
    """
    if not isinstance(error, FairqrError):
        _log.error("Run %s failed because of a bug in fairqr: %s", run.id, told_in_log(error))
        _log.debug("Run %s", run.id, exc_info=error)
    status: Status = "cancelled" if isinstance(error, RunCancelledError) else "failed"
    return run.model_copy(update={"status": status, "problem": problem_of(error, path)})
