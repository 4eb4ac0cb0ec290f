"""Searching by vectors in a field that the documents of an attached index have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fairqr.base.errors import InputError, ModelError, SourceError, one_line
from fairqr.retrieval.encoders.encoder import Encoder, encode_query
from fairqr.retrieval.encoders.opening import open_encoder
from fairqr.retrieval.engines.elasticsearch_mapping import MappedField
from fairqr.retrieval.engines.elasticsearch_requests import Requests
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.sendable import sendable
from fairqr.retrieval.source import ElasticsearchSource

__all__ = ["VectorSearch", "encoder_for"]

Body = dict[str, Any]

CANDIDATES = 1000
MOST_CANDIDATES = 10_000


class VectorSearch:
    """The server's own nearest neighbours, approximate over at least 1,000 candidates a shard.

    Among given documents all are compared, and those without a vector have score 0. The scores are
    the server's: (1 + cosine)/2 where the field compares by cosine. The words of ``boost`` are
    encoded after the query, and a query without any word finds nothing.
    """

    def __init__(
        self, source: ElasticsearchSource, mapped: MappedField, encoder: Encoder | None
    ) -> None:
        """Take the field.

        Raises:
            SourceError: The field cannot be searched.
        """
        assert source.vectors is not None  # noqa: S101 - encoder_for has looked
        self.field, self.encoder = source.vectors.field, encoder
        self.dimensions, self.by_angle, self.can_rescore = self._described(mapped.settings)
        if mapped.settings.get("index") is False:
            raise SourceError(
                f"The field '{self.field}' is mapped with 'index: false', so the server cannot "
                "search it by vectors; take the retriever bm25."
            )

    def _described(self, settings: Mapping[str, Any]) -> tuple[int, bool, bool]:
        """Return the dimensions, whether only angles count, and whether all can be compared."""
        by_angle = settings.get("similarity", "cosine") in ("cosine", "dot_product")
        return int(settings.get("dims", 0)), by_angle, True

    @property
    def retriever(self) -> str:
        """``dense:<encoder>``; the field stands for an encoder of the server's own."""
        return f"dense:{self.encoder.name if self.encoder else self.field}"

    async def encode(self, query: Query) -> list[float] | None:
        """Return the vector of a query; None if the server makes it, or the query has no words.

        Raises:
            ModelError: The encoder fails, or its vectors do not fit the field.
        """
        text = sendable(query.words)
        if self.encoder is None or not text.strip():
            return None
        if self.by_angle and self.dimensions:
            vector = await encode_query(self.encoder, text, self.dimensions)
        else:
            # The length of the vector counts, so it must not be scaled.
            vector = np.asarray(await self.encoder.encode_query(text), dtype=np.float32)
            if self.dimensions and vector.shape != (self.dimensions,):
                raise ModelError(
                    "parse_error",
                    f"The vectors of '{self.encoder.name}' do not fit the field '{self.field}', "
                    f"which has {self.dimensions} dimensions; name its own encoder in 'vectors'.",
                )
        return [float(value) for value in vector] if vector.any() else None

    def ranking(self, query: Query, vector: list[float] | None, requests: Requests) -> Body:
        """Return the search for the documents most like a query."""
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
        # As many candidates as documents make the server compare all of them. The filter as a
        # query keeps those without a vector, at score 0.
        size = max(1, len(query.only))
        return {
            "query": {"bool": {"filter": filters}},
            "knn": {**knn, "k": size, "num_candidates": size, "filter": filters},
        }


def encoder_for(
    source: ElasticsearchSource, mapped: MappedField | None, retriever: str | Encoder
) -> Encoder | None:
    """Return the encoder of queries; None if the server encodes them.

    Args:
        source: The description.
        mapped: Its field of vectors.
        retriever: ``dense``, ``dense:<encoder>``, or an encoder.

    Raises:
        InputError: There is no such retriever here.
        ModelUnavailableError: There is no such encoder, or what it needs is missing.
    """
    vectors = source.vectors
    if vectors is None or mapped is None:
        raise InputError(
            f"The source '{source.name}' names no field of vectors; add "
            "'vectors: {field: …, embeddings: …}', or take the retriever bm25."
        )
    if not isinstance(retriever, str):
        return retriever
    kind, _, named = retriever.strip().partition(":")
    if kind != "dense":
        raise InputError(
            f"There is no retriever '{one_line(retriever)}'; choose bm25 or dense, which searches "
            f"the vectors in '{vectors.field}'."
        )
    if mapped.type == "semantic_text":
        return None
    if named and vectors.embeddings and named != vectors.embeddings:
        raise InputError(
            f"The vectors in '{vectors.field}' are those of '{vectors.embeddings}', not of "
            f"'{one_line(named)}'; take the retriever dense."
        )
    if not (named or vectors.embeddings):
        raise InputError(
            f"Nothing says what made the vectors in '{vectors.field}'; add 'embeddings' to "
            "'vectors', such as openai:text-embedding-3-small."
        )
    return open_encoder(named or str(vectors.embeddings))
