"""What retrieval and the fair step each bring, on two collections: ``make quality``.

``python -m benchmarks.quality [--trec FOLDER] [--attached] [--topics N]`` searches for all topics
of notables, and of the joined subset of TREC Fair 2022, imported into FOLDER, and prints for each
attribute and form of the query how far each system of ``quality.yaml`` is from BM25. The product is
the mean over topics of nDCG@20 × AWRF@20 in bits. Estimates of relevance use the fit on the other
collection (docs/explanation/relevance.md). With ``--attached`` the systems stand in front of a real
Elasticsearch with the same documents. Run ``fairqr models pull`` first.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import yaml

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
from fairqr.retrieval.engines.hybrid.texts import EncodedPoolEngine
from fairqr.retrieval.fairness.relevance import FITTED, held_out
from fairqr.retrieval.sources.catalog import Catalog
from tests.integration.elasticsearch_server import running_server
from tests.integration.filled_elasticsearch import fill

NDCG, AWRF = "nDCG@20", "AWRF@20(unit=bits)"
MEASURES = [NDCG, AWRF, PRODUCT := f"{NDCG}×{AWRF}"]
FOLDS = 5
DEPTH = 200
"""How many documents of each topic the trained systems learn from."""


async def searched(
    collection: Collection, engine: Any, settings: dict[str, Any], queries: dict[str, str]
) -> dict[str, list[str]]:
    """Return the rankings of a system, by topic."""
    graph, rankings = build_search_graph(engine, None), {}
    is_trained = settings.pop("trained", False)
    settings = {"method": "fairqr", "seed": 0, **settings}
    context, options = Context.of(**settings), dict[str, dict[str, Path]]()
    with TemporaryDirectory() as folder:
        if is_trained:
            examples = await gather(engine, queries, collection.qrels, context, depth=DEPTH)
            for number, fold in enumerate(folds_of([*queries], FOLDS)):
                others = [topic for topic in queries if topic not in fold]
                model = await train(context.strategy.final_step, examples, others, {})
                model.save(weights := Path(folder) / f"{number}.json")
                options |= {topic: {"weights": weights} for topic in fold}
        for topic, query in queries.items():
            own = Context.of(**settings, options=options.get(topic, {}))
            result = (await graph.ainvoke({"query": query}, context=own))["result"]
            rankings[topic] = [place["id"] for place in result["ranking"]]
    return rankings


def table(
    collection: Collection, found: dict[str, dict[str, list[str]]], attribute: str, over: list[str]
) -> pd.DataFrame:
    """Return the table of systems.

    Each is compared with BM25, topic by topic, and those that work over another retrieval with that
    alone. Each of the two columns of p is corrected by Holm's method.
    """
    runs, names = [as_run(rankings, name) for name, rankings in found.items()], [*found]
    qrels = {topic: collection.qrels[topic] for topic in found[names[0]]}
    groups = scan_corpus(collection.corpus, ids_of(runs, qrels))
    options: dict[str, Any] = {"target": collection.about.target, "attributes": [attribute]}
    values = {}
    for run in runs:
        measured = evaluate(run, qrels, MEASURES, groups=groups, **options)
        for name, result in zip(MEASURES, measured.results.values(), strict=True):
            values[name, run.name] = result.defined()
    topics = pd.DataFrame(values)
    shared = topics[topics[PRODUCT].notna().all(axis=1)]
    means = shared.mean().unstack(level=0).loc[names, MEASURES]
    changes = (100 * (means / means.iloc[0] - 1))[[NDCG, PRODUCT]].map("{:+.1f} %".format)
    columns = [means.map("{:.4f}".format), changes]
    for reference in (names[0], over[0]):
        after = names[names.index(reference) + 1 :]
        differences = shared[PRODUCT].sub(shared[PRODUCT][reference], axis=0)
        tests = [paired_randomisation(differences[it].to_numpy(), stream(0, it)) for it in after]
        ps = pd.Series(corrected_by_holm(tests), after, dtype=float)
        columns.append(ps.map("{:.3f}".format).reindex(names, fill_value=""))
    heads = ["nDCG@20", "AWRF@20", "product", "nDCG", "product", "p", over[1]]
    told = pd.concat(columns, axis=1).set_axis(heads, axis=1)
    return told.assign(topics=len(shared))


async def main(trec: Path | None, topics: int | None, url: str, stack: ExitStack) -> None:
    """Search, measure and print; in front of the Elasticsearch at a URL, unless it is empty."""
    asked = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    chosen = asked["attached" if url else "embedded"]
    collections = {"notables": find_collection("notables")}
    if trec is None:
        print("Skipped: TREC Fair 2022; name its folder by --trec.")
    else:
        collections["trec2022"] = find_collection(trec)
    for name, collection in collections.items():
        corpus, catalog = collection.corpus_name, Catalog()
        print(f"Encoding what has no vector yet in {corpus} …", file=sys.stderr)
        await (await catalog.resolve(corpus, retriever="dense:minilm")).aclose()
        engines: dict[str, Any] = {"bm25": await catalog.resolve(corpus, retriever="bm25")}
        engines["hybrid"] = await catalog.resolve(corpus, retriever="hybrid:minilm")
        engines["pool"] = await EncodedPoolEngine.open(
            engines["bm25"], open_encoder("minilm"), keeps_order=True
        )
        if url:
            source = fill(stack, url, collection.name, collection.corpus)
            engines["attached"] = await catalog.resolve(source, retriever="bm25")
            engines["attached pool"] = await catalog.resolve(source, retriever="hybrid:minilm")
        for retriever in engines.keys() & {"hybrid", "pool", "attached pool"}:
            engines[retriever].calibrations = FITTED[held_out(name)]
        forms = (0, 10) if any(topic.keywords for topic in collection.topics) else (0,)
        for attribute in ("gender", "continent"):
            for keywords in forms:
                queries = {it.id: it.text(keywords) for it in collection.topics[:topics]}
                found = {}
                for system, own in chosen["systems"].items():
                    settings = {"attribute": attribute, **own}
                    engine = engines[settings.pop("retriever")]
                    found[system] = await searched(collection, engine, settings, queries)
                form = f"title and {keywords} keywords" if keywords else "title"
                rows = table(collection, found, attribute, [chosen["over"], chosen["column"]])
                print(f"\n{name}, {attribute}, {form}\n{rows.to_string()}", flush=True)
        await asyncio.gather(*(engine.aclose() for engine in engines.values()))


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--trec", type=Path, help="the joined subset of TREC Fair 2022")
    arguments.add_argument("--topics", type=int, help="only so many topics of each collection")
    arguments.add_argument("--attached", action="store_true")
    given = arguments.parse_args()
    with ExitStack() as stack:
        url = stack.enter_context(running_server()).url if given.attached else ""
        asyncio.run(main(given.trec, given.topics, url, stack))
