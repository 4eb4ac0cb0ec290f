"""Runs that end with their clients: nothing of them is stored, and nobody resumes them."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import Any, Literal

from fairqr.base.errors import (
    AccessError,
    BusyError,
    FairqrError,
    RunCancelledError,
    RunInterruptedError,
)
from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.problems import CANCELLED, Refusal, busy
from fairqr.graph.service.records import Event, EventName, Kind, Run
from fairqr.graph.service.runs.doing import Observer, complain, followed
from fairqr.graph.service.runs.outcomes import done, failed, first_data, last_event
from fairqr.graph.service.runs.slots import Slots
from fairqr.graph.stream import RunEvent, Step

Stop = Literal["left", "drain", "revoked"]
"""Why a run is stopped: its client left, this process stops, or its key was revoked."""

STOPPING = 1.0
"""Seconds that stopped runs have to end."""

_STOPPED: Mapping[Stop, FairqrError] = {
    "left": RunCancelledError(CANCELLED),
    "drain": RunInterruptedError(
        "The service stopped during this run; ask again. A run with 'keep' survives a restart."
    ),
    "revoked": AccessError("The access key was revoked; send another one."),
}


class EphemeralRun:
    """A run under way.

    Args:
        run: The run, as it starts.
        key: The id of the key that asked.
        happenings: What happens in the run.
        seconds: The time limit.
        carrier: The headers of the caller's trace.
        observer: Hears what happens to the run.

    Attributes:
        run: The run, as it started.
        key: The id of the key that asked.
        task: The task of the run; it never fails.
    """

    def __init__(
        self,
        run: Run,
        key: str,
        happenings: AsyncGenerator[RunEvent, None],
        seconds: float,
        carrier: Mapping[str, str],
        observer: Observer,
    ) -> None:
        self.run = run
        self.key = key
        self._happenings = happenings
        self._seconds = seconds
        self._carrier = carrier
        self._observer = observer
        self._stopped: Stop | None = None
        self._number = 0
        # The caps limit the events of a run, so this queue stays small even for a slow client.
        self._told: asyncio.Queue[Event | None] = asyncio.Queue()
        self._final: asyncio.Future[Run] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._do())

    async def __aenter__(self) -> AsyncGenerator[Event, None]:
        """Return all events; the last one is ``end`` or ``error``."""
        return self._events()

    async def __aexit__(self, *_: object) -> None:
        """Stop the run if it is not over."""
        self.stop("left")

    async def end(self) -> Run:
        """Wait for the end of the run, and return it. If the caller is cancelled, stop the run."""
        async with self:
            return await asyncio.shield(self._final)

    def stop(self, why: Stop) -> None:
        """Stop the run, unless it was stopped before."""
        if self._stopped is None and not self.task.done():
            self._stopped = why
            self.task.cancel()

    def abandon(self) -> None:
        """Report a run that does not stop as interrupted."""
        self._conclude(self._failed(_STOPPED["drain"]))

    async def _events(self) -> AsyncGenerator[Event, None]:
        while (event := await self._told.get()) is not None:
            yield event

    async def _do(self) -> None:
        try:
            final = await self._outcome()
        except asyncio.CancelledError:
            final = self._failed(_STOPPED[self._stopped or "left"])
        self._conclude(final)

    async def _outcome(self) -> Run:
        self._observer.begun(self.run)
        try:
            await self._tell("run", first_data(self.run), None)
            result = await followed(
                self.run.kind,
                self._happenings,
                self._tell,
                seconds=self._seconds,
                carrier=self._carrier,
            )
        except FairqrError as error:
            return self._failed(error)
        except Exception as error:
            complain(self.run, error)
            return self._failed(error)
        return done(self.run, result)

    def _failed(self, error: Exception) -> Run:
        return failed(self.run, error, f"/v1/{self.run.kind}")

    def _conclude(self, final: Run) -> None:
        if not self._final.done():
            self._final.set_result(final)
            self._told.put_nowait(last_event(final, self._number + 1))
            self._told.put_nowait(None)
            self._observer.finished(final)

    async def _tell(self, name: EventName, data: dict[str, Any], step: Step | None) -> None:
        numbered = name != "token"
        self._number += numbered
        self._told.put_nowait(Event(number=self._number * numbered, name=name, data=data))


class EphemeralRuns:
    """The ephemeral runs of this process.

    Args:
        settings: The settings of the service.
        slots: The slots of this process.
        observer: Hears what happens to runs.

    Attributes:
        waiting: The number of runs that wait for a slot.
    """

    def __init__(self, settings: ServiceSettings, slots: Slots, observer: Observer) -> None:
        self._settings = settings
        self._slots = slots
        self._observer = observer
        self.waiting = 0
        self._live: Counter[str] = Counter()
        """The number of live runs of each key, including those that wait."""
        self._under_way: set[EphemeralRun] = set()

    @property
    def under_way(self) -> int:
        """The number of runs under way."""
        return len(self._under_way)

    @property
    def keys(self) -> set[str]:
        """The ids of the keys that have runs under way."""
        return {run.key for run in self._under_way}

    async def begin(
        self,
        kind: Kind,
        query: str,
        execute: Callable[[str], AsyncGenerator[RunEvent, None]],
        *,
        key: str,
        carrier: Mapping[str, str],
    ) -> EphemeralRun:
        """Wait for a slot, and start a run in it.

        To follow the run, use what this returns as a context manager, or await
        :meth:`EphemeralRun.end`. Leaving either of them stops the run.

        Args:
            kind: The kind of the run.
            query: The query or the question.
            execute: Runs the run, given its id.
            key: The id of the key that asks.
            carrier: The headers of the caller's trace.

        Raises:
            BusyError: The key has too many runs, too many runs wait, no slot became free in time,
                or the service is stopping.
        """
        limits = self._settings.limits
        if self._slots.closed:
            raise self._refused("draining")
        if self._live[key] >= limits.live:
            raise self._refused("live")
        if self.waiting >= limits.queue:
            raise self._refused("queue")
        self._live[key] += 1
        try:
            await self._slot()
            now = time.time()
            run = Run(
                id=uuid.uuid4().hex,
                kind=kind,
                status="running",
                query=query,
                created=now,
                started=now,
                attempts=1,
                request={},
            )
            self._observer.accepted(run)
            begun = EphemeralRun(
                run, key, execute(run.id), self._settings.caps.seconds, carrier, self._observer
            )
        except BaseException:
            self._let_go(key)
            raise
        self._under_way.add(begun)
        begun.task.add_done_callback(lambda _: self._over(begun))
        return begun

    async def drain(self, grace: float) -> None:
        """Give runs ``grace`` seconds to end, then stop them. The slots must be closed."""
        await _ended(self._under_way, grace)
        for run in self._under_way:
            run.stop("drain")
        await _ended(self._under_way, STOPPING)
        for run in self._under_way:
            run.abandon()

    def stop_runs_of(self, keys: set[str]) -> None:
        """Stop the runs of revoked keys."""
        for run in self._under_way:
            if run.key in keys:
                run.stop("revoked")

    async def _slot(self) -> None:
        self.waiting += 1
        try:
            async with asyncio.timeout(self._settings.limits.wait):
                taken = await self._slots.take()
        except TimeoutError:
            raise self._refused("queue") from None
        finally:
            self.waiting -= 1
        if not taken:
            raise self._refused("draining")

    def _over(self, run: EphemeralRun) -> None:
        self._under_way.discard(run)
        self._slots.give_back()
        self._let_go(run.key)

    def _let_go(self, key: str) -> None:
        self._live[key] -= 1
        if not self._live[key]:
            del self._live[key]

    def _refused(self, why: Refusal) -> BusyError:
        self._observer.refused(why)
        return busy(why, self._settings.limits.live)


async def _ended(runs: Iterable[EphemeralRun], seconds: float) -> None:
    if tasks := {run.task for run in runs}:
        await asyncio.wait(tasks, timeout=seconds)
