"""The processor time of a fair search through the service, beside that of a plain search.

``python -m benchmarks.processor [--rounds N]`` starts ``fairqr serve`` over notables, and an
application of FastAPI that only searches the same index and returns the same number of documents.
One client asks both in turn for the titles of notables, without a model. What is printed is the
time on processors that each process took for a request. The index must have vectors:
``fairqr search physicist --retriever hybrid`` makes them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
from fastapi import FastAPI
from pydantic import BaseModel

from benchmarks.load.watching import busy_seconds
from benchmarks.loopback import serve
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

    await serve(app)


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


def main(rounds: int) -> None:
    """Measure, and print the figures."""
    titles = [topic.title for topic in find_collection("notables").topics]
    fairqr = (str(Path(sys.executable).with_name("fairqr")), "serve", "--corpus", "notables")
    ways = {"plain": {}, **{name: {"retriever": name} for name in MOST}}
    taken = dict.fromkeys(ways, 0.0)
    with (
        started(*fairqr, "--port", "0") as fair,
        started(sys.executable, "-m", "benchmarks.processor", "--plain") as bare,
        httpx.Client(timeout=60) as client,
    ):
        for number in range(-1, rounds):
            for name, more in ways.items():
                process, address = bare if name == "plain" else fair
                own = {} if name == "plain" else {"attributes": ["gender"], "ask": "never"}
                begun = busy_seconds(process)
                for title in titles:
                    body = {"query": title, "k": SHOWN, **own, **more}
                    client.post(f"{address}/v1/search", json=body).raise_for_status()
                if number >= 0:  # the first round only warms up
                    busy = busy_seconds(process) - begun
                    taken[name] += 1000 * busy / len(titles) / rounds
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
