"""Fits the estimate of relevance, and shows how well a fit holds on the other collection.

``python benchmarks/relevance.py --trec FOLDER`` reads notables and the joined subset of TREC Fair
2022 in FOLDER, and encodes them by MiniLM first. The 200 documents of each topic with the most
evidence are fitted; for the evidence of ranks, the 200 best by BM25. No weight is below 0. What it
prints stands in :mod:`fairqr.retrieval.fairness.relevance` and in docs/explanation/relevance.md.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import mannwhitneyu

from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.collections.finding import find_collection
from fairqr.retrieval.encoders.opening import open_encoder
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.engines.hybrid.embedded import HybridEngine
from fairqr.retrieval.engines.hybrid.texts import EncodedPoolEngine
from fairqr.retrieval.fairness.relevance import Calibration, Calibrations
from fairqr.retrieval.sources.catalog import Catalog

POOL = 200
BINS = np.linspace(0, 1, 6)

Array = NDArray[np.float64]


class Sample(NamedTuple):
    """Documents with both kinds of evidence, whether they are relevant, and which query found them.

    Shape (n,) each.
    """

    lexical: Array
    similarity: Array
    relevant: Array
    query: Array


class Weighed(Calibration):
    """Gives the weighted evidence itself in place of a probability."""

    def probability(self, lexical: Array, similarity: Array) -> Array:
        """Return the weighted sum, shape (n,)."""
        return self.lexical * lexical + self.similarity * similarity


async def opened(collection: Collection, *, by_rank: bool) -> HybridEngine | EncodedPoolEngine:
    """Return the engine whose evidence counts."""
    if by_rank:
        words = await Catalog().resolve(collection.corpus_name)
        return await EncodedPoolEngine.open(words, open_encoder("minilm"), keeps_order=True)
    # Makes the vectors that are missing, which the other retriever does not.
    dense = await Catalog().resolve(collection.corpus_name, retriever="dense:minilm")
    await dense.aclose()
    engine = await Catalog().resolve(collection.corpus_name, retriever="hybrid:minilm")
    assert isinstance(engine, HybridEngine)
    return engine


async def sample_of(collection: Collection, *, by_rank: bool = False) -> Sample:
    """Return the documents of all topics, in each form of the query."""
    engine = await opened(collection, by_rank=by_rank)
    kinds = Weighed(0, 1, 0), Weighed(0, 0, 1)
    found: list[tuple[float, float, float, int]] = []
    queries = 0
    for topic in collection.topics:
        relevant = set(collection.relevant(topic.id))
        for text in dict.fromkeys((topic.text(0), topic.text(10))):
            engine.calibrations = Calibrations(*[Weighed(0, 2, 1)] * 3)
            (pool,) = await engine.search([Query(text, POOL)])
            evidence: list[Mapping[str, float]] = []
            for kind in kinds:
                engine.calibrations = Calibrations(kind, kind, kind)
                (hits,) = await engine.search([Query(text, POOL, only=tuple(pool.ids))])
                assert hits.relevance is not None
                evidence.append(dict(zip(hits.ids, hits.relevance.tolist(), strict=True)))
            lexical, similarity = evidence
            found += [
                (lexical[id_], similarity[id_], float(id_ in relevant), queries) for id_ in pool.ids
            ]
            queries += 1
    return Sample(*np.array(found).T)


def fitted(*samples: Sample) -> Calibration:
    """Return the logistic regression with the highest likelihood, and no weight below 0."""
    lexical, similarity, relevant, _ = (
        np.concatenate(column) for column in zip(*samples, strict=True)
    )

    def loss(weights: Array) -> float:
        logit = weights[0] + weights[1] * lexical + weights[2] * similarity
        return float(np.mean(np.logaddexp(0, logit) - relevant * logit))

    intercept, by_words, by_vectors = minimize(
        loss, np.zeros(3), bounds=[(None, None), (0, None), (0, None)]
    ).x.tolist()
    return Calibration(round(intercept, 3), round(by_words, 3), round(by_vectors, 3))


def held_out(calibration: Calibration, sample: Sample) -> str:
    """Return how probabilities and relevance go together, as a line."""
    chances = calibration.probability(sample.lexical, sample.similarity)
    bins = np.clip(np.digitize(chances, BINS) - 1, 0, len(BINS) - 2)
    cells = [
        f"{chances[bins == one].mean():.2f} → {sample.relevant[bins == one].mean():.2f} "
        f"({(bins == one).mean():.0%})"
        for one in range(len(BINS) - 1)
        if (bins == one).any()
    ]
    brier = float(((chances - sample.relevant) ** 2).mean())
    of_queries = [sample.query == query for query in np.unique(sample.query)]
    areas = [area_under_curve(chances[own], sample.relevant[own] > 0) for own in of_queries]
    return (
        f"Brier {brier:.3f} (base {sample.relevant.var():.3f}), AUC "
        f"{area_under_curve(chances, sample.relevant > 0):.2f}, within a query "
        f"{np.nanmean(areas):.2f}: {', '.join(cells)}"
    )


def area_under_curve(chances: Array, relevant: NDArray[np.bool_]) -> float:
    """Return how often a relevant document is above another one; nan where all are alike."""
    pairs = int(relevant.sum()) * int((~relevant).sum())
    if not pairs:
        return float("nan")
    return float(mannwhitneyu(chances[relevant], chances[~relevant]).statistic) / pairs


async def main(trec: Path) -> None:
    """Fit and print."""
    names = {"notables": find_collection("notables"), "trec2022": find_collection(trec)}
    samples = {name: await sample_of(collection) for name, collection in names.items()}
    by_words = {
        name: sample._replace(similarity=np.zeros_like(sample.similarity))
        for name, sample in samples.items()
    }
    one, other = samples
    print("both:", fitted(*samples.values()))
    for fitted_on, tested_on in ((one, other), (other, one)):
        for what, chosen in (("", samples), (" by words alone", by_words)):
            calibration = fitted(chosen[fitted_on])
            print(f"{fitted_on}{what}: {calibration}")
            print(f"  on {tested_on}: {held_out(calibration, chosen[tested_on])}")
    ranks = {name: await sample_of(own, by_rank=True) for name, own in names.items()}
    print("both, by rank:", fitted(*ranks.values()))
    for fitted_on, tested_on in ((one, other), (other, one)):
        calibration = fitted(ranks[fitted_on])
        print(f"{fitted_on}, by rank: {calibration}")
        print(f"  on {tested_on}: {held_out(calibration, ranks[tested_on])}")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--trec", type=Path, required=True)
    asyncio.run(main(arguments.parse_args().trec))
