"""What the service adds to a fair search over words, beside peers that are measured in turns.

``python -m benchmarks.load.speed baseline PORT`` serves the peer: a small FastAPI application that
only searches the same index. ``… alone TASKS COUNT`` searches in process, and prints what that
took. :func:`speed` starts both; wrk makes the load.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import httpx
import uvicorn
from fastapi import Body, FastAPI

from benchmarks.load.clients import RESULT, Crowd, new_client
from benchmarks.load.servers import ROOT, Process, Worker
from benchmarks.load.world import EMBEDDED, World
from benchmarks.measuring import in_turns, row, taken_by
from fairqr import FairSearch
from fairqr.base.weights import pull
from fairqr.evaluation.collections.finding import find_collection
from fairqr.retrieval.encoders.minilm import MiniLmEncoder
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.sources.catalog import Catalog

CORPUS = "notables"
SHOWN = 20
LISTED = 200
"""How many documents a search shows, and a list to re-rank has."""

OPTIONS: dict[str, Any] = {"attributes": ["gender"], "ask": "never", "k": SHOWN}
CLIENTS = 8
WARM_UP = 40
"""How many searches are not timed."""

SECONDS = 10
"""How long wrk makes load each time."""

MODEL_DELAY = 0.05
TURNS = 3
SCRIPT = Path(__file__).with_name("wrk.lua")
MODULE = (sys.executable, "-m", "benchmarks.load.speed")


def titles(count: int) -> list[str]:
    """Return queries: the titles of topics, again and again."""
    topics = find_collection(CORPUS).topics
    return [topics[number % len(topics)].title for number in range(count)]


def baseline(port: int) -> None:
    """Serve baseline searches."""
    engine = asyncio.run(Catalog().resolve(CORPUS, retriever="bm25"))
    app = FastAPI()

    @app.post("/v1/search")
    async def search(query: Annotated[str, Body(embed=True)]) -> list[dict[str, object]]:
        (hits,) = await engine.search([Query(query, SHOWN)])
        documents = await engine.documents(hits.ids)
        results = []
        for document, score in zip(documents, hits.scores, strict=True):
            fields = {"id": document.id, "title": document.title, "text": document.text}
            results.append({**fields, "score": score})
        return results

    # As uvicorn alone serves: what is faster in this environment belongs to other packages.
    uvicorn.run(app, port=port, log_level="warning", http="h11")


async def alone(tasks: int, count: int) -> dict[str, float]:
    """Search in this process.

    Args:
        tasks: How many tasks search at the same time.
        count: How many searches to do.

    Returns:
        Milliseconds of the processor for a search, and searches per second.
    """
    engine = await Catalog().resolve(CORPUS, retriever="bm25")
    search = FairSearch(engine, None)

    async def search_all(queries: Iterator[str]) -> None:
        for query in queries:
            await search.search(query, **OPTIONS)

    async def search_together(number: int) -> None:
        # The tasks share the queries.
        queries = iter(titles(number))
        await asyncio.gather(*(search_all(queries) for _ in range(tasks)))

    await search_together(WARM_UP)
    start = time.perf_counter()
    busy_start = time.process_time()
    await search_together(count)
    seconds = time.perf_counter() - start
    busy = time.process_time() - busy_start
    return {"processor": busy * 1000 / count, "per_second": count / seconds}


def make_load(process: Process, clients: int, seconds: int, body: Any) -> dict[str, float]:
    """Let wrk ask a server, and return the figures of :func:`alone`, with p50 and p95.

    Args:
        process: The server.
        clients: How many clients ask at the same time.
        seconds: For how long.
        body: The fields of each request, besides the query.

    Raises:
        AssertionError: A request failed.
    """
    bodies = process.output.with_suffix(".bodies")
    lines = [json.dumps({"query": title, **body}) for title in titles(60)]
    bodies.write_text("\n".join(lines))
    path = "rerank" if "documents" in body else "search"
    url = f"{process.url}/v1/{path}"
    command = ["wrk", "-t1", f"-c{clients}", f"-d{seconds}s", "--timeout=60s", "-s", SCRIPT, url]
    environment = {**os.environ, "BODIES": str(bodies)}

    busy_start = taken_by(process.child.pid)["busy"]
    run = subprocess.run(command, env=environment, check=True, capture_output=True)
    busy = taken_by(process.child.pid)["busy"] - busy_start
    figures = json.loads(run.stderr)
    assert not figures["failed"], f"{url}: {figures}"
    count = figures["requests"]
    figures["processor"] = busy * 1000 / count
    figures["per_second"] = count / figures["seconds"]
    return figures  # type: ignore[no-any-return]


def list_to_rerank(text: str, score: float | None = None) -> dict[str, Any]:
    """Return a request to re-rank a list, whose texts differ by a number."""
    groups = ("male", "male", "male", "male", "female") * (LISTED // 5)
    documents = []
    for number, group in enumerate(groups):
        documents.append({"gender": group, "text": f"{number} {text}", "score": score})
    return {
        "model": f"{CORPUS}?attributes=gender",
        "query": "physicist",
        "documents": documents,
    }


async def speed(world: World, searches: int) -> dict[str, Any]:
    """Measure in three turns.

    Args:
        world: With its model server running.
        searches: How many searches in process each turn has.

    Returns:
        The ``rows`` of a table, and no ``violations``.
    """
    # The first search makes the index.
    world.command("search", "physicist", "--corpus", CORPUS, "--method", "baseline")
    peer = Process(world.folder / "baseline.txt", world.environment)
    peer.run(*MODULE, "baseline", str(peer.port), ready="/docs")
    two_workers: Any = {"arguments": ("--workers", "2"), "work": False}
    with (
        world.workers(f"sqlite:///{world.new_file()}", corpus=CORPUS) as (worker,),
        world.workers(f"sqlite:///{world.new_file()}", corpus=CORPUS, **two_workers) as (pair,),
    ):
        servers = {"baseline": peer, "served": worker, "by two": pair, "list": worker}
        measured = _measure_in_turns(world, servers, searches)
        os.environ["FAIRQR_CACHE_DIR"] = worker.environment["FAIRQR_CACHE_DIR"]
        ours, theirs = await _rerank_new_texts(world, worker)
    peer.kill()

    def middle(name: str, figure: str) -> float:
        return median([figures[figure] for figures in measured[name]])

    at_once = f"{CLIENTS} clients"
    baseline_name = "a baseline search through FastAPI"
    baseline_ms = middle("baseline 1", "processor")
    rate = middle(f"served {CLIENTS}", "per_second")
    rows = [
        row(
            "processor time of a fair search, in process",
            middle("alone 1", "processor"),
            "ms",
            baseline_name,
            baseline_ms,
            "≤ 6.5×",
        ),
        row(
            "processor time of a fair search, served",
            middle("served 1", "processor"),
            "ms",
            baseline_name,
            baseline_ms,
            "≤ 8×",
        ),
        row(
            f"searches a second, {at_once}",
            rate,
            "",
            "in process",
            middle(f"alone {CLIENTS}", "per_second"),
            "≥ 0.75×",
        ),
        row(
            f"by two workers, {at_once}",
            middle(f"by two {CLIENTS}", "per_second"),
            "",
            "one worker",
            rate,
            "≥ 1.5×",
        ),
        row(
            f"p95, {at_once}",
            middle(f"served {CLIENTS}", "p95"),
            "ms",
            "p50",
            middle(f"served {CLIENTS}", "p50"),
            "≤ 2.5×",
        ),
        row(
            f"re-ranking {LISTED}",
            middle("list 1", "processor"),
            "ms",
            baseline_name,
            baseline_ms,
            "≤ 5×",
        ),
        row("the same by new texts", ours, "ms", "encoding them", theirs, "≤ 1.2×"),
    ]
    return {"rows": rows, "violations": []}


def _measure_in_turns(
    world: World, servers: Mapping[str, Process], searches: int
) -> dict[str, list[dict[str, float]]]:
    """Return the figures of each server, and of searches in process, by one client and by several.

    The keys are the name and the number of clients, such as ``served 8``.
    """
    search = {"corpus": CORPUS, "retriever": "bm25", **OPTIONS}
    bodies = {
        "baseline": {},
        "served": search,
        "by two": search,
        "list": list_to_rerank("", 1.0),
    }
    measured: dict[str, list[dict[str, float]]] = defaultdict(list)
    for clients in (1, CLIENTS):
        for name, process in servers.items():
            make_load(process, clients, 1, bodies[name])
    for _ in range(TURNS):
        for clients in (1, CLIENTS):
            for name, process in servers.items():
                figures = make_load(process, clients, SECONDS, bodies[name])
                measured[f"{name} {clients}"].append(figures)
            command = [*MODULE, "alone", str(clients), str(searches)]
            output = subprocess.check_output(command, cwd=ROOT, env=world.environment)
            measured[f"alone {clients}"].append(json.loads(output))
    return measured


async def _rerank_new_texts(world: World, worker: Worker) -> tuple[float, float]:
    """Return the processor's milliseconds to re-rank new texts, and to encode them alone."""
    pull(MiniLmEncoder.name)
    encoder = MiniLmEncoder()
    words = " ".join(world.queries[:15])
    # The first turn loads the encoder.
    for turn in "ab":
        request = list_to_rerank(f"{turn} {words}")
        busy_start = taken_by(worker.child.pid)["busy"]
        answer = httpx.post(f"{worker.url}/v1/rerank", json=request, timeout=60)
        answer.raise_for_status()
        ours = (taken_by(worker.child.pid)["busy"] - busy_start) * 1000

        texts = [document["text"] for document in list_to_rerank(words)["documents"]]
        start = time.process_time()
        await encoder.encode_documents(texts)
        theirs = (time.process_time() - start) * 1000
    return ours, theirs


async def durable(world: World, searches: int) -> dict[str, Any]:
    """Measure a search that is kept beside one that is not, on two workers and PostgreSQL.

    Args:
        world: With its model server running, which then takes 50 ms.
        searches: The number of searches of each kind.

    Returns:
        The ``rows`` of a table, and the ``violations`` of promises.
    """
    world.model.steer(delay=MODEL_DELAY, failures={})
    with world.workers(world.new_database(), number=2) as workers:
        async with new_client() as http:
            urls = [worker.url for worker in workers]
            crowd = Crowd(urls[:1], world.queries, world.request(EMBEDDED), {})
            calls = {way: partial(crowd.ask, http, way) for way in ("search", "keep")}
            times = await in_turns(searches, **calls)
    failed = sum(attempt.outcome != RESULT for attempt in crowd.attempts)
    violations = [f"{failed} searches failed"] if failed else []
    ours = median(times["keep"])
    theirs = median(times["search"])
    rows = [row("durable search", ours, "ms", "ephemeral", theirs, "≤ 1.4×")]
    return {"rows": rows, "violations": violations}


if __name__ == "__main__":
    if sys.argv[1] == "baseline":
        baseline(int(sys.argv[2]))
    else:
        print(json.dumps(asyncio.run(alone(*map(int, sys.argv[2:])))), flush=True)
