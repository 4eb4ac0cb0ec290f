"""Counterfactual pairs: what scores each version of a document, and which scores higher.

Nothing of the texts is kept. A query is a cluster: its pairs are averaged first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairqr.agents.ranking.item_ranker import ItemRanker, RankItem
from fairqr.agents.ranking.rankers import open_ranker
from fairqr.base.errors import FairqrError, InputError, ModelUnavailableError, one_line
from fairqr.base.statistics import corrected_by_holm, stream
from fairqr.evaluation.audit.estimates import (
    Estimate,
    estimate,
    p_of_means,
    shares,
)
from fairqr.evaluation.audit.pair_files import PairDocument, PairQuery, Pairs
from fairqr.evaluation.audit.records import PairScores
from fairqr.evaluation.experiments.engine import Done, failure_of
from fairqr.retrieval.engines.engine import Query, SearchEngine, require
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.pools.base import PoolRetriever
from fairqr.retrieval.pools.open import POOL_RETRIEVERS, open_pool_retriever

BY_ENGINE = "engine"
"""The name of the audited engine as what scores pairs."""

RANKERS = ("monot5", "monobert")
"""The rankers that give a score to each document."""


@dataclass(frozen=True)
class ScoredPairs:
    """The queries whose pairs are scored.

    Attributes:
        scorer: Scores them; it has been started.
        tasks: The queries of the file.
    """

    scorer: PairScorer
    tasks: tuple[PairQuery, ...]

    def cost(self, done: int = 0) -> str:
        """Say how many versions are left."""
        left = self.tasks[done:]
        documents, queries = sum(len(it.documents) for it in left), len(left)
        requests = f", up to {queries:,} requests" if self.scorer.is_by_engine else ""
        what = "query" if queries == 1 else "queries"
        return f"{documents:,} versions for {queries:,} {what} by '{self.scorer.name}'{requests}"

    async def do(self, task: PairQuery) -> Done[PairScores]:
        """Score the documents of one query; a failure is a record, too.

        Raises:
            ModelUnavailableError: What scores is not there.
        """
        try:
            return Done(scored(task, await self.scorer.scores(task)), (None,))
        except ModelUnavailableError:
            raise
        except FairqrError as error:
            failed = PairScores(query=task.id, status="failed", message=one_line(error))
            return failure_of(error, failed)


Scores = list[float | None]
"""One for each document, None for one that is not there; higher is better."""


@dataclass(frozen=True, slots=True)
class PairScorer:
    """What scores the documents of a query.

    Attributes:
        name: For the report.
        start: Makes ready what is asked; raises ModelUnavailableError if something is missing.
        scores: Scores the documents.
        is_by_engine: Whether the audited engine is asked.
    """

    name: str
    start: Callable[[], Awaitable[None]]
    scores: Callable[[PairQuery], Awaitable[Scores]]
    is_by_engine: bool = False


def _engine_scorer(engine: SearchEngine) -> PairScorer:
    async def scores(query: PairQuery) -> Scores:
        """Ask for all documents of a query in one request."""
        ids = tuple(dict.fromkeys(it.id for it in query.documents if it.id is not None))
        (hits,) = await engine.search([Query(query.text, len(ids), only=ids)])
        found = dict(zip(hits.ids, hits.scores, strict=True))
        return [None if it.id is None else found.get(it.id) for it in query.documents]

    async def start() -> None:
        """Nothing has to be made ready."""

    return PairScorer(engine.name, start, scores, is_by_engine=True)


def _retriever_scorer(retriever: PoolRetriever) -> PairScorer:
    async def scores(query: PairQuery) -> Scores:
        texts = [_read(it).shown("title_text") for it in query.documents]
        return list((await retriever.scores(query.text, texts)).tolist())

    return PairScorer(retriever.name, retriever.start, scores)


def _ranker_scorer(ranker: ItemRanker) -> PairScorer:
    async def scores(query: PairQuery) -> Scores:
        ranking = await ranker.rank(query.text, [_read(it) for it in query.documents])
        if ranking.scores is None:
            raise InputError(ranking.message or f"{ranker.name} gave no scores.")
        return list(ranking.scores)

    return PairScorer(ranker.name, ranker.start, scores)


def _read(document: PairDocument) -> RankItem:
    return RankItem(f"{document.pair} {document.version}", document.title, document.text)


def open_pair_scorer(name: str, pairs: Pairs, engine: SearchEngine) -> PairScorer:
    """Return what scores pairs.

    Args:
        name: ``engine`` for the audited one, a retriever over small pools, or a ranker that scores.
        pairs: What is to be scored.
        engine: The audited one.

    Raises:
        InputError: There is nothing of this name, or it cannot score what the file holds.
        UnsupportedError: The engine cannot score given documents.
        ModelUnavailableError: An encoder is missing.
    """
    if name == BY_ENGINE:
        if pairs.are_texts:
            raise InputError(
                "The pairs are texts, and an engine scores only documents that it holds; choose "
                "what reads texts with --pairs-by, such as dense or monot5."
            )
        require(engine, "rescore", "Scoring pairs")
        return _engine_scorer(engine)
    if not pairs.are_texts:
        raise InputError(
            f"The pairs are ids of documents, and '{one_line(name, 80)}' reads texts; put the "
            "texts into a column 'text', or let the engine score them (--pairs-by engine)."
        )
    if name in RANKERS:
        return _ranker_scorer(open_ranker(name))
    if name.partition(":")[0] in {it.partition("[")[0] for it in POOL_RETRIEVERS}:
        return _retriever_scorer(open_pool_retriever(name))
    choices = ", ".join([BY_ENGINE, *POOL_RETRIEVERS, *RANKERS])
    raise InputError(f"Nothing scores pairs as '{one_line(name, 80)}'; choose {choices}.")


def scored(query: PairQuery, scores: Sequence[float | None]) -> PairScores:
    """Return the record of a query's scores.

    Raises:
        ValueError: A score is no finite number.
    """
    if not all(it is None or math.isfinite(it) for it in scores):
        raise ValueError("a score is no finite number")
    numbers = {pair: n for n, pair in enumerate(dict.fromkeys(it.pair for it in query.documents))}
    return PairScores(
        query=query.id,
        status="ok",
        pairs=tuple(numbers[it.pair] for it in query.documents),
        versions=tuple(it.version for it in query.documents),
        scores=tuple(scores),
    )


@dataclass(frozen=True, slots=True)
class VersionComparison:
    """Two versions of the same documents.

    Attributes:
        first: A version.
        second: The other one.
        pairs: How many pairs have a score in both versions.
        difference: The mean score of the first less that of the second, in standard deviations of
            these scores, with the p value of the paired randomisation test.
        higher: The share of pairs in which the first scores higher.
        equal: The share of pairs in which both score the same.
    """

    first: str
    second: str
    pairs: int
    difference: Estimate
    higher: Estimate
    equal: Estimate


@dataclass(frozen=True, slots=True)
class PairFigures:
    """What the pairs of an audit say.

    Attributes:
        scored_by: What scored them.
        queries: How many queries were asked.
        failed: How many of them failed.
        missing: How many documents have no score, since the engine does not hold them.
        comparisons: Of each two versions; tests are corrected by Holm for all of them.
    """

    scored_by: str
    queries: int
    failed: int
    missing: int
    comparisons: tuple[VersionComparison, ...]


def compare_versions(scorer: str, records: Iterable[PairScores], seed: int) -> PairFigures:
    """Compare each two versions.

    Args:
        scorer: What scored them.
        records: One for each query.
        seed: Chooses the signs of the tests.
    """
    listed = list(records)
    by_query = [_by_pair(it) for it in listed]
    versions = dict.fromkeys(version for it in listed for version in it.versions)
    found = [
        compared
        for first, second in itertools.combinations(versions, 2)
        if (compared := _compared(first, second, by_query, seed)) is not None
    ]
    corrected = corrected_by_holm([it.difference.p for it in found])
    return PairFigures(
        scored_by=scorer,
        queries=len(listed),
        failed=sum(it.status == "failed" for it in listed),
        missing=sum(score is None for it in listed for score in it.scores),
        comparisons=tuple(
            replace(it, difference=replace(it.difference, p=p))
            for it, p in zip(found, corrected, strict=True)
        ),
    )


def _by_pair(record: PairScores) -> list[dict[str, float]]:
    """Return the scores of each pair of a query by version."""
    pairs: dict[int, dict[str, float]] = {}
    for pair, version, score in zip(record.pairs, record.versions, record.scores, strict=True):
        if score is not None:
            pairs.setdefault(pair, {})[version] = score
    return list(pairs.values())


def _compared(
    first: str,
    second: str,
    by_query: list[list[dict[str, float]]],
    seed: int,
) -> VersionComparison | None:
    """Return a comparison, its test not corrected; None if no document has both versions."""
    scores = [
        np.array([(it[first], it[second]) for it in pairs if first in it and second in it])
        for pairs in by_query
    ]
    scores = [it for it in scores if len(it)]
    if not scores:
        return None
    middle = np.concatenate(scores).mean()  # Squares of small numbers lose fewer digits.
    parts = np.array([_parts(it - middle) for it in scores])
    weights = np.ones(len(parts))
    (difference,) = estimate(parts, weights, _standardised)
    higher, equal = shares(parts[:, 4:], np.ones_like(parts[:, 4:]), weights)
    random = stream(seed, f"pairs {first} {second}")
    (p,) = p_of_means(parts[:, 1:2], weights, random)
    return VersionComparison(
        first,
        second,
        sum(map(len, scores)),
        replace(difference, p=p),
        higher,
        equal,
    )


def _parts(scores: FloatArray) -> FloatArray:
    """Return what a query adds: 1, and means of the difference, score, square and who is higher."""
    difference = scores[:, 0] - scores[:, 1]
    means = (
        difference.mean(),
        scores.mean(),
        (scores**2).mean(),
        (difference > 0).mean(),
        (difference == 0).mean(),
    )
    return np.array([1.0, *means])


def _standardised(totals: FloatArray) -> FloatArray:
    """Return the mean difference in standard deviations, shape (…, 1); NaN if no score differs."""
    count, difference, mean, square = (totals[..., place] for place in range(4))
    spread = np.sqrt(np.maximum(square / count - (mean / count) ** 2, 0.0))
    differs = spread > 0
    values = np.where(differs, difference / count / np.where(differs, spread, 1.0), np.nan)
    return np.asarray(values[..., None])
