"""The bodies of searches on Elasticsearch and OpenSearch: by words, by vectors, and counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairqr.base.errors import InputError, ModelError, SourceError
from fairqr.retrieval.encoders.encoder import Encoder, Float32Array, encode_query, unit_rows
from fairqr.retrieval.encoders.opening import Retriever
from fairqr.retrieval.engines.elasticsearch.client import Body
from fairqr.retrieval.engines.elasticsearch.mapping import (
    ALL,
    NONE,
    VECTORS,
    HitReader,
    IndexMapping,
)
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.engines.request_template import fill_template
from fairqr.retrieval.sources.documents import value_at
from fairqr.retrieval.sources.source import ElasticsearchSource, QueryFields

OTHER_RANKINGS = ("knn", "retriever", "rank", "sub_searches", "rescore", "collapse")
"""Parts of a source's own request that affect the ranking beyond its query."""

NOT_NEEDED = ("aggregations", "aggs", "highlight", "suggest", "explain", "profile")
CANDIDATES = 1000
MOST_CANDIDATES = 10_000
LARGEST_BYTE = 127

HAS_VECTOR = "doc.containsKey(params.field) && doc[params.field].size() > 0"
READ = f"return {HAS_VECTOR} ? doc[params.field].vectorValue : null;"
COSINE = (
    f"if (!({HAS_VECTOR})) {{ return 0; }} double cosine = cosineSimilarity(params.vector, %s); "
    "return Double.isNaN(cosine) ? 0 : Math.max(0, 2 + cosine);"
)
"""A score of 2 + cosine, positive because scores must be; 0 without a vector."""


class Queries:
    """Builds the bodies of searches by words.

    Attributes:
        by_query: Whether only a query ranks, so that it can also score given documents, count, and
            be limited to a group.
        filterable: The groups that a search can be limited to, as pairs of attribute and group.
    """

    def __init__(self, source: ElasticsearchSource, reader: HitReader) -> None:
        """Take the description and the hit reader.

        Raises:
            SourceError: The source has a filter that cannot be added to its own request.
        """
        self._source, self._reader = source, reader
        body = source.body
        self.by_query = body is None or ("query" in body and not {*OTHER_RANKINGS} & {*body})
        if source.filter and not self.by_query:
            raise SourceError(
                "The filter cannot be added to this body, because the body ranks by more than its "
                "query; put the filter into the body."
            )
        self.filterable = frozenset(
            (label.attribute.name, group)
            for label in reader.labels
            for group in label.attribute.groups
            if self.by_query and label.query(group) is not None
        )

    def ranking(self, query: Query) -> Body:
        """Return the search for the best documents of a query, or for how many match it."""
        filters = self.filters(query)
        if query.only is not None and query.n > 0:
            wanted = [self._matching(query)] if query.text else []
            matching = {"filter": filters, "should": wanted, "minimum_should_match": 0}
            return {"query": {"bool": matching}, **self.reading(query)}
        body: Body = {}
        if self._source.body is not None and query.n > 0:
            filled = self._filled(query.words, query.n)
            body = {key: part for key, part in filled.items() if key not in NOT_NEEDED}
        if not body or filters or query.every_word:
            must = [self._matching(query) if query.n > 0 or query.text else ALL]
            body["query"] = {"bool": {"must": must, "filter": filters}}
        return body | self.reading(query)

    def reading(self, query: Query) -> Body:
        """Return the parts of a search that say how many hits to return, and with what."""
        if query.n < 1:
            return {"size": 0, "track_total_hits": True}
        size = query.n if query.only is None else min(query.n, len(query.only))
        # We count given documents to find out whether two share an id.
        return {"size": size, "track_total_hits": query.only is not None, **self._reader.request}

    def filters(self, query: Query) -> list[Body]:
        """Return the source's filter and the filters for what the query is limited to."""
        filters = [self._source.filter] if self._source.filter else []
        if query.only is not None:
            filters.append(self._reader.among(list(dict.fromkeys(query.only))))
        if query.within is not None:
            attribute, group = query.within
            label = next(one for one in self._reader.labels if one.attribute.name == attribute)
            filters.append(label.query(group) or NONE)
        return filters

    def _matching(self, query: Query) -> Body:
        """Return the query for documents that match the words."""
        if self._source.body is not None:
            each = query.text.split() if query.every_word else []
            must = [self._filled(words, query.n)["query"] for words in each or [query.words]]
            return {"bool": {"must": must}}
        words = self._words(query.text, every=query.every_word)
        raised = [self._words(query.boost)] if query.boost else []
        return {"bool": {"must": [words], "should": raised}}

    def _words(self, text: str, *, every: bool = False) -> Body:
        how = self._source.query or QueryFields()
        words: Body = {"query": text, "fields": self._source.searched_fields}
        if every and how.type != "phrase":
            # The words may be in different fields, each with its own analyzer.
            words |= {"default_operator": "and", "flags": "WHITESPACE"}
            return {"simple_query_string": words}
        return {"multi_match": {**words, "type": how.type, "operator": how.operator}}

    def _filled(self, text: str, size: int) -> Body:
        filled: Body = fill_template(self._source.body, text, size)
        return filled


class VectorSearch:
    """The server's own nearest neighbours, approximate over at least 1,000 candidates a shard.

    Given documents are all compared; those without a vector have score 0. The scores are the
    server's: (1 + cosine)/2 if the field compares by cosine. The words of ``boost`` are encoded
    after the query, and a query without any word finds nothing.

    Hybrid retrieval needs cosines, however the field compares and however the server compresses
    its vectors for the search. Scripts on the server compute them.

    Attributes:
        field: The name of the field.
        encoder: Makes the vectors of queries.
        filters_first: Whether a filter applies before the nearest documents are chosen.
        gives_cosines: Whether scripts can compute cosines.
    """

    def __init__(
        self, source: ElasticsearchSource, mapping: IndexMapping, encoder: Encoder
    ) -> None:
        """Take the field that the source names."""
        assert source.vectors is not None  # noqa: S101 - callers have checked
        self.field, self.encoder = source.vectors.field, encoder
        mapped = mapping.require(self.field, "the field of vectors", VECTORS)
        settings, method = mapped.settings, mapped.settings.get("method", {})
        self._opensearch = mapped.type == "knn_vector"
        self._path = str(settings.get("path", self.field))
        space = method.get("space_type") or settings.get("space_type")
        metric = space if self._opensearch else settings.get("similarity", "cosine")
        self._by_angle = metric in ("cosine", "dot_product", "cosinesimil")
        self._dimensions = int(settings.get("dims") or settings.get("dimension") or 0)
        # The other engines of OpenSearch cannot search among given documents.
        self.filters_first = not self._opensearch or method.get("engine") in ("lucene", "faiss")
        kinds = {settings.get("element_type"), settings.get("data_type")}
        self._of_bytes = "byte" in kinds
        unable = settings.get("index") is False or mapped.nested or {"bit", "binary"} & kinds
        self.gives_cosines = self.filters_first and not unable

    async def encode(self, query: Query) -> list[float] | None:
        """Return the vector of a query; None if it needs none, or has no words.

        Raises:
            ModelError: The encoder failed, or its vectors do not fit the field.
        """
        if not query.is_ranking:
            return None
        if self._by_angle and self._dimensions:
            vector = await encode_query(self.encoder, query.words, self._dimensions)
        else:
            # Here the length of the vector counts, so we must not scale it.
            vector = np.asarray(await self.encoder.encode_query(query.words), dtype=np.float32)
            self.refuse_other(vector.size)
        return self._sent(vector) if vector.any() else None

    def refuse_other(self, dimensions: int) -> None:
        """Refuse an encoder whose vectors have another size than those of the field.

        Raises:
            ModelError: The vectors do not fit.
        """
        if self._dimensions not in (0, dimensions):
            raise ModelError(
                "parse_error",
                f"The vectors of '{self.encoder.name}' do not fit the field '{self.field}', which "
                f"has {self._dimensions} dimensions; name the field's own encoder in 'vectors'.",
            )

    def ranking(self, query: Query, vector: list[float] | None, filters: Sequence[Body]) -> Body:
        """Return the query for the documents most similar to a query, or for all given ones."""
        exactly, part = query.only is not None, "must" if query.only is None else "should"
        size = len(query.only) if query.only else query.n
        near = self._neighbours(vector, size, filters, exactly=exactly) if vector else NONE
        return {"bool": {part: [near], "filter": [*filters]}}

    def nearest(self, vector: Float32Array, n: int, filters: Sequence[Body]) -> Body:
        """Return the query for documents with the highest cosines, as :meth:`by_cosine` scores."""
        near = self._neighbours(self._sent(vector), n, filters)
        return self.by_cosine(vector, {"bool": {"must": [near], "filter": [*filters]}})

    def by_cosine(self, vector: Float32Array, matching: Body) -> Body:
        """Return a query that scores documents by 2 + cosine, and by 0 without a vector."""
        if not vector.any():
            return NONE
        compared = "doc[params.field]" if self._opensearch else "params.field"
        params = {"field": self.field, "vector": self._sent(vector)}
        script = {"source": COSINE % compared, "params": params}
        return {"script_score": {"query": matching, "script": script}}

    def with_vectors(self, request: Mapping[str, Any]) -> Body:
        """Return what is requested for each hit, and its vector."""
        if self._opensearch:  # Its scripts cannot read them.
            return {**request, "_source": [self._path]}
        script = {"source": READ, "params": {"field": self.field}}
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

    def _sent(self, vector: Float32Array) -> list[float]:
        """Return a vector in the server's form; a field of bytes takes whole numbers."""
        if not (self._of_bytes and vector.any()):
            return [float(value) for value in vector]
        return [round(LARGEST_BYTE * float(value)) for value in vector / np.abs(vector).max()]

    def _neighbours(
        self, vector: list[float], n: int, filters: Sequence[Body], *, exactly: bool = False
    ) -> Body:
        """Return the server's query for neighbours; it compares as many documents as candidates."""
        if self._opensearch:
            knn: Body = {"vector": vector, "k": n}
            if filters and self.filters_first:
                knn["filter"] = {"bool": {"filter": [*filters]}}
            return {"knn": {self.field: knn}}
        candidates = n if exactly else min(MOST_CANDIDATES, max(CANDIDATES, 2 * n))
        knn = {"field": self.field, "query_vector": vector, "num_candidates": candidates}
        return {"knn": {**knn, "filter": [*filters]}}


def encoder_for(
    source: ElasticsearchSource, mapping: IndexMapping, retriever: str | Encoder
) -> Encoder:
    """Return the encoder of queries.

    Args:
        source: The description.
        mapping: The mapping of the index.
        retriever: ``dense``, ``dense:<encoder>``, or an encoder.

    Raises:
        InputError: This source has no such retriever.
        ModelUnavailableError: The encoder does not exist, or something it needs is missing.
    """
    vectors = source.vectors
    if vectors and mapping.require(vectors.field, "vectors", VECTORS).settings.get("index", True):
        if not isinstance(retriever, str):
            return retriever
        encoder = Retriever.of(retriever, vectors.embeddings).encoder
        if encoder is not None and encoder.name == vectors.embeddings:
            return encoder
    raise InputError(
        f"The source '{source.name}' cannot be searched so by vectors; name an indexed field and "
        "the encoder that made it, as in 'vectors: {field: …, embeddings: …}', or use the "
        "retriever bm25."
    )
