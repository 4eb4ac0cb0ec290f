"""The benchmarks of fairqr: our figures beside those of its peers, in one run.

``python -m benchmarks.bench [--quick] [NAME …]``. The machine may be busy: what
counts is the ratio of two figures that were taken in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np
import openai
import tantivy
from langchain.chat_models import init_chat_model
from langgraph.types import Overwrite

from benchmarks.generated import queries, write_corpus
from benchmarks.load.servers import Model
from benchmarks.measuring import in_turns, keep, machine, on_elasticsearch, row, table
from benchmarks.stubs import IN_ROUNDS, ROUNDS, InstantEngine, InstantRefiner
from fairqr import FairSearch
from fairqr.agents.models.chat import ChatModel
from fairqr.graph.search import nodes
from fairqr.graph.search.builder import build_search_graph
from fairqr.graph.search.context import Context
from fairqr.graph.search.parts import SearchParts
from fairqr.graph.search.rankers import Rankers
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.engines.tantivy.engine import TantivyEngine
from fairqr.retrieval.fairness.best_ranking import best_ranking
from fairqr.retrieval.fairness.exposure import absent_as_one, normalise
from fairqr.retrieval.fairness.objective import RankingObjective
from fairqr.retrieval.fairness.relaxation import relax
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.corpus import find_corpus
from fairqr.retrieval.texts.words import ANALYZER_NAME, english_analyzer

FAIRQR = str(Path(sys.executable).with_name("fairqr"))
TOP = 500
"""How many hits a plain search returns."""

POOL = 1_000
SHOWN = 20
"""How many documents are re-ranked, and how many of them are shown."""

LONG = 5
"""The rounds of a long run, which neither converges nor runs out of patience."""

AT_ONCE = 100
"""How many searches ask a model at once."""

MODEL_SECONDS = 0.05
"""How long the model takes to reply."""

Rows = AsyncIterator[dict[str, Any]]


class Workspace:
    """A temporary folder with corpora and indexes, made when first needed.

    Args:
        folder: Empty; whoever made it removes it.
        quick: Measure on a tenth, for a check that all works.
    """

    def __init__(self, folder: Path, *, quick: bool) -> None:
        self.folder = folder
        self.quick = quick
        self.documents = 10_000 if quick else 100_000
        # No file of the user's is read or written.
        os.environ["FAIRQR_CONFIG"] = os.devnull
        os.environ["FAIRQR_DATA_DIR"] = str(folder / "data")
        os.environ["FAIRQR_CACHE_DIR"] = str(folder / "cache")
        # No proxy stands between, and langchain need not remark on one.
        os.environ["NO_PROXY"] = "127.0.0.1,localhost"
        os.environ["no_proxy"] = "127.0.0.1,localhost"
        os.environ["LANGCHAIN_OPENAI_TCP_KEEPALIVE"] = "0"

    def rounds(self, full: int) -> int:
        """Return how often to time something, given how often a full run does."""
        if self.quick:
            return max(3, full // 5)
        return full

    @functools.cache  # noqa: B019 - lives as long as the process
    def index(self, count: int) -> str:
        """Index a corpus by the command; return its name."""
        name = f"generated{count}"
        documents = write_corpus(self.folder / name, count)
        command = [FAIRQR, "index", "create", name, str(documents)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return name

    async def engine(self) -> TantivyEngine:
        """Open the engine that searches are measured on."""
        engine = await Catalog().resolve(self.index(self.documents))
        assert isinstance(engine, TantivyEngine)
        return engine


async def starting(space: Workspace) -> Rows:
    """Measure the command from start to end, and the import, beside Python's own start."""
    python = [sys.executable, "-c"]
    search = ["search", "river", "--corpus", space.index(space.documents)]
    commands = {
        "python -c pass": [*python, "pass"],
        "import fairqr": [*python, "import fairqr"],
        "fairqr --help": [FAIRQR, "--help"],
        "one fairqr search": [FAIRQR, *search, "--model", "feedback"],
    }
    targets = {
        "import fairqr": "≤ 100 ms",
        "fairqr --help": "≤ 120 ms",
        "one fairqr search": "≤ 1500 ms",
    }

    def run(command: list[str], _: int) -> object:
        return subprocess.run(command, check=True, capture_output=True)

    calls = {name: functools.partial(run, command) for name, command in commands.items()}
    taken = await in_turns(space.rounds(25), **calls)
    peer = "python -c pass"
    for name, target in targets.items():
        yield row(name, median(taken[name]), "ms", peer, median(taken[peer]), target)


async def searching(space: Workspace) -> Rows:
    """Measure the first 500 ids and scores for 10 terms, beside tantivy's hits without ids."""
    engine = await space.engine()
    texts = queries(200)
    index = tantivy.Index.open(str(engine.folder / "text"))
    index.register_tokenizer(ANALYZER_NAME, english_analyzer())

    def bare(number: int) -> object:
        query = index.parse_query(texts[number % len(texts)], ["body"])
        return index.searcher().search(query, TOP, count=False).hits

    def ours(number: int) -> object:
        return engine.search([Query(texts[number % len(texts)], TOP)])

    taken = await in_turns(space.rounds(600), ours=ours, bare=bare)
    yield row(
        f"search {space.documents:,} documents, 10 terms, top {TOP}",
        median(taken["ours"]),
        "ms",
        "tantivy, hits only",
        median(taken["bare"]),
        "≤ 1.5×",
        # With fewer documents, a search costs less than the code around it.
        judged=not space.quick,
    )


def make_pool(documents: int, groups: int, length: int) -> RankingObjective:
    """Return a pool of documents of one group each, whose target is the share of relevance."""
    draw = np.random.default_rng(1)
    relevance = np.sort(draw.beta(1, 3, documents))[::-1]
    shares = draw.dirichlet(np.full(groups, 0.3))
    members = np.eye(groups)[draw.choice(groups, documents, p=shares)]
    target = normalise(relevance @ members)
    present_members, present_target = absent_as_one(members, target)
    return RankingObjective(relevance, [present_members], [present_target], length)


async def reranking(space: Workspace) -> Rows:
    """Measure fair steps and their bounds beside rescoring a pool by its ids."""
    engine = await space.engine()
    (query,) = queries(1)
    (hits,) = await engine.search([Query(query, POOL)])
    members = hits.memberships["region"]
    even_target = np.full(8, 1 / 8)
    relevance = np.sort(np.random.default_rng(1).uniform(size=len(hits.ids)))[::-1]
    regions = RankingObjective(relevance, [members], [even_target], SHOWN)
    sellers = make_pool(500, 2_000, SHOWN)
    long = make_pool(10_000, 8, 1_000)

    rescoring = Query(query, POOL, only=tuple(hits.ids))
    fair_regions = best_ranking(regions)
    fair_sellers = best_ranking(sellers)
    calls = {
        "rescored": lambda _: engine.search([rescoring]),
        "fair": lambda _: best_ranking(regions),
        "bound": lambda _: relax(regions, fair_regions),
        "sellers": lambda _: best_ranking(sellers),
        "bound of sellers": lambda _: relax(sellers, fair_sellers),
        "long": lambda _: best_ranking(long),
    }
    taken = await in_turns(space.rounds(40), **calls)
    peer = f"rescore the {POOL:,} by ids"
    peer_milliseconds = median(taken["rescored"])
    names = {
        "fair": f"fair step for 8 groups, first {SHOWN} of {POOL:,}",
        "bound": "its bound",
        "sellers": f"fair step for 2,000 groups, first {SHOWN} of 500",
        "bound of sellers": "its bound, for 2,000 groups",
        "long": "fair step for 8 groups, 1,000 of 10,000",
    }
    targets = {
        "fair": "≤ 5 ms",
        "bound": "≤ 15 ms",
        "sellers": "≤ 15 ms",
        "bound of sellers": "≤ 15 ms",
        "long": "≤ 80 ms",
    }
    for call, name in names.items():
        yield row(name, median(taken[call]), "ms", peer, peer_milliseconds, targets[call])


async def graph(space: Workspace) -> Rows:
    """Measure a run of 5 rounds through the graph, and its nodes called one after the other."""
    context = Context(k=20, depth=20, ask="always", patience=LONG + 1, max_iterations=LONG)
    built = build_search_graph(InstantEngine(), InstantRefiner())
    parts = SearchParts(
        engine=InstantEngine(), default=context, model=InstantRefiner(), rankers=Rankers()
    )

    async def bare(_: int) -> None:
        state: dict[str, Any] = {"query": "word"}

        async def take(node: Callable[..., Any]) -> None:
            update = await node(state, context, parts)
            for key, value in update.items():
                if isinstance(value, Overwrite):
                    state[key] = value.value
                elif key in nodes.GROWING:
                    state[key] = state.get(key, []) + value
                else:
                    state[key] = value

        await take(nodes.prepare)
        await take(nodes.retrieve)
        await take(nodes.measure)
        while not state["stop_reason"]:
            await take(nodes.choose_group)
            await take(nodes.refine)
            await take(nodes.retrieve)
            await take(nodes.measure)
        await take(nodes.rerank)
        assert len(state["iterations"]) == LONG + 1, "the loop has ended early"

    def whole(_: int) -> object:
        return built.ainvoke({"query": "word"}, context=context)

    taken = await in_turns(space.rounds(100), whole=whole, bare=bare)
    ours = median(taken["whole"])
    theirs = median(taken["bare"])
    added = (ours - theirs) / LONG
    yield row(f"a run of {LONG} rounds", ours, "ms", "its nodes called bare", theirs)
    yield row("added by the graph to a round", added, "ms", target="≤ 2.2 ms")


async def calls(space: Workspace) -> Rows:
    """Measure the processor time of 100 searches at once with a model over HTTP.

    One that sleeps in the process is taken off; the peer is as many calls by langchain's client.
    """
    engine = await space.engine()
    texts = queries(AT_ONCE)
    server = Model(space.folder)
    server.start(delay=MODEL_SECONDS)
    added = []
    peers = []
    try:
        for _ in range(1 if space.quick else 3):
            model = ChatModel("openai:load", base_url=f"{server.url}/v1", api_key="none")
            seconds, count = await _search_at_once(engine, texts, model)
            sleeping = InstantRefiner(MODEL_SECONDS)
            seconds_without, _ = await _search_at_once(engine, texts, sleeping)
            added.append((seconds - seconds_without) / count * 1000)
            peers.append(await _call_by_langchain(count, server.url) / count * 1000)
    finally:
        server.kill()
    yield row(
        f"processor time that a model adds to a call, {AT_ONCE} searches at once",
        median(added),
        "ms",
        "a call by langchain",
        median(peers),
        "≤ 1.5×",
    )


async def _search_at_once(
    engine: TantivyEngine, texts: list[str], refiner: Any
) -> tuple[float, int]:
    """Return the processor time of many searches at once, and how often they called the model."""
    # A process makes its client once.
    await refiner.start()
    search = FairSearch(engine, refiner)
    start = time.process_time()
    searches = [search.search(text, attribute="gender", **IN_ROUNDS) for text in texts]
    results = await asyncio.gather(*searches)
    seconds = time.process_time() - start
    return seconds, sum(result.usage.model_calls for result in results)


async def _call_by_langchain(count: int, url: str) -> float:
    """Return the processor time of as many calls by langchain's client, in as many rounds."""
    request = httpx.get(url, trust_env=False).json()["last"]
    client = init_chat_model(
        f"openai:{request.pop('model')}",
        base_url=f"{url}/v1",
        api_key="none",
        max_retries=0,
        http_async_client=openai.DefaultAsyncHttpxClient(),
    )
    messages = request.pop("messages")
    start = time.process_time()
    for _ in range(ROUNDS):
        calls = [client.ainvoke(messages, **request) for _ in range(count // ROUNDS)]
        await asyncio.gather(*calls)
    return time.process_time() - start


async def attached(space: Workspace) -> Rows:
    """Measure a fair search over a real Elasticsearch, beside the baseline searches that it sends.

    Those are the first 500 hits, and the documents that it shows.
    """
    texts = queries(100)
    shown: dict[str, list[str]] = {}
    corpus = find_corpus(write_corpus(space.folder / "attached", space.documents))
    with on_elasticsearch("attached", corpus) as (_, source):
        engine = await Catalog().resolve(str(source))
        async with FairSearch.open(engine, InstantRefiner()) as search:

            async def fair(number: int) -> None:
                query = texts[number % len(texts)]
                result = await search.search(query, attribute="gender", max_iterations=0)
                documents = [*result.ranking, *result.baseline.ranking]
                shown[query] = [*dict.fromkeys(document.id for document in documents)]

            async def baseline(number: int) -> None:
                query = texts[number % len(texts)]
                await engine.search([Query(query, TOP)])
                await engine.documents(shown[query])

            # The baseline reads what the fair search has shown.
            for number in range(len(texts)):
                await fair(number)
            taken = await in_turns(space.rounds(200), fair=fair, baseline=baseline)
        await engine.aclose()
    yield row(
        f"fair search of {space.documents:,} documents on Elasticsearch, no model",
        median(taken["fair"]),
        "ms",
        "its baseline searches alone",
        median(taken["baseline"]),
        "≤ 1.4×",
    )


ALL = (starting, searching, reranking, graph, calls, attached)
BENCHMARKS: dict[str, Callable[[Workspace], Rows]] = {
    benchmark.__name__: benchmark for benchmark in ALL
}


async def measure(names: list[str], *, quick: bool) -> list[dict[str, Any]]:
    """Run benchmarks by name, or all of them, and return their rows."""
    rows = []
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="fairqr-bench-") as folder:
        space = Workspace(Path(folder), quick=quick)
        for name in names or BENCHMARKS:
            print(f"{time.perf_counter() - start:4.0f} s  {name} …", file=sys.stderr)
            rows += [row async for row in BENCHMARKS[name](space)]
    return rows


def main() -> None:
    """Run the benchmarks, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    parser.add_argument("-o", "--output", type=Path, help="a folder that keeps the figures")
    arguments = parser.parse_args()
    rows = asyncio.run(measure(arguments.names, quick=arguments.quick))
    host = machine()
    print(f"{table(rows)}\n\nload {host['load']} on {host['cores']} cores")
    if arguments.output:
        keep(arguments.output, rows, "what")


if __name__ == "__main__":
    main()
