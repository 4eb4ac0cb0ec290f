"""Vector search in a field of an attached index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairqr.base.errors import InputError, ModelError, SourceError, one_line
from fairqr.retrieval.encoders.encoder import Encoder, Float32Array, encode_query, unit_rows
from fairqr.retrieval.encoders.opening import open_encoder
from fairqr.retrieval.engines.elasticsearch.mapping import MappedField
from fairqr.retrieval.engines.elasticsearch.requests import Requests
from fairqr.retrieval.engines.engine import Hits, Query
from fairqr.retrieval.sources.source import ElasticsearchSource
from fairqr.retrieval.texts.sendable import sendable

Body = dict[str, Any]

CANDIDATES = 1000
MOST_CANDIDATES = 10_000
LARGEST_BYTE = 127
NOTHING: Body = {"match_none": {}}

HAS_VECTOR = "doc.containsKey(params.field) && doc[params.field].size() > 0"
READ = f"return {HAS_VECTOR} ? doc[params.field].vectorValue : null;"
COSINE = (
    f"if (!({HAS_VECTOR})) {{ return 0; }} double cosine = %s; "
    "return Double.isNaN(cosine) ? 0 : Math.max(0, 2 + cosine);"
)
"""A score of 2 + cosine, positive because scores must be; 0 without a vector."""


class VectorSearch:
    """The server's own nearest neighbours, approximate over at least 1,000 candidates a shard.

    Given documents are all compared; those without a vector have score 0. The scores are the
    server's: (1 + cosine)/2 if the field compares by cosine. The words of ``boost`` are encoded
    after the query, and a query without any word finds nothing.

    Hybrid retrieval needs cosines, however the field compares and however the server compresses
    its vectors for the search. Scripts on the server compute them.
    """

    vector_type = "dense_vector"
    cosine = "cosineSimilarity(params.vector, params.field)"

    def __init__(
        self, source: ElasticsearchSource, mapped: MappedField, encoder: Encoder | None
    ) -> None:
        """Take the field.

        Raises:
            SourceError: The field cannot be searched.
        """
        assert source.vectors is not None  # noqa: S101 - encoder_for has checked
        self.field, self.encoder = source.vectors.field, encoder
        self.dimensions, self.by_angle, self.can_rescore = self._described(mapped.settings)
        kinds = {mapped.settings.get(key) for key in ("element_type", "data_type")}
        self.of_bytes = "byte" in kinds
        self.gives_cosines = mapped.type == self.vector_type and not (
            mapped.nested or mapped.other_types or {"bit", "binary"} & kinds
        )
        self.path = str(mapped.settings.get("path", self.field))
        if mapped.settings.get("index") is False:
            raise SourceError(
                f"The field '{self.field}' is mapped with 'index: false', so the server cannot "
                "search it by vectors; use the retriever bm25."
            )

    def _described(self, settings: Mapping[str, Any]) -> tuple[int, bool, bool]:
        """Return the dimensions, whether only angles count, and whether it can compare all."""
        by_angle = settings.get("similarity", "cosine") in ("cosine", "dot_product")
        return int(settings.get("dims", 0)), by_angle, True

    @property
    def can_filter(self) -> bool:
        """Whether a filter applies before the nearest documents are chosen, not after."""
        return self.can_rescore and self.encoder is not None

    @property
    def retriever(self) -> str:
        """``dense:<encoder>``; for an encoder on the server, the name of the field."""
        return f"dense:{self.encoder.name if self.encoder else self.field}"

    async def encode(self, query: Query) -> list[float] | None:
        """Return the vector of a query; None if the server makes it, or the query has no words.

        Raises:
            ModelError: The encoder failed, or its vectors do not fit the field.
        """
        text = sendable(query.words)
        if self.encoder is None or not text.strip():
            return None
        if self.by_angle and self.dimensions:
            vector = await encode_query(self.encoder, text, self.dimensions)
            sent = self.sent(vector)
        else:
            # Here the length of the vector counts, so we must not scale it.
            vector = np.asarray(await self.encoder.encode_query(text), dtype=np.float32)
            self.refuse_other(len(vector) if vector.ndim == 1 else -1, self.encoder.name)
            sent = [float(value) for value in vector]
        return sent if vector.any() else None

    def refuse_other(self, dimensions: int, encoder: str) -> None:
        """Refuse an encoder whose vectors do not fit the field.

        Raises:
            ModelError: The vectors do not fit.
        """
        if self.dimensions not in (0, dimensions):
            raise ModelError(
                "parse_error",
                f"The vectors of '{encoder}' do not fit the field '{self.field}', which has "
                f"{self.dimensions} dimensions; name the field's own encoder in 'vectors'.",
            )

    def sent(self, vector: Float32Array) -> list[float]:
        """Return a vector in the server's form; a field of bytes takes whole numbers."""
        if not (self.of_bytes and vector.any()):
            return [float(value) for value in vector]
        return [round(LARGEST_BYTE * float(value)) for value in vector / np.abs(vector).max()]

    def ranking(self, query: Query, vector: list[float] | None, requests: Requests) -> Body:
        """Return the search for the documents most similar to a query."""
        reading = requests.reading(query)
        filters = requests.filters(query)
        if self.encoder is None and query.text.strip():
            semantic = {"semantic": {"field": self.field, "query": sendable(query.words)}}
            part = "should" if query.only is not None else "must"
            return {"query": {"bool": {part: [semantic], "filter": filters}}} | reading
        if vector is None:
            nothing: list[Body] = [] if query.only is not None else [{"match_none": {}}]
            return {"query": {"bool": {"filter": [*filters, *nothing]}}} | reading
        return self._nearest(query, vector, filters) | reading

    def _nearest(self, query: Query, vector: list[float], filters: list[Body]) -> Body:
        knn = {"field": self.field, "query_vector": vector, "k": query.n}
        if query.only is None:
            candidates = min(MOST_CANDIDATES, max(CANDIDATES, 2 * query.n))
            return {"knn": {**knn, "num_candidates": candidates, "filter": filters}}
        # With as many candidates as documents, the server compares all of them. The filter as a
        # query keeps documents without a vector, at score 0.
        size = max(1, len(query.only))
        return {
            "query": {"bool": {"filter": filters}},
            "knn": {**knn, "k": size, "num_candidates": size, "filter": filters},
        }

    # For hybrid retrieval.

    def nearest(self, vector: Float32Array, n: int, filters: Sequence[Body]) -> Body:
        """Return the query for documents with the highest cosines, which are the scores."""
        if not vector.any():
            return NOTHING
        return self.by_cosine(vector, self._neighbours(self.sent(vector), n, [*filters]))

    def by_cosine(self, vector: Float32Array, matching: Body) -> Body:
        """Return a query that scores the documents of another query by their cosines.

        Use :meth:`cosines_of` to read the scores.
        """
        if not vector.any():
            return NOTHING
        params = {"field": self.field, "vector": self.sent(vector)}
        script = {"source": COSINE % self.cosine, "params": params}
        return {"script_score": {"query": matching, "script": script}}

    @property
    def reading(self) -> Body:
        """The parts of a search that request the vectors of its hits."""
        script = {"source": READ, "params": {"field": self.field}}
        return {"script_fields": {"vector": {"script": script}}}

    def read(self, hits: Sequence[Any], dimensions: int) -> Float32Array:
        """Return the vectors of hits, of length 1, or zeros without a vector, shape (n, d)."""
        rows = np.zeros((len(hits), dimensions))
        for row, hit in zip(rows, hits, strict=True):
            vector = self._vector_of(hit)
            if len(vector) == dimensions:
                row[:] = vector
        return unit_rows(rows)

    def _neighbours(self, vector: list[float], n: int, filters: list[Body]) -> Body:
        candidates = min(MOST_CANDIDATES, max(CANDIDATES, 2 * n))
        knn = {"field": self.field, "query_vector": vector, "num_candidates": candidates}
        return {"knn": {**knn, "filter": filters}}

    def _vector_of(self, hit: Any) -> list[float]:
        (vector,) = hit.get("fields", {}).get("vector") or [None]
        return vector or []


def cosines_of(hits: Hits) -> dict[str, float]:
    """Return the cosines from the scores of a :meth:`VectorSearch.by_cosine` search."""
    scored = zip(hits.ids, hits.scores, strict=True)
    return {id_: score - 2 for id_, score in scored if score > 0}


def encoder_for(
    source: ElasticsearchSource, mapped: MappedField | None, retriever: str | Encoder
) -> Encoder | None:
    """Return the encoder of queries, or None if the server encodes them.

    Args:
        source: The description.
        mapped: Its vector field.
        retriever: ``dense``, ``dense:<encoder>``, or an encoder.

    Raises:
            InputError: This source has no such retriever.
        ModelUnavailableError: The encoder does not exist, or something it needs is missing.
    """
    vectors = source.vectors
    if vectors is None or mapped is None:
        raise InputError(
            f"The source '{source.name}' has no vector field; add "
            "'vectors: {field: …, embeddings: …}', or use the retriever bm25."
        )
    if not isinstance(retriever, str):
        return retriever
    kind, _, named = retriever.strip().partition(":")
    if kind != "dense":
        raise InputError(
            f"There is no retriever '{one_line(retriever)}'; choose bm25, dense or hybrid. "
            f"The last two search the vectors in '{vectors.field}'."
        )
    if mapped.type == "semantic_text":
        return None
    if named and vectors.embeddings and named != vectors.embeddings:
        raise InputError(
            f"The vectors in '{vectors.field}' were made by '{vectors.embeddings}', not by "
            f"'{one_line(named)}'; use the retriever dense."
        )
    if not (named or vectors.embeddings):
        raise InputError(
            f"The source does not say what made the vectors in '{vectors.field}'; add 'embeddings' "
            "to 'vectors', such as openai:text-embedding-3-small."
        )
    return open_encoder(named or str(vectors.embeddings))
