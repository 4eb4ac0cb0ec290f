"""How long an audit takes beside the searches that it is made of, and how much memory.

``python -m benchmarks.audit_speed`` audits the embedded index of notables with queries of two words
of one of its documents: without relevance, with judgements, and, once MiniLM is pulled, with
relevance estimated from texts. Plain searches ask for as many documents, as many queries at a time.
Each measurement has a process of its own. The processor time is also shown as a multiple of that of
the plain searches, which depends less on what else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fairqr.api import open_engine
from fairqr.base.statistics import stream
from fairqr.evaluation.audit.bundle import AuditFolder
from fairqr.evaluation.audit.finishing import carry_out
from fairqr.evaluation.audit.queries import Queries, collect_queries
from fairqr.evaluation.audit.running import make_plan, open_texts
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.retrieval.corpus import BUILT_IN, find_corpus
from fairqr.retrieval.documents import Progress, read_documents
from fairqr.retrieval.engines.engine import Query, SearchEngine
from fairqr.retrieval.query_files import QueryRow

AT_ONCE = 4
WAYS = ("searches", "unknown", "judged", "estimated")


class Clock:
    """A watcher that notes when the queries were asked and the rest begins.

    Attributes:
        asked: That moment.
    """

    def __init__(self) -> None:
        self.asked = 0.0

    def stage(self, what: str, total: int, done: int) -> None:
        """Take what begins."""

    def advance(self, steps: int = 1) -> None:
        """Take that so many steps are done."""

    def note(self, sentence: str) -> None:
        """Take a sentence."""
        self.asked = time.perf_counter()

    def count(self, what: str) -> Progress:
        """Take what is counted."""
        return lambda done, total=None, /: None


def drawn(count: int) -> tuple[Queries, dict[str, dict[str, int]]]:
    """Return different queries, and for each the document that it is from as a judgement."""
    corpus = find_corpus(BUILT_IN["notables"])
    documents = list(read_documents(corpus.path, corpus.schema))
    random = stream(1, "queries")
    found: dict[str, str] = {}
    while len(found) < count:
        document = documents[int(random.integers(len(documents)))]
        words = [word for word in document.text.lower().split() if word.isalpha() and len(word) > 3]
        if len(words) > 1:
            found[" ".join(random.choice(words, 2))] = document.id
    rows = [QueryRow(line, text, text) for line, text in enumerate(found, start=1)]
    return collect_queries(rows), {text: {id_: 1} for text, id_ in found.items()}


async def measured(way: str, count: int) -> dict[str, float]:
    """Return the seconds of asking and of the rest, of the processor in all, and the most MB."""
    engine = await open_engine("notables", retriever="bm25")
    queries, qrels = drawn(count)
    spec = AuditSpec(attributes=("gender",))
    begun, busy = time.perf_counter(), time.process_time()
    if way == "searches":
        await plain(engine, queries, spec.depth)
        asked = ended = time.perf_counter()
    else:
        texts, _ = await open_texts(engine, queries) if way == "estimated" else (None, "")
        begun, busy = time.perf_counter(), time.process_time()
        clock = Clock()
        judged = qrels if way == "judged" else None
        plan = await make_plan(spec, engine, queries, qrels=judged, texts=texts)
        with tempfile.TemporaryDirectory() as folder:
            await carry_out(
                plan, AuditFolder(Path(folder) / "out"), concurrency=AT_ONCE, watcher=clock
            )
        asked, ended = clock.asked, time.perf_counter()
    busy = time.process_time() - busy
    await engine.aclose()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"asking": asked - begun, "rest": ended - asked, "processor": busy, "MB": most}


async def plain(engine: SearchEngine, queries: Queries, depth: int) -> None:
    """Ask all queries."""
    left = iter(queries.queries)

    async def worker() -> None:
        for query in left:
            await engine.search([Query(query.text, depth)])

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))


def main() -> None:
    """Print a row for each way and number of queries."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        way, count = asked.one
        print(json.dumps(asyncio.run(measured(way, int(count)))))
        return
    columns = " ".join(f"{name:>9}" for name in ("asking", "the rest", "together", "processor"))
    print(f"{'queries':>8} {'way':10} {columns} {'times':>6} {'MB':>6}")
    for count in asked.queries:
        alone = math.nan
        for way in asked.ways:
            command = [sys.executable, "-m", "benchmarks.audit_speed", "--one", way, str(count)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            it = json.loads(done.stdout.splitlines()[-1])
            whole = it["asking"] + it["rest"]
            if way == "searches":
                alone = it["processor"]
            print(
                f"{count:8,} {way:10} {it['asking']:7.1f} s {it['rest']:7.1f} s {whole:7.1f} s "
                f"{it['processor']:7.1f} s {it['processor'] / alone:6.1f} {it['MB']:6.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
