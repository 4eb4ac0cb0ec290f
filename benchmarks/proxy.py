"""What ``fairqr proxy`` adds to searches of an Elasticsearch: ``python -m benchmarks.proxy``.

A server of the tests gets their index of people, and one of offers with 2,000 sellers as groups.
Every query is asked once, so none profits from a list that is kept. One client takes turns between
the server and the proxy; then queries come at a rate, whatever becomes of those before; then 32
clients ask as fast as they are answered. A passed reply is the direct one, or it counts as wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx
import psutil

from benchmarks.load.clients import new_client
from benchmarks.measuring import in_turns, keep, machine, row, table
from tests.integration.graph.service.proxy.proxied import Proxied, proxied
from tests.integration.graph.service.proxy.test_isolation import OFFERS, SELLERS, beside
from tests.patience import until
from tests.servers.attached_people import TOPICS, people
from tests.servers.elasticsearch_server import running_server

CLIENTS = 32
TURNS = 300
SECONDS = 20
RATES = {50: "≥ 99", 100: "≥ 95"}
PASSED = {"terminate_after": 10**6}  # which no search reaches


class Asking:
    """Asks queries, each once.

    Args:
        server: The server's address.
        proxy: The proxy's.

    Attributes:
        outcomes: What became of searches, since this was emptied.
    """

    def __init__(self, server: str, proxy: str) -> None:
        self.outcomes: Counter[str] = Counter()
        self._server = server
        self._proxy = proxy
        self._http = new_client()
        self._queries = _queries()

    async def direct(self, _: int = 0) -> float:
        """Search at the server; return the milliseconds."""
        milliseconds, _ = await self._ask(self._server, self._query())
        return milliseconds

    async def passed(self, _: int = 0) -> float:
        """Search in a way that passes; return the milliseconds."""
        milliseconds, _ = await self._ask(self._proxy, self._query() | PASSED)
        return milliseconds

    async def wrong(self, count: int) -> int:
        """Return how many of so many replies that passed are not the server's."""
        found = 0
        for _ in range(count):
            body = self._query() | PASSED
            replies = [await self._ask(url, body) for url in (self._proxy, self._server)]
            one, other = (reply.json()["hits"] for _, reply in replies)
            found += one != other
        return found

    async def fair(self, _: int = 0) -> float:
        """Search in a way that is re-ranked; return the milliseconds."""
        milliseconds, reply = await self._ask(self._proxy, self._query())
        self.outcomes[reply.headers["fairqr"]] += 1
        return milliseconds

    async def at_rate(self, rate: float, seconds: float = SECONDS) -> float:
        """Search so often a second, whatever becomes of it; return the percentage re-ranked."""
        self.outcomes.clear()
        start = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for number in range(int(rate * seconds)):
                await asyncio.sleep(max(0, start + number / rate - time.perf_counter()))
                tasks.create_task(self.fair())
        return self.share()

    async def closed_loop(self, search: Any, seconds: float = SECONDS) -> list[float]:
        """Search by 32 clients, each as soon as it is answered; return the milliseconds."""
        self.outcomes.clear()
        until = time.perf_counter() + seconds
        times: list[float] = []

        async def client() -> None:
            while time.perf_counter() < until:
                times.append(await search())

        async with asyncio.TaskGroup() as tasks:
            for _ in range(CLIENTS):
                tasks.create_task(client())
        return times

    async def beside_many_groups(self, rate: float) -> float:
        """Search at a rate while an index of 2,000 groups is searched once a second."""

        async def offers() -> None:
            for one, two in itertools.product(TOPICS, TOPICS):
                body = {"query": {"match": {"title": f"{one} {two}"}}}
                await self._http.post(f"{self._proxy}/offers/_search", json=body)
                await asyncio.sleep(1)

        task = asyncio.create_task(offers())
        share = await self.at_rate(rate)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return share

    def share(self) -> float:
        """Return the share of the searches that was re-ranked, in percent."""
        fair = sum(
            count for outcome, count in self.outcomes.items() if outcome.startswith("re-ranked")
        )
        return 100 * fair / self.outcomes.total()

    async def _ask(self, url: str, body: Any) -> tuple[float, httpx.Response]:
        start = time.perf_counter()
        reply = await self._http.post(f"{url}/people/_search", json=body)
        return (time.perf_counter() - start) * 1000, reply

    def _query(self) -> dict[str, Any]:
        return {"query": {"match": {"bio": next(self._queries)}}}


def _queries() -> Iterator[str]:
    """Yield texts of up to six words, none twice."""
    draw = random.Random(7)
    seen = set[str]()
    while True:
        text = " ".join(draw.choices(TOPICS, k=draw.randint(4, 9)))
        if text not in seen:
            seen.add(text)
            yield text


def _p95(times: Sequence[float]) -> float:
    return quantiles(times, n=20)[-1]


def _seconds_of_processor(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(it.cpu_times()[:2]) for it in processes)


async def measured(asking: Asking, proxy: Proxied, folder: Path | None) -> None:
    """Measure, and print the table; keep it in the folder, if there is one."""
    processes = [psutil.Process(proxy.process.pid), *proxy.children()]
    await in_turns(50, direct=asking.direct, passed=asking.passed, fair=asking.fair)
    taken = await in_turns(TURNS, direct=asking.direct, passed=asking.passed, fair=asking.fair)
    p50 = {name: quantiles(times, n=2)[0] for name, times in taken.items()}
    memory = sum(it.memory_info().rss for it in processes) / 2**20

    before = _seconds_of_processor(processes)
    for _ in range(TURNS):
        await asking.fair()
    processor = 1000 * (_seconds_of_processor(processes) - before) / TURNS

    direct = p50["direct"]
    rows = [
        row("added to p50, passed", p50["passed"] - direct, "ms", "direct", direct, "≤ 4 ms"),
        row("added to p50, re-ranked", p50["fair"] - direct, "ms", "direct", direct, "≤ 15 ms"),
        row("processor time of a new query", processor, "ms", target="≤ 8 ms"),
    ]
    for rate, target in RATES.items():
        share = await asking.at_rate(rate)
        rows.append(row(f"re-ranked at {rate} a second", share, "%", target=target))
    alone = await asking.at_rate(50)
    beside = await asking.beside_many_groups(50)
    what = "lost beside an index of 2,000 groups"
    rows.append(row(what, alone - beside, "points", target="≤ 1"))
    own = await asking.closed_loop(asking.direct)
    fair = await asking.closed_loop(asking.fair)
    after = sum(it.memory_info().rss for it in processes) / 2**20
    rows += [
        row(f"re-ranked, {CLIENTS} clients", asking.share(), "%", target="≥ 60"),
        row(f"p95, {CLIENTS} clients", _p95(fair), "ms", "direct", _p95(own), "≤ 2×"),
        row(f"a second, {CLIENTS} clients", len(fair) / SECONDS, "", "direct", len(own) / SECONDS),
        row("memory after all", after, "MB", "before", memory, "≤ 1.1×"),
        row("wrong replies", await asking.wrong(TURNS), "", target="≤ 0"),
    ]
    print(machine(), table(rows), asking.outcomes, sep="\n")
    if folder:
        keep(folder, rows, "what")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, help="a folder that keeps the figures")
    given = parser.parse_args()
    draw = random.Random(3)
    offers = {
        str(number): {"title": " ".join(draw.choices(TOPICS, k=9)), "seller": seller}
        for number, seller in enumerate(SELLERS)
    }
    sellers = {"seller": {"field": "seller", "groups": SELLERS}}
    with (
        tempfile.TemporaryDirectory() as place,
        running_server() as server,
        people(url := server.url, "people") as cluster,
        cluster.index("offers", offers, OFFERS),
        proxied(
            Path(place),
            url,
            within=0.1,
            indexes=beside(Path(place), url, "offers", text=["title"], attributes=sellers),
        ) as proxy,
    ):
        offer = {"query": {"match": {"title": TOPICS[0]}}}
        until(lambda: proxy.outcome().startswith("re-ranked"))
        until(lambda: proxy.outcome(index="offers", body=offer).startswith("re-ranked"))
        asyncio.run(measured(Asking(url, proxy.url), proxy, given.output))
