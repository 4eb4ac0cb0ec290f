"""Counterfactual pairs: the same document in several versions, and which version scores higher.

A file of pairs says which queries to ask and which documents to score for them, as Grep-BiasIR
(Krieg et al. 2023) does: a row is a query, a document, and the version that the document is in.
Nothing of the texts is kept. A query is a cluster: its pairs are averaged first.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fairqr.agents.ranking.rankers import (
    ENDPOINT,
    POINTWISE,
    RankerOptions,
    RankItem,
    open_ranker,
)
from fairqr.agents.statistics import corrected_by_holm, stream
from fairqr.base.errors import (
    FairqrError,
    IndexUnavailableError,
    InputError,
    SourceError,
    one_line,
)
from fairqr.base.settings import DEFAULT_TIMEOUT
from fairqr.evaluation.audit.bundle import PairScores
from fairqr.evaluation.estimates import ROUNDING, Estimate, divided, estimate, p_of_means, shares
from fairqr.evaluation.experiments.tasks import Done
from fairqr.evaluation.reports.text import counted
from fairqr.retrieval.engines.engine import Query, SearchEngine, require, searched
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.pools.retrievers import open_pool_retriever
from fairqr.retrieval.sources.documents import encodable, identifier
from fairqr.retrieval.sources.query_files import named_rows


class PairDocument(NamedTuple):
    """One version of a document: a row of a file of pairs.

    Attributes:
        query: The query to score it for.
        version: The name of the version.
        pair: Tells which documents of a query are versions of the same.
        segment: What the pair is about, such as a topic; may be empty.
        document: The id in the audited engine; empty if the row holds a text.
        title: May be empty.
        text: May be empty.
    """

    query: str
    version: str
    pair: str
    segment: str
    document: str
    title: str
    text: str


class PairQuery(NamedTuple):
    """A query, and the documents to score for it.

    Attributes:
        id: Its number among the queries of the file, from 1 on.
        documents: All that name this query, each in at least two versions.
    """

    id: int
    documents: tuple[PairDocument, ...]


Pairs = tuple[PairQuery, ...]
"""The content of a file of pairs, in its order."""


def read_pairs(path: Path) -> Pairs:
    """Read a file of pairs: JSON Lines, or CSV with the columns in its first line.

    The columns are those of :class:`PairDocument`. Either all rows have a ``document``, or all have
    a ``text``. Without ``pair`` all documents of a query are versions of one.

    Raises:
        CorpusError: The file cannot be read.
        SourceError: A line is wrong; it is named.
        InputError: The file holds no pairs.
    """
    collected = _CollectedPairs()
    number = 0
    try:
        for number, row in named_rows(path, "pairs"):
            collected.add(number, _document(row))
        number = collected.first_alone()
        if number:
            raise ValueError("its document has no second version")
    except FairqrError:  # it names the file and the line itself
        raise
    except ValueError as error:
        raise SourceError(f"The pairs {path}, line {number}: {error}; fix the line.") from None
    queries = collected.queries()
    if not queries:
        raise InputError(f"The pairs {path} are empty; give a row for each version of a document.")
    return queries


@dataclass
class _Versions:
    """The versions of one document.

    Attributes:
        line: The line on which they begin.
        segment: What the pair is about.
        by_name: The documents by the name of their version.
    """

    line: int
    segment: str
    by_name: dict[str, PairDocument] = field(default_factory=dict)


class _CollectedPairs:
    """Gathers the rows of a file of pairs, by query and pair."""

    def __init__(self) -> None:
        self._by_query: dict[str, dict[str, _Versions]] = {}
        self._are_texts: bool | None = None

    def add(self, line: int, document: PairDocument) -> None:
        """Take in a row.

        Raises:
            ValueError: It does not go with the rows before.
        """
        is_text = bool(document.text)
        if self._are_texts is None:
            self._are_texts = is_text
        if is_text != self._are_texts:
            raise ValueError("some lines have a document's id, and others a text")
        pairs = self._by_query.setdefault(document.query, {})
        versions = pairs.setdefault(document.pair, _Versions(line, document.segment))
        if document.version in versions.by_name:
            raise ValueError("its pair has this version already (is a column 'pair' missing?)")
        if document.segment != versions.segment:
            raise ValueError("its pair has another segment on a line before")
        versions.by_name[document.version] = document

    def first_alone(self) -> int:
        """Return the line of the first document that has one version alone; 0 if there is none."""
        for pairs in self._by_query.values():
            for versions in pairs.values():
                if len(versions.by_name) < 2:
                    return versions.line
        return 0

    def queries(self) -> Pairs:
        """Return the queries, in the order of the file."""
        queries = []
        for number, pairs in enumerate(self._by_query.values(), start=1):
            documents: list[PairDocument] = []
            for versions in pairs.values():
                documents += versions.by_name.values()
            queries.append(PairQuery(number, tuple(documents)))
        return tuple(queries)


def _document(row: Mapping[str, Any]) -> PairDocument:
    document = PairDocument(*(_text(row.get(name), name) for name in PairDocument._fields))
    has_names = document.query and document.version
    has_either = bool(document.document) != bool(document.text)
    if not (has_names and has_either):
        raise ValueError("it needs a query, a version, and either a document or a text")
    return document


def _text(value: object, name: str) -> str:
    if value is None or value == "":
        return ""
    if name == "document":
        return identifier(value)
    if not isinstance(value, str | int):
        raise ValueError(f"its {name} is not text")
    return " ".join(encodable(str(value), name).split())


@dataclass(frozen=True, slots=True)
class ScoredPairs:
    """Queries whose pairs are scored.

    Attributes:
        name: What scores them, for the report.
        scores: Returns a score for each document of a query, None for one that is not there;
            higher is better.
        tasks: The queries.
    """

    name: str
    scores: Callable[[PairQuery], Awaitable[Sequence[float | None]]]
    tasks: Pairs

    def cost(self, done: int = 0) -> str:
        """Say how many versions are left."""
        versions = sum(len(task.documents) for task in self.tasks[done:])
        queries = counted(len(self.tasks) - done, "query", "queries")
        return f"{versions:,} versions for {queries} by '{self.name}'"

    async def do(self, task: PairQuery) -> Done[PairScores]:
        """Score the documents of one query; that it is refused is a record, too.

        Raises:
            ModelError: An encoder is away.
            ModelUnavailableError: What scores is not there.
            ValueError: A score is no finite number.
        """
        try:
            scores = await self.scores(task)
        except FairqrError as error:
            return PairScores.failed(task.id, error)
        pairs: dict[str, dict[str, Any]] = {}
        for document, score in zip(task.documents, scores, strict=True):
            pair = pairs.setdefault(document.pair, {"segment": document.segment, "scores": {}})
            pair["scores"][document.version] = score
        record = {"query": task.id, "status": "ok", "pairs": tuple(pairs.values())}
        return Done((PairScores.model_validate(record),))


TextScorer = Callable[[str, Sequence[str]], Awaitable[Sequence[float]]]
"""Scores texts for a query; higher is better."""

RETRIEVERS = ("bm25", "dense")
RERANKERS = (ENDPOINT, *POINTWISE)
TEXT_SCORERS = "bm25, dense, rerank:URL, monot5 or monobert"


async def open_pairs(name: str, pairs: Pairs, engine: SearchEngine) -> ScoredPairs:
    """Make ready what scores pairs.

    Args:
        name: ``engine`` for the audited one; what reads texts: ``bm25``, ``dense``, ``monot5`` or
            ``monobert``, perhaps with an encoder or weights after a colon, or ``rerank:URL``.
        pairs: What is to be scored.
        engine: The audited one.

    Raises:
        InputError: There is nothing of this name, or it cannot score what the file holds.
        UnsupportedError: The engine cannot score given documents.
        ModelUnavailableError: An encoder or a model is missing.
    """
    are_texts = bool(pairs[0].documents[0].text)
    if are_texts:
        scorer_name, score = await _open_text_scorer(name)

        async def scores_of_texts(task: PairQuery) -> Sequence[float]:
            query = task.documents[0].query
            texts = [f"{document.title}\n{document.text}".strip() for document in task.documents]
            return await score(query, texts)

        return ScoredPairs(scorer_name, scores_of_texts, pairs)
    if name != "engine":
        raise _does_not_score("ids of documents", name, "engine")
    require(engine, "rescore", "Scoring pairs")

    async def scores_of_ids(task: PairQuery) -> list[float | None]:
        """Ask for all documents of a query in one request."""
        query = task.documents[0].query
        ids = tuple(dict.fromkeys(document.document for document in task.documents))
        (hits,) = await searched(engine, [Query(query, len(ids), only=ids)])
        scores = dict(zip(hits.ids, hits.scores, strict=True))
        return [scores.get(document.document) for document in task.documents]

    return ScoredPairs(engine.name, scores_of_ids, pairs)


async def _open_text_scorer(name: str) -> tuple[str, TextScorer]:
    """Return what reads texts, with the name that it gives itself.

    Raises:
        InputError: There is nothing of this name.
        ModelUnavailableError: An encoder or a model is missing.
    """
    kind, _, weights = name.partition(":")
    if kind in RETRIEVERS:
        retriever = open_pool_retriever(name)
        await retriever.start()

        async def score_by_retriever(query: str, texts: Sequence[str]) -> Sequence[float]:
            scores = await retriever.scores(query, texts)
            return list(scores.tolist())

        return retriever.name, score_by_retriever
    if kind in RERANKERS:
        ranker = open_ranker(kind, options=RankerOptions(weights=weights or None))
        await ranker.start()

        async def score_by_ranker(query: str, texts: Sequence[str]) -> Sequence[float]:
            items = [RankItem(str(number), "", text) for number, text in enumerate(texts)]
            ranking = await ranker.rank(query, items, deadline=DEFAULT_TIMEOUT)
            if ranking.scores is not None:
                return ranking.scores
            is_away = not ranking.failures.keys().isdisjoint({"timeout", "unavailable"})
            error_type = IndexUnavailableError if is_away else SourceError
            raise error_type(ranking.message or f"{ranker.name} gave no score for some texts.")

        return ranker.name, score_by_ranker
    raise _does_not_score("texts", name, TEXT_SCORERS)


def _does_not_score(content: str, name: str, choices: str) -> InputError:
    return InputError(
        f"The pairs are {content}, which '{one_line(name, 80)}' does not score; choose --pairs-by "
        f"{choices}."
    )


@dataclass(frozen=True, slots=True)
class VersionComparison:
    """Two versions of the same documents.

    Attributes:
        segment: The segment whose pairs are compared; empty for all pairs.
        first: The version whose name comes first in the alphabet.
        second: The other one.
        pairs: How many pairs have a score in both versions.
        difference: The mean score of the first minus the second's, in standard deviations of
            these scores, with the p value of the paired randomisation test.
        higher: The share of pairs in which the first scores higher.
        equal: The share of pairs in which both score the same.
    """

    segment: str
    first: str
    second: str
    pairs: int
    difference: Estimate
    higher: Estimate
    equal: Estimate


@dataclass(frozen=True, slots=True)
class PairwiseAudit:
    """What the pairs of an audit say.

    Attributes:
        scored_by: What scored them.
        queries: How many queries were asked.
        failed: How many of them failed.
        missing: How many documents have no score, since the engine does not hold them.
        comparisons: The comparisons of each two versions, over all pairs and in each segment; tests
            are corrected by Holm for all of them.
    """

    scored_by: str
    queries: int
    failed: int
    missing: int
    comparisons: tuple[VersionComparison, ...]


def compare_versions(scorer: str, records: Sequence[PairScores], seed: int) -> PairwiseAudit:
    """Compare each two versions, over all pairs and in each segment.

    Args:
        scorer: What scored them.
        records: One for each query.
        seed: Chooses the signs of the tests.
    """
    scores = _scores_by_versions(records)
    comparisons = []
    for key in sorted(scores):
        by_query = [np.array(pairs) for pairs in scores[key].values()]
        comparisons.append(_compared(key, by_query, seed))
    corrected = corrected_by_holm([comparison.difference.p for comparison in comparisons])
    missing = 0
    for record in records:
        missing += sum([*pair.scores.values()].count(None) for pair in record.pairs)
    return PairwiseAudit(
        scored_by=scorer,
        queries=len(records),
        failed=sum(record.status == "failed" for record in records),
        missing=missing,
        comparisons=tuple(
            replace(comparison, difference=replace(comparison.difference, p=p))
            for comparison, p in zip(comparisons, corrected, strict=True)
        ),
    )


_Key = tuple[str, str, str]
"""A segment, empty for all pairs, and two versions."""


def _scores_by_versions(
    records: Sequence[PairScores],
) -> dict[_Key, dict[int, list[tuple[float, float]]]]:
    """Return the scores of both versions of each pair, by segment and versions, and by query."""
    scores: dict[_Key, dict[int, list[tuple[float, float]]]] = {}
    for record in records:
        for pair in record.pairs:
            known = sorted(
                (name, score) for name, score in pair.scores.items() if score is not None
            )
            for (first, first_score), (second, second_score) in itertools.combinations(known, 2):
                for segment in {"", pair.segment}:
                    by_query = scores.setdefault((segment, first, second), {})
                    by_query.setdefault(record.query, []).append((first_score, second_score))
    return scores


def _compared(key: _Key, scores: list[FloatArray], seed: int) -> VersionComparison:
    """Return a comparison, its test not corrected.

    Args:
        key: The segment, and the two versions.
        scores: For each query its pairs, shape (pairs, 2).
        seed: Chooses the signs of the test.
    """
    together = np.concatenate(scores)
    # Squares of small numbers lose fewer digits.
    mean = together.mean()
    parts = np.array([_parts(of_query - mean) for of_query in scores])
    weights = np.ones(len(parts))
    (difference,) = estimate(parts, weights, _standardised)
    wins = parts[:, 4:]
    higher, equal = shares(wins, np.ones_like(wins), weights)
    (p,) = p_of_means(parts[:, 1:2], weights, stream(seed, f"pairs {key}"))
    return VersionComparison(*key, len(together), replace(difference, p=p), higher, equal)


def _parts(scores: FloatArray) -> FloatArray:
    """Return what a query adds: 1, and means of the difference, score, square and who is higher."""
    difference = scores[:, 0] - scores[:, 1]
    rows = (difference, scores, scores**2, difference > 0, difference == 0)
    return np.array([1.0, *(row.mean() for row in rows)])


def _standardised(totals: FloatArray) -> FloatArray:
    """Return the mean difference in standard deviations, shape (…, 1); NaN if no score differs."""
    count, difference, mean, square = np.moveaxis(totals[..., :4], -1, 0)
    variance = square / count - (mean / count) ** 2
    # The difference of equal numbers may be a little above 0 on one processor and not on another.
    is_spread = variance > ROUNDING * (1 + square / count)
    spread = np.sqrt(np.where(is_spread, variance, 0.0))
    return divided(difference / count, spread)[..., None]
