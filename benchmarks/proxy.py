"""What ``fairqr proxy`` adds to searches of an Elasticsearch: ``python -m benchmarks.proxy``.

A server of the tests gets their index of people. The rate that 32 clients reach is measured
for each kind of request; then all kinds take turns at a third of the direct rate. A passed reply is
the direct one, and a re-ranked one always the same list, or they count as wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median

import psutil

from benchmarks.load.clients import new_client
from benchmarks.measuring import keep, machine, row, table
from tests.integration.attached_people import TOPICS, people
from tests.integration.elasticsearch_server import running_server
from tests.integration.graph.service.proxy.proxied import proxied

CLIENTS, REQUESTS, SECONDS = 32, 10_000, 60
QUERIES = [{"match": {"bio": f"{one} {two}"}} for one in TOPICS for two in TOPICS]
PASSED = {"terminate_after": 10**6}  # which no search reaches
DIRECT, PASSES, FAIR = KINDS = ("direct", "passed", "re-ranked")


async def measured(
    urls: dict[str, str], processes: list[psutil.Process], folder: Path | None
) -> None:
    """Measure, and print the table; keep it in the folder, if there is one."""
    known, times = dict[tuple[bool, int], list[str]](), defaultdict[str, list[float]](list)
    http, outcomes, wrong = new_client(), Counter[str](), list[int]()

    async def ask(kind: str, number: int) -> None:
        body, start = {"query": QUERIES[number]}, time.perf_counter()
        body |= {} if kind == FAIR else PASSED
        reply = await http.post(f"{urls[kind]}/people/_search", json=body)
        times[kind].append((time.perf_counter() - start) * 1000)
        told, hits = reply.headers.get("fairqr", DIRECT), [*map(str, reply.json()["hits"]["hits"])]
        outcomes[told] += 1
        if known.setdefault((told.startswith(FAIR), number), hits) != hits:
            wrong.append(number)

    async def load(count: int, rate: float, *kinds: str) -> float:
        """Ask so often, by 32 clients at most; return how many a second it were."""
        free, start = asyncio.Semaphore(CLIENTS), time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for number, kind in zip(range(count), itertools.cycle(kinds), strict=False):
                await free.acquire()
                one = tasks.create_task(ask(kind, number // len(kinds) % len(QUERIES)))
                one.add_done_callback(lambda _: free.release())
                await asyncio.sleep(max(0, start + number / rate - time.perf_counter()))
        return count / (time.perf_counter() - start)

    rates = [[await load(3_000, 10**6, kind) for kind in KINDS] for _ in range(2)][1]
    memory = [sum(it.memory_info().rss for it in processes) / 2**20]
    await load(REQUESTS, 10**6, FAIR)
    memory.append(sum(it.memory_info().rss for it in processes) / 2**20)
    times.clear()
    await load(int(SECONDS * rates[0] / 3), rates[0] / 3, *KINDS)
    direct, *added = (median(times[kind]) for kind in KINDS)
    rows = [
        row("added to p50, passed", added[0] - direct, "ms", DIRECT, direct, "≤ 5 ms"),
        row("added to p50, re-ranked", added[1] - direct, "ms", DIRECT, direct, "≤ 20 ms"),
        row(f"passed a second, {CLIENTS} clients", rates[1], "", DIRECT, rates[0]),
        row(f"re-ranked a second, {CLIENTS} clients", rates[2], "", DIRECT, rates[0]),
        row(f"memory after {REQUESTS:,} more", memory[1], "MB", "before", memory[0], "≤ 1.1×"),
        row("wrong replies", len(wrong), "", target="≤ 0"),
    ]
    print(machine(), table(rows), outcomes, sep="\n")
    if folder:
        keep(folder, rows, "what")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, help="a folder that keeps the figures")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as place,
        running_server() as server,
        people(url := server.url, "people"),
        proxied(Path(place), url, within=0.1) as proxy,
    ):
        processes = [psutil.Process(it) for it in (proxy.process.pid, proxy.ready())]
        urls = {DIRECT: url, PASSES: proxy.url, FAIR: proxy.url}
        asyncio.run(measured(urls, processes, given.output))
