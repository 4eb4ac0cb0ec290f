"""How much longer a durable search takes, and how soon another worker tells an event."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any

import httpx

from benchmarks.load.attempts import RESULT, Attempt, events_of
from benchmarks.load.clients import Crowd, new_client
from benchmarks.load.world import EMBEDDED, World
from benchmarks.measuring import in_turns_async, median, p95

SETTLED_SECONDS = 11.0
"""PostgreSQL's sessions report what they did after at most 10 s."""

CAUGHT_UP = 0.03
"""Seconds in which a new follower is told what had happened before."""


@dataclass(frozen=True, slots=True)
class Durable:
    """What durable searches take beside ephemeral ones, asked for in turns by one client.

    Attributes:
        searches: The number of each kind, and of the runs that are followed.
        ephemeral, durable: Milliseconds until the result, in the median.
        transactions: The transactions of a durable search, as PostgreSQL counts them, without
            those of idle workers.
        events: The number of events of runs that are followed on two workers at once.
        delay_p50, delay_p95: Milliseconds from an event on one worker to the same on the other.
        failed: The number of searches without a result.
    """

    searches: int
    ephemeral: float
    durable: float
    transactions: float
    events: int
    delay_p50: float
    delay_p95: float
    failed: int

    @property
    def ratio(self) -> float:
        """The time of a durable search, divided by the time of an ephemeral one."""
        return self.durable / self.ephemeral

    def as_json(self) -> dict[str, Any]:
        """Return it as an object for JSON."""
        return {**asdict(self), "ratio": self.ratio}


async def durable(world: World, *, searches: int, delay: float) -> Durable:
    """Measure on two workers that share a PostgreSQL.

    Args:
        world: With its model server running.
        searches: The number of each kind, and of the runs that are followed.
        delay: Seconds that the model takes.
    """
    world.model.steer(delay=delay, failures={})
    database = world.new_database()
    with world.workers(database, number=2) as workers:
        async with new_client() as http:
            crowd = Crowd([workers[0].url], world.queries, world.request(EMBEDDED), {"search": 1})

            def asks(way: str) -> Callable[[int], Awaitable[Attempt]]:
                return lambda _: crowd.ask(http, way)

            ways = {way: asks(way) for way in ("search", "keep")}
            taken = await in_turns_async(ways, searches, warm_up=5)

            async def counted() -> tuple[int, float]:
                await asyncio.sleep(SETTLED_SECONDS)
                return world.transactions(database), time.perf_counter()

            counts = [await counted(), await counted()]
            for _ in range(searches):
                await crowd.ask(http, "keep")
            counts.append(await counted())
            urls = [worker.url for worker in workers]
            delays: list[float] = []
            for number in range(searches):
                query = f"{world.queries[number % len(world.queries)]} run{8_000_000 + number}"
                asked = {**world.request(EMBEDDED), "query": query}
                delays += await _delays(http, urls, asked)
    return Durable(
        searches=searches,
        ephemeral=median(taken["search"]),
        durable=median(taken["keep"]),
        transactions=_beyond_idle(counts) / searches,
        events=len(delays),
        delay_p50=median(delays),
        delay_p95=p95(delays),
        failed=sum(attempt.told != RESULT for attempt in crowd.attempts),
    )


def _beyond_idle(counts: Sequence[tuple[int, float]]) -> float:
    """Return what was counted in the second interval beyond the rate of the first."""
    (first, began), (second, idled), (third, ended) = counts
    return third - second - (second - first) / (idled - began) * (ended - idled)


async def _delays(http: httpx.AsyncClient, urls: Sequence[str], asked: Any) -> list[float]:
    """Follow a run on two workers, and return the milliseconds between the two, by event."""
    begun = await http.post(f"{urls[0]}/v1/runs", json={"kind": "search", "request": asked})
    path = begun.raise_for_status().headers["location"]

    async def follow(url: str) -> tuple[float, dict[int, float]]:
        async with http.stream("GET", f"{url}{path}/events") as answer:
            opened = time.perf_counter()
            async with aclosing(events_of(answer)) as events:
                return opened, {number: time.perf_counter() async for number, _, _ in events}

    (one_opened, one), (other_opened, other) = await asyncio.gather(*map(follow, urls))
    caught_up = max(one_opened, other_opened) + CAUGHT_UP
    return [
        abs(one[number] - other[number]) * 1000
        for number in one.keys() & other.keys()
        if min(one[number], other[number]) > caught_up
    ]
