"""How likely it is that a document is relevant, estimated without judgements.

Two kinds of evidence separate relevant documents from others, and mean the same for every query:
- The **lexical** evidence is the score of BM25, as a share of the query's highest score.
- The **similarity** is the cosine between the vectors of query and document, in standard deviations
  above the mean of all documents. The query's vector is first moved halfway toward the mean of the
  ten best documents of both rankings (Rocchio 1971, with vectors). Ten and halfway are parameters:
  see :class:`fairqr.retrieval.retriever_parameters.Hybrid`.

A logistic regression turns them into a probability. ``benchmarks/relevance.py`` fits it, and shows
how well a fit on one collection works on another (docs/explanation/relevance.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from fairqr.retrieval.encoders.encoder import Float32Array, unit_rows
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.rerank import RRF_K
from fairqr.retrieval.retriever_parameters import Hybrid

__all__ = [
    "CALIBRATION",
    "FITTED",
    "LIKELY",
    "SAMPLE_WORDS",
    "Background",
    "Calibration",
    "fused_best",
    "moved_toward",
    "relevance_by_rank",
]


Item = TypeVar("Item", int, str)

LIKELY = 0.5
"""A document counts as relevant from this probability on: it is more likely relevant than not."""

SAMPLE_WORDS = (
    "time year world first life work people day new great city country family school history "
    "made born known large small"
)
SAMPLED_FOR_EACH = 10
USUAL_SIMILARITY = (0.2, 0.1)
"""Mean and deviation with MiniLM; used when common words find no documents."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The logistic regression of relevance on the two kinds of evidence."""

    intercept: float
    lexical: float
    similarity: float

    def probability(self, lexical: FloatArray, similarity: FloatArray) -> FloatArray:
        """Return the probability that each document is relevant, shape (n,), in (0, 1).

        Args:
            lexical: BM25 as a share of the highest score, shape (n,), in [0, 1].
            similarity: In standard deviations above the mean of all documents, shape (n,).
        """
        logit = self.intercept + self.lexical * lexical + self.similarity * similarity
        return np.asarray(1 / (1 + np.exp(-logit)))

    def estimate(self, scores: FloatArray, highest: float, similarity: FloatArray) -> FloatArray:
        """Return the probability, given BM25 scores and the query's highest score."""
        shares = np.clip(scores / (highest or 1.0), 0, 1)
        return self.probability(shares, similarity)


CALIBRATION = Calibration(intercept=-6.268, lexical=2.789, similarity=1.735)
"""Fitted on the 200 best documents of each topic of notables and TREC Fair 2022 together."""

FITTED = {
    "notables": Calibration(intercept=-8.007, lexical=4.06, similarity=2.16),
    "trec2022": Calibration(intercept=-4.299, lexical=1.307, similarity=1.33),
}
"""Fitted on one collection each, and tested on the other."""


@dataclass(frozen=True, slots=True)
class Background:
    """The vectors of a sample of documents, from an engine that cannot list all it has.

    Attributes:
        vectors: Vectors of length 1, shape (m, d).
    """

    vectors: Float32Array

    @classmethod
    def of(cls, vectors: Float32Array) -> Background:
        """Take the vectors of documents; zero vectors mean "no vector" and are left out."""
        return cls(vectors[vectors.any(axis=1)])

    @staticmethod
    def sample() -> list[Query]:
        """Return the searches that collect the sample: common words."""
        return [Query(word, SAMPLED_FOR_EACH) for word in SAMPLE_WORDS.split()]

    def standardised(self, query: Float32Array, cosines: FloatArray) -> FloatArray:
        """Return cosines with a query in standard deviations above the mean; 0 for a nan."""
        mean, deviation = USUAL_SIMILARITY
        if len(self.vectors) > 1:
            similar = self.vectors @ query
            mean, deviation = float(similar.mean()), float(similar.std()) or 1.0
        return np.asarray(np.nan_to_num((cosines - mean) / deviation))


def moved_toward(query: Float32Array, best: Float32Array, weight: float) -> Float32Array:
    """Return a query's vector, moved toward the documents that match it best.

    Args:
        query: Shape (d,), of length 1 or 0.
        best: Vectors of the best documents by rank fusion, shape (m, d); zero vectors do not
            count.
        weight: The weight of the query; the mean of the documents has the rest.
    """
    known = best[best.any(axis=1)]
    if not len(known):
        return query
    middle = unit_rows([known.astype(np.float64).mean(axis=0)])[0]
    moved: Float32Array = unit_rows([weight * query + (1 - weight) * middle])[0]
    return moved


def fused_best(rankings: Sequence[Sequence[Item]], options: Hybrid) -> list[Item]:
    """Return the documents to learn from: the first ones after rank fusion, ties in their order.

    Args:
        rankings: Ids or numbers of documents, best first.
        options: The parameters.
    """
    fused: dict[Item, float] = {}
    for ranking in rankings:
        for rank, item in enumerate(ranking[: options.depth], start=1):
            fused[item] = fused.get(item, 0.0) + 1 / (options.k + rank)
    return sorted(fused, key=lambda item: (-fused[item], item))[: options.feedback]


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
