"""Doing one run: its steps are told, its time is limited, and its end is stored."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Literal

from langchain_core.messages import AIMessageChunk

from fairqr.base.errors import (
    FairqrError,
    RunInterruptedError,
    RunTimeoutError,
    StoreUnavailableError,
)
from fairqr.base.telemetry import continued
from fairqr.graph.service.problems import told_in_log
from fairqr.graph.service.records import Event, Run
from fairqr.graph.service.runs.dependencies import Dependencies
from fairqr.graph.service.runs.feeds import Feed
from fairqr.graph.service.runs.outcomes import (
    Findings,
    cancelled,
    ended,
    failed,
    first_event,
    given_up,
    interrupted,
    last_event,
    step_event,
)
from fairqr.graph.service.store import Claim
from fairqr.graph.service.store.database import heals
from fairqr.graph.stream import Step

__all__ = ["Execution", "Stop"]

Stop = Literal["cancel", "lost", "drain"]
"""Why a run is stopped: somebody asked for that; it is another worker's; or this worker ends."""

ATTEMPTS = 20
"""How often a run is begun at the most."""

PAUSE = 0.5
"""Seconds between two tries to reach the store."""

_log = logging.getLogger(__name__)


class Execution:
    """A run that is done here; it begins at once.

    Args:
        claim: What the store gave out.
        until: On the loop's clock, when this has to be over unless the claim is renewed.
        needs: What it is done with.
        feed: Where its events go.

    Attributes:
        run: As it was claimed.
        key: The id of the key that asked for it.
        feed: Closed when nothing more is done here.
        final: The run when it is over; None before, and where others go on with it.
        settled: Whether the store knows that nothing more is done here.
    """

    def __init__(self, claim: Claim, until: float, needs: Dependencies, feed: Feed) -> None:
        self.run = claim.run
        self.key = claim.key
        self.feed = feed
        self.final: Run | None = None
        self.settled = False
        self._claim = claim
        self._until = until
        self._needs = needs
        self._told: set[str] = set()
        self._lease: asyncio.Timeout | None = None
        self._stopped: Stop | None = None
        self._ending = False
        self.task = asyncio.create_task(self._do())

    def extend(self, until: float) -> None:
        """Note that the claim is good for longer; see the class."""
        self._until = until
        if self._lease is not None and not self._lease.expired():
            self._lease.reschedule(until)

    def stop(self, why: Stop) -> None:
        """Stop the run; nothing happens where it was stopped before, or is ending by itself."""
        if self._stopped is None and not self._ending:
            self._stopped = why
            self.task.cancel()

    def abandon(self) -> None:
        """Wait no longer for a run that does not stop; those who follow it come to the end."""
        self._give_up(interrupted())

    async def _do(self) -> None:
        given_up_for: BaseException = given_up()
        try:
            # What is not renewed in time must have stopped before another worker goes on with it.
            async with asyncio.timeout_at(self._until) as self._lease:
                if (final := await self._outcome()) is not None:
                    await self._finish(final)
                self.settled = True
        except (asyncio.CancelledError, TimeoutError):
            if self._stopped == "drain":
                given_up_for = interrupted()
        except Exception as error:
            _complain(self.run, error)
            given_up_for = error
        finally:
            self._give_up(given_up_for)

    async def _outcome(self) -> Run | None:
        """Do the run, and return how it ended; None where it goes on elsewhere, or later."""
        try:
            return ended(self.run, "done", result=await self._result())
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._stopped in (None, "lost") or task is None or task.uncancel() > 0:
                raise
            if self._stopped == "cancel":
                return cancelled(self.run)
            if not self.run.keep:
                return failed(self.run, interrupted())
        except StoreUnavailableError as error:
            # What is kept is good; it is gone on with when the store is back.
            if not self.run.keep or not _comes_back(error):
                return failed(self.run, error)
        except FairqrError as error:
            return failed(self.run, error)
        except Exception as error:
            _complain(self.run, error)
            return failed(self.run, error)
        self._ending = True
        await self._stored(lambda: self._needs.store.release(self.run.id, self._needs.worker))
        return None

    async def _result(self) -> dict[str, Any]:
        """Do the run, and return its result."""
        if self.run.attempts > ATTEMPTS:
            raise RunInterruptedError(
                f"The run was begun {ATTEMPTS} times and never came to its end; ask for less."
            )
        limit: asyncio.Timeout | None = None
        try:
            async with asyncio.timeout(self._needs.seconds) as limit:
                return await self._followed()
        except TimeoutError:
            if limit is None or not limit.expired():
                raise
            raise RunTimeoutError(
                f"The run took longer than {self._needs.seconds:g} seconds, which is the cap "
                "'seconds'; ask for less, or have the cap raised."
            ) from None

    async def _followed(self) -> dict[str, Any]:
        resume = self.run.keep and self._claim.resumed
        if resume:
            await self._recall()
        self._needs.observer.begun(self.run)
        await self._tell(first_event(self.run, self.feed.last + 1))
        findings = Findings(self.run.kind)
        with continued(self._claim.carrier):
            async with aclosing(self._needs.execute(self.run, resume)) as events:
                async for event in events:
                    if isinstance(event, AIMessageChunk):
                        piece = {"text": str(event.text)}
                        self.feed.tell(Event(number=0, name="token", data=piece))
                    if not isinstance(event, Step):
                        continue
                    findings.add(event)
                    # What has no id is a result that was told when it came.
                    if event.id and event.id not in self._told:
                        await self._tell(step_event(event, self.feed.last + 1))
        return findings.result()

    async def _recall(self) -> None:
        """Find out what was told before the run was begun again."""
        while events := await self._needs.store.events(self.run.id, self.feed.last):
            for event in events:
                self.feed.tell(event)
                if event.name == "step":
                    self._told.add(str(event.data.get("id")))

    async def _tell(self, event: Event) -> None:
        """Tell of an event; it is stored before, where the run is kept."""
        if self.run.keep:
            store, worker = self._needs.store, self._needs.worker
            await self._stored(lambda: store.add_events(self.run.id, worker, [event]))
        self.feed.tell(event)

    async def _finish(self, final: Run) -> None:
        self._ending = True
        try:
            await self._stored(lambda: self._end(final))
        except Exception as error:  # it cannot be written, whatever the reason
            _complain(self.run, error)
            final = failed(self.run, error)
            await self._stored(lambda: self._end(final))
        self._tell_the_end(final)
        self._needs.observer.finished(final)

    async def _end(self, final: Run) -> bool:
        return await self._needs.store.finish(
            final.id, self._needs.worker, final.status, result=final.result, problem=final.problem
        )

    async def _stored(self, call: Callable[[], Awaitable[bool]]) -> None:
        """Store something; a store that is away is waited for as long as the claim is good.

        Raises:
            asyncio.CancelledError: The run is not this worker's any more.
            StoreUnavailableError: It refuses this for good.
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

    def _give_up(self, error: BaseException) -> None:
        if self.final is None and not self.run.keep:
            self._tell_the_end(failed(self.run, error))
        self.feed.close()

    def _tell_the_end(self, final: Run) -> None:
        if not self.feed.closed:
            self.final = final
            self.feed.tell(last_event(final, self.feed.last + 1))


def _comes_back(error: StoreUnavailableError) -> bool:
    """Tell whether the store is only away, and does not refuse what it was given."""
    return error.__cause__ is None or heals(error.__cause__)


def _complain(run: Run, error: Exception) -> None:
    """Log a mistake of ours, without what may be a user's."""
    _log.error("Run %s failed by a mistake of fairqr: %s", run.id, told_in_log(error))
    _log.debug("Run %s", run.id, exc_info=error)
