"""Clients of the service that search, answer, probe, leave in the middle, and come back."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from benchmarks.load.attempts import (
    ACCEPTED,
    GONE,
    LEFT,
    RESULT,
    Attempt,
    Way,
    read,
    run_of,
    slug_of,
)

TIMEOUT = 120.0
EVENTS_BEFORE_LEAVING = 2


def new_client() -> httpx.AsyncClient:
    """Return a client for loopback."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    return httpx.AsyncClient(timeout=TIMEOUT, limits=limits, trust_env=False)


class Crowd:
    """Clients that ask one thing after the other, in turns of all workers.

    Args:
        workers: The addresses of the service.
        queries: To take turns with; each gets a mark.
        request: The fields of a search, besides the query.
        ways: How often each is taken, as weights.
        seed: Of the choice among them.
    """

    _numbers = itertools.count(1)

    def __init__(
        self,
        workers: Sequence[str],
        queries: Sequence[str],
        request: Mapping[str, Any],
        ways: Mapping[Way, float],
        seed: int = 0,
    ) -> None:
        self._workers = itertools.cycle(workers)
        self._queries = itertools.cycle(queries)
        self._request = request
        self._ways = ways
        self._random = random.Random(seed)
        self._over = asyncio.Event()
        self.attempts: list[Attempt] = []
        self._changed = asyncio.Condition()

    @property
    def results(self) -> int:
        """How many have what they asked for, or know that it is under way."""
        return sum(attempt.told in (RESULT, ACCEPTED) for attempt in self.attempts)

    def told(self) -> Counter[str]:
        """Return how often clients were told what."""
        return Counter(attempt.told for attempt in self.attempts)

    @asynccontextmanager
    async def asking(self, clients: int) -> AsyncIterator[Crowd]:
        """Let so many clients ask while this is open; at its end each may finish what it asked."""
        async with new_client() as http:
            tasks = [asyncio.create_task(self._ask_on(http)) for _ in range(clients)]
            try:
                yield self
                self._over.set()
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def until(self, reached: Callable[[], bool], seconds: float) -> bool:
        """Wait until something holds after an attempt, and tell whether it came in time."""
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(reached)
        except TimeoutError:
            return False
        return True

    async def more(self, number: int, seconds: float) -> bool:
        """Wait until so many more have what they asked for, and tell whether that came in time."""
        wanted = self.results + number
        return await self.until(lambda: self.results >= wanted, seconds)

    async def _ask_on(self, http: httpx.AsyncClient) -> None:
        ways, weights = zip(*self._ways.items(), strict=True)
        while not self._over.is_set():
            way = self._random.choices(ways, weights)[0]
            attempt = await self.ask(http, way)
            if attempt.told not in (RESULT, ACCEPTED, LEFT):
                # A client that was turned away does not come back at once.
                await asyncio.sleep(0.05)

    async def ask(self, http: httpx.AsyncClient, way: Way) -> Attempt:
        """Ask for one thing and note what came of it."""
        mark = f"run{next(self._numbers):07}"
        attempt = Attempt(mark, way, body := self._body(way, mark))
        url = next(self._workers)
        attempt.began = time.perf_counter()
        try:
            await _WAYS[way](http, url, body, attempt)
        except (httpx.TransportError, httpx.StreamError):
            attempt.told = GONE
        attempt.ended = time.perf_counter()
        async with self._changed:
            self.attempts.append(attempt)
            self._changed.notify_all()
        return attempt

    def _body(self, way: Way, mark: str) -> dict[str, Any]:
        query = f"{next(self._queries)} {mark}"
        common = {key: self._request[key] for key in ("corpus", "model") if key in self._request}
        if way in ("answer", "question"):
            return {**common, "question": query, "k": 10, "samples": 2, "documents": 2, "seed": 1}
        if way == "probe":
            probe = {"attribute": "gender", "protected": "female", "pairs": 2, "depth": 6}
            return {**common, **probe, "query": query, "k": 6}
        return {**self._request, "query": query, "keep": way == "keep"}


async def _wait(http: httpx.AsyncClient, url: str, body: Any, attempt: Attempt) -> None:
    path = attempt.way if attempt.way in ("answer", "probe") else "search"
    answer = await http.post(f"{url}/v1/{path}", json=body)
    attempt.status = answer.status_code
    attempt.run = run_of(answer)
    attempt.told = RESULT if answer.status_code == 200 else slug_of(answer.content)


async def _background(http: httpx.AsyncClient, url: str, body: Any, attempt: Attempt) -> None:
    kind = "answer" if attempt.way == "question" else "search"
    answer = await http.post(f"{url}/v1/runs", json={"kind": kind, "request": body})
    attempt.status = answer.status_code
    if answer.status_code == 202:
        attempt.told, attempt.run = ACCEPTED, answer.json()["id"]
    else:
        attempt.told = slug_of(answer.content)


async def _stream(http: httpx.AsyncClient, url: str, body: Any, attempt: Attempt) -> None:
    leaves = attempt.way == "leave"
    async with http.stream("POST", f"{url}/v1/search/stream", json=body) as answer:
        await read(answer, attempt, EVENTS_BEFORE_LEAVING if leaves else None)


async def _return(http: httpx.AsyncClient, url: str, body: Any, attempt: Attempt) -> None:
    await _background(http, url, body, attempt)
    if attempt.run is None:
        return
    events = f"{url}/v1/runs/{attempt.run}/events"
    attempt.told = GONE
    async with http.stream("GET", events) as answer:
        last = await read(answer, attempt, EVENTS_BEFORE_LEAVING)
    if attempt.told == LEFT:
        async with http.stream("GET", events, headers={"Last-Event-ID": str(last)}) as answer:
            await read(answer, attempt, None, last)


_WAYS: dict[Way, Callable[..., Any]] = {
    "search": _wait,
    "keep": _wait,
    "answer": _wait,
    "probe": _wait,
    "stream": _stream,
    "leave": _stream,
    "background": _background,
    "question": _background,
    "return": _return,
}
