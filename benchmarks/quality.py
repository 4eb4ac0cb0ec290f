"""What retrieval, the fair step and the model each bring, on two collections: ``make quality``.

``python benchmarks/quality.py [--trec FOLDER] [--without-model] [--attached]`` searches for all
topics of notables, and of the joined subset of TREC Fair 2022 in FOLDER, and prints for each
attribute and form of the query how far each system is from BM25. The product is the mean over
topics of nDCG@20 × AWRF@20 in bits. Estimates of relevance use the fit on the other collection, and
each topic is ranked by weights that were trained without it (docs/explanation/relevance.md). With
``--attached`` the systems stand in front of a real Elasticsearch with the same documents, and no
model is asked. Run ``fairqr models pull`` first.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fairqr.agents.models.opening import open_model
from fairqr.agents.statistics import corrected_by_holm, paired_randomisation, stream
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.collections.finding import find_collection
from fairqr.evaluation.collections.labels import scan_corpus
from fairqr.evaluation.evaluate import evaluate, ids_of
from fairqr.evaluation.experiments.training import folds_of, gather, train
from fairqr.evaluation.inputs import as_run
from fairqr.graph.search.builder import build_search_graph
from fairqr.graph.search.context import Context
from fairqr.retrieval.encoders.opening import open_encoder
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.engines.hybrid.embedded import HybridEngine
from fairqr.retrieval.engines.hybrid.texts import EncodedPoolEngine
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.fairness.relevance import FITTED, Calibrations, held_out
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.runs import SystemRun

# The servers of the integration tests.
sys.path.append(str(Path(__file__).parents[1]))

NDCG, AWRF = "nDCG@20", "AWRF@20(unit=bits)"
PRODUCT = f"{NDCG}×{AWRF}"
BASELINE, RETRIEVAL, POOL, ENGINE = "BM25", "hybrid", "encoded pool", "Elasticsearch"
HEADINGS = (
    *("system", "nDCG@20", "AWRF@20", "product", "nDCG", "product"),
    *("p", "p, retrieval", "topics", "calls"),
)
FOLDS = 5
DEPTH = 200
"""How many documents of each topic the trained systems learn from."""


@dataclass(frozen=True, slots=True)
class System:
    """A system of the tables: how documents are found, and what is done with them."""

    name: str
    retriever: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    needs_model: bool = False
    is_trained: bool = False


SYSTEMS = (
    System(BASELINE, "bm25", {"method": "plain"}),
    System("BM25, greedy step", "bm25", {"method": "greedy"}),
    System("BM25, fair step", "bm25", {"ask": "never"}),
    System("BM25, step, model where it may help", "bm25", {}, needs_model=True),
    System("fair-qr (BM25)", "bm25", {"method": "fair-qr"}, needs_model=True),
    System(RETRIEVAL, "hybrid", {"method": "plain"}),
    System("hybrid, greedy step", "hybrid", {"method": "greedy"}),
    System("hybrid, MMR", "hybrid", {"method": "mmr"}),
    System("hybrid, xQuAD", "hybrid", {"method": "xquad"}),
    System("hybrid, PM-2", "hybrid", {"method": "pm2"}),
    System("hybrid, FA*IR", "hybrid", {"method": "fa-ir"}),
    System("hybrid, DELTR", "hybrid", {"method": "deltr"}, is_trained=True),
    System("hybrid, DLF reconstructed", "hybrid", {"method": "dlf"}, is_trained=True),
    System("hybrid, fair step", "hybrid", {"ask": "never"}),
    System("the same, model where it may help", "hybrid", {}, needs_model=True),
    System("the same, model always", "hybrid", {"ask": "always"}, needs_model=True),
    System(POOL, "pool", {"method": "plain"}),
    System("encoded pool, fair step", "pool", {"ask": "never"}),
    System("encoded pool, model where it may help", "pool", {}, needs_model=True),
)

ATTACHED = (
    System(BASELINE, "bm25", {"method": "plain"}),
    System(ENGINE, "attached", {"method": "plain"}),
    System("Elasticsearch, ranks alone", "attached", {"ask": "never"}),
    System("Elasticsearch, 200 texts", "attached pool", {"ask": "never"}),
    System("the same, order=estimated", "attached pool", {"ask": "never", "order": "estimated"}),
    System("embedded hybrid, fair step", "hybrid", {"ask": "never"}),
)


async def searched(
    collection: Collection,
    engine: SearchEngine,
    system: System,
    attribute: str,
    keywords: int,
    model: Any,
) -> tuple[SystemRun, float]:
    """Return the rankings of a system, and how often it asked the model, in the mean."""
    graph = build_search_graph(engine, model if system.needs_model else None)
    settings = {"method": "fairqr", "attribute": attribute, "seed": 0, **system.settings}
    context, rankings, calls = Context.of(**settings), {}, 0
    queries = {topic.id: topic.text(keywords) for topic in collection.topics}
    with TemporaryDirectory() as folder:
        options: dict[str, dict[str, Path]] = {topic: {} for topic in queries}
        if system.is_trained:
            options = await trained(collection, engine, context, queries, Path(folder))
        for topic, query in queries.items():
            own = Context.of(**settings, options=options[topic])
            result = (await graph.ainvoke({"query": query}, context=own))["result"]
            rankings[topic] = [place["id"] for place in result["ranking"]]
            usage = result["usage"]
            calls += usage["model_calls"] + usage["cached_calls"]
    return as_run(rankings, system.name), calls / len(queries)


async def trained(
    collection: Collection,
    engine: SearchEngine,
    context: Context,
    queries: Mapping[str, str],
    folder: Path,
) -> dict[str, dict[str, Path]]:
    """Return the options of each topic: a file of weights, trained on the topics of other folds."""
    examples = await gather(engine, queries, collection.qrels, context, depth=DEPTH)
    options = {}
    for number, fold in enumerate(folds_of(list(queries), FOLDS)):
        weights = folder / f"{number}.json"
        others = [topic for topic in queries if topic not in fold]
        (await train(context.strategy.final_step, examples, others, {})).save(weights)
        options.update({topic: {"weights": weights} for topic in fold})
    return options


def table(
    collection: Collection, runs: Sequence[SystemRun], calls: Sequence[float], attribute: str
) -> list[tuple[str, ...]]:
    """Return the rows of a table.

    Each system is compared with BM25, topic by topic, and those that work over another retrieval
    with that alone. Each of the two columns of p is corrected by Holm's method.
    """
    groups = scan_corpus(collection.corpus, ids_of(runs, collection.qrels))
    options: dict[str, Any] = {"target": collection.about.target, "attributes": [attribute]}
    values = []
    for run in runs:
        measures = [NDCG, AWRF, PRODUCT]
        evaluation = evaluate(run, collection.qrels, measures, groups=groups, **options)
        by_measure = [
            np.array([result.defined().get(topic.id, np.nan) for topic in collection.topics])
            for result in evaluation.results.values()
        ]
        values.append(np.stack(by_measure, axis=1))
    shared = ~np.isnan(np.stack(values)[:, :, 2]).any(axis=0)
    means = [own[shared].mean(axis=0) for own in values]
    names = [run.name for run in runs]
    products = {name: own[shared, 2] for name, own in zip(names, values, strict=True)}
    retrieval = ENGINE if ENGINE in names else RETRIEVAL
    over_it = names[names.index(retrieval) + 1 :]
    ps = zip(
        compared(products, BASELINE, names[1:]),
        compared(products, retrieval, over_it),
        strict=True,
    )
    rows: list[tuple[str, ...]] = [HEADINGS]
    for run, mean, both, asked in zip(runs, means, ps, calls, strict=True):
        change = 100 * (mean / means[0] - 1)
        rows.append(
            (
                run.name,
                *(f"{value:.4f}" for value in mean),
                f"{change[0]:+.1f} %",
                f"{change[2]:+.1f} %",
                *("" if p is None else f"{p:.3f}" for p in both),
                str(int(shared.sum())),
                f"{asked:.2f}",
            )
        )
    return rows


def compared(
    products: Mapping[str, FloatArray], reference: str, systems: Sequence[str]
) -> list[float | None]:
    """Return a corrected p for each of these systems against a reference; None for the others."""
    tests = [
        paired_randomisation(products[name] - products[reference], stream(0, name))
        if name in systems
        else None
        for name in products
    ]
    return corrected_by_holm(tests)


def printed(title: str, rows: Sequence[tuple[str, ...]]) -> None:
    """Print a table."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    print(f"\n{title}")
    for row in rows:
        first, *others = row
        cells = [text.rjust(width) for text, width in zip(others, widths[1:], strict=True)]
        print("  ".join([first.ljust(widths[0]), *cells]), flush=True)


async def opened(corpus: str, calibrations: Calibrations) -> dict[str, SearchEngine]:
    """Return what searches a corpus in each way; what has no vector yet is encoded first."""
    catalog = Catalog()
    print(f"Encoding what has no vector yet in {corpus} …", file=sys.stderr)
    await (await catalog.resolve(corpus, retriever="dense:minilm")).aclose()
    hybrid = await catalog.resolve(corpus, retriever="hybrid:minilm")
    words = await catalog.resolve(corpus)
    pool = await EncodedPoolEngine.open(words, open_encoder("minilm"), keeps_order=True)
    assert isinstance(hybrid, HybridEngine)
    hybrid.calibrations = pool.calibrations = calibrations
    return {"bm25": words, "hybrid": hybrid, "pool": pool}


async def attached(
    stack: AsyncExitStack, url: str, collection: Collection, calibrations: Calibrations
) -> dict[str, SearchEngine]:
    """Put the documents into Elasticsearch, and return what stands in front of it."""
    from tests.integration.filled_elasticsearch import fill

    filled = stack.enter_context(ExitStack())
    source = fill(filled, url, collection.name, collection.corpus)
    words = await Catalog().resolve(source, retriever="bm25")
    texts = await Catalog().resolve(source, retriever="hybrid:minilm")
    for engine in (words, texts):
        stack.push_async_callback(engine.aclose)
    assert isinstance(texts, EncodedPoolEngine)
    texts.calibrations = calibrations
    return {"attached": words, "attached pool": texts}


async def main(trec: Path | None, with_model: bool, url: str | None) -> None:
    """Search, measure and print.

    Args:
        trec: The folder of TREC Fair 2022, if it is there.
        with_model: Whether to ask the model.
        url: The Elasticsearch to stand in front of; None to measure the embedded engines.
    """
    model = open_model("local:smollm2-135m") if with_model else None
    collections = {"notables": find_collection("notables")}
    if trec is not None and trec.is_dir():
        collections["trec2022"] = find_collection(trec)
    else:
        print("Skipped: TREC Fair 2022; name its folder by --trec.")
    async with AsyncExitStack() as stack:
        for name, collection in collections.items():
            engines = await opened(collection.corpus_name, FITTED[held_out(name)])
            if url:
                engines |= await attached(stack, url, collection, FITTED[held_out(name)])
            forms = (0, 10) if any(topic.keywords for topic in collection.topics) else (0,)
            for attribute in ("gender", "continent"):
                for keywords in forms:
                    chosen = ATTACHED if url else SYSTEMS
                    systems = [s for s in chosen if with_model or not s.needs_model]
                    found = [
                        await searched(
                            collection, engines[s.retriever], s, attribute, keywords, model
                        )
                        for s in systems
                    ]
                    form = f"title and {keywords} keywords" if keywords else "title"
                    rows = table(
                        collection, [run for run, _ in found], [c for _, c in found], attribute
                    )
                    printed(f"{name}, {attribute}, {form}", rows)


def run(trec: Path | None, with_model: bool, attached: bool) -> None:
    """Measure, with a real Elasticsearch if it is to be attached."""
    if not attached:
        asyncio.run(main(trec, with_model, None))
        return
    from tests.integration.elasticsearch_server import running_server

    with running_server() as server:
        asyncio.run(main(trec, False, server.url))


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--trec", type=Path, help="the joined subset of TREC Fair 2022")
    arguments.add_argument("--without-model", action="store_true")
    arguments.add_argument("--attached", action="store_true")
    given = arguments.parse_args()
    run(given.trec, not given.without_model, given.attached)
