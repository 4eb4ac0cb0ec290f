"""How likely it is that a document is relevant, estimated without judgements.

The **similarity** is the cosine between the vectors of query and document, in standard deviations
above the mean of the documents of the index, or of a sample of them. The query's vector is first
moved halfway toward the mean of the ten best documents of both rankings (Rocchio 1971, with
vectors).

Beside it stands one kind of **lexical** evidence, in [0, 1]:
- ``words``: the score of our own BM25, as a share of the query's highest score.
- ``rank``: (60 + 1)/(60 + rank) in the ranking of an engine that is not ours, 0 outside of it.
  What its scores mean is not known.
- ``texts``: BM25 over the texts alone, for audits, which cannot take the engine's word.

A logistic regression for each kind turns both into a probability. Both are relative to the other
documents, so a second regression for each kind says whether there is anything for the query at all
(:mod:`fairqr.retrieval.fairness.answerable`). A document is relevant with the product of both
probabilities. ``benchmarks/relevance.py`` fits them, and shows how well a fit on one collection
works on another (docs/explanation/relevance.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np
from pydantic import BaseModel, Field

from fairqr.retrieval.encoders.encoder import Float32Array, unit_rows
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.fairness.answerable import ALWAYS, Answerability
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.fairness.ranking import RRF_K

Item = TypeVar("Item", int, str)

FEEDBACK, QUERY_WEIGHT = 10, 0.5
"""How many documents move a query's vector, and how much of its own it keeps; what RM3 has in
Anserini (Yang et al. 2018). The calibrations were fitted with these."""

FUSED = 200
"""How many documents of each ranking are fused: what the calibrations were fitted on."""

POOL = 200
"""How many documents of a search without vectors are encoded: those that are fused."""

LIKELY = 0.5
"""A document counts as relevant from this probability on: it is more likely relevant than not."""

UNLIKELY = 0.05
"""The probability that a query gives to documents that it did not find."""

NAMED = 0.95
"""The probability that a document is relevant whose title is a name that a model gave. On notables
and TREC Fair 2022, with a large model's names, it is .70 to .85 without any other evidence."""

NAMED_WEIGHT = 0.5
"""How much a name counts, as a share of the weight of a model's words of a group."""

BY_RANK = (2.46, 0.561)
"""Intercept and slope over ln(rank) of the logistic regression of relevance on the rank by BM25,
over the first 500 documents of each topic of notables and TREC Fair 2022."""

SMALLEST = 1e-9
"""Probabilities nearer to 0 or 1 are moved here before they become log-odds."""

SAMPLE_WORDS = (
    "time year world first life work people day new great city country family school history "
    "made born known large small"
)
SAMPLE_QUERIES = tuple(Query(word, 10) for word in SAMPLE_WORDS.split())
"""The searches that collect a sample of documents of an engine that cannot list all it has."""

USUAL_SIMILARITY = (0.2, 0.1)
"""Mean and deviation with MiniLM; used when common words find no documents."""

SAME = 1e-9
"""Cosines that deviate no more than this are equal but for rounding."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """A logistic regression of relevance on similarity and one kind of lexical evidence.

    Attributes:
        answerable: The regression of whether there is anything for the query.
    """

    intercept: float
    lexical: float
    similarity: float
    answerable: Answerability = ALWAYS

    def probability(self, lexical: FloatArray, similarity: FloatArray) -> FloatArray:
        """Return the probability that each document is relevant, shape (n,), in (0, 1).

        It takes for granted that there are relevant documents.

        Args:
            lexical: Shape (n,), in [0, 1].
            similarity: In standard deviations above the mean of the documents, shape (n,).
        """
        logit = self.intercept + self.lexical * lexical + self.similarity * similarity
        return np.asarray(1 / (1 + np.exp(-logit)))


class Calibrations(NamedTuple):
    """A regression for each kind of lexical evidence.

    Attributes:
        words, rank, texts: See the top of this module.
        field: Evidence of ranks too, but a query is compared with all documents of an engine that
            searches by vectors, rather than with a pool.
    """

    words: Calibration
    rank: Calibration
    texts: Calibration
    field: Calibration


def _calibrations(
    words: Calibration,
    rank: Calibration,
    texts: Calibration,
    *,
    pool: Answerability,
    field: Answerability,
) -> Calibrations:
    """Return the regressions of all kinds.

    Args:
        words: The regressions for ``words``, of documents and of the query.
        rank: The regression of documents for ``rank`` and ``field``.
        texts: The regression of documents for ``texts``.
        pool: Whether a query can be answered, for ``rank`` and ``texts``.
        field: The same for ``field``.
    """
    return Calibrations(
        words=words,
        rank=replace(rank, answerable=pool),
        texts=replace(texts, answerable=pool),
        field=replace(rank, answerable=field),
    )


CALIBRATED = _calibrations(
    words=Calibration(
        intercept=-6.268,
        lexical=2.789,
        similarity=1.735,
        answerable=Answerability(intercept=-4.13, similarity=20.7, words=0.459),
    ),
    rank=Calibration(intercept=-3.515, lexical=0.784, similarity=1.249),
    texts=Calibration(intercept=-4.011, lexical=1.767, similarity=1.199),
    pool=Answerability(intercept=-3.56, similarity=17.5),
    field=Answerability(intercept=-2.55, similarity=21.9),
)
"""Fitted on the 200 best documents of each topic of notables and TREC Fair 2022 together, and on
those of unrelated queries."""

FITTED = {
    "notables": _calibrations(
        words=Calibration(
            intercept=-8.007,
            lexical=4.06,
            similarity=2.16,
            answerable=Answerability(intercept=-2.97, similarity=16.9, words=0.238),
        ),
        rank=Calibration(intercept=-5.21, lexical=1.93, similarity=1.59),
        texts=Calibration(intercept=-6.06, lexical=3.44, similarity=1.50),
        pool=Answerability(intercept=-2.49, similarity=14.2),
        field=Answerability(intercept=-2.63, similarity=16.5),
    ),
    "trec2022": _calibrations(
        words=Calibration(
            intercept=-4.299,
            lexical=1.307,
            similarity=1.33,
            answerable=Answerability(intercept=-5.92, similarity=27.5, words=0.633),
        ),
        # A higher rank never counts against a document, so its weight is at least 0.
        rank=Calibration(intercept=-1.78, lexical=0.0, similarity=0.88),
        texts=Calibration(intercept=-2.27, lexical=1.14, similarity=0.83),
        pool=Answerability(intercept=-4.91, similarity=22.0),
        field=Answerability(intercept=-3.33, similarity=29.3),
    ),
    "both": CALIBRATED,
}
"""Fitted on one collection each, and tested on the other; and what searches use."""


def held_out(collection: str) -> str:
    """Return which of :data:`FITTED` never learnt from the judgements of a collection.

    Args:
        collection: The name of a collection, with ``notables`` or ``2022`` in it if it has the
            topics of one that the fits learnt from.
    """
    if "notables" in collection:
        return "trec2022"
    return "notables" if "2022" in collection else "both"


def rank_evidence(ids: Sequence[str], ranking: Sequence[str]) -> FloatArray:
    """Return (60 + 1)/(60 + rank) of documents in a ranking, 0 outside of it, shape (len(ids),)."""
    worth = dict(zip(ranking, relevance_by_rank(len(ranking)).tolist(), strict=True))
    return np.array([worth.get(id_, 0.0) for id_ in ids])


def standardised(
    cosines: FloatArray | Float32Array, sample: FloatArray | Float32Array
) -> FloatArray:
    """Return cosines in standard deviations above the mean of a sample of them.

    A nan means "no vector": it becomes the mean, 0, and does not count in the sample.
    """
    mean, deviation = USUAL_SIMILARITY
    sample = sample[~np.isnan(sample)]
    if len(sample) > 1:
        mean = float(sample.mean())
        deviation = float(sample.std())
        if deviation <= SAME:
            deviation = 1.0
    return np.asarray(np.nan_to_num((cosines - mean) / deviation))


def moved_toward(query: Float32Array, best: Float32Array) -> Float32Array:
    """Return a query's vector, moved toward the documents that match it best.

    Args:
        query: Shape (d,), of length 1 or 0.
        best: Vectors of the best documents by rank fusion, shape (m, d); zero vectors do not
            count.
    """
    known = best[best.any(axis=1)]
    if not len(known):
        return query
    middle = unit_rows([known.astype(np.float64).mean(axis=0)])[0]
    return np.asarray(unit_rows([QUERY_WEIGHT * query + (1 - QUERY_WEIGHT) * middle])[0])


def fused_best(rankings: Sequence[Sequence[Item]]) -> list[Item]:
    """Return the documents to learn from: the first ones after rank fusion, ties in their order.

    Args:
        rankings: Ids or numbers of documents, best first.
    """
    fused: dict[Item, float] = {}
    for ranking in rankings:
        for rank, item in enumerate(ranking[:FUSED], start=1):
            fused[item] = fused.get(item, 0.0) + 1 / (RRF_K + rank)
    return sorted(fused, key=lambda item: (-fused[item], item))[:FEEDBACK]


def relevance_by_rank(n: int) -> FloatArray:
    """Return a stand-in for the probability of relevance, for use without similarities.

    It is (60 + 1)/(60 + rank), the weight of reciprocal rank fusion (Cormack et al. 2009) scaled to
    1 at the first rank. It puts a price on exchanging documents, but cannot say whether even the
    first one is relevant. So we leave out no document because of it.

    Args:
        n: How many documents are ranked.

    Returns:
        Values falling from 1, shape (n,).
    """
    return np.asarray((RRF_K + 1) / (RRF_K + np.arange(1, n + 1)))


def probability_by_rank(n: int) -> FloatArray:
    """Return the probability of relevance that the ranks of a list tell, shape (n,).

    It compares several lists of an engine that estimates nothing. How likely a document is relevant
    it cannot say: the first document of a query that fits nothing has a first rank, too.
    """
    intercept, slope = BY_RANK
    ranks = np.arange(1, n + 1)
    return np.asarray(1 / (1 + np.exp(slope * np.log(ranks) - intercept)))


class EvidenceWeights(BaseModel, frozen=True, extra="forbid"):
    """How much the queries with a model's words count, where the original query counts 1.

    Attributes:
        topic: The query with the model's words of the topic.
        queries: The query with the model's other ways to ask it.
        passage: The query with a passage that the model made up. Unless it counts, no passages
            about groups are searched with either; what these find counts as ``group``.
        group: The best of the queries with the model's words of a group, for documents of that
            group.
    """

    topic: float = Field(0.0, ge=0, le=10)
    queries: float = Field(0.0, ge=0, le=10)
    passage: float = Field(0.0, ge=0, le=10)
    group: float = Field(0.0, ge=0, le=10)

    def any(self) -> bool:
        """Return whether any words count."""
        return any(weight > 0 for weight in self.model_dump().values())


def log_odds(probability: FloatArray) -> FloatArray:
    """Return ln(p/(1 − p)); p is first moved into [10⁻⁹, 1 − 10⁻⁹]."""
    inside = np.clip(probability, SMALLEST, 1 - SMALLEST)
    return np.asarray(np.log(inside / (1 - inside)))


def combined(evidence: Sequence[FloatArray], weights: Sequence[float]) -> FloatArray:
    """Return the probability of relevance by several queries: a weighted mean in log-odds.

    Args:
        evidence: The probability by each query, each of shape (n,). A nan says that a query tells
            nothing about a document: the mean is then that of the others.
        weights: How much each query counts, at least 0.

    Returns:
        Probabilities of shape (n,); 0 where no query tells anything.
    """
    total = np.zeros(len(evidence[0]))
    counted = np.zeros(len(total))
    for probability, weight in zip(evidence, weights, strict=True):
        is_known = ~np.isnan(probability)
        total[is_known] += weight * log_odds(probability[is_known])
        counted[is_known] += weight
    is_told = counted > 0
    mean = total[is_told] / counted[is_told]
    relevance = np.zeros(len(total))
    relevance[is_told] = 1 / (1 + np.exp(-mean))
    return relevance
