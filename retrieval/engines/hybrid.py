"""Hybrid retrieval over an embedded index: words and vectors with feedback, as one estimate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fairqr.retrieval.documents import Progress
from fairqr.retrieval.encoders.encoder import Encoder, Float32Array
from fairqr.retrieval.engines.engine import Capability, Hits, Query
from fairqr.retrieval.engines.tantivy import TantivyEngine
from fairqr.retrieval.engines.tantivy_snapshot import Snapshot
from fairqr.retrieval.engines.vector_array import Rows, cosines, scores_of
from fairqr.retrieval.engines.vectors import VectorEngine, live_documents
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.relevance import (
    CALIBRATED,
    fused_best,
    moved_toward,
    shares_of,
    standardised,
)
from fairqr.retrieval.retriever_parameters import Hybrid


class HybridEngine(VectorEngine):
    """Ranks by the probability that a document is relevant, from words and vectors together.

    A query is first answered twice, by BM25 and by its vector. Reciprocal rank fusion of both gives
    ten documents, and the vector moves halfway toward their mean. The scores are the probabilities
    of :mod:`fairqr.retrieval.relevance`. As in a search by vectors alone, every document is a hit,
    the unlikely ones last; a query without any word finds nothing. A document outside the
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
        by_words = self.lexical.answer(now, candidates)
        if not (vector.any() or len(by_words)):
            nothing = now.hits([], [], 0)
            unlikely = nothing if query.only is None else self.lexical.answer(now, query)
            return replace(unlikely, relevance=np.zeros(len(unlikely)))
        scores = dict(zip(by_words.ids, by_words.scores, strict=True))
        addresses = now.addresses(by_words.ids)
        numbers = dict(zip(addresses, now.numbers(list(addresses.values())), strict=True))
        best = [numbers[id_] for id_ in by_words.ids[: self.options.depth]]
        moved = _moved(now, vectors, vector, best, self.options)
        similar = cosines(vectors, moved)
        if query.only is None:
            among = self._rows_within(now, query, len(vectors))
            live = live_documents(now, _highest(standardised(similar, similar), query.n, among))
            known = set(numbers.values())
            new = {number: place for number, place in live.items() if number not in known}
            matching = self._those_within(now, query, by_words.ids)
            ids = [*matching, *now.ids_of(list(new))]
            places = [addresses[id_] for id_ in matching] + list(new.values())
        else:
            found = now.addresses(self._those_within(now, query, query.only))
            ids, places = list(found), list(found.values())
            deeper = tuple(id_ for id_ in ids if id_ not in scores)
            if deeper and query.text:
                given = self.lexical.answer(now, replace(query, n=len(deeper), only=deeper))
                scores |= dict(zip(given.ids, given.scores, strict=True))
        rows = np.array(now.numbers(places), dtype=np.int64)
        known_scores = np.array([scores.get(id_, 0.0) for id_ in ids])
        chances = self.calibrations.words.probability(
            shares_of(known_scores, by_words.scores[0] if by_words.scores else 0.0),
            standardised(_exact(vectors, moved, similar, rows), similar),
        )
        best_hits = now.hits(places, chances.tolist(), query.n)
        return replace(best_hits, relevance=np.array(best_hits.scores))


def _moved(
    now: Snapshot,
    vectors: Float32Array,
    vector: Float32Array,
    best: Sequence[int],
    options: Hybrid,
) -> Float32Array:
    """Return the query's vector, moved toward the best documents of both rankings.

    Args:
        now: The index.
        vectors: The vectors of all documents.
        vector: The vector of the query.
        best: The rows found by words, best first.
        options: The parameters.
    """
    similar = cosines(vectors, vector)
    rows = _highest(similar, options.depth)
    rows = np.array(list(live_documents(now, rows)), dtype=np.int64)
    nearest = rows[np.lexsort((rows, -similar[rows]))]
    first = [row for row in fused_best([best, nearest.tolist()], options) if row < len(vectors)]
    return moved_toward(vector, vectors[first], options.weight)


def _highest(
    similar: FloatArray | Float32Array, n: int, among: NDArray[np.bool_] | None = None
) -> Rows:
    """Return the rows of the n highest values, unordered, nan last; optionally among some rows."""
    rows = np.arange(len(similar)) if among is None else np.flatnonzero(among)
    if n < len(rows):
        rows = rows[np.argpartition(-similar[rows], n)[:n]]
    return rows.astype(np.int64)


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
