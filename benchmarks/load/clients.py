"""Clients of the service that search, answer, probe, leave in the middle, and come back."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

RESULT, ACCEPTED, LEFT, GONE = "result", "accepted", "left", "connection lost"
"""What clients are told: all of it, an id; and what else becomes of what they asked for."""
FINE = (RESULT, ACCEPTED, LEFT)
TIMEOUT = 120.0
EVENTS_BEFORE_LEAVING = 2
ANSWER = {"k": 10, "samples": 2, "documents": 2, "seed": 1}
PROBE = {"attribute": "gender", "protected": "female", "pairs": 2, "depth": 6, "k": 6}


def new_client() -> httpx.AsyncClient:
    """Return a client for loopback."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    return httpx.AsyncClient(timeout=TIMEOUT, limits=limits, trust_env=False)


@dataclass(slots=True)
class Attempt:
    """One thing that a client asked for.

    Attributes:
        mark: A word in its query that no other has.
        way: How it was asked for. ``search``, ``answer`` and ``probe`` wait for the result;
            ``keep`` waits for a durable search; ``stream`` reads all events, and ``leave`` only the
            first; ``background`` is told the id of a search, and ``question`` the id of an answer;
            ``return`` reads the first events of a kept run, leaves, and comes back for the rest.
        body: What was asked for.
        told: ``result``; the slug of a problem; or what else became of it.
        status: Of HTTP, 0 where there was none.
        run: The id of the run, where it was told.
        faults: What was wrong with the events that it was told.
    """

    mark: str
    way: str
    body: dict[str, Any]
    told: str = GONE
    status: int = 0
    run: str | None = None
    faults: list[str] = field(default_factory=list)


async def events_of(
    answer: httpx.Response,
) -> AsyncGenerator[tuple[int, str, dict[str, Any]], None]:
    """Yield the number (0 where there is none), the name and the data of each event."""
    event: dict[str, str] = {}
    async for line in answer.aiter_lines():
        name, _, value = line.partition(":")
        if name:
            event[name] = value.strip()
        elif "event" in event:
            data = json.loads(event.get("data") or "{}")
            yield int(event.get("id", 0)), event["event"], data
        if not line:
            event = {}


def slug_of(problem: Any) -> str:
    """Return which problem an object is."""
    return str((problem or {}).get("type") or "untyped").rpartition(":")[2]


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
        ways: Mapping[str, float],
        seed: int = 0,
    ) -> None:
        self._workers, self._queries = itertools.cycle(workers), itertools.cycle(queries)
        self._request, self._ways = request, ways
        self._random = random.Random(seed)
        self._over = asyncio.Event()
        self._changed = asyncio.Condition()
        self.attempts: list[Attempt] = []

    @asynccontextmanager
    async def asking(self, clients: int) -> AsyncIterator[None]:
        """Let so many clients ask while this is open; at its end each may finish what it asked."""
        async with new_client() as http:
            tasks = [asyncio.create_task(self._ask_on(http)) for _ in range(clients)]
            try:
                yield
                self._over.set()
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def until(self, reached: Callable[[], bool], seconds: float) -> bool:
        """Wait until something holds after an attempt, and return whether it came in time."""
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(reached)
        except TimeoutError:
            return False
        return True

    async def more(self, number: int, seconds: float) -> bool:
        """Wait until so many more have a result, or an id, and return whether that came in time."""

        def served() -> int:
            return sum(attempt.told in (RESULT, ACCEPTED) for attempt in self.attempts)

        wanted = served() + number
        return await self.until(lambda: served() >= wanted, seconds)

    async def _ask_on(self, http: httpx.AsyncClient) -> None:
        while not self._over.is_set():
            (way,) = self._random.choices([*self._ways], [*self._ways.values()])
            if (await self.ask(http, way)).told not in FINE:
                # A client that was turned away does not come back at once.
                await asyncio.sleep(0.05)

    async def ask(self, http: httpx.AsyncClient, way: str, _: int = 0) -> Attempt:
        """Ask for one thing and note what came of it."""
        mark = f"run{next(self._numbers):07}"
        query = f"{next(self._queries)} {mark}"
        common = {key: self._request[key] for key in ("corpus", "model")}
        body = {**self._request, "query": query, "keep": way == "keep"}
        if way in ("answer", "question"):
            body = {**common, **ANSWER, "question": query}
        elif way == "probe":
            body = {**common, **PROBE, "query": query}
        attempt, url = Attempt(mark, way, body), next(self._workers)
        ask = {"stream": _stream, "leave": _stream, "return": _return}
        ask |= {"background": _begin, "question": _begin}
        try:
            await ask.get(way, _wait)(http, url, attempt)
        except (httpx.TransportError, httpx.StreamError):
            attempt.told = GONE
        async with self._changed:
            self.attempts.append(attempt)
            self._changed.notify_all()
        return attempt


def _told(answer: httpx.Response, attempt: Attempt, fine: int, told: str) -> None:
    attempt.status = answer.status_code
    place = answer.headers.get("location", "").rpartition("/")[2]
    attempt.run = place or answer.headers.get("x-request-id")
    is_json = "json" in answer.headers.get("content-type", "")
    is_fine = answer.status_code == fine
    attempt.told = told if is_fine else slug_of(answer.json() if is_json else None)


async def _wait(http: httpx.AsyncClient, url: str, attempt: Attempt) -> None:
    path = attempt.way if attempt.way in ("answer", "probe") else "search"
    _told(await http.post(f"{url}/v1/{path}", json=attempt.body), attempt, 200, RESULT)


async def _begin(http: httpx.AsyncClient, url: str, attempt: Attempt) -> None:
    kind = "answer" if attempt.way == "question" else "search"
    asked = {"kind": kind, "request": attempt.body}
    _told(await http.post(f"{url}/v1/runs", json=asked), attempt, 202, ACCEPTED)


async def _stream(http: httpx.AsyncClient, url: str, attempt: Attempt) -> None:
    path = f"{url}/v1/search/stream"
    await _read(http, "POST", path, attempt, leaves=attempt.way == "leave", json=attempt.body)


async def _return(http: httpx.AsyncClient, url: str, attempt: Attempt) -> None:
    await _begin(http, url, attempt)
    if attempt.told == ACCEPTED:
        path, seen = f"{url}/v1/runs/{attempt.run}/events", 0
        seen = await _read(http, "GET", path, attempt, leaves=True)
        if attempt.told == LEFT:
            headers = {"Last-Event-ID": str(seen)}
            await _read(http, "GET", path, attempt, last=seen, headers=headers)


async def _read(
    http: httpx.AsyncClient,
    method: str,
    path: str,
    attempt: Attempt,
    *,
    leaves: bool = False,
    last: int = 0,
    **more: Any,
) -> int:
    """Read a stream after its event ``last``, note what it told, and return the last number."""
    attempt.told, run = GONE, attempt.run
    async with http.stream(method, path, **more) as answer:
        if answer.status_code != 200:
            await answer.aread()
        _told(answer, attempt, 200, GONE)
        attempt.run = attempt.run or run
        if answer.status_code != 200:
            return last
        async with aclosing(events_of(answer)) as events:
            async for number, name, data in events:
                if attempt.told != GONE:
                    attempt.faults.append(f"{name} after the end")
                if number and number != last + 1:
                    attempt.faults.append(f"event {number} after {last}")
                last = number or last
                if name == "run":
                    attempt.run = data.get("id") or attempt.run
                elif name in ("end", "error"):
                    attempt.told = RESULT if name == "end" else slug_of(data)
                elif leaves and last >= EVENTS_BEFORE_LEAVING:
                    attempt.told = LEFT
                    break
    return last
