"""Runs that end with their clients: nothing of them is stored, and nobody resumes them."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass

from langchain_core.messages import AIMessageChunk

from fairqr.base.errors import AccessError, RunCancelledError, RunInterruptedError
from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.problems import CANCELLED, busy
from fairqr.graph.service.records import Event, Kind, Run
from fairqr.graph.service.runs.doing import (
    STOPPING,
    LiveRun,
    Observer,
    failed,
    last_event,
    wait_for,
)
from fairqr.graph.stream import RunEvent, Step, step_data


class Slots(asyncio.Semaphore):
    """Slots for runs of both kinds, first come, first served.

    Attributes:
        closed: Whether no more slots are given out.
    """

    closed = False

    async def take(self) -> bool:
        """Wait for a slot; return False if the service is stopping.

        Call :meth:`release` when the run is over.
        """
        await self.acquire()
        if self.closed:  # pass the slot on, so that all waiting callers see it
            self.release()
        return not self.closed

    def close(self) -> None:
        """Give out no more slots; waiting callers return at once."""
        self.closed = True
        self.release()


@dataclass(eq=False)
class EphemeralRun(LiveRun):
    """A run under way.

    Use it as a context manager to follow it, or await :meth:`end`. Leaving either stops the run.

    Attributes:
        key: The id of the key that asked.
        happenings: What happens in the run.
    """

    key: str
    happenings: AsyncGenerator[RunEvent, None]

    def __post_init__(self) -> None:
        self._path = f"/v1/{self.run.kind}"
        # The caps limit the events of a run, so this queue stays small even for a slow client.
        self._told: asyncio.Queue[Event] = asyncio.Queue()

    async def __aenter__(self) -> AsyncGenerator[Event, None]:
        """Return all events; the last one is ``end`` or ``error``."""
        return self._events()

    async def __aexit__(self, *_: object) -> None:
        """Stop the run if it is not over."""
        self.stop()

    async def end(self) -> Run:
        """Wait for the end of the run, and return it. If the caller is cancelled, stop the run."""
        async with self:
            await self.over.wait()
        return self.run

    def conclude(self, final: Run | None = None) -> None:
        """End the run if it is not over; by default, as whoever stopped it has said."""
        if not self.over.is_set():
            why = self.stopped or RunCancelledError(CANCELLED)
            final = final or failed(self.run, why, self._path)
            self.run = final.model_copy(update={"finished": time.time()})
            self._told.put_nowait(last_event(self.run, self.last + 1))
            self.over.set()
            self.observer.finished(self.run)

    async def hear(self, event: RunEvent) -> None:
        """Tell the client of a step, or of a piece of an answer."""
        if isinstance(event, AIMessageChunk):
            self._told.put_nowait(Event(number=0, name="token", data={"text": str(event.text)}))
        elif isinstance(event, Step):
            self._told.put_nowait(self.event("step", step_data(self.run.kind, event)))

    async def do(self) -> None:
        """Do the run to its end."""
        self.observer.begun(self.run)
        self._told.put_nowait(self.first_event())
        self.conclude(await self.outcome(self.happenings, self._path))

    async def _events(self) -> AsyncGenerator[Event, None]:
        told = False
        while not told:
            event = await self._told.get()
            yield event
            told = event.last


class EphemeralRuns:
    """The ephemeral runs of this process.

    Args:
        settings: The settings of the service.
        observer: Hears what happens to runs.

    Attributes:
        slots: The slots of this process.
        waiting: The key of each run that waits for a slot.
        under_way: The runs that have one.
    """

    def __init__(self, settings: ServiceSettings, observer: Observer) -> None:
        self.slots = Slots(settings.concurrency)
        self._settings = settings
        self._observer = observer
        self.waiting: list[str] = []
        self.under_way: set[EphemeralRun] = set()

    async def begin(
        self,
        kind: Kind,
        query: str,
        execute: Callable[[str], AsyncGenerator[RunEvent, None]],
        *,
        key: str,
        carrier: Mapping[str, str],
        seconds: float | None = None,
    ) -> EphemeralRun:
        """Wait for a slot, and start a run in it.

        Args:
            kind: The kind of the run.
            query: The query or the question.
            execute: Runs the run, given its id.
            key: The id of the key that asks.
            carrier: The headers of the caller's trace.
            seconds: The time limit; at most the cap, which is the default.

        Raises:
            BusyError: The key has too many runs, too many runs wait, no slot became free in time,
                or the service is stopping.
        """
        limits = self._settings.limits
        own = [*self.waiting, *(run.key for run in self.under_way)].count(key)
        if self.slots.closed:
            raise busy("draining", limits.live)
        if own >= limits.live:
            raise busy("live", limits.live)
        if len(self.waiting) >= limits.queue:
            raise busy("queue", limits.live)
        self.waiting.append(key)
        try:
            async with asyncio.timeout(limits.wait):
                taken = await self.slots.take()
        except TimeoutError:
            raise busy("queue", limits.live) from None
        finally:
            self.waiting.remove(key)
        if not taken:
            raise busy("draining", limits.live)
        now, id_ = time.time(), uuid.uuid4().hex
        run = Run(
            id=id_,
            kind=kind,
            status="running",
            query=query,
            created=now,
            started=now,
            attempts=1,
            request={},
        )
        self._observer.accepted(run)
        cap = self._settings.caps.seconds
        seconds = min(cap if seconds is None else seconds, cap)
        begun = EphemeralRun(run, seconds, carrier, self._observer, key, execute(id_))
        self.under_way.add(begun)
        begun.task = task = asyncio.create_task(begun.do())
        task.add_done_callback(lambda _: self._over(begun))
        return begun

    async def drain(self, grace: float) -> None:
        """Begin no more runs, and give those under way ``grace`` seconds; then stop them."""
        self.slots.close()
        await wait_for((run.task for run in self.under_way), grace)
        for run in self.under_way:
            run.stop(
                RunInterruptedError(
                    "The service stopped during this run; ask again. A run with 'keep' survives a "
                    "restart."
                )
            )
        await wait_for((run.task for run in self.under_way), STOPPING)
        for run in self.under_way:  # it does not stop
            run.conclude()

    def stop_runs_of(self, keys: set[str]) -> None:
        """Stop the runs of revoked keys."""
        for run in self.under_way:
            if run.key in keys:
                run.stop(AccessError("The access key was revoked; send another one."))

    def _over(self, run: EphemeralRun) -> None:
        run.conclude()  # it may have been stopped before its first step
        self.under_way.discard(run)
        self.slots.release()
