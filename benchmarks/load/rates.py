"""Requests per second, and how long they take, beside the time that model and index take."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from benchmarks.load.attempts import RESULT
from benchmarks.load.clients import Crowd
from benchmarks.load.servers import ROOT, Worker
from benchmarks.load.watching import busy_seconds
from benchmarks.load.world import EMBEDDED, REMOTE, World
from benchmarks.measuring import median, p95

CLIENTS = (1, 8, 32)
PAIRS = (
    (EMBEDDED, "SQLite"),
    (EMBEDDED, "PostgreSQL"),
    (REMOTE, "PostgreSQL"),
)


@dataclass(frozen=True, slots=True)
class Rate:
    """What so many clients, each with one request at a time, were served.

    Attributes:
        index: ``embedded`` or ``remote``, which is Elasticsearch.
        database: Of the runs.
        clients: How many.
        requests: How many were answered with a result.
        failed: How many were not.
        per_second: Results per second.
        p50, p95: Of a request, in ms.
        parts_p50, parts_p95: Of the time in which a question to the model or to the index is under
            way, in ms: the same searches in one process, one after the other, without the service.
        alone_p50, alone_p95: Of these whole searches, in ms.
        processor: The worker's processor time for a result, in ms.
        alone_processor: The processor time of a search in that process, in ms.
    """

    index: str
    database: str
    clients: int
    requests: int
    failed: int
    per_second: float
    p50: float
    p95: float
    parts_p50: float
    parts_p95: float
    alone_p50: float
    alone_p95: float
    processor: float
    alone_processor: float

    @property
    def ratio(self) -> float:
        """The 95th percentile by that of the time of model and index."""
        return self.p95 / self.parts_p95

    def as_json(self) -> dict[str, Any]:
        """Return it as an object for JSON."""
        return {**asdict(self), "ratio": self.ratio}


def rates(world: World, *, requests: int, delay: float, remote: bool = True) -> Iterator[Rate]:
    """Measure.

    Args:
        world: With its model server running.
        requests: Of one client, and in the process; several clients make twice as many.
        delay: Of the model, in seconds.
        remote: Whether to measure Elasticsearch and PostgreSQL too.
    """
    world.model.steer(delay=delay, failures={})
    for index, database in PAIRS if remote else PAIRS[:1]:
        with _ready(world, index, database) as worker:
            alone = _alone(world, index, requests)
            for clients in CLIENTS:
                count = requests if clients == 1 else max(2 * requests, 3 * clients)
                crowd, seconds, busy = asyncio.run(_ask(world, worker, index, clients, count))
                taken = [a.seconds * 1000 for a in crowd.attempts if a.told == RESULT]
                yield Rate(
                    index,
                    database,
                    clients,
                    len(taken),
                    len(crowd.attempts) - len(taken),
                    len(taken) / seconds,
                    median(taken),
                    p95(taken),
                    *(part(alone[what]) for what in ("parts", "whole") for part in (median, p95)),
                    busy * 1000 / len(taken),
                    fmean(alone["processor"]),
                )


@contextmanager
def _ready(world: World, index: str, database: str) -> Iterator[Worker]:
    """Yield a worker on such an index and such a database."""
    if index == REMOTE:
        _ = world.elasticsearch
    url = f"sqlite:///{world.new_file()}" if database == "SQLite" else world.new_database()
    with world.workers(url, corpus=index, concurrency=max(CLIENTS)) as (worker,):
        yield worker


async def _ask(
    world: World, worker: Worker, index: str, clients: int, count: int
) -> tuple[Crowd, float, float]:
    warm = Crowd([worker.url], world.queries, world.request(index), {"search": 1})
    async with warm.asking(clients):
        await warm.more(2 * clients, 60)
    crowd = Crowd([worker.url], world.queries, world.request(index), {"search": 1})
    start, busy = time.perf_counter(), busy_seconds(worker.pid)
    async with crowd.asking(clients):
        await crowd.more(count - clients + 1, 300)
    return crowd, time.perf_counter() - start, busy_seconds(worker.pid) - busy


def _alone(world: World, index: str, count: int) -> dict[str, list[float]]:
    command = [sys.executable, "-m", "benchmarks.load.in_process"]
    done = subprocess.run(
        [*command, index, world.model.url, str(count)],
        env=world.environment,
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    found: dict[str, list[float]] = json.loads(done.stdout)
    return found
