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
TOP, POOL, SHOWN = 500, 1_000, 20
LONG = 5
"""Rounds of a long run, which neither converges nor runs out of patience."""
AT_ONCE, SLEEP = 100, 0.05

Rows = AsyncIterator[dict[str, Any]]


class Workspace:
    """A temporary folder with corpora and indexes, made when first needed.

    Args:
        folder: Empty; whoever made it removes it.
        quick: Measure on a tenth, for a check that all works.
    """

    def __init__(self, folder: Path, *, quick: bool) -> None:
        self.folder, self.quick = folder, quick
        self.documents = 10_000 if quick else 100_000
        # Nothing of the user's is read or written, and no proxy stands between.
        names = {"CONFIG": os.devnull, "DATA_DIR": folder / "data", "CACHE_DIR": folder / "cache"}
        os.environ |= {f"FAIRQR_{name}": str(value) for name, value in names.items()}
        os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"
        # Where a proxy is configured, langchain would remark on it.
        os.environ["LANGCHAIN_OPENAI_TCP_KEEPALIVE"] = "0"

    def rounds(self, full: int) -> int:
        """Return how often to time something that a full run times so often."""
        return max(3, full // 5) if self.quick else full

    @functools.cache  # noqa: B019 - lives as long as the process
    def index(self, count: int) -> str:
        """Index a corpus by the command; return its name."""
        name = f"generated{count}"
        command = [FAIRQR, "index", "create", name, str(write_corpus(self.folder / name, count))]
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
        "python -c pass": ([*python, "pass"], ""),
        "import fairqr": ([*python, "import fairqr"], "≤ 100 ms"),
        "fairqr --help": ([FAIRQR, "--help"], "≤ 120 ms"),
        "one fairqr search": ([FAIRQR, *search, "--model", "feedback"], "≤ 1500 ms"),
    }

    def run(command: list[str], _: int) -> object:
        return subprocess.run(command, check=True, capture_output=True)

    calls = {name: functools.partial(run, command) for name, (command, _) in commands.items()}
    taken = await in_turns(space.rounds(25), **calls)
    (peer, (_, _)), *ours = commands.items()
    for name, (_, target) in ours:
        yield row(name, median(taken[name]), "ms", peer, median(taken[peer]), target)


async def searching(space: Workspace) -> Rows:
    """Measure the first 500 ids and scores for 10 terms, beside tantivy's hits without ids."""
    engine, asked = await space.engine(), queries(200)
    index = tantivy.Index.open(str(engine.folder / "text"))
    index.register_tokenizer(ANALYZER_NAME, english_analyzer())

    def bare(number: int) -> object:
        query = index.parse_query(asked[number % len(asked)], ["body"])
        return index.searcher().search(query, TOP, count=False).hits

    def ours(number: int) -> object:
        return engine.search([Query(asked[number % len(asked)], TOP)])

    taken = await in_turns(space.rounds(600), ours=ours, bare=bare)
    what = f"search {space.documents:,} documents, 10 terms, top {TOP}"
    mine, theirs = median(taken["ours"]), median(taken["bare"])
    # Of fewer documents, a search costs less than what stands around it.
    judged = not space.quick
    yield row(what, mine, "ms", "tantivy, hits only", theirs, "≤ 1.5×", judged=judged)


def made_pool(documents: int, groups: int, length: int) -> RankingObjective:
    """Return a pool of documents of one group each, whose target is the share of relevance."""
    draw = np.random.default_rng(1)
    relevance = np.sort(draw.beta(1, 3, documents))[::-1]
    shares = draw.dirichlet(np.full(groups, 0.3))
    members = np.eye(groups)[draw.choice(groups, documents, p=shares)]
    target = normalise(relevance @ members)
    folded, aim = absent_as_one(members, target)
    return RankingObjective(relevance, [folded], [aim], length)


async def reranking(space: Workspace) -> Rows:
    """Measure fair steps and their bounds beside rescoring a pool by its ids."""
    engine, (query,) = await space.engine(), queries(1)
    (hits,) = await engine.search([Query(query, POOL)])
    members, even = hits.memberships["region"], np.full(8, 1 / 8)
    relevance = np.sort(np.random.default_rng(1).uniform(size=len(hits.ids)))[::-1]
    objective = RankingObjective(relevance, [members], [even], SHOWN)
    rescored = Query(query, POOL, only=tuple(hits.ids))
    sellers = made_pool(500, 2_000, SHOWN)
    long = made_pool(10_000, 8, 1_000)
    ranked = best_ranking(objective)
    of_sellers = best_ranking(sellers)
    calls = {
        "rescored": lambda _: engine.search([rescored]),
        "fair": lambda _: best_ranking(objective),
        "bound": lambda _: relax(objective, ranked),
        "sellers": lambda _: best_ranking(sellers),
        "bound of sellers": lambda _: relax(sellers, of_sellers),
        "long": lambda _: best_ranking(long),
    }
    taken = {name: median(its) for name, its in (await in_turns(space.rounds(40), **calls)).items()}
    name = f"fair step for 8 groups, first {SHOWN} of {POOL:,}"
    peer = f"rescore the {POOL:,} by ids"
    yield row(name, taken["fair"], "ms", peer, taken["rescored"], "≤ 5 ms")
    figures = {
        "its bound": ("bound", "≤ 15 ms"),
        f"fair step for 2,000 groups, first {SHOWN} of 500": ("sellers", "≤ 15 ms"),
        "its bound, for 2,000 groups": ("bound of sellers", "≤ 15 ms"),
        "fair step for 8 groups, 1,000 of 10,000": ("long", "≤ 80 ms"),
    }
    for name, (timed, most) in figures.items():
        yield row(name, taken[timed], "ms", peer, taken["rescored"], most)


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
            for key, value in (await node(state, context, parts)).items():
                adds = key in nodes.GROWING
                if isinstance(value, Overwrite):
                    state[key] = value.value
                else:
                    state[key] = state.get(key, []) + value if adds else value

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
    ours, theirs = median(taken["whole"]), median(taken["bare"])
    yield row(f"a run of {LONG} rounds", ours, "ms", "its nodes called bare", theirs)
    yield row("added by the graph to a round", (ours - theirs) / LONG, "ms", target="≤ 2.2 ms")


async def calls(space: Workspace) -> Rows:
    """Measure the processor time of 100 searches at once with a model over HTTP.

    One that sleeps in the process is taken off; the peer is as many calls by langchain's client.
    """
    engine, asked = await space.engine(), queries(AT_ONCE)

    async def crowd(refiner: Any) -> tuple[float, int]:
        await refiner.start()  # a process makes its client once
        search, start = FairSearch(engine, refiner), time.process_time()
        each = (search.search(query, attribute="gender", **IN_ROUNDS) for query in asked)
        results = await asyncio.gather(*each)
        return time.process_time() - start, sum(it.usage.model_calls for it in results)

    async def alone(count: int, url: str) -> float:
        asked = httpx.get(url, trust_env=False).json()["last"]
        client = init_chat_model(
            f"openai:{asked.pop('model')}",
            base_url=f"{url}/v1",
            api_key="none",
            max_retries=0,
            http_async_client=openai.DefaultAsyncHttpxClient(),
        )
        messages, start = asked.pop("messages"), time.process_time()
        for _ in range(ROUNDS):
            each = (client.ainvoke(messages, **asked) for _ in range(count // ROUNDS))
            await asyncio.gather(*each)
        return time.process_time() - start

    server = Model(space.folder)
    server.start(delay=SLEEP)
    try:
        added, peers = [], []
        for _ in range(1 if space.quick else 3):
            model = ChatModel("openai:load", base_url=f"{server.url}/v1", api_key="none")
            busy, count = await crowd(model)
            added.append((busy - (await crowd(InstantRefiner(SLEEP)))[0]) / count * 1000)
            peers.append(await alone(count, server.url) / count * 1000)
    finally:
        server.kill()
    what = f"processor time that a model adds to a call, {AT_ONCE} searches at once"
    yield row(what, median(added), "ms", "a call by langchain", median(peers), "≤ 1.5×")


async def attached(space: Workspace) -> Rows:
    """Measure a fair search over a real Elasticsearch, beside the baseline searches that it sends.

    Those are the first 500 hits, and the documents that it shows.
    """
    asked, shown = queries(100), dict[str, list[str]]()
    corpus = find_corpus(write_corpus(space.folder / "attached", space.documents))
    with on_elasticsearch("attached", corpus) as (_, source):
        engine = await Catalog().resolve(str(source))
        async with FairSearch.open(engine, InstantRefiner()) as search:

            async def fair(number: int) -> None:
                query = asked[number % len(asked)]
                result = await search.search(query, attribute="gender", max_iterations=0)
                both = [*result.ranking, *result.baseline.ranking]
                shown[query] = [*dict.fromkeys(document.id for document in both)]

            async def baseline(number: int) -> None:
                query = asked[number % len(asked)]
                await engine.search([Query(query, TOP)])
                await engine.documents(shown[query])

            for number in range(len(asked)):
                await fair(number)
            taken = await in_turns(space.rounds(200), fair=fair, baseline=baseline)
        await engine.aclose()
    what = f"fair search of {space.documents:,} documents on Elasticsearch, no model"
    ours, peer = median(taken["fair"]), "its baseline searches alone"
    yield row(what, ours, "ms", peer, median(taken["baseline"]), "≤ 1.4×")


EACH = (starting, searching, reranking, graph, calls, attached)
BENCHMARKS: dict[str, Callable[[Workspace], Rows]] = {it.__name__: it for it in EACH}


async def measured(names: list[str], *, quick: bool) -> list[dict[str, Any]]:
    """Run the benchmarks that are named, all if none is, and return their rows."""
    rows, start = [], time.perf_counter()
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
    asked = parser.parse_args()
    rows, made = asyncio.run(measured(asked.names, quick=asked.quick)), machine()
    print(f"{table(rows)}\n\nload {made['load']} on {made['cores']} cores")
    if asked.output:
        keep(asked.output, rows, "what")


if __name__ == "__main__":
    main()
