"""Tasks that run in a process of their own, so that their peak of memory is theirs alone.

Each prints one JSON object: what the task returns, ``seconds``, the peaks ``megabytes`` and
``own_megabytes`` (see :class:`measuring.PeakMemory`), and ``start_megabytes``, of its own once it
was imported.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from measuring import PeakMemory

QUERIES = 20
TOP = 500


def main(task: str, *arguments: str) -> None:
    """Run a task and print what it took."""
    run, needs = TASKS[task]
    for name in needs:
        importlib.import_module(name)
    with PeakMemory() as start:
        pass
    began = time.perf_counter()
    with PeakMemory() as peak:
        more = run(*arguments)
    report = {
        **(more or {}),
        "seconds": time.perf_counter() - began,
        "megabytes": peak.megabytes,
        "own_megabytes": peak.own_megabytes,
        "start_megabytes": start.own_megabytes,
    }
    print(json.dumps(report))


def index(corpus: str, name: str) -> None:
    """Index a corpus from disk, by the real reader, under a name."""
    from fairqr.retrieval.sources.catalog import Catalog
    from fairqr.retrieval.sources.corpus import find_corpus

    asyncio.run(Catalog().create(name, find_corpus(Path(corpus))))


def search(name: str) -> None:
    """Search an index, as often as the other searchers do."""
    from generated import queries

    from fairqr.retrieval.engines.engine import Query
    from fairqr.retrieval.sources.catalog import Catalog

    async def work() -> None:
        engine = await Catalog().resolve(name)
        for query in queries(QUERIES):
            await engine.search([Query(query, TOP)])

    asyncio.run(work())


def bare_search(folder: str) -> None:
    """Search the peer's index."""
    from bare import BareIndex
    from generated import queries

    opened = BareIndex(Path(folder))
    for query in queries(QUERIES):
        opened.search(query, TOP)


def fair_search(name: str) -> None:
    """Search fairly, by the whole loop, refined by relevance feedback."""
    from generated import queries

    from fairqr import FairSearch

    with FairSearch.open(name, "feedback") as fair:
        for query in queries(QUERIES):
            fair.search(query)


def build_labels(path: str) -> None:
    """Build the labels of a file of ids and groups."""
    import labels

    labels.build_labels(path)


def read_labels(path: str, count: str) -> dict[str, float]:
    """Read labels that were built before."""
    import labels

    return labels.read_labels(path, count)


INDEXING = ("fairqr.retrieval.sources.catalog", "fairqr.retrieval.engines.tantivy.store")
TASKS: dict[str, tuple[Callable[..., dict[str, float] | None], tuple[str, ...]]] = {
    "index": (index, INDEXING),
    "search": (search, (*INDEXING, "generated")),
    "bare_search": (bare_search, ("bare", "generated")),
    "fair_search": (fair_search, (*INDEXING, "fairqr.api", "generated")),
    "build_labels": (build_labels, ("labels",)),
    "read_labels": (read_labels, ("labels",)),
}

if __name__ == "__main__":
    main(*sys.argv[1:])
