"""Which version of a document scores higher: differences over pairs, with a paired test.

A query is a cluster: the pairs of one query are averaged first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from fairqr.base.statistics import corrected_by_holm, stream
from fairqr.evaluation.audit.estimates import Estimate, jackknifed, randomisation_p, within
from fairqr.evaluation.audit.pairs import PairScores
from fairqr.retrieval.exposure import FloatArray

__all__ = ["PairFigures", "VersionComparison", "compare_versions"]


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
        scorer: What scored them.
        queries: How many queries were asked.
        failed: How many of them failed.
        missing: How many documents have no score, since the engine does not hold them.
        comparisons: Of each two versions; tests are corrected by Holm for all of them.
    """

    scorer: str
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
        scorer=scorer,
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
    first: str, second: str, by_query: list[list[dict[str, float]]], seed: int
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
    (difference,) = jackknifed(parts, weights, _standardised)
    higher, equal = jackknifed(parts, weights, lambda totals: totals[..., 4:] / totals[..., :1])
    random = stream(seed, f"pairs {first} {second}")
    (p,) = randomisation_p(parts[:, 1:2], weights, random)
    return VersionComparison(
        first,
        second,
        sum(map(len, scores)),
        replace(difference, p=p),
        within(higher, 0, 1),
        within(equal, 0, 1),
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
