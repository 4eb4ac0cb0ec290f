"""Whether amortised deficits help over a stream of searches, and what it costs.

``python -m benchmarks.stream notables trec2022 -o FOLDER`` draws streams of the topics of
collections by Zipf's law, and shows for each search the first k of its 100 best by BM25 in their
fair order. Heavier weights of fairness are tried in each list alone, and with amortised deficits
of several decays. What it prints stands in docs/results/quality.md, and in the folder as
``measures.csv``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from benchmarks.measuring import over_collections, table
from fairqr.evaluation.collections.finding import find_collection
from fairqr.graph.integrations.amortised import AmortisedDeficit
from fairqr.graph.integrations.evidence import ListEvidence
from fairqr.graph.integrations.order import fair_order
from fairqr.graph.search.context import Context
from fairqr.retrieval.engines.engine import Hits, Query
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.schema import Schema

WEIGHTS = {"alone": (0, 0.5, 1, 2, 4, 8, 16, 32, 64), "amortised": (0.1, 0.25, 0.5, 1, 2)}
DECAYS = {"alone": (None,), "amortised": (1.0, 0.999, 0.99)}
SIZES = (3, 10)
SEARCHES = 2_000
SEEDS = 3
ZIPF = 1.0
DEPTH = 100
"""How many documents a list has before it is cut to k."""

GROUPS = ("female", "male")
COLUMNS = ["k", "way", "decay", "weight"]


class JudgedList(NamedTuple):
    """The list of a topic, and which of its documents are judged relevant."""

    hits: Hits
    relevant: np.ndarray


async def lists_of(name: str) -> tuple[Schema, list[JudgedList]]:
    """Return the schema of a collection, and the list of each topic."""
    collection = find_collection(name)
    evidence = ListEvidence()
    engine = await Catalog().resolve(collection.corpus_name, retriever="bm25")
    lists = []
    for topic in collection.topics:
        query = topic.text(0)
        (hits,) = await engine.search([Query(query, DEPTH)])
        if not len(hits):
            continue
        documents = await engine.documents(hits.ids)
        texts = [f"{document.title}\n{document.text}" for document in documents]
        relevant = np.isin(hits.ids, [*collection.relevant(topic.id)])
        (estimated,) = await evidence.estimated([query], texts, hits)
        lists.append(JudgedList(estimated, relevant))
    return engine.schema, lists


def measure(
    schema: Schema,
    lists: Sequence[JudgedList],
    draws: Sequence[int],
    context: Context,
    decay: float | None,
) -> tuple[float, float, float]:
    """Return the distance of a whole stream, its slope on log-log, and the mean nDCG."""
    deficit = None if decay is None else AmortisedDeficit(decay=decay)
    discount = 1 / np.log2(np.arange(2, context.k + 2))
    orders: dict[int, Any] = {}
    ndcgs = []
    distances = []
    excess = np.zeros(len(GROUPS))
    for draw in draws:
        hits, relevant = lists[draw]
        # Without deficits, the order of a list is always the same.
        if deficit is not None or draw not in orders:
            orders[draw] = fair_order(schema, context, hits, deficit and deficit.by_group)
        order = orders[draw]
        exposure = order.after.exposure
        if deficit is not None:
            deficit.add(order.target, exposure)

        ideal = discount[: int(relevant.sum())].sum()
        shown = relevant[order.positions[: context.k]]
        gain = discount[: len(shown)] @ shown
        ndcgs.append(gain / ideal if ideal else np.nan)
        excess += _of_groups(exposure)
        excess -= _of_groups(order.target)
        distances.append(np.abs(excess).sum() / 2 / len(ndcgs))

    times = np.unique(np.geomspace(20, len(draws), 40).astype(int))
    log_distances = np.log(np.maximum(np.array(distances)[times - 1], 1e-6))
    slope = np.polyfit(np.log(times), log_distances, 1)[0]
    return distances[-1], slope, float(np.nanmean(ndcgs))


def _of_groups(shares: Mapping[str, Mapping[str, float]]) -> np.ndarray:
    """Return the shares of the groups of the gender."""
    return np.array([shares["gender"][group] for group in GROUPS])


def _streams(count: int) -> list[np.ndarray]:
    """Return streams of draws from lists, by Zipf's law; each has an order of its own."""
    weights = 1 / np.arange(1, count + 1) ** ZIPF
    probabilities = weights / weights.sum()
    streams = []
    for seed in range(SEEDS):
        random = np.random.default_rng(seed)
        order = random.permutation(count)
        streams.append(order[random.choice(count, SEARCHES, p=probabilities)])
    return streams


def compare(schema: Schema, lists: Sequence[JudgedList], k: int) -> Iterator[dict[str, object]]:
    """Yield a row for each way, decay and weight: means over streams."""
    streams = _streams(len(lists))
    for way, weights in WEIGHTS.items():
        for decay, weight in itertools.product(DECAYS[way], weights):
            options = {"target": "population:1", "fairness_weight": weight, "k": k}
            context = Context.of(attributes=("gender",), **options)
            figures = [measure(schema, lists, draws, context, decay) for draws in streams]
            distance, slope, ndcg = np.mean(figures, axis=0)
            yield {
                "k": k,
                "way": way,
                "decay": decay or "",
                "weight": weight,
                "distance": f"{distance:.4f}",
                "slope": f"{slope:.2f}",
                "nDCG": f"{ndcg:.4f}",
            }


async def main(names: Sequence[str], folder: Path) -> None:
    """Print a table for each collection, and keep all."""
    all_rows: list[dict[str, object]] = []
    for name in names:
        schema, lists = await lists_of(name)
        for k in SIZES:
            rows = [*compare(schema, lists, k)]
            print(name, len(lists), table(rows), sep="\n", flush=True)
            all_rows += [{"collection": name, **row} for row in rows]
    folder.mkdir(parents=True, exist_ok=True)
    measures = pd.DataFrame(all_rows).melt(["collection", *COLUMNS], var_name="measure")
    measures.to_csv(folder / "measures.csv", index=False)


if __name__ == "__main__":
    over_collections(__doc__, main)
