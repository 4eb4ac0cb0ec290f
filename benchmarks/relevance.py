"""Fits the estimates of relevance, and shows how a fit holds on the other collection, and by group.

``python -m benchmarks.relevance notables trec2022 -o FOLDER`` encodes both collections by MiniLM
first. Of each form of a topic, the 200 documents with the most evidence of ``words`` are fitted;
for evidence of ``rank`` and ``texts``, the 200 best by BM25. No weight is below 0.

Whether a query can be answered at all is fitted after that, with the estimates of documents as they
are: on the same documents, and on those of the unrelated queries of
:mod:`fairqr.retrieval.fairness.answerable`, of which none is relevant. It is tested with other
queries, ``unanswerable_queries.txt``: made words, software, recipes and addresses, 25 of each.

Fits stand in :mod:`fairqr.retrieval.fairness.relevance`; how they hold stands in quality.md and
audits.md of docs/results, and in the folder as ``measures.csv``.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
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
from fairqr.retrieval.engines.hybrid.encoded_pool import EncodedPoolEngine
from fairqr.retrieval.engines.hybrid.texts import TextRelevance
from fairqr.retrieval.fairness.answerable import Answerability, unrelated_queries
from fairqr.retrieval.fairness.relevance import CALIBRATED, Calibration, Calibrations
from fairqr.retrieval.sources.catalog import Catalog

POOL = 200
FIRST = 20
BINS = np.linspace(0, 1, 6)
ATTRIBUTES = ("gender", "continent")
KINDS = ("words", "rank", "texts")
UNANSWERABLE = Path(__file__).with_name("unanswerable_queries.txt")
TOPIC_WEIGHT = {"words": 10.0, "rank": 2.0, "texts": 2.0, "field": 3.0}
"""How much a document of a topic counts, where one of an unrelated query counts 1. Higher values
keep the estimates of topics as they are, lower ones tell unanswerable queries better."""

RIDGE = 1e-3
"""Keeps a weight from growing without end where both kinds of queries can be told apart."""

Array = NDArray[np.float64]


class Weighed(Calibration):
    """Gives the weighted evidence itself in place of a probability."""

    def probability(self, lexical: Array, similarity: Array) -> Array:
        """Return the weighted sum, shape (n,)."""
        return self.lexical * lexical + self.similarity * similarity


class WeighedQuery(Answerability):
    """Gives the weighted evidence of a query itself in place of a probability."""

    def probability(self, similarity: float, words: float) -> float:
        """Return the weighted sum."""
        return self.similarity * similarity + self.words * words


EVIDENCE = {"lexical": Weighed(0, 1, 0), "similarity": Weighed(0, 0, 1)}
QUERY_EVIDENCE = {"above": WeighedQuery(0, 1, 0), "held": WeighedQuery(0, 0, 1)}


class Samples:
    """Reads evidence of one kind from a collection.

    Attributes:
        words: The index, searched by words.
        engine: Estimates relevance by this kind of evidence.
    """

    def __init__(self, collection: Collection, kind: str) -> None:
        self.collection = collection
        self.kind = kind

    async def open(self) -> None:
        """Open the engines, after encoding what has no vectors yet."""
        name = self.collection.corpus_name
        self.words = await Catalog().resolve(name, retriever="bm25")
        # Makes the vectors that are missing, which the others do not.
        await (await Catalog().resolve(name, retriever="dense:minilm")).aclose()
        if self.kind == "words":
            self.engine = await Catalog().resolve(name, retriever="hybrid:minilm")
        elif self.kind == "rank":
            encoder = open_encoder("minilm")
            self.engine = await EncodedPoolEngine.open(self.words, encoder, keeps_order=True)
        else:
            self.engine = await TextRelevance.open(self.words, open_encoder("minilm"))

    async def pool(self, text: str) -> pd.DataFrame:
        """Return the documents of a query with their evidence, empty if there are none."""
        searched = self.words if self.kind == "texts" else self.engine
        if self.kind != "texts":
            self.engine.calibrations = Calibrations(*[Weighed(0, 2, 1)] * 4)
        (pool,) = await searched.search([Query(text, POOL)])
        part = pd.DataFrame(index=pool.ids)
        for attribute in ATTRIBUTES:
            groups = self.collection.corpus.schema.attributes[attribute].universe
            part[[*groups]] = pool.memberships[attribute]
        if not pool.ids:
            return part
        for name, by in EVIDENCE.items():
            part[name], _ = await self._estimated(text, pool.ids, by)
        usual = getattr(CALIBRATED, self.kind)
        for name, by_query in QUERY_EVIDENCE.items():
            by = replace(usual, answerable=by_query)
            _, part[name] = await self._estimated(text, pool.ids, by)
        return part

    async def _estimated(self, text: str, ids: list[str], by: Calibration) -> tuple[Array, float]:
        """Return the estimates of documents, and of the query."""
        self.engine.calibrations = Calibrations(by, by, by, by)
        if self.kind == "texts":
            found = await self.engine.estimate_ids(text, ids)
            return np.asarray(found.relevance), found.answerable
        (hits,) = await self.engine.search([Query(text, POOL, only=tuple(ids))])
        order = dict(zip(hits.ids, hits.relevance.tolist(), strict=True))
        return np.array([order[id_] for id_ in ids]), hits.answerable


async def sample_of(collection: Collection, kind: str) -> pd.DataFrame:
    """Return the documents of queries with their evidence, their groups, and what is relevant.

    The column ``of`` says what a query is: a topic, unrelated or unanswerable.
    """
    samples = Samples(collection, kind)
    await samples.open()
    parts = []
    for topic in collection.topics:
        for text in dict.fromkeys((topic.text(0), topic.text(10))):
            part = await samples.pool(text)
            relevant = part.index.isin(collection.relevant(topic.id)).astype(float)
            parts.append(part.assign(of="topic", query=len(parts), relevant=relevant))
    queries = {"unrelated": unrelated_queries(), "unanswerable": unanswerable_queries()}
    for of, texts in queries.items():
        for text in texts:
            part = await samples.pool(text)
            parts.append(part.assign(of=of, query=len(parts), relevant=0.0))
    return pd.concat([part for part in parts if len(part)])


def unanswerable_queries() -> list[str]:
    """Return the queries that test whether a query can be answered."""
    return UNANSWERABLE.read_text(encoding="utf-8").splitlines()


def topics_of(sample: pd.DataFrame) -> pd.DataFrame:
    """Return the documents of topics alone."""
    return sample[sample["of"] == "topic"]


def fitted(kind: str, *samples: pd.DataFrame) -> Calibration:
    """Return the logistic regressions with the highest likelihood, and no weight below 0."""
    topics = pd.concat(map(topics_of, samples))
    lexical, similarity, relevant = topics[[*EVIDENCE, "relevant"]].to_numpy().T

    def loss(weights: Array) -> float:
        logit = weights[0] + weights[1] * lexical + weights[2] * similarity
        return float(np.mean(np.logaddexp(0, logit) - relevant * logit))

    found = minimize(loss, np.zeros(3), bounds=[(None, None), (0, None), (0, None)])
    calibration = Calibration(*(round(it, 3) for it in found.x.tolist()))
    answerable = fitted_answerable(TOPIC_WEIGHT[kind], calibration, pd.concat(samples))
    return replace(calibration, answerable=answerable)


def fitted_answerable(
    topic_weight: float, calibration: Calibration, sample: pd.DataFrame
) -> Answerability:
    """Return the regression of whether a query can be answered, given estimates of documents."""
    sample = sample[sample["of"] != "unanswerable"]
    given_any = calibration.probability(*(sample[name].to_numpy() for name in EVIDENCE))
    relevant = sample["relevant"].to_numpy()
    counts = np.where(sample["of"] == "topic", topic_weight, 1.0)
    evidence = sample[[*QUERY_EVIDENCE]].to_numpy()
    deviation = evidence.std(axis=0)
    # In front of an engine, no words are counted.
    scaled = (evidence - evidence.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)

    def loss(weights: Array) -> float:
        answerable = 1 / (1 + np.exp(-weights[0] - scaled @ weights[1:]))
        probability = np.clip(given_any * answerable, 1e-7, 1 - 1e-7)
        likelihood = relevant * np.log(probability) + (1 - relevant) * np.log(1 - probability)
        ridge = RIDGE * (weights[1:] ** 2).sum() / np.count_nonzero(deviation)
        return float(ridge - (counts * likelihood).sum() / counts.sum())

    # A product has more than one minimum.
    starts = itertools.product((0.0, 2.0), (0.5, 2.0))
    bounds = [(None, None), (0, None), (0, None)]
    tries = [minimize(loss, np.array([a, b, b]), bounds=bounds) for a, b in starts]
    best = min(tries, key=lambda found: found.fun).x
    weights = np.where(deviation > 0, best[1:] / np.where(deviation > 0, deviation, 1.0), 0.0)
    intercept = best[0] - weights @ evidence.mean(axis=0)
    return Answerability(*(round(it, 3) for it in (float(intercept), *weights.tolist())))


def fitted_fields(
    fits: Mapping[str, Calibration], samples: Mapping[str, pd.DataFrame]
) -> dict[str, Answerability]:
    """Return the regressions for engines that search by vectors, but count no words for us.

    Args:
        fits: The fits of evidence of ``words``, by collection, and of both.
        samples: Their samples.
    """
    fields = {}
    for name, fit in fits.items():
        learnt = samples.values() if name == "both" else [samples[name]]
        sample = pd.concat(learnt).assign(held=0.0)
        fields[name] = fitted_answerable(TOPIC_WEIGHT["field"], fit, sample)
    return fields


def with_probabilities(sample: pd.DataFrame, fit: Calibration) -> pd.DataFrame:
    """Return a sample with the probability that each document is relevant."""
    given_any = fit.probability(*(sample[name].to_numpy() for name in EVIDENCE))
    log_odds = (
        fit.answerable.intercept
        + fit.answerable.similarity * sample["above"]
        + fit.answerable.words * sample["held"]
    )
    answerable = 1 / (1 + np.exp(-log_odds))
    return sample.assign(given_any=given_any, probability=given_any * answerable)


def unanswered(told: pd.DataFrame) -> Iterator[tuple[str, str, float]]:
    """Yield how low the estimates of unanswerable queries are, with the last step and without it.

    The AUC is between their first 20 documents and those relevant among the first 20 of topics.
    """
    ranked = told.sort_values(["query", "given_any"], ascending=[True, False], kind="stable")
    first = ranked.groupby("query").head(FIRST)
    nothing = first[first["of"] == "unanswerable"]
    good = first[(first["of"] == "topic") & (first["relevant"] > 0)]
    queries = len(unanswerable_queries())
    for column, name in (("probability", ""), ("given_any", " before")):
        means = nothing.groupby("query")[column].mean()
        # A query that finds nothing counts as 0.
        yield "unanswerable", f"mean of the first {FIRST}{name}", means.sum() / queries
        both = pd.concat([good, nothing])
        yield "unanswerable", f"AUC{name}", _auc(both.assign(probability=both[column]))


def held_out(told: pd.DataFrame) -> Iterator[tuple[str, str, float]]:
    """Yield how estimates and relevance go together, in all and by the estimate."""
    within = np.nanmean([_auc(own) for _, own in told.groupby("query")])
    brier = ((told["probability"] - told["relevant"]) ** 2).mean()
    yield "all", "Brier", brier
    yield "all", "Brier of the share", told["relevant"].var(ddof=0)
    yield "all", "AUC", _auc(told)
    yield "all", "AUC within a query", float(within)
    bins = pd.cut(told["probability"], BINS, include_lowest=True)
    for place, own in told.groupby(bins, observed=True):
        name = f"to {place.right:.1f}"
        yield name, "estimated", own["probability"].mean()
        yield name, "relevant", own["relevant"].mean()
        yield name, "documents", len(own) / len(told)


def _auc(told: pd.DataFrame) -> float:
    """Return how often a relevant document is above another one; nan where all are alike."""
    good, bad = (told.loc[told["relevant"] == it, "probability"] for it in (1.0, 0.0))
    pairs = len(good) * len(bad)
    return float(mannwhitneyu(good, bad).statistic) / pairs if pairs else float("nan")


def by_group(told: pd.DataFrame, groups: list[str]) -> Iterator[tuple[str, str, float]]:
    """Yield for each group its share of the relevant documents, and how far the estimate is off.

    The standard error is over queries, of those with a relevant document.
    """
    shares = []
    for weights in (told["relevant"], told["probability"]):
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
        fits = {name: fitted(kind, samples[name]) for name in names}
        fits["both"] = fitted(kind, *samples.values())
        print(kind, fits)
        if kind == "words":
            print("field", fitted_fields(fits, samples))
        for fit, (name, own) in itertools.product(fits, collections.items()):
            sample = with_probabilities(samples[name], fits[fit])
            topics = topics_of(sample)
            told: list[tuple[str, str, float]] = []
            if fit != name:
                told += unanswered(sample)
            if fit not in ("both", name):
                told += held_out(topics)
            for attribute in ATTRIBUTES if kind == "texts" and fit != name else ():
                told += by_group(topics, [*own.corpus.schema.attributes[attribute].universe])
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
