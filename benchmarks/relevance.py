"""Fits the estimates of relevance, and shows how a fit holds on the other collection, and by group.

``python -m benchmarks.relevance notables trec2022 -o FOLDER`` encodes both collections by MiniLM
first. Of each form of a topic, the 200 documents with the most evidence of ``words`` are fitted;
for evidence of ``rank`` and ``texts``, the 200 best by BM25. No weight is below 0. Fits stand in
:mod:`fairqr.retrieval.fairness.relevance`; how they hold stands in quality.md and audits.md of
docs/results, and in the folder as ``measures.csv``.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import mannwhitneyu

from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.collections.finding import find_collection
from fairqr.retrieval.encoders.opening import open_encoder
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.engines.hybrid.texts import EncodedPoolEngine, TextRelevance
from fairqr.retrieval.fairness.relevance import Calibration, Calibrations
from fairqr.retrieval.sources.catalog import Catalog

POOL = 200
BINS = np.linspace(0, 1, 6)
ATTRIBUTES = ("gender", "continent")
KINDS = ("words", "rank", "texts")
Array = NDArray[np.float64]


class Weighed(Calibration):
    """Gives the weighted evidence itself in place of a probability."""

    def probability(self, lexical: Array, similarity: Array) -> Array:
        """Return the weighted sum, shape (n,)."""
        return self.lexical * lexical + self.similarity * similarity


EVIDENCE = {"lexical": Weighed(0, 1, 0), "similarity": Weighed(0, 0, 1)}


async def sample_of(collection: Collection, kind: str) -> pd.DataFrame:
    """Return the documents of topics with their evidence, their groups, and what is relevant."""
    words = await Catalog().resolve(collection.corpus_name, retriever="bm25")
    # Makes the vectors that are missing, which the others do not.
    await (await Catalog().resolve(collection.corpus_name, retriever="dense:minilm")).aclose()
    engine = await Catalog().resolve(collection.corpus_name, retriever="hybrid:minilm")
    texts = await TextRelevance.open(words, open_encoder("minilm"))
    if kind == "rank":
        engine = await EncodedPoolEngine.open(words, open_encoder("minilm"), keeps_order=True)
    schema, parts = collection.corpus.schema, []

    async def estimated(text: str, ids: list[str], by: Calibration) -> Array:
        (engine if kind != "texts" else texts).calibrations = Calibrations(by, by, by)
        if kind == "texts":
            found = await texts.estimate_ids(text, ids)
            return np.asarray(found.relevance)
        (hits,) = await engine.search([Query(text, POOL, only=tuple(ids))])
        order = dict(zip(hits.ids, hits.relevance.tolist(), strict=True))
        return np.array([order[id_] for id_ in ids])

    for topic in collection.topics:
        for text in dict.fromkeys((topic.text(0), topic.text(10))):
            searched = words if kind == "texts" else engine
            if kind != "texts":
                engine.calibrations = Calibrations(*[Weighed(0, 2, 1)] * 3)
            (pool,) = await searched.search([Query(text, POOL)])
            part = pd.DataFrame({"query": len(parts)}, index=pool.ids)
            for name, by in EVIDENCE.items():
                part[name] = await estimated(text, pool.ids, by)
            part["relevant"] = part.index.isin(collection.relevant(topic.id)).astype(float)
            for attribute in ATTRIBUTES:
                groups = schema.attributes[attribute].universe
                part[[*groups]] = pool.memberships[attribute]
            parts.append(part)
    return pd.concat(parts)


def fitted(*samples: pd.DataFrame) -> Calibration:
    """Return the logistic regression with the highest likelihood, and no weight below 0."""
    lexical, similarity, relevant = pd.concat(samples)[[*EVIDENCE, "relevant"]].to_numpy().T

    def loss(weights: Array) -> float:
        logit = weights[0] + weights[1] * lexical + weights[2] * similarity
        return float(np.mean(np.logaddexp(0, logit) - relevant * logit))

    found = minimize(loss, np.zeros(3), bounds=[(None, None), (0, None), (0, None)])
    return Calibration(*(round(it, 3) for it in found.x.tolist()))


def held_out(told: pd.DataFrame) -> Iterator[tuple[str, str, float]]:
    """Yield how chances and relevance go together, in all and by the chance."""
    within = np.nanmean([_auc(own) for _, own in told.groupby("query")])
    brier = ((told["chance"] - told["relevant"]) ** 2).mean()
    yield "all", "Brier", brier
    yield "all", "Brier of the share", told["relevant"].var(ddof=0)
    yield "all", "AUC", _auc(told)
    yield "all", "AUC within a query", float(within)
    bins = pd.cut(told["chance"], BINS, include_lowest=True)
    for place, own in told.groupby(bins, observed=True):
        name = f"to {place.right:.1f}"
        yield name, "estimated", own["chance"].mean()
        yield name, "relevant", own["relevant"].mean()
        yield name, "documents", len(own) / len(told)


def _auc(told: pd.DataFrame) -> float:
    """Return how often a relevant document is above another one; nan where all are alike."""
    good, bad = (told.loc[told["relevant"] == it, "chance"] for it in (1.0, 0.0))
    pairs = len(good) * len(bad)
    return float(mannwhitneyu(good, bad).statistic) / pairs if pairs else float("nan")


def by_group(told: pd.DataFrame, groups: list[str]) -> Iterator[tuple[str, str, float]]:
    """Yield for each group its share of the relevant documents, and how far the estimate is off.

    The standard error is over queries, of those with a relevant document.
    """
    shares = []
    for weights in (told["relevant"], told["chance"]):
        own = told[groups].mul(weights, axis=0).groupby(told["query"]).sum()
        shares.append(own.div(own.sum(axis=1).replace(0, np.nan), axis=0).to_numpy())
    true, estimated = shares
    off = (estimated - true)[~np.isnan(true + estimated).any(axis=1)]
    errors = off.std(axis=0, ddof=1) / np.sqrt(len(off))
    columns = np.nanmean(true, axis=0), off.mean(axis=0), errors
    for name, values in zip(("relevant", "off by", "standard error"), columns, strict=True):
        yield from ((group, name, it) for group, it in zip(groups, values.tolist(), strict=True))


async def main(names: Sequence[str], folder: Path) -> None:
    """Print the fits, and keep how they hold."""
    collections, kept = {name: find_collection(name) for name in names}, list[pd.DataFrame]()
    for kind in KINDS:
        samples = {name: await sample_of(own, kind) for name, own in collections.items()}
        fits = {"both": fitted(*samples.values())} | {it: fitted(samples[it]) for it in names}
        print(kind, fits)
        for fit, (name, own) in itertools.product(fits, collections.items()):
            evidence = (samples[name][it].to_numpy() for it in EVIDENCE)
            sample = samples[name].assign(chance=fits[fit].probability(*evidence))
            told = [*held_out(sample)] if fit not in ("both", name) else []
            for attribute in ATTRIBUTES if kind == "texts" and fit != name else ():
                told += by_group(sample, [*own.corpus.schema.attributes[attribute].universe])
            if told:
                rows = pd.DataFrame(told, columns=["of", "measure", "value"])
                kept.append(rows.assign(kind=kind, fitted=fit, on=name))
    folder.mkdir(parents=True, exist_ok=True)
    pd.concat(kept).to_csv(folder / "measures.csv", index=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs=2, help="of collections")
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    asyncio.run(main(given.names, given.output))
