"""The searches that we send to an attached index, as its source describes them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from fairqr.retrieval.engines.elasticsearch.client import Body
from fairqr.retrieval.engines.elasticsearch.hit_reader import ALL, NONE, HitReader
from fairqr.retrieval.engines.elasticsearch.titles import Titles
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.engines.request_template import fill_template
from fairqr.retrieval.sources.documents import chunks
from fairqr.retrieval.sources.source import ElasticsearchSource, QueryFields
from fairqr.retrieval.texts.words import sendable

DOCUMENTS_AT_ONCE = 1000
"""How many documents we read in one search."""

RANDOM = {"seed": 1, "field": "_seq_no"}

NOT_NEEDED = ("aggregations", "aggs", "highlight", "suggest", "explain", "profile")
"""Parts of a source's own request that we leave out."""

OTHER_RANKINGS = ("knn", "retriever", "rank", "sub_searches", "rescore", "collapse")
"""Parts of a source's own request that affect the ranking beyond its query."""


def random_query(matching: Body) -> Body:
    """Return the search that puts documents in a random order, which is the same each time."""
    random = {"query": matching, "random_score": RANDOM, "boost_mode": "replace"}
    return {"query": {"function_score": random}}


def ranks_by_query(source: ElasticsearchSource) -> bool:
    """Return whether a source ranks by a query alone, which other queries may contain."""
    if source.body is None:
        return True
    query = source.body.get("query")
    # OpenSearch takes a hybrid query only by itself, and a pipeline makes its scores.
    is_hybrid = isinstance(query, Mapping) and "hybrid" in query
    has_other_rankings = not source.body.keys().isdisjoint(OTHER_RANKINGS)
    return query is not None and not is_hybrid and not has_other_rankings


class Search(NamedTuple):
    """The body to send, and the query that it is for."""

    query: Query
    body: Body


class SearchRequests:
    """Builds searches of an attached index.

    Args:
        source: Describes the index.
        reader: Says what we read of each hit.
        titles: Says how we read titles.
        window: The most hits that one search may return.
    """

    def __init__(
        self, source: ElasticsearchSource, reader: HitReader, titles: Titles, window: int
    ) -> None:
        self.window = window
        self._source = source
        self._reader = reader
        self._titles = titles

    def search_for(self, query: Query) -> Search:
        """Return the search that answers a query by its words, or counts what matches them."""
        query = replace(query, text=sendable(query.text))
        if query.n < 1:
            return self._counting(query)
        if query.only is not None:
            return self._rescoring(query)

        filters = self.filters(query)
        body: Body = {}
        if self._source.body is not None:
            size = min(query.n, self.window)
            filled = fill_template(self._source.body, query.text, size)
            body = {key: part for key, part in filled.items() if key not in NOT_NEEDED}
        # Otherwise the source's own request is sent as it is.
        if not body or filters or query.every_word:
            body["query"] = {"bool": {"must": [self._matching(query)], "filter": filters}}
        return self.limited(query, body)

    def _counting(self, query: Query) -> Search:
        """Return the search that counts what matches all words of a query."""
        matching = self._matching(query) if query.text else ALL
        body = {"query": {"bool": {"must": [matching], "filter": self.filters(query)}}}
        return self.limited(query, body)

    def _rescoring(self, query: Query) -> Search:
        """Return the search that ranks given documents by the words of a query."""
        conditions = {
            "filter": self.filters(query),
            "should": [self._matching(query)] if query.text else [],
            "minimum_should_match": 0,
        }
        return self.limited(query, {"query": {"bool": conditions}})

    def limited(self, query: Query, body: Body) -> Search:
        """Return a search for no more hits than the server allows, with what we read of each."""
        if query.n < 1:
            return Search(query, {**body, "size": 0, "track_total_hits": True})
        largest = math.inf if query.only is None else len(query.only)
        limits = {
            "size": min(query.n, self.window, largest),
            # We count given documents to find out whether two share an id.
            "track_total_hits": query.only is not None,
        }
        request = self._reader.request
        if query.with_titles:
            request = self._titles.with_hits(request)
        limited_query = replace(query, n=min(query.n, self.window))
        return Search(limited_query, {**body, **limits, **request})

    def filters(self, query: Query) -> list[Body]:
        """Return the source's filter and the filters for what the query is limited to."""
        filters = self._filters_of_source()
        if query.only is not None:
            filters.append(self._reader.among(list(dict.fromkeys(query.only))))
        if query.within is not None:
            attribute, group = query.within
            labels = {label.attribute.name: label for label in self._reader.labels}
            filters.append(labels[attribute].query(group) or NONE)
        return filters

    def _filters_of_source(self) -> list[Body]:
        return [self._source.filter] if self._source.filter else []

    def _matching(self, query: Query) -> Body:
        """Return the query for documents that match the words."""
        if self._source.body is None:
            return self._words(query.text, every_word=query.every_word)
        texts = [query.text]
        if query.every_word and query.text.split():
            texts = query.text.split()
        bodies = [fill_template(self._source.body, text, query.n) for text in texts]
        return {"bool": {"must": [body["query"] for body in bodies]}}

    def _words(self, text: str, *, every_word: bool) -> Body:
        """Return the query for documents that have words in the searched fields."""
        fields = self._source.query or QueryFields()
        words: Body = {"query": text, "fields": self._source.searched_fields}
        if every_word and fields.type != "phrase":
            # The words may be in different fields, each with its own analyzer.
            return {
                "simple_query_string": {**words, "default_operator": "and", "flags": "WHITESPACE"}
            }
        return {"multi_match": {**words, "type": fields.type, "operator": fields.operator}}

    def pieces(self, ids: Iterable[str]) -> list[list[str]]:
        """Return distinct ids in pieces that the server returns in one search."""
        return list(chunks(dict.fromkeys(ids), min(self.window, DOCUMENTS_AT_ONCE)))

    def by_ids(self, ids: Iterable[str], request: Mapping[str, Any]) -> list[Body]:
        """Return the searches that read parts of given documents, in any order."""
        searches = []
        for piece in self.pieces(ids):
            query = self.filtered(self._reader.among(piece))
            searches.append({"query": query, "size": len(piece), **request})
        return searches

    def filtered(self, query: Body) -> Body:
        """Return a query, limited to the documents that match the source's filter."""
        return {"bool": {"filter": [query, *self._filters_of_source()]}}

    def sample(self, n: int, request: Mapping[str, Any], matching: Body = ALL) -> Body:
        """Return the search for n random documents, which are the same each time."""
        return {**random_query(self.filtered(matching)), "size": min(n, self.window), **request}

    def with_texts(self) -> Body:
        """Return what is requested of documents that are read with their texts."""
        names = [self._source.title, *self._source.text, self._source.link]
        request = self._reader.request
        return {**request, "fields": [*request["fields"], *filter(None, names)]}
