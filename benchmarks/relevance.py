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

Figure = tuple[str, str, float]
"""What a figure is of, its name, and its value."""

BOUNDS = [(None, None), (0, None), (0, None)]
"""The bounds of an intercept and of two weights."""

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
        # This engine makes the vectors that are missing, which the others do not.
        dense = await Catalog().resolve(name, retriever="dense:minilm")
        await dense.aclose()
        if self.kind == "words":
            self.engine = await Catalog().resolve(name, retriever="hybrid:minilm")
        elif self.kind == "rank":
            encoder = open_encoder("minilm")
            self.engine = await EncodedPoolEngine.open(self.words, encoder, keeps_order=True)
        else:
            self.engine = await TextRelevance.open(self.words, open_encoder("minilm"))

    async def pool(self, text: str) -> pd.DataFrame:
        """Return the documents of a query with their evidence, empty if there are none."""
        if self.kind == "texts":
            engine = self.words
        else:
            engine = self.engine
            self.engine.calibrations = Calibrations(*[Weighed(0, 2, 1)] * 4)
        (hits,) = await engine.search([Query(text, POOL)])
        frame = pd.DataFrame(index=hits.ids)
        for attribute in ATTRIBUTES:
            groups = self.collection.corpus.schema.attributes[attribute].universe
            frame[[*groups]] = hits.memberships[attribute]
        if not hits.ids:
            return frame

        for name, calibration in EVIDENCE.items():
            frame[name], _ = await self._estimate(text, hits.ids, calibration)
        calibrated = getattr(CALIBRATED, self.kind)
        for name, answerable in QUERY_EVIDENCE.items():
            calibration = replace(calibrated, answerable=answerable)
            _, frame[name] = await self._estimate(text, hits.ids, calibration)
        return frame

    async def _estimate(
        self, text: str, ids: list[str], calibration: Calibration
    ) -> tuple[Array, float]:
        """Return the estimates of documents, and of the query."""
        self.engine.calibrations = Calibrations(*[calibration] * 4)
        if self.kind == "texts":
            estimates = await self.engine.estimate_ids(text, ids)
            return np.asarray(estimates.relevance), estimates.answerable
        (hits,) = await self.engine.search([Query(text, POOL, only=tuple(ids))])
        relevance = dict(zip(hits.ids, hits.relevance.tolist(), strict=True))
        return np.array([relevance[id_] for id_ in ids]), hits.answerable


async def sample_of(collection: Collection, kind: str) -> pd.DataFrame:
    """Return the documents of queries with their evidence, their groups, and what is relevant.

    The column ``of`` says what a query is: a topic, unrelated or unanswerable.
    """
    samples = Samples(collection, kind)
    await samples.open()
    pools = []
    for topic in collection.topics:
        # Both forms of a topic may be the same.
        for text in dict.fromkeys((topic.text(0), topic.text(10))):
            pool = await samples.pool(text)
            relevant = pool.index.isin(collection.relevant(topic.id)).astype(float)
            pools.append(pool.assign(of="topic", query=len(pools), relevant=relevant))
    queries = {"unrelated": unrelated_queries(), "unanswerable": unanswerable_queries()}
    for query_kind, texts in queries.items():
        for text in texts:
            pool = await samples.pool(text)
            pools.append(pool.assign(of=query_kind, query=len(pools), relevant=0.0))
    return pd.concat([pool for pool in pools if len(pool)])


def unanswerable_queries() -> list[str]:
    """Return the queries that test whether a query can be answered."""
    return UNANSWERABLE.read_text(encoding="utf-8").splitlines()


def topics_of(sample: pd.DataFrame) -> pd.DataFrame:
    """Return the documents of topics alone."""
    return sample[sample["of"] == "topic"]


def fit_calibration(kind: str, *samples: pd.DataFrame) -> Calibration:
    """Return the logistic regressions with the highest likelihood, and no weight below 0."""
    topics = pd.concat(map(topics_of, samples))
    lexical, similarity, relevant = topics[[*EVIDENCE, "relevant"]].to_numpy().T

    def loss(weights: Array) -> float:
        logit = weights[0] + weights[1] * lexical + weights[2] * similarity
        return float(np.mean(np.logaddexp(0, logit) - relevant * logit))

    minimum = minimize(loss, np.zeros(3), bounds=BOUNDS)
    weights = [round(weight, 3) for weight in minimum.x.tolist()]
    calibration = Calibration(*weights)
    answerable = fit_answerable(TOPIC_WEIGHT[kind], calibration, pd.concat(samples))
    return replace(calibration, answerable=answerable)


def fit_answerable(
    topic_weight: float, calibration: Calibration, sample: pd.DataFrame
) -> Answerability:
    """Return the regression of whether a query can be answered, given estimates of documents."""
    sample = sample[sample["of"] != "unanswerable"]
    if_answerable = probabilities_of_documents(sample, calibration)
    relevant = sample["relevant"].to_numpy()
    counts = np.where(sample["of"] == "topic", topic_weight, 1.0)
    evidence = sample[[*QUERY_EVIDENCE]].to_numpy()
    mean = evidence.mean(axis=0)
    deviation = evidence.std(axis=0)
    # In front of an engine, no words are counted, so that evidence is constant.
    varies = deviation > 0
    scale = np.where(varies, deviation, 1.0)
    scaled = (evidence - mean) / scale

    def loss(weights: Array) -> float:
        answerable = 1 / (1 + np.exp(-weights[0] - scaled @ weights[1:]))
        probability = np.clip(if_answerable * answerable, 1e-7, 1 - 1e-7)
        likelihood = relevant * np.log(probability) + (1 - relevant) * np.log(1 - probability)
        ridge = RIDGE * (weights[1:] ** 2).sum() / np.count_nonzero(deviation)
        return float(ridge - (counts * likelihood).sum() / counts.sum())

    # A product has more than one minimum.
    minima = []
    for intercept, weight in itertools.product((0.0, 2.0), (0.5, 2.0)):
        start = np.array([intercept, weight, weight])
        minima.append(minimize(loss, start, bounds=BOUNDS))
    best = min(minima, key=lambda minimum: minimum.fun).x
    weights = np.where(varies, best[1:] / scale, 0.0)
    intercept = float(best[0] - weights @ mean)
    return Answerability(*(round(value, 3) for value in (intercept, *weights.tolist())))


def fit_fields(
    fits: Mapping[str, Calibration], samples: Mapping[str, pd.DataFrame]
) -> dict[str, Answerability]:
    """Return the regressions for engines that search by vectors, but count no words for us.

    Args:
        fits: The fits of evidence of ``words``, by collection, and of both.
        samples: Their samples.
    """
    fields = {}
    for name, fit in fits.items():
        chosen = samples.values() if name == "both" else [samples[name]]
        sample = pd.concat(chosen).assign(held=0.0)
        fields[name] = fit_answerable(TOPIC_WEIGHT["field"], fit, sample)
    return fields


def probabilities_of_documents(sample: pd.DataFrame, calibration: Calibration) -> Array:
    """Return the probability that each document is relevant, if its query can be answered."""
    return calibration.probability(*(sample[name].to_numpy() for name in EVIDENCE))


def with_probabilities(sample: pd.DataFrame, fit: Calibration) -> pd.DataFrame:
    """Return a sample with the probability that each document is relevant."""
    if_answerable = probabilities_of_documents(sample, fit)
    log_odds = (
        fit.answerable.intercept
        + fit.answerable.similarity * sample["above"]
        + fit.answerable.words * sample["held"]
    )
    answerable = 1 / (1 + np.exp(-log_odds))
    return sample.assign(given_any=if_answerable, probability=if_answerable * answerable)


def unanswered(sample: pd.DataFrame) -> Iterator[Figure]:
    """Yield how low the estimates of unanswerable queries are, with the last step and without it.

    The AUC is between their first 20 documents and those relevant among the first 20 of topics.
    """
    ranked = sample.sort_values(["query", "given_any"], ascending=[True, False], kind="stable")
    first = ranked.groupby("query").head(FIRST)
    unanswerable = first[first["of"] == "unanswerable"]
    relevant = first[(first["of"] == "topic") & (first["relevant"] > 0)]
    queries = len(unanswerable_queries())
    for column, suffix in (("probability", ""), ("given_any", " before")):
        means = unanswerable.groupby("query")[column].mean()
        # A query that finds nothing counts as 0.
        yield "unanswerable", f"mean of the first {FIRST}{suffix}", means.sum() / queries
        compared = pd.concat([relevant, unanswerable])
        auc = _auc(compared.assign(probability=compared[column]))
        yield "unanswerable", f"AUC{suffix}", auc


def held_out(sample: pd.DataFrame) -> Iterator[Figure]:
    """Yield how estimates and relevance go together, in all and by the estimate."""
    probability = sample["probability"]
    relevant = sample["relevant"]
    aucs = [_auc(documents) for _, documents in sample.groupby("query")]
    yield "all", "Brier", ((probability - relevant) ** 2).mean()
    yield "all", "Brier of the share", relevant.var(ddof=0)
    yield "all", "AUC", _auc(sample)
    yield "all", "AUC within a query", float(np.nanmean(aucs))
    bins = pd.cut(probability, BINS, include_lowest=True)
    for interval, documents in sample.groupby(bins, observed=True):
        name = f"to {interval.right:.1f}"
        yield name, "estimated", documents["probability"].mean()
        yield name, "relevant", documents["relevant"].mean()
        yield name, "documents", len(documents) / len(sample)


def _auc(sample: pd.DataFrame) -> float:
    """Return how often a relevant document is above another one; nan if all are alike."""
    relevant = sample.loc[sample["relevant"] == 1.0, "probability"]
    irrelevant = sample.loc[sample["relevant"] == 0.0, "probability"]
    pairs = len(relevant) * len(irrelevant)
    if not pairs:
        return float("nan")
    return float(mannwhitneyu(relevant, irrelevant).statistic) / pairs


def by_group(sample: pd.DataFrame, groups: list[str]) -> Iterator[Figure]:
    """Yield for each group its share of the relevant documents, and how far the estimate is off.

    The standard error is over the queries with a relevant document.
    """
    true = _shares_of_groups(sample, groups, sample["relevant"])
    estimated = _shares_of_groups(sample, groups, sample["probability"])
    is_complete = ~np.isnan(true + estimated).any(axis=1)
    off = (estimated - true)[is_complete]
    figures = {
        "relevant": np.nanmean(true, axis=0),
        "off by": off.mean(axis=0),
        "standard error": off.std(axis=0, ddof=1) / np.sqrt(len(off)),
    }
    for name, values in figures.items():
        for group, value in zip(groups, values.tolist(), strict=True):
            yield group, name, value


def _shares_of_groups(sample: pd.DataFrame, groups: list[str], weights: pd.Series) -> Array:
    """Return the share of each group in each query; documents count by their weights."""
    amounts = sample[groups].mul(weights, axis=0).groupby(sample["query"]).sum()
    totals = amounts.sum(axis=1).replace(0, np.nan)
    return amounts.div(totals, axis=0).to_numpy()


async def main(names: Sequence[str], folder: Path) -> None:
    """Print the fits, and keep how they hold."""
    collections = {name: find_collection(name) for name in names}
    frames: list[pd.DataFrame] = []
    for kind in KINDS:
        samples = {}
        fits = {}
        for name, collection in collections.items():
            samples[name] = await sample_of(collection, kind)
            fits[name] = fit_calibration(kind, samples[name])
        fits["both"] = fit_calibration(kind, *samples.values())
        print(kind, fits)
        if kind == "words":
            print("field", fit_fields(fits, samples))

        for fitted_on, name in itertools.product(fits, collections):
            # How a fit does on its own sample says nothing.
            if fitted_on == name:
                continue
            sample = with_probabilities(samples[name], fits[fitted_on])
            is_held_out = fitted_on != "both"
            figures = _figures_of(sample, collections[name], kind, is_held_out=is_held_out)
            rows = pd.DataFrame(list(figures), columns=["of", "measure", "value"])
            frames.append(rows.assign(kind=kind, fitted=fitted_on, on=name))
    folder.mkdir(parents=True, exist_ok=True)
    pd.concat(frames).to_csv(folder / "measures.csv", index=False)


def _figures_of(
    sample: pd.DataFrame, collection: Collection, kind: str, *, is_held_out: bool
) -> Iterator[Figure]:
    """Yield how a fit holds on a sample, which it may have been fitted on beside others."""
    topics = topics_of(sample)
    yield from unanswered(sample)
    if is_held_out:
        yield from held_out(topics)
    if kind == "texts":
        for attribute in ATTRIBUTES:
            groups = collection.corpus.schema.attributes[attribute].universe
            yield from by_group(topics, [*groups])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs=2, help="of collections")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.names, arguments.output))
