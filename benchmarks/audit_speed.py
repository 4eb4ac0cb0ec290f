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
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Iterable, Sequence
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
from fairqr.retrieval.engines.engine import Query, SearchEngine
from fairqr.retrieval.sources.corpus import BUILT_IN, find_corpus
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.sources.query_files import QueryRow

AT_ONCE = 4
WAYS = ("searches", "unknown", "judged", "estimated")
CORPUS = find_corpus(BUILT_IN["notables"])


def busy_seconds(server: str) -> float:
    """Return the processor time of this process, and of an Elasticsearch if there is one."""
    if not server:
        return time.process_time()
    answer = httpx.get(f"{server}/_nodes/_local/stats/process", trust_env=False)
    (node,) = answer.json()["nodes"].values()
    milliseconds = float(node["process"]["cpu"]["total_in_millis"])
    return time.process_time() + milliseconds / 1000


async def measure(way: str, count: int, source: str, server: str) -> dict[str, Any]:
    """Return a row, with the processor time in seconds, and how many MB it takes.

    Args:
        way: One of :data:`WAYS`.
        count: How many queries there are.
        source: What to search.
        server: The address of an Elasticsearch; empty for the embedded index.
    """
    documents = [*CORPUS.documents()]
    relevant_ids = _queries_of(documents, count)
    rows = [QueryRow(n, text, text) for n, text in enumerate(relevant_ids, start=1)]
    queries = collect_queries(rows)
    engine = await open_engine(source, retriever="bm25")
    spec = AuditSpec(attributes=("gender",))
    if way == "estimated":
        vectors = await KeptVectors.of(open_encoder("minilm"))
        await vectors.encode([*map(text_of, documents), *relevant_ids])

    start = busy_seconds(server)
    if way == "searches":
        await _search_all(engine, relevant_ids, spec.depth)
    else:
        with tempfile.TemporaryDirectory() as folder:
            if way == "unknown":
                # Nothing is pulled there, so relevance is unknown.
                os.environ["FAIRQR_CACHE_DIR"] = folder
            qrels = None
            if way == "judged":
                qrels = {text: {id_: 1} for text, id_ in relevant_ids.items()}
            inputs = AuditInputs(spec, queries, qrels=qrels)
            audit_folder = AuditFolder(Path(folder) / "out")
            await audit_engine(engine, inputs, audit_folder, AuditOptions(AT_ONCE))
    busy = round(busy_seconds(server) - start, 1)
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {"queries": count, "way": way, "processor": busy, "MB": megabytes}


def _queries_of(documents: Sequence[Document], count: int) -> dict[str, str]:
    """Return queries of two words of a document, with its id."""
    random = stream(1, "queries")
    ids: dict[str, str] = {}
    while len(ids) < count:
        document = documents[int(random.integers(len(documents)))]
        words = []
        for word in document.text.lower().split():
            if word.isalpha() and len(word) > 3:
                words.append(word)
        if len(words) > 1:
            ids[" ".join(random.choice(words, 2))] = document.id
    return ids


async def _search_all(engine: SearchEngine, texts: Iterable[str], depth: int) -> None:
    """Search for texts, as many at a time as an audit."""
    # The workers share the texts.
    remaining = iter(texts)

    async def work() -> None:
        for text in remaining:
            await engine.search([Query(text, depth)])

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))


def alone(*arguments: Any) -> dict[str, Any]:
    """Measure in this process, which has nothing else to do."""
    return asyncio.run(measure(*arguments))


def main() -> None:
    """Print a row for each way and number of queries."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--elasticsearch", action="store_true", help="Audit a real server.")
    parser.add_argument("-o", "--output", type=Path, help="A folder that keeps the figures.")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        url = ""
        source = "notables"
        if arguments.elasticsearch:
            url, file = stack.enter_context(on_elasticsearch("notables_server", CORPUS))
            source = str(file)
        for count in arguments.queries:
            for way in WAYS:
                # A process of its own has no memory of another measurement.
                with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                    row = pool.submit(alone, way, count, source, url).result()
                if way == "searches":
                    baseline = row["processor"]
                row["times baseline searches"] = round(row["processor"] / baseline, 1)
                rows.append(row)
    print(table(rows))
    if arguments.output:
        keep(arguments.output, rows, "queries", "way")


if __name__ == "__main__":
    main()
