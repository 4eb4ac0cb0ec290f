"""What the service adds to a fair search over words, beside peers that are measured in turns.

``python -m benchmarks.load.speed plain`` serves the peer: a small FastAPI application that only
searches the same index. ``python -m benchmarks.load.speed alone TASKS COUNT`` searches in process,
and prints what that took. :func:`speed` starts both.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
from fastapi import FastAPI
from pydantic import BaseModel

from benchmarks.load.clients import new_client
from benchmarks.load.servers import ROOT
from benchmarks.load.watching import busy_seconds
from benchmarks.load.world import World
from benchmarks.loopback import serve
from benchmarks.measuring import Row, median, p95
from fairqr import FairSearch
from fairqr.evaluation.collections.finding import find_collection
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.sources.catalog import Catalog

CORPUS = "notables"
SHOWN = 20
ASKED = {"attributes": ["gender"], "ask": "never", "k": SHOWN}
CLIENTS = 8
WARM_UP = 40
ALONE, SERVED, RATE, TAIL, PAIR = 5.0, 6.5, 0.75, 2.5, 1.5
"""What is to be reached, in times of the peer's."""

TITLES = [topic.title for topic in find_collection(CORPUS).topics]


class Asked(BaseModel):
    """The body of a plain search."""

    query: str


async def plain() -> None:
    """Serve plain searches, and print the address."""
    engine = await Catalog().resolve(CORPUS, retriever="bm25")
    app = FastAPI()

    @app.post("/v1/search")
    async def search(asked: Asked) -> list[dict[str, object]]:
        (hits,) = await engine.search([Query(asked.query, SHOWN)])
        documents = await engine.documents(hits.ids)
        return [
            {"id": one.id, "title": one.title, "text": one.text, "score": score}
            for one, score in zip(documents, hits.scores, strict=True)
        ]

    await serve(app)


async def alone(tasks: int, count: int) -> dict[str, float]:
    """Search in this process by so many tasks; return milliseconds of the processor, and a rate."""
    engine = await Catalog().resolve(CORPUS, retriever="bm25")
    search = FairSearch(engine, None)

    async def work(queries: Iterator[str]) -> None:
        for query in queries:
            await search.search(query, **ASKED)  # type: ignore[arg-type]

    async def together(number: int) -> None:
        queries = (TITLES[n % len(TITLES)] for n in range(number))
        await asyncio.gather(*(work(queries) for _ in range(tasks)))

    await together(WARM_UP)
    start, busy = time.perf_counter(), time.process_time()
    await together(count)
    taken, busy = time.perf_counter() - start, time.process_time() - busy
    await engine.aclose()
    return {"processor": busy * 1000 / count, "per_second": count / taken}


async def _served(url: str, pid: int, clients: int, count: int, more: Any) -> dict[str, Any]:
    """Let so many clients search through a server, and return the same of it, and each time."""
    queries = (TITLES[n % len(TITLES)] for n in range(count))
    times: list[float] = []

    async def work(http: httpx.AsyncClient) -> None:
        for query in queries:
            start = time.perf_counter()
            answer = await http.post(f"{url}/v1/search", json={"query": query, **more})
            answer.raise_for_status()
            times.append((time.perf_counter() - start) * 1000)

    async with new_client() as http:
        start, busy = time.perf_counter(), busy_seconds(pid)
        await asyncio.gather(*(work(http) for _ in range(clients)))
        taken, busy = time.perf_counter() - start, busy_seconds(pid) - busy
    return {"processor": busy * 1000 / count, "per_second": count / taken, "times": times}


def speed(world: World, *, searches: int) -> list[Row]:
    """Measure in three turns.

    Args:
        world: Where the service runs.
        searches: Of each kind in each turn.
    """
    world.command("search", "physicist", "--corpus", CORPUS, "--method", "plain")  # makes its index
    found: dict[str, list[dict[str, Any]]] = {}
    more = {"corpus": CORPUS, "retriever": "bm25", **ASKED}
    file = f"sqlite:///{world.new_file()}"
    two: Any = {"arguments": ("--workers", "2"), "work": False}
    with (
        world.workers(f"sqlite:///{world.new_file()}", corpus=CORPUS) as (worker,),
        world.workers(file, corpus=CORPUS, **two) as (pair,),
        _started(world, "plain") as (process, address),
    ):
        servers = {"plain": (address, process.pid, {}), "served": (worker.url, worker.pid, more)}
        servers["by two"] = (pair.url, pair.pid, more)
        for turn in range(-1, 3):
            measured: dict[str, dict[str, Any]] = {}
            for name, (url, pid, body) in servers.items():
                for clients in (1, CLIENTS):
                    number = searches if turn >= 0 else WARM_UP
                    asking = _served(url, pid, clients, number, body)
                    measured[f"{name} {clients}"] = asyncio.run(asking)
            for tasks in (1, CLIENTS) if turn >= 0 else ():
                with _started(world, "alone", str(tasks), str(searches)) as (_, line):
                    measured[f"alone {tasks}"] = json.loads(line)
            for name, figures in measured.items() if turn >= 0 else ():
                found.setdefault(name, []).append(figures)
    return list(_rows(found))


def _rows(found: dict[str, list[dict[str, Any]]]) -> Iterator[Row]:
    def middle(name: str, figure: str) -> float:
        return median([each[figure] for each in found[name]])

    bare = middle("plain 1", "processor")
    peer = "a plain search through FastAPI"
    for what, name, most in (("in process", "alone 1", ALONE), ("served", "served 1", SERVED)):
        busy = middle(name, "processor")
        told = f"processor time of a fair search, {what}"
        yield Row("speed", told, busy, "ms", peer, bare, f"≤ {most:g}×", busy <= most * bare)
    rate, peers = (middle(f"{name} {CLIENTS}", "per_second") for name in ("served", "alone"))
    told, peer = f"results a second, {CLIENTS} clients", f"{CLIENTS} tasks in process"
    yield Row("speed", told, rate, "", peer, peers, f"≥ {RATE:g}×", rate >= RATE * peers)
    pair = middle(f"by two {CLIENTS}", "per_second")
    told = f"results a second by two workers, {CLIENTS} clients"
    yield Row("speed", told, pair, "", "one worker", rate, f"≥ {PAIR:g}×", pair >= PAIR * rate)
    times = [each for turn in found[f"served {CLIENTS}"] for each in turn["times"]]
    tail, half = p95(times), median(times)
    told = f"p95, {CLIENTS} clients"
    yield Row("speed", told, tail, "ms", "p50", half, f"≤ {TAIL:g}×", tail <= TAIL * half)


@contextlib.contextmanager
def _started(world: World, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run this module, and yield its process and the first line that it prints."""
    command = [sys.executable, "-m", "benchmarks.load.speed", *arguments]
    process = subprocess.Popen(
        command, cwd=ROOT, env=world.environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


def main(what: str, *numbers: str) -> None:
    """Serve the peer, or search in process and print what it took."""
    if what == "plain":
        asyncio.run(plain())
    else:
        print(json.dumps(asyncio.run(alone(*map(int, numbers)))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
