"""Counterfactual pairs: the same document in several versions, and which version scores higher.

A file of pairs says which queries to ask and which documents to score for them, as Grep-BiasIR
(Krieg et al. 2023) does: a row is a query, a document, and the version that the document is in.
Nothing of the texts is kept. A query is a cluster: its pairs are averaged first.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fairqr.agents.statistics import corrected_by_holm, stream
from fairqr.base.errors import FairqrError, InputError, SourceError, one_line
from fairqr.evaluation.audit.bundle import PairScores
from fairqr.evaluation.estimates import ROUNDING, Estimate, divided, estimate, p_of_means, shares
from fairqr.evaluation.experiments.engine import Done
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
        id: Its place among the queries of the file, from 1 on.
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
    # By query, pair and version, with the line on which each pair begins.
    found: dict[str, dict[str, tuple[int, dict[str, PairDocument]]]] = {}
    kinds: set[bool] = set()
    number = 0
    try:
        for number, row in named_rows(path, "pairs"):
            it = _document(row)
            kinds.add(bool(it.text))
            if len(kinds) > 1:
                raise ValueError("some lines have a document's id, and others a text")
            _, versions = found.setdefault(it.query, {}).setdefault(it.pair, (number, {}))
            if it.version in versions:
                raise ValueError("its pair has this version already (is a column 'pair' missing?)")
            if any(it.segment != other.segment for other in versions.values()):
                raise ValueError("its pair has another segment on a line before")
            versions[it.version] = it
        pairs = itertools.chain.from_iterable(held.values() for held in found.values())
        if alone := [begun for begun, versions in pairs if len(versions) < 2]:
            number = alone[0]
            raise ValueError("its document has no second version")
    except FairqrError:  # it names the file and the line itself
        raise
    except ValueError as error:
        raise SourceError(f"The pairs {path}, line {number}: {error}; fix the line.") from None
    if not found:
        raise InputError(f"The pairs {path} are empty; give a row for each version of a document.")
    return tuple(
        PairQuery(n, tuple(it for _, versions in held.values() for it in versions.values()))
        for n, held in enumerate(found.values(), start=1)
    )


def _document(row: Mapping[str, Any]) -> PairDocument:
    it = PairDocument(*(_text(row.get(name), name) for name in PairDocument._fields))
    if not it.query or not it.version or bool(it.document) == bool(it.text):
        raise ValueError("it needs a query, a version, and either a document or a text")
    return it


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
        versions = sum(len(it.documents) for it in self.tasks[done:])
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
        for it, score in zip(task.documents, scores, strict=True):
            pair = pairs.setdefault(it.pair, {"segment": it.segment, "scores": {}})
            pair["scores"][it.version] = score
        record = {"query": task.id, "status": "ok", "pairs": tuple(pairs.values())}
        return Done((PairScores.model_validate(record),))


async def open_pairs(name: str, pairs: Pairs, engine: SearchEngine) -> ScoredPairs:
    """Make ready what scores pairs.

    Args:
        name: ``engine`` for the audited one, ``bm25``, or ``dense``, perhaps with an encoder after
            a colon.
        pairs: What is to be scored.
        engine: The audited one.

    Raises:
        InputError: There is nothing of this name, or it cannot score what the file holds.
        UnsupportedError: The engine cannot score given documents.
        ModelUnavailableError: An encoder is missing.
    """
    are_texts = bool(pairs[0].documents[0].text)
    if (name.partition(":")[0] not in ("bm25", "dense")) if are_texts else (name != "engine"):
        held, choices = ("texts", "bm25 or dense") if are_texts else ("ids of documents", "engine")
        why = f"which '{one_line(name, 80)}' does not score; choose --pairs-by {choices}"
        raise InputError(f"The pairs are {held}, {why}.")
    if are_texts:
        retriever = open_pool_retriever(name)
        await retriever.start()

        async def scores_of_texts(task: PairQuery) -> list[float]:
            texts = [f"{it.title}\n{it.text}".strip() for it in task.documents]
            return list((await retriever.scores(task.documents[0].query, texts)).tolist())

        return ScoredPairs(retriever.name, scores_of_texts, pairs)
    require(engine, "rescore", "Scoring pairs")

    async def scores_of_ids(task: PairQuery) -> list[float | None]:
        """Ask for all documents of a query in one request."""
        ids = tuple(dict.fromkeys(it.document for it in task.documents))
        (hits,) = await searched(engine, [Query(task.documents[0].query, len(ids), only=ids)])
        found = dict(zip(hits.ids, hits.scores, strict=True))
        return [found.get(it.document) for it in task.documents]

    return ScoredPairs(engine.name, scores_of_ids, pairs)


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
    # By segment and versions, and then by query.
    scores: dict[tuple[str, str, str], dict[int, list[tuple[float, float]]]] = {}
    for record in records:
        for pair in record.pairs:
            known = sorted((name, it) for name, it in pair.scores.items() if it is not None)
            for (first, one), (second, other) in itertools.combinations(known, 2):
                for segment in {"", pair.segment}:
                    by_query = scores.setdefault((segment, first, second), {})
                    by_query.setdefault(record.query, []).append((one, other))
    found = [_compared(key, [*map(np.array, scores[key].values())], seed) for key in sorted(scores)]
    corrected = corrected_by_holm([it.difference.p for it in found])
    return PairwiseAudit(
        scored_by=scorer,
        queries=len(records),
        failed=sum(it.status == "failed" for it in records),
        missing=sum([*pair.scores.values()].count(None) for it in records for pair in it.pairs),
        comparisons=tuple(
            replace(it, difference=replace(it.difference, p=p))
            for it, p in zip(found, corrected, strict=True)
        ),
    )


def _compared(key: tuple[str, str, str], scores: list[FloatArray], seed: int) -> VersionComparison:
    """Return a comparison, its test not corrected.

    Args:
        key: The segment, and the two versions.
        scores: For each query its pairs, shape (pairs, 2).
        seed: Chooses the signs of the test.
    """
    together = np.concatenate(scores)
    # Squares of small numbers lose fewer digits.
    parts = np.array([_parts(held - together.mean()) for held in scores])
    weights = np.ones(len(parts))
    (difference,) = estimate(parts, weights, _standardised)
    higher, equal = shares(parts[:, 4:], np.ones_like(parts[:, 4:]), weights)
    (p,) = p_of_means(parts[:, 1:2], weights, stream(seed, f"pairs {key}"))
    return VersionComparison(*key, len(together), replace(difference, p=p), higher, equal)


def _parts(scores: FloatArray) -> FloatArray:
    """Return what a query adds: 1, and means of the difference, score, square and who is higher."""
    difference = scores[:, 0] - scores[:, 1]
    rows = (difference, scores, scores**2, difference > 0, difference == 0)
    return np.array([1.0, *(row.mean() for row in rows)])


def _standardised(totals: FloatArray) -> FloatArray:
    """Return the mean difference in standard deviations, shape (…, 1); NaN if no score differs."""
    count, difference, mean, square = (totals[..., place] for place in range(4))
    variance = square / count - (mean / count) ** 2
    # The difference of equal numbers may be a little above 0 on one processor and not on another.
    is_spread = variance > ROUNDING * (1 + square / count)
    spread = np.sqrt(np.where(is_spread, variance, 0.0))
    return divided(difference / count, spread)[..., None]
