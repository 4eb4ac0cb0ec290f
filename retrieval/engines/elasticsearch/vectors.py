"""Hybrid retrieval over the field of vectors of an attached index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fairqr.base.errors import ModelError
from fairqr.base.loops import run_together
from fairqr.retrieval.encoders.encoder import (
    Encoder,
    EncoderMark,
    Float32Array,
    KeptVectors,
    encode_query,
)
from fairqr.retrieval.engines.elasticsearch.client import Body
from fairqr.retrieval.engines.elasticsearch.engine import ElasticsearchEngine, Plan, Step
from fairqr.retrieval.engines.elasticsearch.requests import Search
from fairqr.retrieval.engines.elasticsearch.vector_search import VectorSearch
from fairqr.retrieval.engines.engine import (
    Capability,
    EngineOverWords,
    Hits,
    Query,
    first_of,
    require_groups,
)
from fairqr.retrieval.fairness.answerable import (
    NEAREST,
    Background,
    background_of,
    nearest_mean,
    unrelated_vectors,
)
from fairqr.retrieval.fairness.claims import Claims, claims_by_vector
from fairqr.retrieval.fairness.relevance import (
    CALIBRATED,
    FUSED,
    POOL,
    fused_best,
    moved_toward,
    rank_evidence,
    standardised,
)

BY_WORDS = 1000
"""How many documents words find: what a TREC run has for each topic."""

SAMPLED = 500
"""On notables, the estimates are off by .03 on average with 500 documents, by .06 with 200."""


def _cosines(answers: Sequence[Hits]) -> dict[str, float]:
    """Return the cosines of documents that were scored by 2 + cosine; 0 is no vector."""
    scores: dict[str, float] = {}
    for hits in answers:
        scores.update(zip(hits.ids, hits.scores, strict=True))
    return {id_: score - 2 for id_, score in scores.items() if score > 0}


class _FirstAnswers(NamedTuple):
    """What the first request of a query returns.

    Attributes:
        leading: The best of all documents by words, whose ranks are evidence also for a query that
            is limited to some.
        nearest: The nearest of all documents by vectors.
        ranking: The server's ranking of those that the query is limited to.
    """

    leading: Hits
    nearest: Hits
    ranking: Hits


class _SecondAnswers(NamedTuple):
    """What the last request of a query returns.

    Attributes:
        neighbours: The neighbours of the moved vector; None for given documents.
        compared: The documents of the server's ranking, scored by their cosine.
    """

    neighbours: Hits | None
    compared: list[Hits]

    @property
    def answers(self) -> list[Hits]:
        """All of them."""
        return self.compared if self.neighbours is None else [self.neighbours, *self.compared]


class FieldHybridEngine(EngineOverWords):
    """Estimates how likely documents are relevant, by the server's own ranking and its vectors.

    The server's ranking stays as it is, with its scores. Behind it come documents that are near to
    the query by their vectors, the most likely ones first; see ``Hits.own``. The server's nearest
    neighbours are approximate, and the mean and deviation of similarities come from 500 random
    documents. Within a group, the candidates by words come from the group.

    Whether the index has anything for a query is estimated from its five nearest documents, which
    are compared with those of unrelated queries; how many words documents hold is not known.

    Three requests answer all queries of a round: one for the best documents by words and by
    vectors, one for the vectors that move the query's, and one for the neighbours of the moved
    vector and the cosines of the documents found by words.
    """

    lexical: ElasticsearchEngine
    calibrations = CALIBRATED

    def __init__(
        self,
        lexical: ElasticsearchEngine,
        field: VectorSearch,
        encoder: Encoder,
        background: Float32Array,
        unrelated: Background,
    ) -> None:
        """Take what :meth:`open` has prepared."""
        super().__init__(lexical)
        self._field = field
        self._encoder = encoder
        self.background = background
        self.unrelated = unrelated
        self.retriever = f"hybrid:{encoder.name}"
        self.capabilities: frozenset[Capability] = lexical.capabilities | {"vectors", "relevance"}

    @classmethod
    async def open(
        cls, lexical: ElasticsearchEngine, name: str, encoder: Encoder
    ) -> FieldHybridEngine | None:
        """Open hybrid retrieval over a field of vectors; one request reads a sample of them.

        Args:
            lexical: The index; closed if this fails.
            name: The field.
            encoder: The encoder that made the vectors.

        Returns:
            The engine, or None if the field cannot be searched so, or the server returns no vectors
            or no cosines, for instance because it forbids scripts.

        Raises:
            ModelError: The encoder failed, or its vectors do not fit the field.
            FairqrError: Any error of the index.
        """
        field = VectorSearch(name, lexical.mapping.fields[name])
        try:
            mark = await EncoderMark.of(encoder)
            if field.dimensions not in (0, mark.dimensions):
                raise ModelError(
                    "parse_error",
                    f"The vectors of '{encoder.name}' do not fit the field '{name}', which has "
                    f"{field.dimensions} dimensions; name the field's own encoder in 'vectors'.",
                )
            unrelated = await unrelated_vectors(KeptVectors(encoder, mark))
            bodies = _bodies_to_open(lexical, field, unrelated, mark)
            answers = await lexical.msearch(bodies, refuse=False)
        except BaseException:
            await lexical.aclose()
            raise
        if not bodies or any("error" in answer for answer in answers):
            return None

        _, *nearest_answers, sample = answers
        vectors = field.read(sample["hits"]["hits"], mark.dimensions)
        if not vectors.any():
            return None
        background = vectors[vectors.any(axis=1)]
        similarities = []
        for vector, answer in zip(unrelated, nearest_answers, strict=True):
            rows = field.read(answer["hits"]["hits"], mark.dimensions)
            similarities.append(nearest_mean(np.vecdot(rows, vector)))
        # The scale is that of the sample; the nearest are those of all documents.
        scale = background_of(background, unrelated, encoder).scale
        usual = Background(float(np.mean(similarities)), scale)
        return cls(lexical, field, encoder, background, usual)

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        """Answer all queries in at most three requests.

        Behind at most ``n`` hits of the server's own ranking come at most 200 others.
        """
        require_groups(self, queries)
        texts = [query.text if query.is_ranking else "" for query in queries]
        dimensions = self.background.shape[1]
        vectors = await run_together(
            encode_query(self._encoder, text, dimensions) for text in texts
        )
        return await self.lexical.run(list(map(self._plan, queries, vectors)))

    def _plan(self, query: Query, vector: Float32Array) -> Plan:
        """Search by words and vectors, then by the vector moved toward the best of both."""
        lexical = self.lexical
        if not query.is_ranking:
            return (yield from lexical.plan(lexical.search_for(query), query.n))
        first = yield from self._first_searches(query, vector)
        if not vector.any() and not first.leading.ids:
            return first_of(first.ranking, query.n)

        best = fused_best([first.leading.ids, first.nearest.ids])
        nearest = first.nearest.ids[:NEAREST]
        hits_with_vectors = yield from self._with_vectors([*best, *nearest])
        moved = moved_toward(vector, self._vectors(best, hits_with_vectors))
        second = yield from self._second_searches(query, first.ranking, moved)

        hits = self._merged(query, first, second, moved)
        warnings = list(first.ranking.warnings)
        for answer in second.answers:
            warnings += answer.warnings
        nearest_vectors = self._vectors(nearest, hits_with_vectors)
        return replace(
            hits,
            warnings=tuple(dict.fromkeys(warnings)),
            answerable=self._answerable(vector, nearest_vectors),
            claims=self._claims(query, [hits_with_vectors.get(id_, {}) for id_ in hits.ids]),
        )

    def _merged(
        self, query: Query, first: _FirstAnswers, second: _SecondAnswers, moved: Float32Array
    ) -> Hits:
        """Return the server's own ranking, and behind it other neighbours by their probability.

        Args:
            query: The query.
            first: The answers to the first request.
            second: The answers to the last request.
            moved: The query's moved vector.
        """
        ranking = first.ranking
        neighbours = second.neighbours
        if neighbours is None:
            neighbours = first_of(ranking, 0)
        ranked_ids = frozenset(ranking.ids)
        new = [row for row, id_ in enumerate(neighbours.ids) if id_ not in ranked_ids]
        ids = [*ranking.ids, *(neighbours.ids[row] for row in new)]
        cosines = _cosines(second.answers)
        similarity = np.array([cosines.get(id_, np.nan) for id_ in ids])
        probabilities = self.calibrations.field.probability(
            rank_evidence(ids, first.leading.ids),
            standardised(similarity, self.background @ moved),
        )

        # The server's own hits keep their order; see ``Hits.own``.
        own = min(len(ranking), query.n)
        rows = [*range(own)]
        if second.neighbours is not None:
            by_probability = np.argsort(-probabilities[own:].round(9), kind="stable")
            rows += (own + by_probability[:POOL]).tolist()
        score_behind = min(0.0, ranking.scores[own - 1]) if own else 0.0
        memberships = {}
        for name, shares in ranking.memberships.items():
            shares_of_all = np.concatenate([shares, neighbours.memberships[name][new]])
            memberships[name] = shares_of_all[rows]
        return Hits(
            [ids[row] for row in rows],
            [*ranking.scores[:own], *[score_behind] * (len(rows) - own)],
            memberships,
            relevance=probabilities[rows],
            own=own,
        )

    def _first_searches(self, query: Query, vector: Float32Array) -> Step[_FirstAnswers]:
        """Search by words and by vectors in one request."""
        lexical = self.lexical
        n = min(BY_WORDS, lexical.requests.window)
        among_all = replace(query, n=n, only=None, within=None)
        near = self._nearest(replace(among_all, n=FUSED, with_titles=False), vector)
        searches = [lexical.search_for(among_all), near]

        limited = replace(query, n=n if query.only is None else max(1, len(query.only)))
        if query.only is not None and "rescore" not in lexical.capabilities:
            # A body that cannot score given documents still has their groups.
            limited = replace(limited, text="")
        is_limited = limited != among_all
        if is_limited:
            searches.append(lexical.search_for(limited))
        leading, nearest, *rankings = yield from lexical.send(searches)
        return _FirstAnswers(leading, nearest, rankings[0] if is_limited else leading)

    def _with_vectors(self, ids: Sequence[str]) -> Step[dict[str, Any]]:
        """Read the vectors of documents; return their hits by id."""
        reader = self.lexical.reader
        request = self._field.with_vectors(reader.request)
        answers = yield self.lexical.requests.by_ids(ids, request)
        hit_of = {}
        for answer in answers:
            for hit in answer["hits"]["hits"]:
                hit_of[reader.id_of(hit)] = hit
        return hit_of

    def _second_searches(
        self, query: Query, ranking: Hits, moved: Float32Array
    ) -> Step[_SecondAnswers]:
        """Search for neighbours of the moved vector, and for cosines of the ranked documents."""
        searches = []
        if query.only is None:
            searches.append(self._nearest(query, moved))
        for ids in self.lexical.requests.pieces(ranking.ids):
            searches.append(self._compared(query, ids, moved))
        answers = yield from self.lexical.send(searches)
        if query.only is None:
            return _SecondAnswers(answers[0], answers[1:])
        return _SecondAnswers(None, answers)

    def _vectors(self, ids: Sequence[str], hit_of: Mapping[str, Any]) -> Float32Array:
        """Return the vectors of those documents whose hits were read, shape (n, d)."""
        hits = [hit_of[id_] for id_ in ids if id_ in hit_of]
        return self._field.read(hits, self.background.shape[1])

    def _answerable(self, vector: Float32Array, nearest: Float32Array) -> float:
        """Return the probability that the index has anything for a query."""
        similarity = nearest_mean(np.vecdot(nearest, vector))
        above = self.unrelated.above(similarity)
        return self.calibrations.field.answerable.probability(above, words=0.0)

    def _claims(self, query: Query, hits: Sequence[Any]) -> Claims | None:
        """Return which documents say the same, as far as that is known; None if nobody asks.

        Args:
            query: The query.
            hits: The hit of each document whose vector was read, which are few; others are empty.
        """
        if not query.with_claims:
            return None
        vectors = self._field.read(hits, self.background.shape[1])
        return claims_by_vector(vectors, self._encoder.name)

    def _nearest(self, query: Query, vector: Float32Array) -> Search:
        """Return the search for documents with the highest cosines."""
        requests = self.lexical.requests
        n = min(query.n, requests.window)
        nearest = self._field.nearest(vector, n, requests.filters(query))
        return requests.limited(query, {"query": nearest})

    def _compared(self, query: Query, ids: Sequence[str], vector: Float32Array) -> Search:
        """Return the search for the cosines of documents."""
        requests = self.lexical.requests
        among_these = replace(query, n=len(ids), only=tuple(ids), with_titles=False)
        matching = {"bool": {"filter": requests.filters(among_these)}}
        by_cosine = self._field.by_cosine(vector, matching)
        return requests.limited(among_these, {"query": by_cosine})


def _bodies_to_open(
    lexical: ElasticsearchEngine,
    field: VectorSearch,
    unrelated: Float32Array,
    mark: EncoderMark,
) -> list[Body]:
    """Return the searches that open hybrid retrieval; empty if the field cannot be searched.

    The first tries whether the server can search the field at all. Then come the nearest documents
    of unrelated queries, and then a sample of all documents.
    """
    if not field.usable:
        return []
    request = field.with_vectors(lexical.reader.request)
    probe = np.full(mark.dimensions, mark.dimensions**-0.5, dtype=np.float32)
    bodies: list[Body] = [{"query": field.nearest(probe, 1, []), "size": 1}]
    for vector in unrelated:
        nearest = field.nearest(vector, NEAREST, [])
        bodies.append({**request, "query": nearest, "size": NEAREST})
    bodies.append(lexical.requests.sample(SAMPLED, request, {"exists": {"field": field.name}}))
    return bodies
