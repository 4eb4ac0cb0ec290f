"""What fair search costs in relevance: all topics of notables, before and after.

Run as ``python tests/performance/quality.py [MODEL …]``; the models are those of ``--model``. For
each it prints the means over the topics of nDCG@20 (binary), AWRF@20 (1 − JS in bits, against half
the relevant documents' distribution and half the population's) and their product, and on how many
topics the divergence fell. It compares with the relevant documents, which the search itself never
sees. With ``--prompts`` it tells instead how often each refine prompt got usable keywords.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fairqr import FairSearch, SearchResult, open_index, open_model
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.corpus import BUILT_IN
from fairqr.retrieval.dimension import Dimension
from fairqr.retrieval.divergence import jensen_shannon
from fairqr.retrieval.exposure import FloatArray, exposure, normalise
from fairqr.retrieval.index import Index

K = 20


@dataclass(frozen=True, slots=True)
class Topic:
    """A query and the ids of the documents that are relevant to it."""

    query: str
    relevant: frozenset[str]


def topics() -> list[Topic]:
    """Read the topics and judgements of notables."""
    folder = BUILT_IN["notables"]
    relevant: defaultdict[str, set[str]] = defaultdict(set)
    for line in (folder / "qrels.txt").read_text().splitlines():
        topic, _, document, grade = line.split()
        if int(grade) > 0:
            relevant[topic].add(document)
    lines = (folder / "topics.jsonl").read_text().splitlines()
    return [Topic(t["title"], frozenset(relevant[t["id"]])) for t in map(json.loads, lines)]


def ndcg(ids: Sequence[str], relevant: frozenset[str]) -> float:
    """Return nDCG@20."""
    weights = 1 / np.log2(np.arange(2, K + 2))
    gains = np.array([id_ in relevant for id_ in ids[:K]], dtype=float)
    ideal = weights[: min(K, len(relevant))].sum()
    return float((gains * weights[: len(gains)]).sum() / ideal)


async def awrf(index: Index, dimension: Dimension, ids: Sequence[str], target: FloatArray) -> float:
    """Return AWRF@20 in bits."""
    found = exposure(await dimension.memberships(index, ids[:K]))
    return 1 - float(jensen_shannon(target, found, unit="bits"))


async def scores(
    index: Index, dimension: Dimension, topic: Topic, ids: Sequence[str]
) -> tuple[float, float, float]:
    """Return nDCG, AWRF and their product for a ranking."""
    population: Mapping[str, float] = dimension.attribute.population or {}
    among = normalise((await dimension.memberships(index, sorted(topic.relevant))).sum(axis=0))
    target = (among + [population[group] for group in dimension.groups]) / 2
    relevance = ndcg(ids, topic.relevant)
    fairness = await awrf(index, dimension, ids, target)
    return relevance, fairness, relevance * fairness


async def compare(index: Index, attribute: str, model: str | None, **context: object) -> None:
    """Search for all topics, and print a row."""
    dimension = Dimension.named(index.schema, attribute)
    refiner = open_model(model, index=index) if model else None
    search = FairSearch(index, refiner)
    before: list[tuple[float, float, float]] = []
    after: list[tuple[float, float, float]] = []
    lower = 0
    for topic in topics():
        result: SearchResult = await search.asearch(topic.query, attribute=attribute, **context)
        for rows, ranking in ((before, result.baseline.ranking), (after, result.ranking)):
            rows.append(await scores(index, dimension, topic, [d.id for d in ranking]))
        lower += (result.improvement or 0) > 0
    if not model:
        print(row(attribute, "plain retrieval", before, 0))
    name = f"{context.get('method', 'fairqr')}, {model or 'no model'}"
    print(row(attribute, name, after, lower), flush=True)


def row(attribute: str, name: str, values: Sequence[tuple[float, ...]], lower: int) -> str:
    """Format the means of a run."""
    means = "  ".join(f"{mean:.4f}" for mean in np.mean(values, axis=0))
    return f"{attribute:10} {name:36} {means}  {lower:3} of {len(values)}"


async def compare_prompts() -> None:
    """Print for each refine prompt how often the local model's keywords could be used."""
    index = await open_index("notables")
    search = FairSearch(index, open_model("local:smollm2-135m"))
    for id_, version in PromptLibrary().names():
        needed = usable = 0
        for topic in topics():
            result = await search.asearch(
                topic.query, attribute="gender", max_iterations=1, prompts={id_: version}
            )
            needed += result.stop_reason != "converged" or len(result.iterations) > 1
            usable += len(result.iterations) > 1
        print(f"{id_}={version}: usable keywords for {usable} of {needed} topics", flush=True)
    await index.close()


async def main(models: Sequence[str]) -> None:
    """Compare all methods."""
    index = await open_index("notables")
    print(f"{'attribute':10} {'method':36} nDCG@20  AWRF    product  divergence lowered")
    for attribute in ("gender", "continent"):
        await compare(index, attribute, None, max_iterations=0)
        for model in models:
            await compare(index, attribute, model)
            await compare(index, attribute, model, method="fair-qr")
    await index.close()


if __name__ == "__main__":
    if sys.argv[1:] == ["--prompts"]:
        asyncio.run(compare_prompts())
    else:
        asyncio.run(main(sys.argv[1:] or ["feedback", "local:smollm2-135m"]))
