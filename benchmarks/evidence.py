"""What it costs to check keywords against texts, where an engine cannot count.

See docs/results/quality.md.

``python benchmarks/evidence.py [--queries N] [--trec FOLDER]`` runs the method ``loop``
with the local model over the topics of notables, and of the joined subset of TREC Fair 2022 in
FOLDER. Each search is done twice: by an engine that counts documents, and by the same engine
without that ability. Run ``fairqr models pull smollm2-135m`` first.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairqr.agents.cache import ReplyFile
from fairqr.agents.models import open_model
from fairqr.base.statistics import sums_ratio_interval
from fairqr.evaluation.collections.finding import find_collection
from fairqr.evaluation.experiments.measuring import Table, measure_experiment
from fairqr.evaluation.experiments.running import make_plan, search_by
from fairqr.evaluation.experiments.specification import Experiment, System
from fairqr.evaluation.experiments.store import Store
from fairqr.graph.search.builder import build_search_graph
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.catalog import Catalog
from fairqr.retrieval.engines.engine import Capability, SearchEngine

COUNTS, TEXTS = "counts", "texts"
MEASURE = "nDCG@20×AWRF@20(unit=bits)"
HEADINGS = ("collection", "attribute", "query", COUNTS, TEXTS, "change", "95% interval")
HEADINGS += ("topics", "searches")


@dataclass(frozen=True, slots=True)
class Pair:
    """The product of one search, with each of the two rules.

    Attributes:
        topic: The collection and the topic.
        counts: With the rule that counts documents.
        texts: With the rule that reads the retrieved texts.
    """

    topic: str
    counts: float
    texts: float


class WithoutCounts:
    """An engine that cannot count documents, and is otherwise the one that it wraps."""

    def __init__(self, engine: SearchEngine) -> None:
        self._engine = engine
        self.capabilities: frozenset[Capability] = engine.capabilities - {"document_frequencies"}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def main() -> None:
    """Search, measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, metavar="N", help="the first N topics of each")
    parser.add_argument("--trec", metavar="FOLDER", help="the joined subset of TREC Fair 2022")
    asked = parser.parse_args()
    rows: list[tuple[str, ...]] = []
    everything: list[Pair] = []
    for title, name in {"notables": "notables", "TREC Fair 2022": asked.trec}.items():
        if name is None:
            continue
        with tempfile.TemporaryDirectory(prefix="fairqr-evidence-") as folder:
            for table in asyncio.run(compared(name, asked.queries, Store(Path(folder)))):
                pairs = pairs_of(title, table)
                rows.append((title, table.attribute, table.queries, *figures(pairs)))
                everything += pairs
    rows.append(("all", "", "", *figures(everything)))
    print("\n".join(lines(rows)))


async def compared(name: str, topics: int | None, store: Store) -> Sequence[Table]:
    """Search a collection in both ways, and measure the rankings."""
    collection, prompts = find_collection(name), PromptLibrary()
    experiment = Experiment(
        title="Keywords checked by counts and by texts",
        collection=collection.name,
        queries=("title", "title+10"),
        topics=topics,
        measures=(MEASURE,),
        baseline=COUNTS,
        systems=(
            System(name=COUNTS, settings={"ask": "always"}, retriever="bm25"),
            System(name=TEXTS, settings={"ask": "always"}, retriever="bm25"),
        ),
    )
    plan = make_plan(experiment, collection, prompts)
    engine = await Catalog().resolve(collection.corpus_name)
    store.begin(plan.manifest)
    with store.lines.writing():
        # What the model has answered to one is not asked again by the other, nor by the next run.
        model = open_model(experiment.model, engine=engine, cache=ReplyFile())
        await model.start()
        graphs = {
            COUNTS: build_search_graph(engine, model, prompts=prompts),
            TEXTS: build_search_graph(WithoutCounts(engine), model, prompts=prompts),
        }
        for cell in plan.cells:
            print(collection.name, cell.attribute, cell.form, cell.system.name, file=sys.stderr)
            context = cell.context(experiment)
            for topic in plan.topics:
                query = topic.text(cell.form.keywords)
                done = await search_by(graphs[cell.system.name], cell.key(topic), query, context)
                store.lines.add(done.record)
    await engine.aclose()
    return measure_experiment(store, collection).tables


def pairs_of(title: str, table: Table) -> list[Pair]:
    """Return the products of the topics that have one with both rules."""
    counts, texts = (
        next(iter(table.evaluations[name].results.values())).defined() for name in (COUNTS, TEXTS)
    )
    return [Pair(f"{title} {t}", counts[t], texts[t]) for t in counts if t in texts]


def figures(pairs: Sequence[Pair]) -> Iterator[str]:
    """Yield both means, the relative change with its interval over topics, and what it is over."""
    by_topic: dict[str, list[Pair]] = {}
    for pair in pairs:
        by_topic.setdefault(pair.topic, []).append(pair)
    # A topic that was searched for several times counts once, with all of its searches.
    counts = [sum(pair.counts for pair in own) for own in by_topic.values()]
    texts = [sum(pair.texts for pair in own) for own in by_topic.values()]
    interval = sums_ratio_interval(texts, counts)
    yield f"{sum(counts) / len(pairs):.4f}"
    yield f"{sum(texts) / len(pairs):.4f}"
    yield percent(sum(texts) / sum(counts))
    yield f"{percent(interval.low)} … {percent(interval.high)}" if interval else ""
    yield str(len(by_topic))
    yield str(len(pairs))


def percent(ratio: float) -> str:
    """Return how far a ratio is from 1."""
    return f"{100 * (ratio - 1):+.2f} %"


def lines(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yield the table as Markdown."""
    yield f"| {' | '.join(HEADINGS)} |"
    yield "|---|---|---|" + "---:|" * (len(HEADINGS) - 3)
    for row in rows:
        yield f"| {' | '.join(row)} |"


if __name__ == "__main__":
    main()
