"""Finds out what lists searches showed, once their replies are out; no client waits for it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fairqr.graph.service.proxy.cluster import RefusedError
from fairqr.graph.service.proxy.messages import MeasureShown, Rerank
from fairqr.graph.service.proxy.ordering import Outcome
from fairqr.graph.service.proxy.pages import PassingPage, ShownReply, reaches
from fairqr.graph.service.proxy.requests import ProxiedSearch, UnavailableError
from fairqr.graph.service.proxy.seen import Seen
from fairqr.graph.service.proxy.worker import Worker

WAITING = 1_000
"""How many searches of an index may wait to be looked at; the lists of others are not known."""

AT_ONCE = 2
"""How many searches of an index are looked at at the same time; one is with its worker."""

HELD = 64 * 2**20
"""The most bytes of replies that wait."""

MOST_HITS = 1_000
"""How many hits of a page that passed count, at most."""

PATIENT = 10.0
"""How many seconds it may take to look at a search."""

NOT_MADE = frozenset(["busy", "opening", "paused", "slow", "worker"])
"""Why a list was not made in time; it can be made afterwards."""

log = logging.getLogger(__name__)

Look = Callable[[], Awaitable[None]]

Unnamed = tuple[PassingPage, Callable[[], None], int]
"""A search whose index is not known yet, what records it, and how many bytes that holds."""


class Watcher:
    """Looks at what was shown while the worker of an index has nothing else to do.

    Args:
        workers: The workers, by index.
        seen: Records it.
    """

    def __init__(self, workers: Mapping[str, Worker], seen: Seen) -> None:
        self._workers = workers
        self._seen = seen
        self._looks: dict[str, asyncio.Queue[tuple[Look, int]]] = {
            index: asyncio.Queue(WAITING) for index in workers
        }
        self._turns = {index: asyncio.Lock() for index in workers}
        self._unnamed: dict[str, list[Unnamed]] = {index: [] for index in workers}
        self._held = 0

    async def keep(self) -> None:
        """Look at what was shown, until this is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for index in self._workers:
                tasks.create_task(self._record_unnamed(index))
                for _ in range(AT_ONCE):
                    tasks.create_task(self._look_at_all(index))

    async def _look_at_all(self, index: str) -> None:
        looks = self._looks[index]
        while True:
            look, size = await looks.get()
            await self._workers[index].is_idle.wait()
            try:
                await look()
            except Exception:  # whatever it is, the next search is looked at
                log.exception("What a search of '%s' showed is not known.", index)
            finally:
                self._held -= size

    def page(self, page: PassingPage, shown: ShownReply) -> None:
        """Look at a page that went out as it came.

        Args:
            page: The search.
            shown: The reply that has its hits.
        """

        async def look() -> None:
            hits = await asyncio.to_thread(shown.hits, page.place)
            if not hits:
                reason = "reply" if hits is None else "empty"
                self._seen.add_unseen(page, page.why, reason)
                return
            if self._workers[page.index].label_fields.names:
                hits = _only_ids(hits)  # by which its labels are read
            await self._record(page, page.why, partial(MeasureShown, hits[:MOST_HITS]))

        def record() -> None:
            self._add(page, page.why, look, shown.size)

        self._once_named(page, record, shown.size)

    def unread(self, page: PassingPage, why: str) -> None:
        """Count a search of which nothing is known but that it reaches an index."""
        self._once_named(page, lambda: self._seen.add_unseen(page, why, why))

    def _once_named(self, page: PassingPage, record: Callable[[], None], size: int = 0) -> None:
        """Record a search, once it is known whether its index has the name that was asked for."""
        names = self._workers[page.index].names
        waiting = self._unnamed[page.index]
        if not page.name or (names and reaches(page.name, names)):
            record()
        elif not names and len(waiting) < WAITING:
            if self._held + size > HELD:
                size = 0
                record = partial(self._seen.add_unseen, page, page.why, "busy")
            self._held += size
            waiting.append((page, record, size))

    async def _record_unnamed(self, index: str) -> None:
        """Record what came before the names of an index were known."""
        await self._workers[index].is_named.wait()
        for page, record, size in self._unnamed[index]:
            self._held -= size
            self._once_named(page, record)
        self._unnamed[index].clear()

    def window(self, search: ProxiedSearch, outcome: str, reply: str) -> None:
        """Look at a page that was cut from a whole window in the cluster's own order.

        Args:
            search: The search.
            outcome: What became of it.
            reply: The reply with the window.
        """

        async def look() -> None:
            await self._record(search, outcome, _rerank(search, reply))

        self._add(search, outcome, look, len(reply))

    def later(self, search: ProxiedSearch, outcome: str, ask: Callable[[], Awaitable[str]]) -> None:
        """Ask for the whole window of a search, and look at it.

        Args:
            search: The search.
            outcome: What became of it.
            ask: Asks the cluster for the window, and returns its reply.
        """

        async def look() -> None:
            try:
                reply = await ask()
            except RefusedError:
                self._seen.add_unseen(search, outcome, "cluster")
                return
            except UnavailableError as error:
                self._not_known(search, outcome, str(error))
                return
            await self._record(search, outcome, _rerank(search, reply))

        self._add(search, outcome, look)

    def _add(
        self, search: ProxiedSearch | PassingPage, outcome: str, look: Look, size: int = 0
    ) -> None:
        """Have something looked at, unless too much waits."""
        if search.start != 0:  # or nobody knows which page it is
            self._seen.add_unseen(search, outcome, "further page")
        elif self._held + size > HELD or self._looks[search.index].full():
            self._seen.add_unseen(search, outcome, "busy")
        else:
            self._held += size
            self._looks[search.index].put_nowait((look, size))

    async def _record(
        self,
        search: ProxiedSearch | PassingPage,
        outcome: str,
        question_until: Callable[[float], Rerank | MeasureShown],
    ) -> None:
        """Have the worker look at something once no client waits for it, and record what it says.

        Args:
            search: The search.
            outcome: What became of it.
            question_until: Returns what the worker is asked, given how long it has.
        """
        worker = self._workers[search.index]
        async with self._turns[search.index]:
            await worker.is_idle.wait()
            question = question_until(time.monotonic() + PATIENT)
            try:
                answer = await worker.look(question)
            except UnavailableError as error:
                self._not_known(search, outcome, str(error))
                return
        seen: Outcome = answer
        if isinstance(question, Rerank):
            ((seen, *_), _) = answer
        if isinstance(seen, str):
            self._not_known(search, outcome, seen)
        else:
            self._seen.add_shown(search, outcome, seen)

    def _not_known(self, search: ProxiedSearch | PassingPage, outcome: str, reason: str) -> None:
        """Record a search whose list is not known; in a shadow, say why it would have none."""
        is_shadow = outcome == "shadow" and reason not in NOT_MADE
        self._seen.add_unseen(search, reason if is_shadow else outcome, reason)


def _as_shown(search: ProxiedSearch) -> ProxiedSearch:
    """Return a search whose page went out in the cluster's own order, whatever was wished."""
    return replace(search, fair=False)


def _rerank(search: ProxiedSearch, reply: str) -> Callable[[float], Rerank]:
    """Return what asks for the list of a search, given how long it has."""
    return partial(Rerank, [_as_shown(search)], reply, is_look=True)


def _only_ids(hits: Sequence[Any]) -> list[Any]:
    """Return hits by their ids alone; the labels are read by these."""
    names = ("_id", "_index")
    return [{name: hit[name] for name in names if name in hit} for hit in hits]
