"""The processor time of a fair search through the service, beside that of a plain search.

``python benchmarks/processor.py [--rounds N]`` starts ``fairqr serve`` over notables, and an
application of FastAPI that only searches the same index and returns the same number of documents.
One client asks both in turn for the titles of notables, without a model. What is printed is the
time on processors that each process took for a request. The index must have vectors:
``fairqr search physicist --retriever hybrid`` makes them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from fairqr.evaluation.collections.finding import find_collection
from fairqr.retrieval.catalog import Catalog
from fairqr.retrieval.engines.engine import Query

SHOWN = 20
MOST = {"bm25": 6, "hybrid": 8}
"""How many plain searches a fair search may cost, by retriever."""


class Asked(BaseModel):
    """The body of a plain search."""

    query: str
    k: int = SHOWN


async def plain() -> None:
    """Serve plain searches, and print the address."""
    engine, app = await Catalog().resolve("notables"), FastAPI()

    @app.post("/v1/search")
    async def search(asked: Asked) -> list[dict[str, object]]:
        (hits,) = await engine.search([Query(asked.query, asked.k)])
        documents = await engine.documents(hits.ids)
        return [
            {"id": one.id, "title": one.title, "text": one.text, "score": score}
            for one, score in zip(documents, hits.scores, strict=True)
        ]

    server = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", 0, log_level="warning"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.05)
    port = server.servers[0].sockets[0].getsockname()[1]
    print(f"http://127.0.0.1:{port}", flush=True)
    await serving


@contextlib.contextmanager
def started(*command: str) -> Iterator[tuple[int, str]]:
    """Start a server, and yield its process and its address, which it prints."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = next(line for line in process.stdout if "http://" in line)
        yield process.pid, line[line.index("http://") :].split()[0].rstrip(".,/")
    finally:
        process.terminate()
        process.wait()


def spent(process: int) -> float:
    """Return the milliseconds that a process has had on processors."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main(rounds: int) -> None:
    """Measure, and print the figures."""
    titles = [topic.title for topic in find_collection("notables").topics]
    serve = (str(Path(sys.executable).with_name("fairqr")), "serve", "--corpus", "notables")
    ways = {"plain": {}, **{name: {"retriever": name} for name in MOST}}
    taken = dict.fromkeys(ways, 0.0)
    with (
        started(*serve, "--port", "0") as fair,
        started(sys.executable, __file__, "--plain") as bare,
        httpx.Client(timeout=60) as client,
    ):
        for number in range(-1, rounds):
            for name, more in ways.items():
                process, address = bare if name == "plain" else fair
                own = {} if name == "plain" else {"attributes": ["gender"], "ask": "never"}
                begun = spent(process)
                for title in titles:
                    body = {"query": title, "k": SHOWN, **own, **more}
                    client.post(f"{address}/v1/search", json=body).raise_for_status()
                if number >= 0:  # the first round only warms up
                    taken[name] += (spent(process) - begun) / len(titles) / rounds
    for name, milliseconds in taken.items():
        ratio, most = milliseconds / taken["plain"], MOST.get(name)
        judged = f"≤ {most}× {'yes' if ratio <= most else 'NO'}" if most else ""
        print(f"{name:8} {milliseconds:6.2f} ms  {ratio:5.2f}×  {judged}")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.plain:
        asyncio.run(plain())
    else:
        main(given.rounds)
