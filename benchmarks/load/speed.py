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
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import httpx
import uvicorn
from fastapi import Body, FastAPI

from benchmarks.load.clients import RESULT, Crowd, new_client
from benchmarks.load.servers import ROOT, Process
from benchmarks.load.world import EMBEDDED, World
from benchmarks.measuring import in_turns, row, taken_by
from fairqr import FairSearch
from fairqr.base.weights import pull
from fairqr.evaluation.collections.finding import find_collection
from fairqr.retrieval.encoders.minilm import MiniLmEncoder
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.sources.catalog import Catalog

CORPUS = "notables"
SHOWN, LISTED = 20, 200
ASKED: dict[str, Any] = {"attributes": ["gender"], "ask": "never", "k": SHOWN}
CLIENTS = 8
WARM_UP, SECONDS = 40, 10
MODEL_DELAY = 0.05
SCRIPT = Path(__file__).with_name("wrk.lua")
MODULE = (sys.executable, "-m", "benchmarks.load.speed")


def titles(count: int) -> list[str]:
    """Return so many queries."""
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
        return [
            {"id": one.id, "title": one.title, "text": one.text, "score": score}
            for one, score in zip(documents, hits.scores, strict=True)
        ]

    # As uvicorn alone serves. What is faster in this environment belongs to other packages.
    uvicorn.run(app, port=port, log_level="warning", http="h11")


async def alone(tasks: int, count: int) -> dict[str, float]:
    """Search in this process by so many tasks; return milliseconds of the processor, and a rate."""
    engine = await Catalog().resolve(CORPUS, retriever="bm25")
    search = FairSearch(engine, None)

    async def together(number: int) -> None:
        left = iter(titles(number))

        async def work() -> None:
            for query in left:
                await search.search(query, **ASKED)

        await asyncio.gather(*(work() for _ in range(tasks)))

    await together(WARM_UP)
    start, busy = time.perf_counter(), time.process_time()
    await together(count)
    taken, busy = time.perf_counter() - start, time.process_time() - busy
    return {"processor": busy * 1000 / count, "per_second": count / taken}


def served(process: Process, clients: int, seconds: int, more: Any) -> dict[str, float]:
    """Let wrk ask a server by so many clients; return the same of it, and p50 and p95.

    Raises:
        AssertionError: A request failed.
    """
    bodies = process.output.with_suffix(".bodies")
    bodies.write_text("\n".join(json.dumps({"query": it, **more}) for it in titles(60)))
    url = f"{process.url}/v1/{'rerank' if 'documents' in more else 'search'}"
    command = ["wrk", "-t1", f"-c{clients}", f"-d{seconds}s", "--timeout=60s", "-s", SCRIPT, url]
    busy, environment = taken_by(process.child.pid)["busy"], {**os.environ, "BODIES": str(bodies)}
    run = subprocess.run(command, env=environment, check=True, capture_output=True)
    told, busy = json.loads(run.stderr), taken_by(process.child.pid)["busy"] - busy
    assert not told["failed"], f"{url}: {told}"
    count, taken = told["requests"], told["seconds"]
    return {**told, "processor": busy * 1000 / count, "per_second": count / taken}


def listed(text: str, score: float | None = None) -> dict[str, Any]:
    """Return a list to re-rank."""
    groups = ("male", "male", "male", "male", "female") * (LISTED // 5)
    texts = [{"gender": it, "text": f"{n} {text}", "score": score} for n, it in enumerate(groups)]
    return {"model": f"{CORPUS}?attributes=gender", "query": "physicist", "documents": texts}


async def speed(world: World, searches: int) -> dict[str, Any]:
    """Measure in three turns, in process with so many searches in each; return ``rows``."""
    world.command(
        "search", "physicist", "--corpus", CORPUS, "--method", "baseline"
    )  # makes its index
    more = {"corpus": CORPUS, "retriever": "bm25", **ASKED}
    peer = Process(world.folder / "baseline.txt", world.environment)
    peer.run(*MODULE, "baseline", str(peer.port), ready="/docs")
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    two: Any = {"arguments": ("--workers", "2"), "work": False}
    with (
        world.workers(f"sqlite:///{world.new_file()}", corpus=CORPUS) as (worker,),
        world.workers(f"sqlite:///{world.new_file()}", corpus=CORPUS, **two) as (pair,),
    ):
        servers = {"baseline": (peer, {}), "served": (worker, more), "by two": (pair, more)}
        servers["list"] = (worker, listed("", 1.0))
        for turn in range(-1, 3):
            for clients in (1, CLIENTS):
                for name, (process, body) in servers.items():
                    took = served(process, clients, SECONDS if turn >= 0 else 1, body)
                    found[f"{name} {clients}"] += [took] if turn >= 0 else []
                if turn >= 0:
                    command = [*MODULE, "alone", str(clients), str(searches)]
                    told = subprocess.check_output(command, cwd=ROOT, env=world.environment)
                    found[f"alone {clients}"].append(json.loads(told))
        os.environ["FAIRQR_CACHE_DIR"] = worker.environment["FAIRQR_CACHE_DIR"]
        pull(MiniLmEncoder.name)
        words, encode = " ".join(world.queries[:15]), MiniLmEncoder().encode_documents
        for turn in "ab":  # the first one loads the encoder
            busy, body = taken_by(worker.child.pid)["busy"], listed(f"{turn} {words}")
            httpx.post(f"{worker.url}/v1/rerank", json=body, timeout=60).raise_for_status()
            ours = (taken_by(worker.child.pid)["busy"] - busy) * 1000
            start = time.process_time()
            await encode([it["text"] for it in listed(words)["documents"]])
            theirs = (time.process_time() - start) * 1000
    peer.kill()

    def middle(name: str, figure: str) -> float:
        return median([each[figure] for each in found[name]])

    bare, peers = middle("baseline 1", "processor"), "a baseline search through FastAPI"
    what, at_once = "processor time of a fair search,", f"{CLIENTS} clients"
    rate, in_process = (middle(f"{it} {CLIENTS}", "per_second") for it in ("served", "alone"))
    by_two = middle(f"by two {CLIENTS}", "per_second")
    tail, half = (middle(f"served {CLIENTS}", it) for it in ("p95", "p50"))
    rows = [
        row(f"{what} in process", middle("alone 1", "processor"), "ms", peers, bare, "≤ 6.5×"),
        row(f"{what} served", middle("served 1", "processor"), "ms", peers, bare, "≤ 8×"),
        row(f"searches a second, {at_once}", rate, "", "in process", in_process, "≥ 0.75×"),
        row(f"by two workers, {at_once}", by_two, "", "one worker", rate, "≥ 1.5×"),
        row(f"p95, {at_once}", tail, "ms", "p50", half, "≤ 2.5×"),
        row(f"re-ranking {LISTED}", middle("list 1", "processor"), "ms", peers, bare, "≤ 5×"),
        row("the same by new texts", ours, "ms", "encoding them", theirs, "≤ 1.2×"),
    ]
    return {"rows": rows, "violations": []}


async def durable(world: World, searches: int) -> dict[str, Any]:
    """Measure a search that is kept beside one that is not, on two workers and PostgreSQL.

    Args:
        world: With its model server running, which then takes 50 ms.
        searches: The number of each kind.

    Returns:
        The ``rows`` of a table, and the ``violations`` of promises.
    """
    world.model.steer(delay=MODEL_DELAY, failures={})
    with world.workers(world.new_database(), number=2) as workers:
        async with new_client() as http:
            urls = [worker.url for worker in workers]
            crowd = Crowd(urls[:1], world.queries, world.request(EMBEDDED), {})
            ways = {way: partial(crowd.ask, http, way) for way in ("search", "keep")}
            taken = await in_turns(searches, **ways)
    failed = sum(attempt.told != RESULT for attempt in crowd.attempts)
    theirs = median(taken["search"])
    rows = [row("durable search", median(taken["keep"]), "ms", "ephemeral", theirs, "≤ 1.4×")]
    return {"rows": rows, "violations": [f"{failed} searches failed"] if failed else []}


if __name__ == "__main__":
    if sys.argv[1] == "baseline":
        baseline(int(sys.argv[2]))
    else:
        print(json.dumps(asyncio.run(alone(*map(int, sys.argv[2:])))), flush=True)
