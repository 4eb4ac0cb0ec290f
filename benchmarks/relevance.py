"""Fits the estimates of relevance, and shows how a fit holds on the other collection, and by group.

``python -m benchmarks.relevance FOLDER`` reads notables and the joined subset
of TREC Fair 2022, imported into FOLDER, and encodes them by MiniLM first. Of each form of each
topic, the 200 documents with the most evidence of ``words`` are fitted; for evidence of ``rank``
and ``texts``, the 200 best by BM25. No weight is below 0. What it prints stands in
:mod:`fairqr.retrieval.fairness.relevance`, and in quality.md and audits.md of docs/results.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
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
    both = pd.concat(samples)
    lexical, similarity, relevant = (
        both[name].to_numpy() for name in ("lexical", "similarity", "relevant")
    )

    def loss(weights: Array) -> float:
        logit = weights[0] + weights[1] * lexical + weights[2] * similarity
        return float(np.mean(np.logaddexp(0, logit) - relevant * logit))

    found = minimize(loss, np.zeros(3), bounds=[(None, None), (0, None), (0, None)])
    return Calibration(*(round(it, 3) for it in found.x.tolist()))


def chances_of(calibration: Calibration, sample: pd.DataFrame) -> pd.Series:
    """Return the probability of each document."""
    lexical, similarity = sample["lexical"].to_numpy(), sample["similarity"].to_numpy()
    return pd.Series(calibration.probability(lexical, similarity), sample.index)


def held_out(calibration: Calibration, sample: pd.DataFrame) -> str:
    """Return how probabilities and relevance go together, as a line."""
    told = sample.assign(chance=chances_of(calibration, sample))
    cells = [
        f"{own['chance'].mean():.2f} → {own['relevant'].mean():.2f} ({len(own) / len(told):.0%})"
        for _, own in told.groupby(pd.cut(told["chance"], BINS, include_lowest=True), observed=True)
    ]
    brier = ((told["chance"] - told["relevant"]) ** 2).mean()
    within = np.nanmean([_auc(own) for _, own in told.groupby("query")])
    return (
        f"Brier {brier:.3f} (base {told['relevant'].var(ddof=0):.3f}), AUC {_auc(told):.2f}, "
        f"within a query {within:.2f}: {', '.join(cells)}"
    )


def _auc(told: pd.DataFrame) -> float:
    """Return how often a relevant document is above another one; nan where all are alike."""
    good, bad = (told.loc[told["relevant"] == it, "chance"] for it in (1.0, 0.0))
    pairs = len(good) * len(bad)
    return float(mannwhitneyu(good, bad).statistic) / pairs if pairs else float("nan")


def by_group(sample: pd.DataFrame, calibration: Calibration, groups: list[str]) -> Iterator[str]:
    """Yield for each group its share of the relevant documents, and how far the estimate is off.

    The standard error is over queries, of those with a relevant document.
    """
    chances, members = chances_of(calibration, sample).to_numpy(), sample[groups].to_numpy()
    shares = []
    for weights in (sample["relevant"].to_numpy(), chances):
        own = pd.DataFrame(weights[:, None] * members).groupby(sample["query"].to_numpy()).sum()
        shares.append(own.div(own.sum(axis=1).replace(0, np.nan), axis=0).to_numpy())
    true, estimated = shares
    off = (estimated - true)[~np.isnan(true + estimated).any(axis=1)]
    errors = off.std(axis=0, ddof=1) / np.sqrt(len(off))
    for group, share, mean, error in zip(
        groups, np.nanmean(true, axis=0), off.mean(axis=0), errors, strict=True
    ):
        yield f"    {group:14} {share:.3f} of the relevant, off by {mean:+.3f} ± {error:.3f}"


async def main(trec: Path) -> None:
    """Fit and print."""
    collections = {"notables": find_collection("notables"), "trec2022": find_collection(trec)}
    for kind in KINDS:
        samples: Mapping[str, pd.DataFrame] = {
            name: await sample_of(own, kind) for name, own in collections.items()
        }
        one, other = samples
        both = fitted(*samples.values())
        print(f"{kind}, fitted on both: {both}")
        for name, of in ((other, one), (one, other)):
            fit = fitted(samples[of])
            print(f"{kind}, fitted on {of}: {fit}\n  on {name}: {held_out(fit, samples[name])}")
            for attribute in ATTRIBUTES if kind == "texts" else ():
                groups = [*collections[name].corpus.schema.attributes[attribute].universe]
                for how, calibration in (("both", both), (of, fit)):
                    print(f"  {name}, {attribute}, fitted on {how}")
                    print("\n".join(by_group(samples[name], calibration, groups)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
