"""Measures how one key's searches fare while another key does its worst.

``python -m benchmarks.load.shares WAY URL SECRET`` is that other key, in a process of its own; it
goes on until it is ended. :func:`shares` starts it, and measures.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np

from benchmarks.generated import queries
from benchmarks.load.clients import new_client
from benchmarks.load.servers import ROOT, Worker
from benchmarks.load.world import EMBEDDED, MODEL, World
from benchmarks.measuring import row
from fairqr.graph.service.configuration import ServiceSettings, Traffic
from fairqr.graph.service.store import Store

FOLLOWERS = 1000
RUNS = 32
AGENTS = 200
"""Clients of the greedy key: they follow one run, begin slow durable runs, and call a tool."""
SLOW = 20.0
"""Seconds until the model answers."""
BEGINNING = 5.0
"""Seconds until all have asked."""
FULL = "all have begun"
"""What the greedy process prints."""
REFUSED_FOR = 1.0
"""Seconds until a client that was refused comes again, unless it is told how long."""
WAYS = {
    "followers": f"{FOLLOWERS:,} followers of a slow run",
    "runs": f"{RUNS} slow durable runs",
    "agents": f"{AGENTS} MCP streams",
    "together": "all of them",
}
PAUSE = 0.11
"""Seconds from one search to the next, at least."""
PERCENTILE = 95

_numbers = itertools.count(1)
_words = queries(200, 4)


def slow_search() -> dict[str, Any]:
    """Return the body of a search that asks the model what nobody has asked it before."""
    number = next(_numbers)
    query = f"{_words[number % len(_words)]} {number}"
    return {
        "corpus": EMBEDDED,
        "retriever": "bm25",
        "attributes": ["gender"],
        "model": MODEL,
        "query": query,
        "ask": "always",
    }


class Greedy:
    """A key that takes what it can get. It speaks plain HTTP, to cost little itself.

    Args:
        url: The address of the service.
        secret: The key.
    """

    def __init__(self, url: str, secret: str) -> None:
        self._url = httpx.URL(url)
        self._secret = secret
        self._followed = ""

    async def ask(self, method: str, path: str, body: Any = None) -> dict[str, str]:
        """Send a request, read the answer to its end, and return its headers.

        A client that is refused waits as long as the answer says.
        """
        content = json.dumps(body).encode() if body else b""
        lines = [
            f"{method} {path} HTTP/1.1",
            f"Host: {self._url.host}",
            f"Authorization: Bearer {self._secret}",
            "Accept: application/json, text/event-stream",
            "Content-Type: application/json",
            f"Content-Length: {len(content)}",
            "Connection: close",
        ]
        reader, writer = await asyncio.open_connection(self._url.host, self._url.port)
        try:
            writer.write("\r\n".join([*lines, "", ""]).encode() + content)
            head = await reader.readuntil(b"\r\n\r\n")
            # The answer is read to its end, and nobody looks at it.
            while await reader.read(2**16):
                pass
        finally:
            writer.close()
        status, *header_lines = head.decode().lower().splitlines()
        headers = dict(line.split(": ", 1) for line in header_lines if line)
        if status.split()[1] not in ("200", "202"):
            await asyncio.sleep(float(headers.get("retry-after", REFUSED_FOR)))
        return headers

    async def begin_run(self) -> str:
        """Begin a slow durable run; return its path, or nothing if that is refused."""
        body = {"kind": "search", "request": slow_search()}
        headers = await self.ask("POST", "/v1/runs", body)
        return headers.get("location", "")

    async def follow(self) -> None:
        """Follow the one run, to its end."""
        await self.ask("GET", f"{self._followed}/events")

    async def keep(self) -> None:
        """Begin a durable run, and follow it to its end."""
        path = await self.begin_run()
        if path:
            await self.ask("GET", f"{path}/events")

    async def call(self) -> None:
        """Call a tool of MCP, and read the stream to its end."""
        arguments = {"query": slow_search()["query"], "attributes": ["gender"]}
        params = {"name": "fair_search", "arguments": arguments}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        await self.ask("POST", "/mcp", body)

    async def do_its_worst(self, way: str) -> None:
        """Be greedy until this is cancelled."""
        actions = {"followers": self.follow, "runs": self.keep, "agents": self.call}
        clients = {"followers": FOLLOWERS, "runs": RUNS, "agents": AGENTS}
        chosen = [*actions] if way == "together" else [way]
        if "followers" in chosen:
            self._followed = await self.begin_run()
        async with asyncio.TaskGroup() as group:
            for name in chosen:
                for _ in range(clients[name]):
                    group.create_task(_repeat(actions[name]))
            await asyncio.sleep(BEGINNING)
            print(FULL, flush=True)


async def _repeat(act: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await act()
        except (OSError, EOFError):
            await asyncio.sleep(REFUSED_FOR)


@contextmanager
def greedy(way: str, worker: Worker, secret: str) -> Iterator[None]:
    """Let another process be greedy meanwhile."""
    command = [sys.executable, "-m", "benchmarks.load.shares", way, worker.url, secret]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline().strip() == FULL, "the greedy process has ended"
            yield
        finally:
            child.kill()


async def measure(http: httpx.AsyncClient, body: dict[str, Any], count: int) -> list[float | None]:
    """Search one query after the other; return the milliseconds of each, or None if it failed.

    It stays below the rate that a key has.
    """
    times: list[float | None] = []
    for number in range(count):
        query = _words[number % len(_words)]
        start = time.perf_counter()
        answer = await http.post("/v1/search", json={**body, "query": query})
        milliseconds = (time.perf_counter() - start) * 1000
        times.append(milliseconds if answer.status_code == 200 else None)
        await asyncio.sleep(max(0.0, PAUSE - milliseconds / 1000))
    return times


def p95(times: list[float | None]) -> float:
    """Return the 95th percentile of the searches that did not fail."""
    successful = [milliseconds for milliseconds in times if milliseconds is not None]
    return float(np.percentile(successful, PERCENTILE))


async def shares(world: World, searches: int) -> dict[str, Any]:
    """Measure a key's plain searches, in quiet and while another key does its worst.

    Args:
        world: With its model server running.
        searches: How many searches each part has.

    Returns:
        The ``rows`` of a table, and the ``violations`` of promises: searches that failed.
    """
    world.model.steer(delay=SLOW, failures={})
    body = world.request(EMBEDDED, "baseline")
    rows: list[dict[str, Any]] = []
    violations: list[str] = []
    settings = {
        "require_keys": True,
        "concurrency": ServiceSettings.model_fields["concurrency"].default,
        "traffic": Traffic().model_dump(),
    }
    databases = {"SQLite": f"sqlite:///{world.new_file()}", "PostgreSQL": world.new_database()}
    for name, database in databases.items():
        async with Store.opened(database) as store:
            _, our_secret = await store.create_key("own", ["run"])
            _, greedy_secret = await store.create_key("greedy", ["run"])
        with world.workers(database, **settings) as (worker,):
            async with new_client() as http:
                http.base_url = httpx.URL(worker.url)
                http.headers["Authorization"] = f"Bearer {our_secret}"
                # The first searches are slower.
                await measure(http, body, searches // 5)
                for way, sentence in WAYS.items():
                    quiet = await measure(http, body, searches)
                    with greedy(way, worker, greedy_secret):
                        loud = await measure(http, body, searches)
                    measured = f"p95 beside {sentence}, {name}"
                    rows.append(row(measured, p95(loud), "ms", "quiet", p95(quiet), "≤ 3×"))
                    lost = loud.count(None) + quiet.count(None)
                    if lost:
                        violations.append(f"{lost} searches failed beside {sentence}, {name}")
    return {"rows": rows, "violations": violations}


if __name__ == "__main__":
    way, url, secret = sys.argv[1:]
    asyncio.run(Greedy(url, secret).do_its_worst(way))
