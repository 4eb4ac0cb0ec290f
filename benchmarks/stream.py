"""Whether amortised deficits help over a stream of searches, and what it costs.

``python -m benchmarks.stream notables trec2022 -o FOLDER`` draws streams of the topics of
collections by Zipf's law, and shows for each search the first k of its 100 best by BM25 in their
fair order. Heavier weights of fairness are tried in each list alone, and with amortised deficits
of several decays. What it prints stands in docs/results/quality.md, and in the folder as
``measures.csv``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

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

WEIGHTS = {"alone": (0, 0.5, 1, 2, 4, 8, 16, 32, 64), "amortised": (0.1, 0.25, 0.5, 1, 2)}
DECAYS = {"alone": (None,), "amortised": (1.0, 0.999, 0.99)}
SIZES, SEARCHES, SEEDS, ZIPF = (3, 10), 2_000, 3, 1.0
WHAT = ["k", "way", "decay", "weight"]
Lists = Sequence[tuple[Hits, np.ndarray]]


async def lists_of(name: str) -> tuple[Any, Lists]:
    """Return the schema, and of each topic its list with what of it is judged relevant."""
    collection, evidence, found = find_collection(name), ListEvidence(), []
    engine = await Catalog().resolve(collection.corpus_name, retriever="bm25")
    for topic in collection.topics:
        (hits,) = await engine.search([Query(topic.text(0), 100)])
        if len(hits):
            texts = [f"{it.title}\n{it.text}" for it in await engine.documents(hits.ids)]
            relevant = np.isin(hits.ids, [*collection.relevant(topic.id)])
            (estimated,) = await evidence.estimated([topic.text(0)], texts, hits)
            found.append((estimated, relevant))
    return engine.schema, found


def measured(
    schema: Any, lists: Lists, draws: Sequence[int], context: Context, decay: float | None
) -> tuple[float, float, float]:
    """Return the distance of a whole stream, its slope on log-log, and the mean nDCG."""
    deficit = None if decay is None else AmortisedDeficit(decay=decay)
    gains, sums, distances, kept = [], np.zeros(2), [], dict[int, Any]()
    discount = 1 / np.log2(np.arange(2, context.k + 2))
    for draw in draws:
        hits, relevant = lists[draw]
        if deficit is not None or draw not in kept:
            kept[draw] = fair_order(schema, context, hits, deficit and deficit.by_group)
        found = kept[draw]
        if deficit is not None:
            deficit.add(found.target, found.after.exposure)
        ideal = discount[: int(relevant.sum())].sum()
        shown = relevant[found.positions[: context.k]]
        gains.append((discount[: len(shown)] @ shown) / ideal if ideal else np.nan)
        for sign, shares in ((1, found.after.exposure), (-1, found.target)):
            sums += sign * np.array([shares["gender"][it] for it in ("female", "male")])
        distances.append(np.abs(sums).sum() / 2 / len(gains))
    times = np.unique(np.geomspace(20, len(draws), 40).astype(int))
    logs = np.log(np.maximum(np.array(distances)[times - 1], 1e-6))
    return distances[-1], np.polyfit(np.log(times), logs, 1)[0], float(np.nanmean(gains))


def compared(schema: Any, lists: Lists, k: int) -> Iterator[dict[str, object]]:
    """Yield a row for each way and weight: means over streams."""
    chances = 1 / np.arange(1, len(lists) + 1) ** ZIPF
    streams = []
    for seed in range(SEEDS):
        random = np.random.default_rng(seed)
        order = random.permutation(len(lists))
        streams.append(order[random.choice(len(lists), SEARCHES, p=chances / chances.sum())])
    for way, weights in WEIGHTS.items():
        for decay in DECAYS[way]:
            for weight in weights:
                options = {"target": "population:1", "fairness_weight": weight, "k": k}
                context = Context.of(attributes=("gender",), **options)
                runs = [measured(schema, lists, it, context, decay) for it in streams]
                far, slope, ndcg = np.mean(runs, axis=0)
                told = {"distance": f"{far:.4f}", "slope": f"{slope:.2f}", "nDCG": f"{ndcg:.4f}"}
                yield {**dict(zip(WHAT, (k, way, decay or "", weight), strict=True)), **told}


async def main(names: Sequence[str], folder: Path) -> None:
    """Print a table for each collection, and keep all."""
    found = list[dict[str, object]]()
    for name in names:
        schema, lists = await lists_of(name)
        for k in SIZES:
            rows = [*compared(schema, lists, k)]
            print(name, len(lists), table(rows), sep="\n", flush=True)
            found += [{"collection": name, **it} for it in rows]
    folder.mkdir(parents=True, exist_ok=True)
    kept = pd.DataFrame(found).melt(["collection", *WHAT], var_name="measure")
    kept.to_csv(folder / "measures.csv", index=False)


if __name__ == "__main__":
    over_collections(__doc__, main)
