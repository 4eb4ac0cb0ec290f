"""How likely it is that a collection has anything for a query, estimated without judgements.

The estimates of single documents are relative: the best of many unsuitable documents look as good
as the best of many suitable ones. Two kinds of evidence tell these apart:

- **similarity**: the mean of the five highest cosines between the query and the documents, above
  the same mean for unrelated queries: names of products, shell commands, household questions
  (``unrelated_queries.txt``).
- **words**: how much of the query the 20 most likely documents hold, each word by its inverse
  document frequency. Only an index of ours counts these.

A logistic regression turns both into a probability, which multiplies the relative estimate of each
document. So the order of documents stays as it is. ``benchmarks/relevance.py`` fits it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fairqr.retrieval.encoders.encoder import Encoder, Float32Array, KeptVectors
from fairqr.retrieval.fairness.exposure import FloatArray

NEAREST = 5
"""How many of the highest cosines count."""

FIRST = 20
"""How many of the most likely documents count that hold words of the query."""

COMPARED = 5
"""Every fifth of the unrelated queries is compared with: 22 say nearly the same as all."""

FITTED_WITH = "minilm"
"""The encoder whose cosines the regressions were fitted with."""

USUAL_DEVIATION = 0.055
"""The standard deviation of MiniLM's cosines between an unrelated query and all documents: .051 on
notables, .059 on TREC Fair 2022. Cosines of other encoders are brought to this scale."""


LOWEST = -50.0
"""Lower log-odds than these make no difference, and might overflow."""


@dataclass(frozen=True, slots=True)
class Answerability:
    """A logistic regression of whether a collection has relevant documents for a query."""

    intercept: float
    similarity: float = 0.0
    words: float = 0.0

    def probability(self, similarity: float, words: float) -> float:
        """Return the probability that a collection has anything for a query, in [0, 1].

        Args:
            similarity: The mean of the highest cosines, above that of unrelated queries.
            words: The mean inverse document frequency of the query's words in a document.
        """
        log_odds = self.intercept + self.similarity * similarity + self.words * words
        return 1 / (1 + math.exp(-max(log_odds, LOWEST)))


ALWAYS = Answerability(intercept=math.inf)
"""Takes every query to be answerable."""


class Background(NamedTuple):
    """What cosines unrelated queries reach in a collection.

    Attributes:
        nearest: The mean of their highest cosines.
        scale: What differences of cosines are multiplied by, to be like those of MiniLM.
    """

    nearest: float
    scale: float

    def above(self, nearest: float) -> float:
        """Return by how much a query's highest cosines exceed those of unrelated queries."""
        return (nearest - self.nearest) * self.scale


USUAL = Background(nearest=0.127, scale=1.0)
"""What unrelated queries reach with MiniLM among the documents that common words find: .103 on
notables, .151 on TREC Fair 2022. A pool or a list is compared with this, since its own documents
were found by the query; comparing with each collection's own value fits no better."""


@cache
def unrelated_queries() -> Sequence[str]:
    """Return queries that have nothing to do with notables or with TREC Fair 2022."""
    path = Path(__file__).with_name("unrelated_queries.txt")
    return tuple(path.read_text(encoding="utf-8").splitlines())


async def unrelated_vectors(vectors: KeptVectors) -> Float32Array:
    """Return the vectors of the unrelated queries that are compared with, shape (n, d).

    Raises:
        ModelError: The encoder failed.
    """
    return await vectors.encode_queries(unrelated_queries()[::COMPARED])


def background_of(documents: Float32Array, unrelated: Float32Array, encoder: Encoder) -> Background:
    """Return what cosines unrelated queries reach among documents.

    Args:
        documents: The vectors of the documents, shape (N, d); zeros do not count.
        unrelated: The vectors of the queries, shape (n, d).
        encoder: Made both.
    """
    known = documents[documents.any(axis=1)]
    if not len(known):
        return Background(0.0, 1.0)
    means = []
    deviations = []
    for query in unrelated:
        cosines = np.vecdot(known, query)
        means.append(nearest_mean(cosines))
        deviations.append(float(cosines.std()))
    scale = 1.0
    deviation = float(np.mean(deviations))
    if encoder.name != FITTED_WITH and deviation > 0:
        scale = USUAL_DEVIATION / deviation
    return Background(float(np.mean(means)), scale)


def nearest_mean(cosines: FloatArray | Float32Array) -> float:
    """Return the mean of the five highest cosines, or of all if there are fewer; 0 without any.

    A nan means "no vector" and does not count.
    """
    known = cosines[~np.isnan(cosines)]
    if not len(known):
        return 0.0
    if len(known) <= NEAREST:
        return float(known.mean())
    return float(np.partition(known, -NEAREST)[-NEAREST:].mean())


def inverse_frequency(documents: int, having: int) -> float:
    """Return the inverse document frequency of a word as in Lucene, above 0.

    Args:
        documents: How many documents there are.
        having: How many of them have the word.
    """
    # An index may count deleted documents among those that have a word.
    lacking = max(0, documents - having)
    return math.log1p((lacking + 0.5) / (having + 0.5))
