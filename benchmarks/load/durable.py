"""How much longer a durable search takes, and how soon another worker tells an event."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from functools import partial
from typing import Any

import httpx
import numpy as np
import psycopg

from benchmarks.load.clients import RESULT, Crowd, events_of, new_client
from benchmarks.load.world import EMBEDDED, World
from benchmarks.measuring import in_turns, median, row

SETTLED_SECONDS = 11.0
"""PostgreSQL's sessions report what they did after at most 10 s."""
CAUGHT_UP = 0.03
"""Seconds in which a new follower is told what had happened before."""
COUNTED = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s"


async def durable(world: World, searches: int, delay: float) -> dict[str, Any]:
    """Measure on two workers that share a PostgreSQL.

    Args:
        world: With its model server running.
        searches: The number of each kind, and of the runs that are followed.
        delay: Seconds that the model takes.

    Returns:
        The ``rows`` of a table, and the ``violations`` of promises.
    """
    world.model.steer(delay=delay, failures={})
    database = world.new_database()
    with world.workers(database, number=2) as workers:
        async with new_client() as http:
            urls = [worker.url for worker in workers]
            crowd = Crowd(urls[:1], world.queries, world.request(EMBEDDED), {"search": 1})
            ways = {way: partial(_ask, crowd, http, way) for way in ("search", "keep")}
            taken = await in_turns(searches, **ways)
            counts = [await _transactions(world, database) for _ in range(2)]
            for _ in range(searches):
                await crowd.ask(http, "keep")
            counts.append(await _transactions(world, database))
            idle, busy = np.diff(np.array(counts), axis=0)
            transactions = (busy[0] - idle[0] / idle[1] * busy[1]) / searches
            delays: list[float] = []
            for number in range(searches):
                query = f"{world.queries[number % len(world.queries)]} run{8_000_000 + number}"
                asked = {**world.request(EMBEDDED), "query": query}
                delays += await _delays(http, urls, asked)
    failed = sum(attempt.told != RESULT for attempt in crowd.attempts)
    peer, theirs = "ephemeral search", median(taken["search"])
    p95 = float(np.percentile(delays, 95))
    rows = [
        row("durable search", median(taken["keep"]), "ms", peer, theirs, "≤ 1.4×"),
        row("transactions of a durable search", transactions, ""),
        row("event on another worker, p95", p95, "ms", "p50", median(delays)),
    ]
    return {"rows": rows, "violations": [f"{failed} searches failed"] if failed else []}


def _ask(crowd: Crowd, http: httpx.AsyncClient, way: str, _: int) -> object:
    return crowd.ask(http, way)


async def _transactions(world: World, database: str) -> tuple[int, float]:
    """Return how many transactions a database has had, once all are counted, and when."""
    await asyncio.sleep(SETTLED_SECONDS)
    with psycopg.connect(f"{world.postgres.url}/postgres") as connection:
        found = connection.execute(COUNTED, [database.rpartition("/")[2]]).fetchone()
    assert found is not None
    return int(found[0]), time.perf_counter()


async def _delays(http: httpx.AsyncClient, urls: list[str], asked: Any) -> list[float]:
    """Follow a run on two workers, and return the milliseconds between the two, by event."""
    begun = await http.post(f"{urls[0]}/v1/runs", json={"kind": "search", "request": asked})
    path = begun.raise_for_status().headers["location"]

    async def follow(url: str) -> tuple[float, dict[int, float]]:
        async with http.stream("GET", f"{url}{path}/events") as answer:
            opened = time.perf_counter()
            async with aclosing(events_of(answer)) as events:
                return opened, {number: time.perf_counter() async for number, _, _ in events}

    (one_opened, one), (other_opened, other) = await asyncio.gather(*map(follow, urls))
    after = max(one_opened, other_opened) + CAUGHT_UP
    both = [(one[it], other[it]) for it in one.keys() & other.keys()]
    return [abs(mine - theirs) * 1000 for mine, theirs in both if min(mine, theirs) > after]
