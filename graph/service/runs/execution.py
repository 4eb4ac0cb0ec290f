"""Running one durable run: storing its events and its end, while this worker holds the lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from fairqr.base.errors import (
    FairqrError,
    RunCancelledError,
    RunInterruptedError,
    StoreUnavailableError,
)
from fairqr.graph.journal import RunJournal, kept_update
from fairqr.graph.service.problems import CANCELLED
from fairqr.graph.service.records import Claim, Event, EventName, Run
from fairqr.graph.service.runs.doing import Observer, complain, followed
from fairqr.graph.service.runs.feeds import Feed
from fairqr.graph.service.runs.outcomes import done, failed, first_data, last_event
from fairqr.graph.service.store import Store
from fairqr.graph.service.store.database import heals
from fairqr.graph.stream import RunEvent, Step

Execute = Callable[[Run, RunJournal], AsyncGenerator[RunEvent, None]]
"""Runs a run, but not the steps in its journal; yields all that happens from the start."""

Stop = Literal["cancel", "lost", "drain"]
"""Why a run is stopped: cancelled, lost to another worker, or this worker stops."""

ATTEMPTS = 20
"""The most attempts at one run."""

TOGETHER = 0.02
"""Seconds that events wait to be written together; a reply ends the wait."""

PAUSE = 0.5
"""Seconds between two attempts to reach the store."""


@dataclass(frozen=True, slots=True)
class _Reply:
    """A reply of a model that waits to be stored."""

    key: str
    record: dict[str, Any]
    stored: asyncio.Future[None]


class Execution:
    """A durable run in this process; it starts at once.

    Args:
        claim: The claim on the run.
        until: When the run has to stop here unless the claim is renewed, on the loop's clock.
        store: The store for the run's events and its end.
        execute: Runs the run.
        seconds: The time limit.
        observer: Hears what happens to the run.

    Attributes:
        claim: The claim.
        run: The run, as claimed.
        key: The id of the key that asked for it.
        feed: The events of the run; closed when this process is done with it.
        final: The run after its end; None before, and if another worker continues it.
        settled: Whether the store knows that this process is done with the run.
    """

    def __init__(
        self,
        claim: Claim,
        until: float,
        store: Store,
        execute: Execute,
        seconds: float,
        observer: Observer,
    ) -> None:
        self.claim = claim
        self.run = claim.run
        self.key = claim.key
        self.feed = Feed()
        self.final: Run | None = None
        self.settled = False
        self._until = until
        self._store = store
        self._execute = execute
        self._seconds = seconds
        self._observer = observer
        self._told: set[str] = set()
        self._last = 0
        self._unpublished: list[Event] = []
        self._replies: list[_Reply] = []
        self._something = asyncio.Event()
        """Set while something waits to be written."""
        self._at_once = asyncio.Event()
        """Set if somebody waits until it is."""
        self._lease: asyncio.Timeout | None = None
        self._stopped: Stop | None = None
        self._ending = False
        self.task = asyncio.create_task(self._do())

    def extend(self, until: float) -> None:
        """Extend the time until which the claim is good."""
        self._until = until
        if self._lease is not None and not self._lease.expired():
            self._lease.reschedule(until)

    def stop(self, why: Stop) -> None:
        """Stop the run, unless it was stopped before or is just ending."""
        if self._stopped is None and not self._ending:
            self._stopped = why
            self.task.cancel()

    async def _do(self) -> None:
        try:
            # If the claim is not renewed, stop before another worker takes over.
            async with asyncio.timeout_at(self._until) as self._lease:
                if (final := await self._outcome()) is not None:
                    await self._finish(final)
                self.settled = True
        except (asyncio.CancelledError, TimeoutError):
            pass  # another worker resumes it
        except Exception as error:
            complain(self.run, error)
        finally:
            self.feed.close()

    async def _outcome(self) -> Run | None:
        """Run the run, and return it at its end; None if it continues elsewhere or later."""
        try:
            return done(self.run, await self._result())
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._stopped in (None, "lost") or task is None or task.uncancel() > 0:
                raise
            if self._stopped == "cancel":
                return failed(self.run, RunCancelledError(CANCELLED))
        except StoreUnavailableError as error:
            # The run resumes from what is stored when the store is back.
            if not _comes_back(error):
                return failed(self.run, error)
        except FairqrError as error:
            return failed(self.run, error)
        except Exception as error:
            complain(self.run, error)
            return failed(self.run, error)
        self._ending = True
        await self._stored(lambda: self._store.release(self.claim))
        return None

    async def _result(self) -> dict[str, Any]:
        """Run the run, and return its result."""
        if self.run.attempts > ATTEMPTS:
            raise RunInterruptedError(
                f"The run was started {ATTEMPTS} times and never finished; ask for less."
            )
        journal = await self._journal()
        self._observer.begun(self.run)
        await self._tell("run", first_data(self.run), None)
        doing = asyncio.create_task(
            followed(
                self.run.kind,
                self._execute(self.run, journal),
                self._tell,
                seconds=self._seconds,
                carrier=self.claim.carrier,
            )
        )
        writing = asyncio.create_task(self._write())
        try:
            await asyncio.wait({doing, writing}, return_when=asyncio.FIRST_COMPLETED)
            if writing.done():  # only an error ends it
                await writing
            return await doing
        finally:
            doing.cancel()
            writing.cancel()
            await asyncio.gather(doing, writing, return_exceptions=True)

    async def _journal(self) -> RunJournal:
        """Return the journal of the earlier attempts."""
        steps: dict[str, dict[str, Any]] = {}
        replies: dict[str, dict[str, Any]] = {}
        if self.run.attempts > 1:  # there may be events and replies
            while events := await self._store.events(self.run.id, self.feed.last, private=True):
                for event in events:
                    if kept := event.private:
                        steps[kept["id"]] = kept_update(kept["update"], kept["overwrites"])
                self._publish(events)
            replies = await self._store.replies(self.run.id)
        self._told = {*steps}
        self._last = self.feed.last
        return RunJournal(self._keep_reply, steps, replies)

    async def _keep_reply(self, key: str, record: dict[str, Any]) -> None:
        """Queue a reply for writing, and wait until it is stored."""
        reply = _Reply(key, record, asyncio.get_running_loop().create_future())
        self._replies.append(reply)
        self._something.set()
        self._at_once.set()
        await reply.stored

    async def _tell(self, name: EventName, data: dict[str, Any], step: Step | None) -> None:
        """Queue an event for writing; the run continues meanwhile."""
        if step is not None and step.id in self._told:
            return
        numbered = name != "token"
        self._last += numbered
        private = None
        if step is not None:
            private = {"id": step.id, "update": step.update, "overwrites": [*step.overwrites]}
        number = self._last if numbered else 0
        self._unpublished.append(Event(number=number, name=name, data=data, private=private))
        self._something.set()

    async def _write(self) -> None:
        """Write what is queued in batches, until this is cancelled."""
        while True:
            await self._something.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(TOGETHER):
                    await self._at_once.wait()
            self._something.clear()
            self._at_once.clear()
            await self._write_batch()

    async def _write_batch(self) -> None:
        """Store the queued events and replies, and publish the events.

        Pieces of text are published, but not stored.
        """
        events, replies = [*self._unpublished], self._replies
        self._replies = []
        if (stored := [event for event in events if event.number]) or replies:
            given = {reply.key: reply.record for reply in replies}
            await self._stored(partial(self._store.add, self.claim, stored, given))
        for reply in replies:
            if not reply.stored.done():  # whoever asked may be gone
                reply.stored.set_result(None)
        self._publish(events)
        del self._unpublished[: len(events)]

    def _publish(self, events: Iterable[Event]) -> None:
        for event in events:
            self.feed.tell(event.model_copy(update={"private": None}))

    async def _finish(self, final: Run) -> None:
        self._ending = True
        try:
            await self._stored(lambda: self._end(final))
        except Exception as error:  # the result, or an event, cannot be written
            complain(self.run, error)
            with suppress(Exception):
                await self._write_batch()
            self._unpublished.clear()
            final = failed(self.run, error)
            await self._stored(lambda: self._end(final))
        self.final = final
        self._publish(self._unpublished)
        self.feed.tell(last_event(final, self.feed.last + 1))
        self._observer.finished(final)

    async def _end(self, final: Run) -> bool:
        return await self._store.finish(
            self.claim,
            final.status,
            events=[
                event.model_copy(update={"private": None})
                for event in self._unpublished
                if event.number
            ],
            result=final.result,
            problem=final.problem,
        )

    async def _stored(self, call: Callable[[], Awaitable[bool]]) -> None:
        """Store something. If the store is away, retry while the claim is good.

        Raises:
            asyncio.CancelledError: Another worker has the run.
            StoreUnavailableError: The store refuses it for good.
        """
        while True:
            try:
                mine = await call()
            except StoreUnavailableError as error:
                if not _comes_back(error):
                    raise
                await asyncio.sleep(PAUSE)
            else:
                break
        if not mine:
            raise asyncio.CancelledError


def _comes_back(error: StoreUnavailableError) -> bool:
    """Return whether the store is only away, so that a retry may succeed."""
    return error.__cause__ is None or heals(error.__cause__)
