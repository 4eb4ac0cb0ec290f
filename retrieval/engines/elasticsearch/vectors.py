"""Hybrid retrieval over the field of vectors of an attached index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fairqr.base.errors import ModelError
from fairqr.base.loops import run_together
from fairqr.retrieval.encoders.encoder import (
    Encoder,
    EncoderMark,
    Float32Array,
    KeptVectors,
    encode_query,
    unit_rows,
)
from fairqr.retrieval.engines.elasticsearch.client import Body
from fairqr.retrieval.engines.elasticsearch.engine import ElasticsearchEngine, Plan, Search, Step
from fairqr.retrieval.engines.elasticsearch.mapping import NONE, MappedField
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
from fairqr.retrieval.sources.documents import value_at

BY_WORDS = 1000
"""How many documents words find: what a TREC run has for each topic."""

CANDIDATES = 1000
MOST_CANDIDATES = 10_000
"""The fewest and the most candidates among which a shard looks for the nearest neighbours."""

SAMPLED = 500
"""On notables, the estimates are off by .03 on average with 500 documents, by .06 with 200."""

HAS_VECTOR = "doc.containsKey(params.field) && doc[params.field].size() > 0"
READ = f"return {HAS_VECTOR} ? doc[params.field].vectorValue : null;"
COSINE = (
    f"if (!({HAS_VECTOR})) {{ return 0; }} double cosine = cosineSimilarity(params.vector, %s); "
    "return Double.isNaN(cosine) ? 0 : Math.max(0, 2 + cosine);"
)
"""A score of 2 + cosine, positive because scores must be; 0 without a vector."""


class VectorSearch:
    """Builds the searches over a field of vectors, and reads its vectors.

    Nearest neighbours are the server's own, approximate over at least 1,000 candidates a shard.
    Scripts on the server compute cosines, however the field compares vectors and however the server
    compresses them for the search.

    Attributes:
        name: The name of the field.
        dimensions: Those of its vectors; 0 if the mapping does not say.
        usable: Whether the field can be searched, also among given documents.
    """

    def __init__(self, name: str, mapped: MappedField) -> None:
        settings = mapped.settings
        self.name = name
        self._opensearch = mapped.type == "knn_vector"
        self._path = str(settings.get("path", name))
        self.dimensions = int(settings.get("dims") or settings.get("dimension") or 0)
        kinds = {settings.get("element_type", "float"), settings.get("data_type", "float")}
        unable = settings.get("index") is False or mapped.nested or kinds != {"float"}
        # The other engines of OpenSearch cannot search among given documents.
        filtering = settings.get("method", {}).get("engine") in ("lucene", "faiss")
        self.usable = not unable and (filtering or not self._opensearch)

    def nearest(self, vector: Float32Array, n: int, filters: Sequence[Body]) -> Body:
        """Return the query for documents with the highest cosines, as :meth:`by_cosine` scores."""
        if self._opensearch:
            chosen = {"filter": {"bool": {"filter": [*filters]}}} if filters else {}
            knn: Body = {self.name: {"vector": vector.tolist(), "k": n, **chosen}}
        else:
            candidates = min(MOST_CANDIDATES, max(CANDIDATES, 2 * n))
            knn = {"field": self.name, "query_vector": vector.tolist(), "filter": [*filters]}
            knn["num_candidates"] = candidates
        return self.by_cosine(vector, {"bool": {"must": [{"knn": knn}], "filter": [*filters]}})

    def by_cosine(self, vector: Float32Array, matching: Body) -> Body:
        """Return a query that scores documents by 2 + cosine, and by 0 without a vector."""
        if not vector.any():
            return NONE
        compared = "doc[params.field]" if self._opensearch else "params.field"
        params = {"field": self.name, "vector": vector.tolist()}
        script = {"source": COSINE % compared, "params": params}
        return {"script_score": {"query": matching, "script": script}}

    def with_vectors(self, request: Mapping[str, Any]) -> Body:
        """Return what is requested for each hit, and its vector."""
        if self._opensearch:  # Its scripts cannot read them.
            return {**request, "_source": [self._path]}
        script = {"source": READ, "params": {"field": self.name}}
        return {**request, "script_fields": {"vector": {"script": script}}}

    def read(self, hits: Sequence[Any], dimensions: int) -> Float32Array:
        """Return the vectors of hits, of length 1, or zeros without a vector, shape (n, d)."""
        rows = np.zeros((len(hits), dimensions))
        for row, hit in zip(rows, hits, strict=True):
            (vector,) = hit.get("fields", {}).get("vector") or [None]
            if self._opensearch:
                vector = value_at(hit.get("_source", {}), self._path)
            if vector and len(vector) == dimensions:
                row[:] = vector
        return unit_rows(rows)


def _cosines(found: Sequence[Hits]) -> dict[str, float]:
    """Return the cosines of documents that were scored by 2 + cosine; 0 is no vector."""
    scores: dict[str, float] = {}
    for hits in found:
        scores.update(zip(hits.ids, hits.scores, strict=True))
    return {id_: score - 2 for id_, score in scores.items() if score > 0}


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
            request = field.with_vectors(lexical.reader.request)
            sample = lexical.sample(SAMPLED, request, {"exists": {"field": name}})
            probe = np.full(mark.dimensions, mark.dimensions**-0.5, dtype=np.float32)
            tried = {"query": field.nearest(probe, 1, []), "size": 1}
            unrelated = await unrelated_vectors(KeptVectors(encoder, mark))
            compared = [
                {**request, "query": field.nearest(vector, NEAREST, []), "size": NEAREST}
                for vector in unrelated
            ]
            bodies = [tried, *compared, sample] if field.usable else []
            answers = await lexical.msearch(bodies, refuse=False)
        except BaseException:
            await lexical.aclose()
            raise
        if not bodies or any("error" in answer for answer in answers):
            return None
        vectors = field.read(answers[-1]["hits"]["hits"], mark.dimensions)
        if not vectors.any():
            return None
        background = vectors[vectors.any(axis=1)]
        nearest = []
        for vector, answer in zip(unrelated, answers[1:-1], strict=True):
            rows = field.read(answer["hits"]["hits"], mark.dimensions)
            nearest.append(nearest_mean(np.vecdot(rows, vector)))
        # The scale is that of the sample; the nearest are those of all documents.
        scale = background_of(background, unrelated, encoder).scale
        return cls(lexical, field, encoder, background, Background(float(np.mean(nearest)), scale))

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        """Answer all queries in at most three requests.

        Behind at most ``n`` hits of the server's own ranking come at most 200 others.
        """
        require_groups(self, queries)
        words = [query.text if query.is_ranking else "" for query in queries]
        dimensions = self.background.shape[1]
        vectors = await run_together(encode_query(self._encoder, it, dimensions) for it in words)
        return await self.lexical.run(list(map(self._plan, queries, vectors)))

    def _plan(self, query: Query, vector: Float32Array) -> Plan:
        """Search by words and vectors, then by the vector moved toward the best of both."""
        lexical = self.lexical
        if not query.is_ranking:
            return (yield from lexical.plan(lexical.sought(query), query.n))
        leading, nearest, scored = yield from self._first_searches(query, vector)
        if not (vector.any() or leading.ids):
            return first_of(scored, query.n)
        best = fused_best([leading.ids, nearest.ids])
        near = nearest.ids[:NEAREST]
        read = yield from self._with_vectors([*best, *near])
        moved = moved_toward(vector, self._vectors(best, read))
        neighbours, compared = yield from self._second_searches(query, scored, moved)
        found = [*neighbours, *compared]

        behind = neighbours[0] if neighbours else first_of(scored, 0)
        ranked = frozenset(scored.ids)
        new = [row for row, id_ in enumerate(behind.ids) if id_ not in ranked]
        ids = [*scored.ids, *(behind.ids[row] for row in new)]
        cosines = _cosines(found)
        probabilities = self.calibrations.field.probability(
            rank_evidence(ids, leading.ids),
            standardised(
                np.array([cosines.get(id_, np.nan) for id_ in ids]), self.background @ moved
            ),
        )
        # The server's own hits keep their order; see ``Hits.own``.
        own = min(len(scored), query.n)
        rows = [*range(own)]
        if neighbours:
            by_probability = np.argsort(-probabilities[own:].round(9), kind="stable")
            rows += (own + by_probability[:POOL]).tolist()
        last_score = min(0.0, scored.scores[own - 1]) if own else 0.0
        memberships = {
            name: np.concatenate([shares, behind.memberships[name][new]])[rows]
            for name, shares in scored.memberships.items()
        }
        warnings = [warning for hits in (scored, *found) for warning in hits.warnings]
        return Hits(
            [ids[row] for row in rows],
            [*scored.scores[:own], *[last_score] * (len(rows) - own)],
            memberships,
            warnings=tuple(dict.fromkeys(warnings)),
            relevance=probabilities[rows],
            answerable=self._answerable(vector, self._vectors(near, read)),
            own=own,
            claims=self._claims(query, [read.get(ids[row], {}) for row in rows]),
        )

    def _first_searches(self, query: Query, vector: Float32Array) -> Step[tuple[Hits, Hits, Hits]]:
        """Search by words and by vectors in one request.

        Returns:
            The best of all documents by words, whose ranks are evidence also for a query that is
            limited to some; the nearest of all; and the server's ranking of those it is limited to.
        """
        lexical = self.lexical
        whole = replace(query, n=min(BY_WORDS, lexical.most), only=None, within=None)
        count = whole.n if query.only is None else max(1, len(query.only))
        given = replace(query, n=count)
        if query.only is not None and "rescore" not in lexical.capabilities:
            # A body that cannot score given documents still has their groups.
            given = replace(given, text="")
        near = self._nearest(replace(whole, n=FUSED, with_titles=False), vector)
        searches = [lexical.sought(whole), near]
        if given != whole:
            searches.append(lexical.sought(given))
        leading, nearest, *limited = yield from lexical.found(searches)
        return leading, nearest, limited[0] if limited else leading

    def _with_vectors(self, ids: Sequence[str]) -> Step[dict[str, Any]]:
        """Read the vectors of documents; return their hits by id."""
        reader = self.lexical.reader
        request = self._field.with_vectors(reader.request)
        answers = yield self.lexical.reading(ids, request)
        hits = [hit for answer in answers for hit in answer["hits"]["hits"]]
        return {reader.id_of(hit): hit for hit in hits}

    def _second_searches(
        self, query: Query, scored: Hits, moved: Float32Array
    ) -> Step[tuple[list[Hits], list[Hits]]]:
        """Search for the neighbours of the moved vector, and for cosines of the scored documents.

        Returns:
            The neighbours, of which given documents have none, and the scored ones by cosine.
        """
        lexical = self.lexical
        neighbours = [self._nearest(query, moved)] if query.only is None else []
        compared = [self._compared(query, ids, moved) for ids in lexical.pieces(scored.ids)]
        found = yield from lexical.found([*neighbours, *compared])
        return found[: len(neighbours)], found[len(neighbours) :]

    def _vectors(self, ids: Sequence[str], read: Mapping[str, Any]) -> Float32Array:
        """Return the vectors of those documents whose hits were read, shape (n, d)."""
        hits = [read[id_] for id_ in ids if id_ in read]
        return self._field.read(hits, self.background.shape[1])

    def _answerable(self, vector: Float32Array, nearest: Float32Array) -> float:
        """Return the probability that the index has anything for a query."""
        similarity = nearest_mean(np.vecdot(nearest, vector))
        above = self.unrelated.above(similarity)
        return self.calibrations.field.answerable.probability(above, words=0.0)

    def _claims(self, query: Query, read: Sequence[Any]) -> Claims | None:
        """Return which documents say the same, as far as that is known; None if nobody asks.

        Args:
            query: The query.
            read: The hit of each document whose vector was read, which are few; others are empty.
        """
        if not query.with_claims:
            return None
        vectors = self._field.read(read, self.background.shape[1])
        return claims_by_vector(vectors, self._encoder.name)

    def _nearest(self, query: Query, vector: Float32Array) -> Search:
        """Return the search for documents with the highest cosines."""
        n = min(query.n, self.lexical.most)
        near = self._field.nearest(vector, n, self.lexical.filters(query))
        return self.lexical.limited(query, {"query": near})

    def _compared(self, query: Query, ids: Sequence[str], vector: Float32Array) -> Search:
        """Return the search for the cosines of documents."""
        asked = replace(query, n=len(ids), only=tuple(ids), with_titles=False)
        given = {"bool": {"filter": self.lexical.filters(asked)}}
        return self.lexical.limited(asked, {"query": self._field.by_cosine(vector, given)})
