"""How long an audit takes beside the searches that it is made of, and how much memory.

``python -m benchmarks.audit_speed`` audits the embedded index of notables with queries of two words
of one of its documents: without relevance, with judgements, and, once MiniLM is pulled, with
relevance estimated from texts. The processor time of encoding what has no vector yet stands apart:
texts and queries are encoded first, unless the user's cache has their vectors. Plain searches ask
for as many documents, as many queries at a time. Each measurement has a process of its own. The
processor time is also shown as a multiple of that of the plain searches, which depends less on what
else the machine does.

With ``--elasticsearch``, a real server from the tests has the documents. Its processor time counts,
too; the first thousand queries are slower, until Java has compiled what they need.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx

from fairqr.agents.statistics import stream
from fairqr.api import open_engine
from fairqr.evaluation.audit.bundle import AuditFolder
from fairqr.evaluation.audit.queries import Queries, collect_queries
from fairqr.evaluation.audit.running import audit_engine
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.evaluation.experiments.progress import QuietWatcher
from fairqr.retrieval.encoders.encoder import KeptVectors, text_of
from fairqr.retrieval.encoders.opening import open_encoder
from fairqr.retrieval.engines.engine import Query, SearchEngine
from fairqr.retrieval.sources.corpus import BUILT_IN, find_corpus
from fairqr.retrieval.sources.documents import read_documents
from fairqr.retrieval.sources.query_files import QueryRow

AT_ONCE = 4
WAYS = ("searches", "unknown", "judged", "estimated")


class Clock(QuietWatcher):
    """A watcher that notes when questions begin, and when they end and the rest begins.

    Attributes:
        begun: When they begin.
        busy: The processor time until then.
        asked: When they end.
    """

    def __init__(self, busy_seconds: Callable[[], float]) -> None:
        self._busy_seconds = busy_seconds
        self.begun = self.busy = self.asked = 0.0

    def note(self, sentence: str) -> None:
        """Take a sentence."""
        self.asked = time.perf_counter()
        if not self.begun:
            self.begun, self.busy = self.asked, self._busy_seconds()


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


def busy_seconds(server: str) -> float:
    """Return the processor time of this process, and of an Elasticsearch if there is one."""
    if not server:
        return time.process_time()
    nodes = httpx.get(f"{server}/_nodes/_local/stats/process", trust_env=False).json()["nodes"]
    (node,) = nodes.values()
    return time.process_time() + float(node["process"]["cpu"]["total_in_millis"]) / 1000


async def encode(queries: Queries) -> None:
    """Keep the vectors of queries, and of all texts that an estimate may read."""
    corpus, encoder = find_corpus(BUILT_IN["notables"]), open_encoder("minilm")
    texts = [text_of(document) for document in read_documents(corpus.path, corpus.schema)]
    texts += [query.text for query in queries.queries]
    await (await KeptVectors.of(encoder)).encode(texts)


async def measured(way: str, count: int, corpus: str, server: str) -> tuple[float, ...]:
    """Return the seconds of each column, and how many MB it takes."""
    engine = await open_engine(corpus, retriever="bm25")
    queries, qrels = drawn(count)
    spec, processor = AuditSpec(attributes=("gender",)), partial(busy_seconds, server)
    clock, encoding = Clock(processor), processor()
    if way == "estimated":
        await encode(queries)
    encoding = processor() - encoding
    if way == "searches":
        clock.note("They begin.")
        await plain(engine, queries, spec.depth)
        clock.note("They end.")
    else:
        with tempfile.TemporaryDirectory() as place:
            if way == "unknown":  # as without MiniLM
                os.environ["FAIRQR_CACHE_DIR"] = place
            folder, judged = AuditFolder(Path(place) / "out"), qrels if way == "judged" else None
            await audit_engine(
                spec, engine, queries, folder, qrels=judged, concurrency=AT_ONCE, watcher=clock
            )
    asking, rest = clock.asked - clock.begun, time.perf_counter() - clock.asked
    busy = processor() - clock.busy
    await engine.aclose()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return encoding, asking, rest, busy, most


async def plain(engine: SearchEngine, queries: Queries, depth: int) -> None:
    """Ask all queries."""
    left = iter(queries.queries)

    async def worker() -> None:
        for query in left:
            await engine.search([Query(query.text, depth)])

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))


def started_elasticsearch(stack: ExitStack) -> tuple[str, str]:
    """Start a server with notables; return the file that describes the source, and its address."""
    from tests.integration.elasticsearch_server import running_server
    from tests.integration.filled_elasticsearch import fill, write_source

    url = stack.enter_context(running_server()).url
    source = fill(stack, url, "notables_server", find_corpus(BUILT_IN["notables"]))
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    return str(write_source(source, folder)), url


def main() -> None:
    """Print a row for each way and number of queries."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--elasticsearch", action="store_true", help="Audit a real server.")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        way, count, *corpus = asked.one
        print(json.dumps(asyncio.run(measured(way, int(count), *corpus))))
        return
    print(f"{'queries':>8} {'way':10} encoding    asking  the rest processor  times     MB")
    with ExitStack() as stack:
        corpus = started_elasticsearch(stack) if asked.elasticsearch else ("notables", "")
        for count in asked.queries:
            alone = float("nan")
            for way in asked.ways:
                one = ["-m", "benchmarks.audit_speed", "--one", way, str(count), *corpus]
                done = subprocess.run([sys.executable, *one], stdout=subprocess.PIPE, check=True)
                *seconds, megabytes = json.loads(done.stdout.splitlines()[-1])
                alone = seconds[-1] if way == "searches" else alone
                shown = " ".join(f"{it:7.1f} s" for it in seconds)
                times = seconds[-1] / alone
                print(f"{count:8,} {way:10}{shown} {times:6.1f} {megabytes:6.0f}", flush=True)


if __name__ == "__main__":
    main()
