"""The runs of a process: taken on, followed, cancelled, and brought to an end."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

from fairqr.base.errors import BusyError, RunNotFoundError, StoreUnavailableError
from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.records import Event, Kind, Run
from fairqr.graph.service.runs.dependencies import Execute, Observer
from fairqr.graph.service.runs.following import Following
from fairqr.graph.service.runs.unkept import UnkeptRuns
from fairqr.graph.service.runs.worker import Worker
from fairqr.graph.service.store import Store

__all__ = ["Execute", "Observer", "Runs"]

BACK_IN = 5.0
"""Seconds after which a service that ends may be asked again, since others have taken over."""


class Runs:
    """The runs that come in at this process, and those that it does.

    A run that is not kept belongs to its client: its events are in memory only, and it is done here
    or nowhere. One that is kept has its events in the store, and is gone on with by any worker.

    Args:
        store: Of runs.
        execute: Does a run; closed, also in the middle, in the task that it was begun in.
        settings: Of the service.
        observer: Told of runs.
    """

    def __init__(
        self, store: Store, execute: Execute, settings: ServiceSettings, observer: Observer
    ) -> None:
        self._store = store
        self._settings = settings
        self._observer = observer
        self._held = UnkeptRuns()
        self._worker = Worker(store, execute, settings, observer, self._held)
        self._following = Following(store, self._worker, self._held)
        self._background: set[asyncio.Task[None]] = set()

    @property
    def accepting(self) -> bool:
        """Whether runs are taken on; no longer once :meth:`drain` was called."""
        return self._worker.accepting

    @property
    def worker(self) -> str:
        """The id that this process has in the store."""
        return self._worker.id

    async def start(self) -> None:
        """Begin to do runs, also those that wait in the store."""
        self._worker.start()

    async def drain(self, grace: float) -> None:
        """Take no more runs, and end within ``grace`` + 2 seconds; see :meth:`Worker.drain`."""
        await self._worker.drain(grace)
        if self._background:
            await asyncio.wait(self._background, timeout=0.2)

    async def submit(
        self,
        kind: Kind,
        request: Mapping[str, Any],
        *,
        key: str,
        query: str,
        keep: bool,
        carrier: Mapping[str, str] | None = None,
    ) -> Run:
        """Take on a run.

        Follow one that is not to be kept by :meth:`attached`, and at once: what has happened in it
        is forgotten a minute after its end.

        Args:
            kind: What is asked for.
            request: As ``execute`` takes it, checked.
            key: The id of the key that asks.
            query: For lists of runs.
            keep: Whether it goes on without its client.
            carrier: Headers of the client's trace.

        Raises:
            BusyError: There is too much to do, of this key or in all; or the service ends.
            StoreUnavailableError: The database cannot be used.
        """
        run = Run(
            id=uuid.uuid4().hex,
            kind=kind,
            status="queued",
            query=query,
            keep=keep,
            created=time.time(),
            request=dict(request),
        )
        self._require_accepting()
        if not keep:
            self._held.add(run, key)
        try:
            await self._store.accept(
                run,
                key,
                worker=None if keep else self._worker.id,
                queue=self._settings.limits.queue,
                live=self._settings.limits.live,
                carrier=dict(carrier or {}),
            )
        except BusyError as error:
            self._held.drop(run.id)
            self._observer.refused("live" if error.own else "queue")
            raise
        except BaseException:
            # It may have been accepted nevertheless, and nobody knows of it.
            self._let_go(run.id, key)
            raise
        if not (keep or self.accepting):
            self._let_go(run.id, key)
            self._require_accepting()
        self._observer.accepted(run)
        self._worker.wake(run.id)
        return run

    @asynccontextmanager
    async def attached(
        self, id_: str, key: str, after: int = 0
    ) -> AsyncIterator[AsyncGenerator[Event, None]]:
        """Follow a run as its client: where that goes away, one that is not kept is cancelled.

        Example::

            run = await runs.submit("search", request, key=key, query=query, keep=False)
            async with runs.attached(run.id, key) as events:
                async for event in events:
                    ...

        Args:
            id_: Of the run.
            key: The id of the key that asks.
            after: The number of the last event that is known.

        Yields:
            What :meth:`events` does. To wait for the result only, call :meth:`result` inside.
        """
        try:
            async with aclosing(self.events(id_, key, after)) as events:
                yield events
        finally:
            if self._held.get(id_) is not None:
                self._let_go(id_, key)

    def events(self, id_: str, key: str, after: int = 0) -> AsyncGenerator[Event, None]:
        """Yield what has happened in a run, and what happens; see :meth:`Following.events`."""
        return self._following.events(id_, key, after)

    async def result(self, id_: str, key: str) -> Run:
        """Wait until a run is over, and return it; see :meth:`Following.result`."""
        return await self._following.result(id_, key)

    async def cancel(self, id_: str, key: str) -> Run:
        """Cancel a run; one that is over stays as it is.

        Returns:
            The run as it is now. What is under way is not over at once.

        Raises:
            RunNotFoundError: The key has no such run.
            StoreUnavailableError: The database cannot be used.
        """
        run = await self._store.ask_to_cancel(id_, key)
        if doing := self._worker.doing.get(id_):
            doing.stop("cancel")
        if (held := self._held.get(id_)) and not run.live:
            held.end(run)
        return run

    def _require_accepting(self) -> None:
        if not self.accepting:
            self._observer.refused("draining")
            raise BusyError(
                "The service is about to stop; try again in a moment.",
                retry_after=BACK_IN,
                own=False,
            )

    def _let_go(self, id_: str, key: str) -> None:
        """Have a run cancelled soon where it is not over, since nobody wants it any more."""
        held = self._held.drop(id_)
        if held is not None and held.final is not None:
            return
        if held is not None and held.doing is not None:
            held.doing.stop("cancel")
            return

        async def cancel() -> None:
            # Where the store is away, the run is done for nobody.
            with contextlib.suppress(RunNotFoundError, StoreUnavailableError):
                await self.cancel(id_, key)

        task = asyncio.create_task(cancel())
        self._background.add(task)
        task.add_done_callback(self._background.discard)
