"""One attempt at a durable run: what it tells is kept, and its end is written once."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from fairqr.agents.models.replies import Reply, Usage, Validate
from fairqr.base.errors import (
    FairqrError,
    RunCancelledError,
    RunInterruptedError,
    StoreUnavailableError,
)
from fairqr.graph.service.problems import CANCELLED
from fairqr.graph.service.records import Event, EventName, Run
from fairqr.graph.service.runs.doing import Observer, complain, followed
from fairqr.graph.service.runs.outcomes import done, failed, first_data, last_event
from fairqr.graph.service.store import Attempt, Store
from fairqr.graph.service.store.checkpoints import lasting
from fairqr.graph.step_data import step_data
from fairqr.graph.steps import RunJournal
from fairqr.graph.stream import RunEvent, Step

LOSSES = 5
"""After this many attempts that ended without a word, we blame the run and fail it."""

_FINAL = ("ok", "parse_error", "refused", "invalid_request", "unsupported")
"""Asking again would not change these statuses. After others, such as a timeout, we ask again."""


class DurableRun(RunJournal):
    """An attempt at a run in this process.

    Args:
        attempt: The attempt.
        store: Keeps what it tells and its end.
        saver: Keeps where it is.
        execute: Runs the run.
        seconds: The time limit.
        observer: Hears what happens to the run.

    Attributes:
        run: The run.
        saver: Keeps where it is.
        resumed: Whether there are checkpoints to go on from.
        over: Set when this process is done with the run.
    """

    def __init__(
        self,
        attempt: Attempt,
        store: Store,
        saver: BaseCheckpointSaver[Any],
        execute: Execute,
        seconds: float,
        observer: Observer,
    ) -> None:
        self.run, self.saver = attempt.run, saver
        self.resumed = False
        self.in_order = asyncio.Lock()
        self.over = asyncio.Event()
        self._attempt = attempt
        self._store = store
        self._execute = execute
        self._seconds = seconds
        self._observer = observer
        self._known: set[str] = set()
        """The keys of the steps that were told."""
        self._last = 0
        """The number of the last event."""
        self._kept: dict[str, dict[int, dict[str, Any]]] = {}
        """The replies of earlier attempts, by question and by how often it was asked before."""
        self._asked: Counter[str] = Counter()
        self._events: list[Event] = []
        self._replies: dict[str, dict[str, Any]] = {}
        self._flushing = asyncio.Lock()
        self._followers: set[asyncio.Queue[Event | None]] = set()
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = attempt.cancel
        self._lost = False

    async def do(self) -> None:
        """Do the run to its end.

        Raises:
            asyncio.CancelledError: It goes on elsewhere or later.
        """
        self._task = asyncio.current_task()
        try:
            final = await self._outcome()
            self._task = None  # it is not to be cancelled any more
            try:
                await self._finish(final)
            except Exception as error:  # the result or an event cannot be written
                complain(self.run, error)
                self._last -= len(self._events)
                self._events.clear()
                await self._finish(failed(self.run, error))
        finally:
            self.leave()

    async def _outcome(self) -> Run:
        try:
            return done(self.run, await self._result())
        except asyncio.CancelledError:
            if not self._cancelled or self._task is None:
                if not self._lost:
                    await asyncio.shield(self._lasting(lambda: self._store.release(self.run)))
                raise
            self._task.uncancel()
            return failed(self.run, RunCancelledError(CANCELLED))
        except FairqrError as error:
            return failed(self.run, error)
        except Exception as error:
            complain(self.run, error)
            return failed(self.run, error)

    async def _finish(self, final: Run) -> None:
        if self.over.is_set():  # this process has left it to the next one
            return
        if await self._lasting(lambda: self._store.finish(final, self._events)):
            self._publish([*self._events, last_event(final, self._last + 1)])
            self._observer.finished(final)
            with contextlib.suppress(Exception):  # what is left of it goes with old runs
                await self.saver.adelete_thread(self.run.id)

    def leave(self) -> None:
        """Tell followers that this process is done with the run."""
        self.over.set()
        for follower in self._followers:
            follower.put_nowait(None)

    def cancel(self) -> None:
        """Cancel the run."""
        if not self._cancelled and self._task is not None:
            self._cancelled = True
            self._task.cancel()

    @contextlib.contextmanager
    def following(self) -> Iterator[AsyncIterator[Event]]:
        """Return what is told from now on, until this process is done with the run."""
        told: asyncio.Queue[Event | None] = asyncio.Queue()
        self._followers.add(told)
        if self.over.is_set():
            told.put_nowait(None)

        async def events() -> AsyncIterator[Event]:
            while (event := await told.get()) is not None:
                yield event

        try:
            yield events()
        finally:
            self._followers.discard(told)

    async def begin_over(self, version: str) -> None:
        """Forget the checkpoints if they are over another version of the index."""
        if self._attempt.version not in (None, version):
            await self.saver.adelete_thread(self.run.id)
            self.resumed = False
            self._known.clear()
        if self._attempt.version != version:
            await self._lasting(lambda: self._store.begin_over(self.run, version))

    async def once(self, key: str, check: Validate, ask: Callable[[], Awaitable[Reply]]) -> Reply:
        """Return the kept reply to a question, or ask it and keep the reply."""
        short = hashlib.sha256(key.encode()).hexdigest()[:32]
        number = self._asked[short]  # if a question is asked twice, keep both replies
        self._asked[short] += 1
        kept = self._kept.get(short, {})
        # Steps of before this attempt do not ask again, so that its numbers are lower than before.
        found = kept.get(number) or (kept[max(kept)] if kept and number > max(kept) else None)
        if found is not None and (number in kept or found["status"] == "ok"):
            value = check(found["value"]) if found["status"] == "ok" else {}
            return Reply(found["status"], value, found["message"], Usage(**found["usage"]))
        reply = await ask()
        if reply.status in _FINAL:
            self._replies[f"{short}:{number}"] = {
                **dataclasses.asdict(reply),
                "value": dict(reply.value),
            }
            await self.flush()
        return reply

    def ended(self, key: str, name: str, update: Mapping[str, Any]) -> None:
        """Tell that a step has ended, unless an earlier attempt did."""
        if key not in self._known:
            self._known.add(key)
            self._tell("step", step_data(self.run.kind, Step(name, dict(update))), key)

    async def flush(self, *, sure: bool = False) -> None:
        """Store what waits, and publish it; see :meth:`RunJournal.flush`."""
        async with self._flushing:
            events, replies = [*self._events], dict(self._replies)
            if sure or events or replies:
                if not await self._lasting(lambda: self._store.add(self.run, events, replies)):
                    raise asyncio.CancelledError
                del self._events[: len(events)]
                self._replies = {k: v for k, v in self._replies.items() if k not in replies}
                self._publish(events)

    async def _result(self) -> dict[str, Any]:
        if self._cancelled:
            raise RunCancelledError(CANCELLED)
        if self._attempt.lost > LOSSES:
            raise RunInterruptedError(
                "Every worker that started this run stopped before its end; ask for less."
            )
        if self.run.attempts > 1:
            config: Any = {"configurable": {"thread_id": self.run.id, "checkpoint_ns": ""}}
            self.resumed = await self.saver.aget_tuple(config) is not None
            away = StoreUnavailableError
            self._last, self._known = await lasting(lambda: self._store.steps(self.run.id), away)
            replies = await lasting(lambda: self._store.replies(self.run.id), away)
            for id_, reply in replies.items():
                short, _, number = id_.partition(":")
                self._kept.setdefault(short, {})[int(number)] = reply
        self._observer.begun(self.run)
        self._tell("run", first_data(self.run))
        await self.flush()
        return await followed(
            self.run.kind,
            self._execute(self.run, self),
            self._hear,
            seconds=self._seconds,
            carrier=self._attempt.carrier,
        )

    async def _hear(self, name: EventName, data: dict[str, Any], step: Step | None) -> None:
        if name == "token":
            self._publish([Event(number=0, name=name, data=data)])
        elif self.run.kind == "audit":  # it is no graph, whose nodes tell of their ends
            self._tell(name, data)
            await self.flush()

    def _tell(self, name: EventName, data: dict[str, Any], key: str | None = None) -> None:
        self._last += 1
        self._events.append(Event(number=self._last, name=name, data=data, step=key))

    def _publish(self, events: list[Event]) -> None:
        for follower in self._followers:
            for event in events:
                follower.put_nowait(event)

    async def _lasting(self, write: Callable[[], Awaitable[bool]]) -> bool:
        """Write something, also if the database is away for a while.

        Returns:
            False if a later attempt has begun; this one ends then.
        """
        mine = not self._lost and await lasting(write, StoreUnavailableError)
        if not mine and not self._lost and self._task is not None:
            self._lost = True
            self._task.cancel()
        return mine


Execute = Callable[[Any, DurableRun], AsyncGenerator[RunEvent, None]]
"""Runs a run from its last checkpoint on; yields what happens."""
