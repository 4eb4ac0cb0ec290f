"""The processor time of a fair search through the service, beside that of a plain search.

``python -m benchmarks.processor [--rounds N]`` starts ``fairqr serve`` over notables, and an
application of FastAPI that only searches the same index and returns the same number of documents.
One client asks both in turn for the titles of notables, without a model. What is printed is the
time on processors that each process took for a request, beside that of the plain search by words.
A plain search by the hybrid shows what of it is retrieval alone. The index must have vectors:
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
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.sources.catalog import Catalog

SHOWN = 20
MOST = {"bm25": 6, "hybrid": 8}
"""How many plain searches a fair search may cost, by retriever."""


class Asked(BaseModel):
    """The body of a plain search."""

    query: str
    retriever: str = "bm25"


async def plain() -> None:
    """Serve plain searches, and print the address."""
    engines = {name: await Catalog().resolve("notables", retriever=name) for name in MOST}
    app = FastAPI()

    @app.post("/v1/search")
    async def search(asked: Asked) -> list[dict[str, object]]:
        engine = engines[asked.retriever]
        (hits,) = await engine.search([Query(asked.query, SHOWN)])
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
    command = str(Path(sys.executable).with_name("fairqr"))
    fairqr = ("env", "FAIRQR_SERVICE_LIMITS_RATE=1000000/minute", command, "serve")
    ways = {f"plain {name}": {"retriever": name} for name in MOST}
    ways |= {name: {"retriever": name, "attributes": ["gender"], "ask": "never"} for name in MOST}
    taken = dict.fromkeys(ways, 0.0)
    with (
        started(*fairqr, "--corpus", "notables", "--port", "0") as fair,
        started(sys.executable, "-m", "benchmarks.processor", "--plain") as bare,
        httpx.Client(timeout=60) as client,
    ):
        for number in range(-1, rounds):
            for name, more in ways.items():
                process, address = fair if name in MOST else bare
                begun = busy_seconds(process)
                for title in titles:
                    body = {"query": title, "k": SHOWN, **more}
                    client.post(f"{address}/v1/search", json=body).raise_for_status()
                if number >= 0:  # the first round only warms up
                    taken[name] += (busy_seconds(process) - begun) * 1000 / len(titles) / rounds
    for name, milliseconds in taken.items():
        ratio, most = milliseconds / taken["plain bm25"], MOST.get(name)
        judged = f"≤ {most}× {'yes' if ratio <= most else 'NO'}" if most else ""
        print(f"{name:12} {milliseconds:6.2f} ms  {ratio:5.2f}×  {judged}")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=4)
    arguments.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.plain:
        asyncio.run(plain())
    else:
        main(given.rounds)
