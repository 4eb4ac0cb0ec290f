"""The runs of a process, of both kinds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fairqr.base.errors import AccessError, FairqrError, RunInterruptedError
from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.problems import REVOKED, busy, class_and_place
from fairqr.graph.service.records import NOBODY, Event, Kind, Run, is_id, path_of
from fairqr.graph.service.runs import live
from fairqr.graph.service.runs.durable import DurableRun, ExecuteStored
from fairqr.graph.service.runs.queues import LocalQueue, SharedQueue
from fairqr.graph.service.slots import Slots
from fairqr.graph.service.store import Store
from fairqr.graph.service.store.database import Checkpoints, current_key_id, lasting
from fairqr.graph.stream import RunOutput

SOON = 0.02
"""Seconds between the first two looks at a run that is not done here."""

FOLLOW = 0.2
"""The most seconds between two looks at a run that has started."""

FOLLOW_WAITING = 1.0
"""The most seconds between two looks at a run that has not started."""

SHARED = 0.1
"""Seconds for which the followers of a run share what one of them has read."""

STEPLESS = 2**31 - 1
"""A follower of a run after an event of this number receives only its end."""

TICK = 1.0
"""Seconds between two looks for what is to be cancelled or done again."""

CLEAN_EVERY = 600.0
"""Seconds between two removals of old runs; less if ``retention`` is shorter."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


class EphemeralRuns:
    """The ephemeral runs of this process.

    Args:
        settings: The settings of the service.
        on_finished: Called with each run at its end.

    Attributes:
        accepting: Whether runs are accepted; false once :meth:`drain` was called.
        waiting: The key of each run that waits for a slot.
        ephemeral: The runs that have one.
    """

    def __init__(self, settings: ServiceSettings, on_finished: Callable[[Run], None]) -> None:
        self._settings = settings
        self._on_finished = on_finished
        # For runs of both kinds.
        self._slots = Slots(settings.concurrency, settings.traffic.share)
        self._audit_slots = Slots(settings.audit_concurrency, share=1.0)
        self.accepting = True
        self.waiting: list[str] = []
        self.ephemeral: set[live.EphemeralRun] = set()

    async def start_ephemeral(
        self,
        kind: Kind,
        query: str,
        execute: Callable[[str], AsyncGenerator[RunOutput, None]],
        *,
        key: str,
        carrier: Mapping[str, str],
        seconds: float | None = None,
    ) -> live.EphemeralRun:
        """Wait for a slot, and start a run in it.

        Args:
            kind: The kind of the run.
            query: The query or the question.
            execute: Runs the run, given its id; such as ``Executor.execute`` of a request.
            key: The id of the key that asks.
            carrier: The headers of the caller's trace.
            seconds: The time limit; at most ``limits.seconds``, which is the default.

        Raises:
            BusyError: The key has too many runs, too many runs wait, no slot became free in time,
                or the service is stopping.
        """
        await self._wait_for_slot(self._slots_for(kind), key)
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

        longest = self._settings.limits.seconds
        limit = min(seconds or longest, longest)
        ephemeral = live.EphemeralRun(run, f"/v1/{kind}", limit, carrier, self._on_finished, key)
        self.ephemeral.add(ephemeral)
        ephemeral.task = asyncio.create_task(ephemeral.do(execute(run.id)))
        ephemeral.task.add_done_callback(lambda _: self._over(ephemeral))
        return ephemeral

    @contextlib.asynccontextmanager
    async def slot(self, key: str) -> AsyncIterator[None]:
        """Hold a slot for work that is no run, such as the re-ranking of a list.

        Raises:
            BusyError: As of :meth:`start_ephemeral`.
        """
        await self._wait_for_slot(self._slots, key)
        try:
            yield
        finally:
            self._slots.release(key)

    def _slots_for(self, kind: Kind) -> Slots:
        return self._audit_slots if kind == "audit" else self._slots

    async def _wait_for_slot(self, slots: Slots, key: str) -> None:
        """Wait for a slot; raises as :meth:`start_ephemeral`."""
        traffic = self._settings.traffic
        was_accepting = self.accepting
        if not was_accepting:
            raise busy("draining", traffic.live)
        keys = [*self.waiting, *(run.key for run in self.ephemeral)]
        if keys.count(key) >= traffic.live:
            raise busy("live", traffic.live)
        if len(self.waiting) >= traffic.queue:
            raise busy("queue", traffic.live)

        self.waiting.append(key)
        try:
            async with asyncio.timeout(traffic.wait):
                await slots.acquire(key)
        except TimeoutError:
            raise busy("queue", traffic.live) from None
        finally:
            self.waiting.remove(key)
        if not self.accepting:
            slots.release(key)
            raise busy("draining", traffic.live)

    def _over(self, run: live.EphemeralRun) -> None:
        run.conclude()  # it may have been stopped before its first step
        self.ephemeral.discard(run)
        self._slots_for(run.run.kind).release(run.key)

    async def drain(self, grace: float) -> None:
        """Accept no more runs, and give those under way ``grace`` seconds; then stop them."""
        if self.accepting:
            self.accepting = False
            for slots in (self._slots, self._audit_slots):
                slots.open()  # runs that wait for one see that they are not accepted

        await live.wait_for((run.task for run in self.ephemeral), grace)
        for run in self.ephemeral:
            run.stop(
                RunInterruptedError(
                    "The service stopped during this run; ask again. A run with 'keep' survives a "
                    "restart."
                )
            )
        await live.wait_for((run.task for run in self.ephemeral), live.STOPPING)
        for run in self.ephemeral:  # it does not stop
            run.conclude()

    def stop_runs_of(self, keys: set[str]) -> None:
        """Stop the runs of revoked keys."""
        for run in self.ephemeral:
            if run.key in keys:
                run.stop(AccessError(REVOKED))


class Runs(EphemeralRuns):
    """The runs that this process accepts, and those that it does.

    An ephemeral run belongs to its client: it only runs here, and nothing of it is stored. A
    durable run is in the store with its events, and any process can go on with it.

    Args:
        store: The store of durable runs.
        execute_stored: Runs a durable run; always closed in the task that started it. None if this
            process does none.
        settings: The settings of the service.
        on_finished: Called with each run at its end.

    Attributes:
        durable: The durable runs under way here, by id.
    """

    def __init__(
        self,
        store: Store,
        execute_stored: ExecuteStored | None,
        settings: ServiceSettings,
        on_finished: Callable[[Run], None],
    ) -> None:
        super().__init__(settings, on_finished)
        self._store = store
        self._execute_stored = execute_stored
        queue_class = LocalQueue if store.database.file else SharedQueue
        self._queue = queue_class(store, settings)
        self.durable: dict[str, DurableRun] = {}
        self._drained = False

        self._clean_at = 0.0
        self._last_failure = -settings.lease
        """When the database was away last: after that, all workers look as if they were silent."""
        self._looks: dict[tuple[Any, ...], asyncio.Task[Any]] = {}
        """What followers of runs have just read."""

    async def start(self) -> None:
        """Start doing runs, including those that wait in the store.

        Raises:
            ConfigError: Another process serves the same file.
        """
        do = None
        if self._execute_stored is not None:
            do = partial(self._do, self._execute_stored, Checkpoints(self._store.database))
        try:
            await self._queue.start(do)
        except BaseException:
            await self._queue.drain(0, ())
            raise
        self._ticking = asyncio.create_task(self._tick())

    async def drain(self, grace: float) -> None:
        """Accept no more runs, and give those under way ``grace`` seconds to end; stop the others.

        Durable ones that are stopped go on in another process, or at the next start.
        """
        self._ticking.cancel()
        try:
            await asyncio.gather(
                super().drain(grace),
                self._queue.drain(grace, self.durable.keys()),
                live.wait_for({self._ticking}, live.STOPPING),
            )
        finally:
            self._drained = True
            for run in self.durable.values():  # it does not stop
                run.leave()

    async def accept(self, key: str, **values: Any) -> Run:
        """Accept a durable run.

        Args:
            key: The id of the key that asks.
            values: The ``kind``, ``query`` and checked ``request`` of the run, the ``carrier`` of
                the client's trace, and the ``idempotency`` key of the request.

        Raises:
            BusyError: The key or the service has too many runs, or the service is stopping.
            StoreUnavailableError: The database cannot be used.
        """
        traffic = self._settings.traffic
        if not self.accepting:
            raise busy("draining", traffic.live)
        return await self._store.accept(self._queue.enqueue, traffic, key, **values)

    async def events(self, run: Run, key: str, after: int = 0) -> AsyncGenerator[Event, None]:
        """Yield the past and future events of a durable run, until it is over.

        The last event is ``end`` or ``error``, unless the service stops first. The run then goes on
        elsewhere: follow it there. While the database is away, nothing comes. Pieces of an answer
        come where the run is done in this process, all of them to everybody who begins to follow.

        Args:
            run: The run, as it was read for the key.
            key: The id of the key that asks.
            after: The number of the last event that the caller has.

        Raises:
            RunNotFoundError: The run has been deleted.
        """
        pause = SOON
        while True:
            # A run that is over elsewhere may still wait for a model here, in an older attempt.
            local_run = self.durable.get(run.id) if run.live else None
            if _may_have_stored_events(run, local_run, after):
                # What was read in another state of the run may lack its last events.
                state = (run.live, run.attempts)
                while stored := await self._shared(self._store.events, run.id, after, state=state):
                    for event in stored:
                        yield event
                    after = stored[-1].number

            if not run.live:
                # The same number each time, whatever the caller has.
                number = await self._shared(self._store.last_number, run.id)
                yield live.last_event(run, number + 1)
                return
            if local_run is not None:
                async with contextlib.aclosing(local_run.events(after)) as events:
                    async for event in events:
                        yield event
                        if event.last:
                            return
                        after = max(after, event.number)
            if self._drained:
                return

            await asyncio.sleep(pause)
            # One that waits for its turn has no events, and may have many followers.
            longest_pause = FOLLOW if run.started else FOLLOW_WAITING
            pause = min(longest_pause, 1.5 * pause)
            run = await self._shared(self._store.run, run.id, key)

    async def _shared(
        self, look: Callable[..., Awaitable[T]], *arguments: Any, state: object = None
    ) -> T:
        """Return what a look into the store gives; the same looks within a moment share it.

        Args:
            look: A method of the store.
            arguments: Its arguments.
            state: Looks in different states are not shared.
        """
        key = (look.__name__, *arguments, state)
        if key not in self._looks:
            looking: asyncio.Task[Any] = asyncio.create_task(lasting(partial(look, *arguments)))
            looking.add_done_callback(lambda task: task.cancelled() or task.exception())
            self._looks[key] = looking
            asyncio.get_running_loop().call_later(SHARED, self._looks.pop, key)
        outcome: T = await asyncio.shield(self._looks[key])
        return outcome

    async def cancel(self, id_: str, key: str) -> None:
        """Cancel a run; one under way ends a little later, and one that is over stays unchanged.

        Raises:
            RunNotFoundError: The key has no such run.
            StoreUnavailableError: The database cannot be used.
        """
        await self._store.cancel(id_, key)
        local_run = self.durable.get(id_)
        if local_run is not None:
            local_run.stop()

    async def _do(
        self, execute_stored: ExecuteStored, saver: Checkpoints, id_: str, key: str, kind: Kind
    ) -> None:
        """Do a run when there is a slot."""
        current_key_id.set(key)
        async with self._slots_for(kind).hold(key):
            if not self.accepting:
                return
            attempt = await lasting(partial(self._store.claim, id_))
            if attempt is None:
                return

            limits = self._settings.limits
            seconds = limits.audit_seconds if attempt.kind == "audit" else limits.seconds
            run = DurableRun(
                run=attempt,
                path=path_of(id_),
                seconds=seconds,
                carrier=attempt.carrier,
                on_finished=self._on_finished,
                store=self._store,
                saver=saver,
            )
            self.durable[id_] = run
            try:
                await run.do(execute_stored)
            finally:
                if self.durable.get(id_) is run:
                    del self.durable[id_]

    async def _tick(self) -> None:
        """Do all that is to be done again and again."""
        while True:
            await asyncio.sleep(TICK)
            try:
                await self._stop_cancelled()
                await self._put_back_and_clean()
            except FairqrError as error:
                self._last_failure = asyncio.get_running_loop().time()
                _log.warning("Runs wait: %s", error)
            except Exception as error:
                _log.error("Runs wait because of a bug in fairqr: %s", class_and_place(error))

    async def _stop_cancelled(self) -> None:
        """Stop the runs here that are to be cancelled, and those of revoked keys."""
        to_cancel = set(await self._store.to_cancel())
        for id_ in to_cancel & self.durable.keys():
            self.durable[id_].stop()

        keys = {run.key for run in self.ephemeral if run.key != NOBODY}
        if keys:
            revoked = await self._store.revoked(keys)
            self.stop_runs_of(revoked)

    async def _put_back_and_clean(self) -> None:
        """Hand out again what nobody does, and remove what is old."""
        loop = asyncio.get_running_loop()
        if loop.time() > self._last_failure + self._settings.lease:
            await self._queue.put_back()
        if loop.time() > self._clean_at:
            retention = self._settings.retention
            await self._clean(retention)
            self._clean_at = loop.time() + min(CLEAN_EVERY, retention)

    async def _clean(self, retention: float) -> None:
        """Remove old runs, and old traces and audits except those of live runs."""
        forgotten = set(await self._store.forget(retention, self._settings.kept))
        unfinished = {run.id for run in await self._store.unfinished()}
        for folder in (self._settings.traces, self._settings.audits):
            if folder is not None:
                before = time.time() - retention
                await asyncio.to_thread(_remove_old, folder, before, unfinished, forgotten)


def _may_have_stored_events(run: Run, local_run: DurableRun | None, after: int) -> bool:
    """Return whether the store may have later events of a run than this process has.

    Args:
        run: The run.
        local_run: The run in this process, if it is done here; only the store has the events of
            earlier attempts.
        after: Only events with higher numbers count.
    """
    if local_run is None:
        return run.attempts > 0
    return after < local_run.run.last


def _remove_old(
    folder: Path, before: float, unfinished: Collection[str], forgotten: Collection[str]
) -> None:
    """Remove the files and folders of old or forgotten runs; files of users stay.

    Args:
        folder: Where they are. A service with another database may share it.
        before: What was last written to before this is old; in seconds since the epoch.
        unfinished: The ids of runs whose files stay.
        forgotten: The ids of runs whose files do not, whenever they were written to.
    """
    for path in folder.glob("*"):
        id_ = path.stem
        if not is_id(id_) or id_ in unfinished:
            continue
        with contextlib.suppress(OSError):  # another process removes it, or we may not
            is_old = id_ in forgotten or path.stat().st_mtime < before
            if is_old:
                shutil.rmtree(path, ignore_errors=True)
                path.unlink(missing_ok=True)
