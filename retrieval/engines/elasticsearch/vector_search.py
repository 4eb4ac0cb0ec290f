"""Searches over a field of vectors of an attached index, and how its vectors are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairqr.retrieval.encoders.encoder import Float32Array, unit_rows
from fairqr.retrieval.engines.elasticsearch.client import Body
from fairqr.retrieval.engines.elasticsearch.hit_reader import NONE
from fairqr.retrieval.engines.elasticsearch.mapping import MappedField
from fairqr.retrieval.sources.documents import value_at

CANDIDATES = 1000
"""The fewest candidates among which a shard looks for the nearest neighbours."""

MOST_CANDIDATES = 10_000
"""The most of them."""

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
        is_searchable = settings.get("index") is not False and not mapped.nested
        # The other engines of OpenSearch cannot search among given documents.
        library = settings.get("method", {}).get("engine")
        can_filter = not self._opensearch or library in ("lucene", "faiss")
        self.usable = is_searchable and kinds == {"float"} and can_filter

    def nearest(self, vector: Float32Array, n: int, filters: Sequence[Body]) -> Body:
        """Return the query for documents with the highest cosines, as :meth:`by_cosine` scores."""
        if self._opensearch:
            search: Body = {"vector": vector.tolist(), "k": n}
            if filters:
                search["filter"] = {"bool": {"filter": [*filters]}}
            knn: Body = {self.name: search}
        else:
            knn = {
                "field": self.name,
                "query_vector": vector.tolist(),
                "filter": [*filters],
                "num_candidates": min(MOST_CANDIDATES, max(CANDIDATES, 2 * n)),
            }
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
            vector = self._vector_in(hit)
            if vector and len(vector) == dimensions:
                row[:] = vector
        return unit_rows(rows)

    def _vector_in(self, hit: Any) -> Any:
        """Return the vector in a hit; None if it has no vector."""
        if self._opensearch:
            return value_at(hit.get("_source", {}), self._path)
        (vector,) = hit.get("fields", {}).get("vector") or [None]
        return vector
