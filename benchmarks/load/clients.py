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

RESULT = "result"
"""The client got a whole result."""

ACCEPTED = "accepted"
"""The client got the id of a run."""

LEFT = "left"
"""The client left before the end."""

GONE = "connection lost"
"""The connection ended, and nothing said why."""

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
    """One request of a client, and its outcome.

    Attributes:
        mark: A word in its query that no other query has.
        way: How the client asked. ``search``, ``answer`` and ``probe`` wait for the result;
            ``keep`` waits for a durable search; ``stream`` reads all events, and ``leave`` only the
            first; ``background`` is told the id of a search, and ``question`` the id of an answer;
            ``return`` reads the first events of a kept run, leaves, and comes back for the rest.
        body: The request.
        outcome: One of the constants above, or the slug of a problem.
        status: The status of HTTP; 0 without an answer.
        run: The id of the run, if the client got it.
        faults: What was wrong with the events that the client got.
    """

    mark: str
    way: str
    body: dict[str, Any]
    outcome: str = GONE
    status: int = 0
    run: str | None = None
    faults: list[str] = field(default_factory=list)


async def events_of(
    answer: httpx.Response,
) -> AsyncGenerator[tuple[int, str, dict[str, Any]], None]:
    """Yield the number of each event (0 without one), its name and its data."""
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
    """Return the slug of a problem's type; ``untyped`` without one."""
    problem_type = str((problem or {}).get("type") or "untyped")
    return problem_type.rpartition(":")[2]


class Crowd:
    """Clients that send one request after the other, to all workers in turn.

    Args:
        workers: The addresses of the service.
        queries: The queries to send in turn; each gets a mark.
        request: The fields of a search, besides the query.
        ways: The ways to ask, with weights that say how often each is chosen.
        seed: The seed of that choice.
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
        self._workers = itertools.cycle(workers)
        self._queries = itertools.cycle(queries)
        self._request = request
        self._ways = ways
        self._random = random.Random(seed)
        self._over = asyncio.Event()
        self._changed = asyncio.Condition()
        self.attempts: list[Attempt] = []

    @asynccontextmanager
    async def asking(self, clients: int) -> AsyncIterator[None]:
        """Let clients ask while this is open; at its end each may finish its request.

        Args:
            clients: How many clients ask at the same time.
        """
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

    async def wait_until(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Wait until something holds after an attempt, and return whether that came in time."""
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(holds)
        except TimeoutError:
            return False
        return True

    async def wait_for_served(self, number: int, seconds: float) -> bool:
        """Wait until further requests were served, and return whether that came in time.

        Args:
            number: How many requests must get a result or an id from now on.
            seconds: How long to wait at most.
        """

        def served() -> int:
            return sum(attempt.outcome in (RESULT, ACCEPTED) for attempt in self.attempts)

        goal = served() + number
        return await self.wait_until(lambda: served() >= goal, seconds)

    async def _ask_on(self, http: httpx.AsyncClient) -> None:
        while not self._over.is_set():
            (way,) = self._random.choices([*self._ways], [*self._ways.values()])
            attempt = await self.ask(http, way)
            if attempt.outcome not in FINE:
                # A client that was turned away does not come back at once.
                await asyncio.sleep(0.05)

    async def ask(self, http: httpx.AsyncClient, way: str, _: int = 0) -> Attempt:
        """Send one request, and note its outcome."""
        mark = f"run{next(self._numbers):07}"
        query = f"{next(self._queries)} {mark}"
        attempt = Attempt(mark, way, self._body(way, query))
        url = next(self._workers)
        send = _SENDERS.get(way, _wait)
        try:
            await send(http, url, attempt)
        except (httpx.TransportError, httpx.StreamError):
            attempt.outcome = GONE
        async with self._changed:
            self.attempts.append(attempt)
            self._changed.notify_all()
        return attempt

    def _body(self, way: str, query: str) -> dict[str, Any]:
        """Return the body of a request."""
        common = {key: self._request[key] for key in ("corpus", "model")}
        if way in ("answer", "question"):
            return {**common, **ANSWER, "question": query}
        if way == "probe":
            return {**common, **PROBE, "query": query}
        return {**self._request, "query": query, "keep": way == "keep"}


def _note(answer: httpx.Response, attempt: Attempt, success: int, outcome: str) -> None:
    """Note the outcome of an answer.

    Args:
        answer: What the service answered.
        attempt: Where to note it.
        success: The status of success.
        outcome: The outcome in this case; otherwise it is the slug of the problem.
    """
    attempt.status = answer.status_code
    run = answer.headers.get("location", "").rpartition("/")[2]
    attempt.run = run or answer.headers.get("x-request-id")
    if answer.status_code == success:
        attempt.outcome = outcome
        return
    is_json = "json" in answer.headers.get("content-type", "")
    attempt.outcome = slug_of(answer.json() if is_json else None)


async def _wait(http: httpx.AsyncClient, url: str, attempt: Attempt) -> None:
    """Wait for the whole result."""
    path = attempt.way if attempt.way in ("answer", "probe") else "search"
    answer = await http.post(f"{url}/v1/{path}", json=attempt.body)
    _note(answer, attempt, 200, RESULT)


async def _begin(http: httpx.AsyncClient, url: str, attempt: Attempt) -> None:
    """Begin a durable run."""
    kind = "answer" if attempt.way == "question" else "search"
    body = {"kind": kind, "request": attempt.body}
    answer = await http.post(f"{url}/v1/runs", json=body)
    _note(answer, attempt, 202, ACCEPTED)


async def _stream(http: httpx.AsyncClient, url: str, attempt: Attempt) -> None:
    """Read the events of a search, to the end or only the first."""
    path = f"{url}/v1/search/stream"
    leaves = attempt.way == "leave"
    await _read(http, "POST", path, attempt, leaves=leaves, json=attempt.body)


async def _return(http: httpx.AsyncClient, url: str, attempt: Attempt) -> None:
    """Read the first events of a durable run, leave, and come back for the others."""
    await _begin(http, url, attempt)
    if attempt.outcome != ACCEPTED:
        return
    path = f"{url}/v1/runs/{attempt.run}/events"
    last = await _read(http, "GET", path, attempt, leaves=True)
    if attempt.outcome == LEFT:
        headers = {"Last-Event-ID": str(last)}
        await _read(http, "GET", path, attempt, last=last, headers=headers)


_SENDERS = {
    "stream": _stream,
    "leave": _stream,
    "return": _return,
    "background": _begin,
    "question": _begin,
}
"""What sends the requests of a way; all others wait for the result."""


async def _read(
    http: httpx.AsyncClient,
    method: str,
    path: str,
    attempt: Attempt,
    *,
    leaves: bool = False,
    last: int = 0,
    **options: Any,
) -> int:
    """Read a stream of events, note its outcome, and return the number of the last event.

    Args:
        http: The client.
        method: The method of HTTP.
        path: Where the stream is.
        attempt: Where to note the outcome.
        leaves: Stop after the first events.
        last: The number of the last event that was read before.
        options: Other options of the request.
    """
    attempt.outcome = GONE
    earlier_run = attempt.run
    async with http.stream(method, path, **options) as answer:
        if answer.status_code != 200:
            await answer.aread()
        _note(answer, attempt, 200, GONE)
        attempt.run = attempt.run or earlier_run
        if answer.status_code != 200:
            return last
        async with aclosing(events_of(answer)) as events:
            async for number, name, data in events:
                if attempt.outcome != GONE:
                    attempt.faults.append(f"{name} after the end")
                if number and number != last + 1:
                    attempt.faults.append(f"event {number} after {last}")
                last = number or last
                if name == "run":
                    attempt.run = data.get("id") or attempt.run
                elif name == "end":
                    attempt.outcome = RESULT
                elif name == "error":
                    attempt.outcome = slug_of(data)
                elif leaves and last >= EVENTS_BEFORE_LEAVING:
                    attempt.outcome = LEFT
                    break
    return last
