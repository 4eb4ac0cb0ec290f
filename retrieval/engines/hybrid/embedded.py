"""Hybrid retrieval over an embedded index: words and vectors with feedback, as one estimate."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

import numpy as np

from fairqr.retrieval.encoders.encoder import Encoder, Float32Array
from fairqr.retrieval.engines.engine import Capability, Hits, Query
from fairqr.retrieval.engines.hybrid.vector_array import Rows, cosines, highest, scores_of
from fairqr.retrieval.engines.hybrid.vectors import VectorEngine
from fairqr.retrieval.engines.tantivy.engine import Numbers, Snapshot, TantivyEngine
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.fairness.relevance import (
    CALIBRATED,
    fused_best,
    moved_toward,
    shares_of,
    standardised,
)
from fairqr.retrieval.sources.documents import Progress
from fairqr.retrieval.sources.retriever_parameters import Hybrid


class HybridEngine(VectorEngine):
    """Ranks by the probability that a document is relevant, from words and vectors together.

    A query is first answered twice, by BM25 and by its vector. Reciprocal rank fusion of both gives
    ten documents, and the vector moves halfway toward their mean. The scores are the probabilities
    of :mod:`fairqr.retrieval.fairness.relevance`. As in a search by vectors alone, every document
    is a hit, the unlikely ones last; a query without any word finds nothing. A document outside the
    ``candidates`` that the words find counts as one without any of the words, and one without a
    vector has the mean similarity.
    """

    kind = "hybrid"
    capabilities: frozenset[Capability] = VectorEngine.capabilities | {"relevance"}
    calibrations = CALIBRATED
    options = Hybrid()

    @classmethod
    async def open(
        cls,
        lexical: TantivyEngine,
        encoder: Encoder,
        progress: Progress | None = None,
        options: Hybrid | None = None,
    ) -> Self:
        """Open hybrid retrieval over an index; see :meth:`VectorEngine.open`."""
        engine = await super().open(lexical, encoder, progress)
        engine.options = options or Hybrid()
        engine.retriever = engine.options.named(cls.kind, encoder.name)
        return engine

    def _answer(
        self, now: Snapshot, vectors: Float32Array, query: Query, vector: Float32Array
    ) -> Hits:
        """Answer a query by its words and its vector."""
        # A document's relevance is the same within its group as among all documents.
        candidates = replace(query, n=self.options.candidates, only=None, within=None)
        by_words, scores = self._by_words(now, candidates)
        if not (vector.any() or len(by_words)):
            nothing = Hits([], [], now.memberships([]))
            unlikely = nothing if query.only is None else self.lexical.answer(now, query)
            return replace(unlikely, relevance=np.zeros(len(unlikely)))
        moved = _moved(now, vectors, vector, by_words[: self.options.depth], self.options)
        similar = cosines(vectors, moved)
        best_score = float(scores[0]) if len(scores) else 0.0
        if query.only is None:
            numbers = by_words
            members = self._members(now, query, len(vectors))
            if members is not None:
                numbers = numbers[members[numbers]]
            nearest = highest(standardised(similar, similar), query.n, members)
            numbers = np.union1d(numbers, nearest[now.are_live(nearest)])
        else:
            numbers = self._given(now, query)
            deeper = np.setdiff1d(numbers, by_words)
            if len(deeper) and query.text:
                ids = tuple(now.ids_of(deeper.tolist()))
                given = replace(query, n=len(ids), only=ids, within=None)
                more, their_scores = self._by_words(now, given)
                by_words, scores = np.append(by_words, more), np.append(scores, their_scores)
        of_words = np.zeros(max(numbers.max(initial=-1), by_words.max(initial=-1)) + 1)
        of_words[by_words] = scores
        chances = self.calibrations.words.probability(
            shares_of(of_words[numbers], best_score),
            standardised(_exact(vectors, moved, similar, numbers), similar),
        )
        best_hits = now.hits(numbers, chances, query.n, query.attributes)
        return replace(best_hits, relevance=np.array(best_hits.scores))

    def _by_words(self, now: Snapshot, query: Query) -> tuple[Numbers, FloatArray]:
        """Return the numbers and scores of the best documents by BM25, best first."""
        addresses, scores = now.ranked(self.lexical.parsed(now, query), query.n)
        return np.array(now.numbers(addresses), dtype=np.int64), np.array(scores)


def _moved(
    now: Snapshot, vectors: Float32Array, vector: Float32Array, best: Numbers, options: Hybrid
) -> Float32Array:
    """Return the query's vector, moved toward the best documents of both rankings.

    Args:
        now: The index.
        vectors: The vectors of all documents.
        vector: The vector of the query.
        best: The documents found by words, best first.
        options: The parameters.
    """
    similar = cosines(vectors, vector)
    rows = highest(similar, options.depth)
    rows = rows[now.are_live(rows)]
    nearest = rows[np.lexsort((rows, -similar[rows]))]
    fused = fused_best([best.tolist(), nearest.tolist()], options)
    return moved_toward(
        vector, vectors[[row for row in fused if row < len(vectors)]], options.weight
    )


def _exact(
    vectors: Float32Array, query: Float32Array, similar: Float32Array, rows: Rows
) -> FloatArray:
    """Return the cosines of rows in double precision; nan for documents without a vector.

    A score must not depend on the order of the other rows.
    """
    likeness = np.full(len(rows), np.nan)
    encoded = rows < len(vectors)
    encoded[encoded] = ~np.isnan(similar[rows[encoded]])
    likeness[encoded] = 2 * scores_of(vectors, query, rows[encoded]) - 1
    return likeness
