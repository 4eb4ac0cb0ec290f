"""What retrieval, the fair step and the model each bring, on two collections: ``make quality``.

``python benchmarks/quality.py [--trec FOLDER] [--without-model]`` searches for all topics of
notables, and of the joined subset of TREC Fair 2022 in FOLDER, and prints for each attribute and
form of the query how far each system is from BM25. The product is the mean over topics of
nDCG@20 × AWRF@20 in bits. Estimates of relevance use the fit on the other collection, and nothing
else was chosen by looking at these tables (docs/relevance.md). Run ``fairqr models pull`` first.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fairqr.agents.models import open_model
from fairqr.base.statistics import corrected_by_holm, paired_randomisation, stream
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.collections.finding import find_collection
from fairqr.evaluation.evaluate import evaluate_all
from fairqr.evaluation.inputs import as_run
from fairqr.graph.search.builder import build_search_graph
from fairqr.graph.search.context import make_context
from fairqr.retrieval.catalog import Catalog
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.engines.hybrid import HybridEngine
from fairqr.retrieval.relevance import FITTED
from fairqr.retrieval.runs import Run

NDCG, AWRF = "nDCG@20", "AWRF@20(unit=bits)"
PRODUCT = f"{NDCG}×{AWRF}"
BASELINE = "BM25"
HEADINGS = ("system", "nDCG@20", "AWRF@20", "product", "nDCG", "product", "p", "topics", "calls")


@dataclass(frozen=True, slots=True)
class System:
    """A system of the tables: how documents are found, and what is done with them."""

    name: str
    retriever: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    needs_model: bool = False


SYSTEMS = (
    System(BASELINE, "bm25", {"method": "plain"}),
    System("BM25, greedy step", "bm25", {"method": "greedy"}),
    System("BM25, relevance-aware step", "bm25", {"ask": "never"}),
    System("fair-qr (BM25)", "bm25", {"method": "fair-qr"}, needs_model=True),
    System("hybrid", "hybrid", {"method": "plain"}),
    System("hybrid, greedy step", "hybrid", {"method": "greedy"}),
    System("hybrid, MMR", "hybrid", {"method": "mmr"}),
    System("hybrid, xQuAD", "hybrid", {"method": "xquad"}),
    System("hybrid, PM-2", "hybrid", {"method": "pm2"}),
    System("hybrid, FA*IR", "hybrid", {"method": "fa-ir"}),
    System("hybrid, relevance-aware step", "hybrid", {"ask": "never"}),
    System("the same, any relevance", "hybrid", {"ask": "never", "min_relevance": 0.0}),
    System("the same, model where it may help", "hybrid", {}, needs_model=True),
    System("the same, model always", "hybrid", {"ask": "always"}, needs_model=True),
)


async def searched(
    collection: Collection,
    engine: SearchEngine,
    system: System,
    attribute: str,
    keywords: int,
    model: Any,
) -> tuple[Run, float]:
    """Return the rankings of a system, and how often it asked the model, in the mean."""
    graph = build_search_graph(engine, model if system.needs_model else None)
    settings = {"method": "relevance-aware", "attribute": attribute, "seed": 0, **system.settings}
    context, rankings, calls = make_context(**settings), {}, 0
    for topic in collection.topics:
        state = await graph.ainvoke({"query": topic.text(keywords)}, context=context)
        result = state["result"]
        rankings[topic.id] = [place["id"] for place in result["ranking"]]
        calls += result["usage"]["model_calls"]
    return as_run(rankings, system.name), calls / len(collection.topics)


def table(
    collection: Collection, runs: Sequence[Run], calls: Sequence[float], attribute: str
) -> list[tuple[str, ...]]:
    """Return the rows of a table; each system is compared with BM25, topic by topic."""
    evaluations = evaluate_all(
        runs,
        collection.qrels,
        [NDCG, AWRF, PRODUCT],
        documents=collection.corpus,
        target=collection.about.target,
        attributes=[attribute],
    )
    values = []
    for evaluation in evaluations:
        by_measure = [
            np.array([result.defined().get(topic.id, np.nan) for topic in collection.topics])
            for result in evaluation.results.values()
        ]
        values.append(np.stack(by_measure, axis=1))
    shared = ~np.isnan(np.stack(values)[:, :, 2]).any(axis=0)
    means = [own[shared].mean(axis=0) for own in values]
    tests = [
        paired_randomisation(own[shared, 2] - values[0][shared, 2], stream(0, run.name))
        for run, own in zip(runs, values, strict=True)
    ]
    ps = corrected_by_holm([None, *(test.p if test else None for test in tests[1:])])
    rows = [HEADINGS]
    for run, mean, p, asked in zip(runs, means, ps, calls, strict=True):
        change = 100 * (mean / means[0] - 1)
        rows.append(
            (
                run.name,
                *(f"{value:.4f}" for value in mean),
                f"{change[0]:+.1f} %",
                f"{change[2]:+.1f} %",
                "" if p is None else f"{p:.3f}",
                str(int(shared.sum())),
                f"{asked:.2f}",
            )
        )
    return rows


def printed(title: str, rows: Sequence[tuple[str, ...]]) -> None:
    """Print a table."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    print(f"\n{title}")
    for row in rows:
        first, *others = row
        cells = [text.rjust(width) for text, width in zip(others, widths[1:], strict=True)]
        print("  ".join([first.ljust(widths[0]), *cells]), flush=True)


async def main(trec: Path | None, with_model: bool) -> None:
    """Search, measure and print."""
    model = open_model("local:smollm2-135m") if with_model else None
    collections = {"notables": find_collection("notables")}
    if trec is not None and trec.is_dir():
        collections["trec2022"] = find_collection(trec)
    else:
        print("Skipped: TREC Fair 2022; name its folder by --trec.")
    others = {"notables": "trec2022", "trec2022": "notables"}
    for name, collection in collections.items():
        engines: dict[str, SearchEngine] = {}
        for retriever in ("bm25", "hybrid"):
            if retriever == "hybrid":
                print(f"Encoding what has no vector yet in {name} …", file=sys.stderr)
                dense = await Catalog().resolve(collection.corpus_name, retriever="dense:minilm")
                await dense.aclose()
                retriever = "hybrid:minilm"
            engine = await Catalog().resolve(collection.corpus_name, retriever=retriever)
            if isinstance(engine, HybridEngine):
                engine.calibration = FITTED[others[name]]
            engines[retriever.partition(":")[0]] = engine
        forms = (0, 10) if any(topic.keywords for topic in collection.topics) else (0,)
        for attribute in ("gender", "continent"):
            for keywords in forms:
                systems = [s for s in SYSTEMS if with_model or not s.needs_model]
                found = [
                    await searched(collection, engines[s.retriever], s, attribute, keywords, model)
                    for s in systems
                ]
                form = f"title and {keywords} keywords" if keywords else "title"
                rows = table(
                    collection, [run for run, _ in found], [c for _, c in found], attribute
                )
                printed(f"{name}, {attribute}, {form}", rows)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--trec", type=Path, help="the joined subset of TREC Fair 2022")
    arguments.add_argument("--without-model", action="store_true")
    given = arguments.parse_args()
    asyncio.run(main(given.trec, not given.without_model))
