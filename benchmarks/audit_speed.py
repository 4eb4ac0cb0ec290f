"""How long an audit takes beside the searches that it is made of, and how much memory.

``python -m benchmarks.audit_speed`` audits the embedded index of notables with queries of two words
of one of its documents: without relevance, with judgements, and, once MiniLM is pulled, with
relevance estimated from texts. Baseline searches ask for as many documents, as many queries at a
time. Each measurement has a process of its own. Processor times leave out encoding what has no
vector yet, which is done first. With ``--elasticsearch``, a real server from the tests has the
documents, and its processor time counts, too; the first thousand queries are slower, until Java has
compiled what they need.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import os
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from benchmarks.measuring import keep, on_elasticsearch, table
from fairqr.agents.statistics import stream
from fairqr.api import open_engine
from fairqr.evaluation.audit.bundle import AuditFolder
from fairqr.evaluation.audit.preparing import AuditInputs, AuditOptions
from fairqr.evaluation.audit.queries import collect_queries
from fairqr.evaluation.audit.running import audit_engine
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.retrieval.encoders.encoder import KeptVectors, text_of
from fairqr.retrieval.encoders.opening import open_encoder
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.sources.corpus import BUILT_IN, find_corpus
from fairqr.retrieval.sources.query_files import QueryRow

AT_ONCE = 4
WAYS = ("searches", "unknown", "judged", "estimated")
CORPUS = find_corpus(BUILT_IN["notables"])


def busy_seconds(server: str) -> float:
    """Return the processor time of this process, and of an Elasticsearch if there is one."""
    if not server:
        return time.process_time()
    nodes = httpx.get(f"{server}/_nodes/_local/stats/process", trust_env=False).json()["nodes"]
    (node,) = nodes.values()
    return time.process_time() + float(node["process"]["cpu"]["total_in_millis"]) / 1000


async def measured(way: str, count: int, place: str, server: str) -> dict[str, Any]:
    """Return a row, with the processor time in seconds, and how many MB it takes."""
    documents, random, found = [*CORPUS.documents()], stream(1, "queries"), dict[str, str]()
    while len(found) < count:
        document = documents[int(random.integers(len(documents)))]
        words = [word for word in document.text.lower().split() if word.isalpha() and len(word) > 3]
        if len(words) > 1:
            found[" ".join(random.choice(words, 2))] = document.id
    queries = collect_queries([QueryRow(n, it, it) for n, it in enumerate(found, start=1)])
    engine, spec = await open_engine(place, retriever="bm25"), AuditSpec(attributes=("gender",))
    if way == "estimated":
        vectors = await KeptVectors.of(open_encoder("minilm"))
        await vectors.encode([*map(text_of, documents), *found])
    start = busy_seconds(server)
    if way == "searches":
        left = iter(found)

        async def worker() -> None:
            for query in left:
                await engine.search([Query(query, spec.depth)])

        await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    else:
        with tempfile.TemporaryDirectory() as folder:
            if way == "unknown":  # as without MiniLM
                os.environ["FAIRQR_CACHE_DIR"] = folder
            qrels = {text: {id_: 1} for text, id_ in found.items()} if way == "judged" else None
            inputs = AuditInputs(spec, queries, qrels=qrels)
            out = AuditFolder(Path(folder) / "out")
            await audit_engine(engine, inputs, out, AuditOptions(AT_ONCE))
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    busy = round(busy_seconds(server) - start, 1)
    return {"queries": count, "way": way, "processor": busy, "MB": megabytes}


def alone(*arguments: Any) -> dict[str, Any]:
    """Measure in this process, which is given nothing else to do."""
    return asyncio.run(measured(*arguments))


def main() -> None:
    """Print a row for each way and number of queries."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--elasticsearch", action="store_true", help="Audit a real server.")
    parser.add_argument("-o", "--output", type=Path, help="A folder that keeps the figures.")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        url, place = "", "notables"
        if asked.elasticsearch:
            url, place = stack.enter_context(on_elasticsearch("notables_server", CORPUS))
        for count, way in itertools.product(asked.queries, WAYS):
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                rows.append(pool.submit(alone, way, count, str(place), url).result())
            baseline = rows[-1 - WAYS.index(way)]["processor"]
            rows[-1]["times baseline searches"] = round(rows[-1]["processor"] / baseline, 1)
    print(table(rows))
    if asked.output:
        keep(asked.output, rows, "queries", "way")


if __name__ == "__main__":
    main()
