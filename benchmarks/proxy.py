"""What `fairqr proxy` costs in front of a real Elasticsearch, beside direct requests.

`python -m benchmarks.proxy` prints, from one run: the rate that direct requests reach with 32
clients, and that of passed and re-ranked ones; the medians of all three at a third of the direct
rate, in turns; and 10,000 requests of 32 clients, each compared with the reply that is right, with
the memory of both processes before and after.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from benchmarks.measuring import machine, median, row, table, taken_by
from tests.integration.attached_people import TOPICS, people
from tests.integration.elasticsearch_server import running_server
from tests.integration.graph.service.proxy.proxied import Proxied, proxied

CLIENTS = 32
MEGABYTES = 30.0
"""More memory than that is no longer flat."""

QUERIES = [f"{a} {b}" for a, b in itertools.permutations(TOPICS, 2)]
KINDS = ("direct", "passed", "re-ranked")


class Sides:
    """The three ways to ask; each reply is checked.

    Attributes:
        wrong: How many replies were not the right ones.
        outcomes: What the proxy said.
    """

    def __init__(self, client: httpx.AsyncClient, direct: str, proxy: str) -> None:
        self._client, self._direct, self._proxy = client, direct, proxy
        self._right: dict[tuple[str, int], list[str]] = {}
        self.wrong, self.outcomes = 0, Counter[str]()

    async def ask(self, kind: str, number: int) -> float:
        """Search, and return how many milliseconds it took."""
        body: dict[str, Any] = {"query": {"match": {"bio": QUERIES[number % len(QUERIES)]}}}
        # What is passed and what is direct is the same search.
        body |= {} if kind == "re-ranked" else {"sort": ["_score", "number"]}
        base, begun = self._direct if kind == "direct" else self._proxy, time.perf_counter()
        reply = await self._client.post(f"{base}/people/_search", json=body)
        taken = (time.perf_counter() - begun) * 1000
        found = [hit["_id"] for hit in reply.json()["hits"]["hits"]]
        outcome = reply.headers.get("fairqr", kind)
        self.outcomes[outcome] += 1
        side = "re-ranked" if outcome.startswith("re-ranked") else "direct"
        key = (side + str("sort" in body), number % len(QUERIES))
        self.wrong += reply.status_code != 200 or found != self._right.setdefault(key, found)
        return taken

    async def rate(self, kind: str, count: int) -> float:
        """Return how many requests a second 32 clients get through."""
        numbers, begun = iter(range(count)), time.perf_counter()

        async def client() -> None:
            for number in numbers:
                await self.ask(kind, number)

        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        return count / (time.perf_counter() - begun)

    async def medians(self, rate: float, count: int) -> dict[str, float]:
        """Return the median of each kind at a rate of all requests together, in turns."""
        kinds = itertools.cycle(KINDS)
        asking: dict[str, list[asyncio.Task[float]]] = {kind: [] for kind in KINDS}
        for number in range(count):
            kind = next(kinds)
            asking[kind].append(asyncio.create_task(self.ask(kind, number // 3)))
            await asyncio.sleep(1 / rate)
        return {kind: median(await asyncio.gather(*its)) for kind, its in asking.items()}


async def measured(direct: str, proxy: Proxied, worker: int, count: int) -> list[dict[str, Any]]:
    """Return the rows of the table."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=CLIENTS * 4)
    async with httpx.AsyncClient(limits=limits, timeout=120, trust_env=False) as client:
        sides = Sides(client, direct, proxy.url.rstrip("/"))
        for kind in KINDS:
            await sides.rate(kind, len(QUERIES) * 2)
        rates = {kind: await sides.rate(kind, max(200, count // 10)) for kind in KINDS}
        medians = await sides.medians(rates["direct"] / 3, max(300, count // 10))
        processes = {"the proxy": proxy.process.pid, "its worker": worker}
        before = {name: taken_by(it)["own"] for name, it in processes.items()}
        sides.outcomes.clear()
        await sides.rate("re-ranked", count)
        grown = {name: taken_by(it)["own"] - before[name] for name, it in processes.items()}
    direct_ms, rows = medians["direct"], list[dict[str, Any]]()
    for kind, more in (("passed", 5), ("re-ranked", 20)):
        what = f"p50 of a {kind} request at a third of the direct rate"
        rows.append(
            row(what, medians[kind], "ms", "direct", direct_ms, f"≤ {direct_ms + more:.1f} ms")
        )
        rows.append(
            row(f"{kind} at {CLIENTS} clients", rates[kind], "/s", "direct", rates["direct"])
        )
    rows.append(row(f"lost or wrong of {count}", sides.wrong, "", target="≤ 0"))
    for name, more in grown.items():
        rows.append(
            row(f"memory of {name}, grown by", max(0.0, more), "MB", target=f"≤ {MEGABYTES} MB")
        )
    rows += [row(f"outcome: {it}", times, "") for it, times in sides.outcomes.items()]
    return rows


def main() -> None:
    """Start both servers, measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    count = parser.parse_args().requests
    with tempfile.TemporaryDirectory() as folder, running_server() as server:
        url = server.url
        with people(url, "people"), proxied(Path(folder), url, within=0.1) as proxy:
            rows = asyncio.run(measured(url, proxy, proxy.ready(), count))
    print(machine())
    print(table(rows))


if __name__ == "__main__":
    main()
