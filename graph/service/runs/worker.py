"""A worker: takes runs from the queue, renews its claims, and stops without losing any."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from fairqr.base.errors import FairqrError
from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.problems import told_in_log
from fairqr.graph.service.records import Claim, Kind
from fairqr.graph.service.runs.cleaning import clean
from fairqr.graph.service.runs.doing import Observer
from fairqr.graph.service.runs.execution import Execute, Execution
from fairqr.graph.service.runs.news import News
from fairqr.graph.service.runs.slots import Slots
from fairqr.graph.service.store import Store
from fairqr.graph.service.store.rows import CANCEL, QUEUED

POLL = 1.0
"""Seconds between two looks for runs that other processes accepted or lost."""

BEAT = 2.0
"""The most seconds between two renewals, and so until a cancellation elsewhere is seen."""

MARGIN = 0.2
"""The share of a lease that we reserve for stopping."""

CLEAN_EVERY = 600.0
"""Seconds between two removals of old runs; less if ``retention`` is shorter."""

STOPPING = 1.0
"""Seconds that stopped runs have to end."""

SETTLING = 0.4
"""Seconds for the last steps of stopping, which only take time if the store is away."""

_log = logging.getLogger(__name__)


class Worker:
    """Does durable runs in this process.

    Args:
        store: The store with the queue.
        execute: Runs a run.
        settings: The settings of the service.
        observer: Hears what happens to runs.
        slots: The slots of this process.
        also: More work to do about every two seconds.

    Attributes:
        id: The id of this process, which no other process has.
        doing: The runs under way, by id.
        ended: Whether the worker has stopped.
        news: News of runs here and elsewhere, and of the end of this worker.
    """

    def __init__(
        self,
        store: Store,
        execute: Execute,
        settings: ServiceSettings,
        observer: Observer,
        slots: Slots,
        also: Callable[[], Awaitable[None]],
    ) -> None:
        self.id = secrets.token_hex(8)
        self.doing: dict[str, Execution] = {}
        self.ended = False
        self.news = News()
        self._store = store
        self._settings = settings
        self._execute = execute
        self._observer = observer
        self._slots = slots
        self._also = also
        self._wake = asyncio.Event()
        self._awaited: set[str] = set()
        """The ids of runs that we know to wait."""
        self._looks_for_all = True
        self._tasks: list[asyncio.Task[None]] = []
        self._given_up: list[Claim] = []
        self._cleaned = 0.0

    def start(self) -> None:
        """Start taking runs."""
        self._tasks = [
            asyncio.create_task(self._forever(self._dispatch, self._resting)),
            asyncio.create_task(self._forever(self._beat, self._between_beats)),
            # Apart from the beat, so that claims are renewed however long it takes.
            asyncio.create_task(self._forever(self._tidy, self._between_beats)),
            asyncio.create_task(self._forever(self._listen, self._between_beats)),
        ]

    def wake(self, id_: str | None = None) -> None:
        """Look for runs now; given an id, only until that run is started."""
        if id_ is None:
            self._looks_for_all = True
        else:
            self._awaited.add(id_)
        self._wake.set()

    async def drain(self, grace: float) -> None:
        """Take no more runs, give those under way some time to end, and stop the others.

        Stopped runs go back to the queue. The slots must be closed.

        Args:
            grace: The seconds to wait. Stopping takes at most two more.
        """
        self.wake()
        deadline = asyncio.get_running_loop().time() + grace
        if self._tasks:
            # It may have claimed a run that it has not started yet.
            await asyncio.wait({self._tasks[0]}, timeout=SETTLING)
        if under_way := self._under_way():
            left = max(0.0, deadline - asyncio.get_running_loop().time())
            await asyncio.wait(under_way, timeout=left)
        for doing in list(self.doing.values()):
            doing.stop("drain")
        if ending := self._under_way():
            await asyncio.wait(ending, timeout=STOPPING)
        # The store is away. Other workers take these runs over when the lease ends.
        if left_over := [*self._tasks, *self._under_way()]:
            for task in left_over:
                task.cancel()
            await asyncio.wait(left_over, timeout=SETTLING)
        for doing in self.doing.values():
            doing.feed.close()
        self.ended = True
        self.news.tell_all()

    def _under_way(self) -> set[asyncio.Task[None]]:
        return {doing.task for doing in self.doing.values()}

    async def _forever(
        self, work: Callable[[], Awaitable[None]], rest: Callable[[], Awaitable[bool]]
    ) -> None:
        """Repeat some work forever, whatever goes wrong."""
        while True:
            try:
                await work()
            except TimeoutError:
                _log.warning("Runs wait: the database of runs does not respond.")
            except FairqrError as error:
                _log.warning("Runs wait: %s", error)
            except Exception as error:
                _log.error("Runs wait because of a bug in fairqr: %s", told_in_log(error))
                _log.debug("What went wrong", exc_info=error)
            if not await rest():
                return

    async def _resting(self) -> bool:
        try:
            async with asyncio.timeout(POLL):
                await self._wake.wait()
        except TimeoutError:
            self._looks_for_all = True
        self._wake.clear()
        return not self._slots.closed

    async def _dispatch(self) -> None:
        """Start runs while there are any, and free slots."""
        for_all, self._looks_for_all = self._looks_for_all, False
        if for_all:
            self._awaited.clear()
        while await self._slots.take():
            asked, awaited = asyncio.get_running_loop().time(), {*self._awaited}
            try:
                claim = await self._store.claim(self.id, self._settings.lease, without=self._full)
            except BaseException:
                self._slots.give_back()
                raise
            if claim is None:
                self._slots.give_back()
                self._awaited -= awaited
                return
            self._begin(claim, self._good_until(asked))
            self._awaited.discard(claim.run.id)
            if not (for_all or self._awaited):
                return

    @property
    def _full(self) -> tuple[Kind, ...]:
        """The kinds of runs that have reached their limit in this process."""
        audits = [doing for doing in self.doing.values() if doing.run.kind == "audit"]
        return ("audit",) if len(audits) >= self._settings.audit_concurrency else ()

    def _good_until(self, asked: float) -> float:
        return asked + (1 - MARGIN) * self._settings.lease

    def _begin(self, claim: Claim, until: float) -> None:
        caps = self._settings.caps
        doing = Execution(
            claim,
            until,
            self._store,
            self._execute,
            caps.audit_seconds if claim.run.kind == "audit" else caps.seconds,
            self._observer,
        )
        self.doing[claim.run.id] = doing
        doing.task.add_done_callback(lambda _: self._over(doing))
        self.news.tell(claim.run.id)

    def _over(self, doing: Execution) -> None:
        self._slots.give_back()
        if self.doing.get(doing.run.id) is doing:  # it may have been started again already
            del self.doing[doing.run.id]
        if not doing.settled:
            self._given_up.append(doing.claim)
        if doing.final is None or doing.run.kind == "audit":  # this run, or the next audit, waits
            self.wake()
        self.news.tell(doing.run.id)

    async def _listen(self) -> None:
        """React at once to changes that the next look would find."""
        async with aclosing(self._store.heard()) as heard:
            async for text in heard:
                if text == QUEUED:
                    self.wake()
                elif text.startswith(CANCEL):
                    if doing := self.doing.get(text.removeprefix(CANCEL)):
                        doing.stop("cancel")
                else:
                    self.news.tell(text)

    async def _between_beats(self) -> bool:
        await asyncio.sleep(min(self._settings.lease / 3, BEAT))
        return True

    async def _beat(self) -> None:
        """Renew the claims, and stop runs that we have lost."""
        lease, before = self._settings.lease, dict(self.doing)
        asked = asyncio.get_running_loop().time()
        # We retry with a new time, to know until when the claims are good.
        async with asyncio.timeout(max(lease / 3, 1.0)):
            renewal = await self._store.renew(self.id, lease)
        for id_, doing in before.items():
            if id_ in renewal.cancel:
                doing.stop("cancel")
            if id_ in renewal.mine:
                doing.extend(self._good_until(asked))
            else:
                doing.stop("lost")
        await self._give_back()

    async def _tidy(self) -> None:
        """End runs that nobody will resume, and remove old ones."""
        await self._also()
        await self._store.sweep()
        now = asyncio.get_running_loop().time()
        every = min(CLEAN_EVERY, self._settings.retention)
        if self._cleaned + every < now or not self._cleaned:
            self._cleaned = now
            await self._store.forget(self._settings.retention)
            await clean(self._store, self._settings)

    async def _give_back(self) -> None:
        """Settle runs that we gave up while the store was away.

        This changes no run that another worker has taken, or that we have begun again.
        """
        while self._given_up:
            await self._store.release(self._given_up[0])
            del self._given_up[0]
