"""The requests of a search by words on Elasticsearch or OpenSearch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairqr.base.errors import SourceError
from fairqr.retrieval.engines.elasticsearch.fields import HitReader
from fairqr.retrieval.engines.elasticsearch.groups import filterable, group_query
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.engines.request_template import fill_template
from fairqr.retrieval.sources.source import ElasticsearchSource, QueryFields

Body = dict[str, Any]

OTHER_RANKINGS = ("knn", "retriever", "rank", "sub_searches", "rescore", "collapse")
"""Parts of a source's own request that affect the ranking beyond its query."""

NOT_NEEDED = ("aggregations", "aggs", "highlight", "suggest", "explain", "profile")


class Requests:
    """Builds the bodies of searches.

    Attributes:
        can_rescore: Whether it can rank given documents by the words of a query.
        can_count: Whether it can count matching documents.
        filterable: The groups that a search can be limited to, as pairs of attribute and group.
    """

    def __init__(self, source: ElasticsearchSource, reader: HitReader) -> None:
        """Take the description and the hit reader.

        Raises:
            SourceError: The source has a filter that cannot be added to its own request.
        """
        self._source, self._reader = source, reader
        body = source.body
        by_query = body is None or ("query" in body and not {*OTHER_RANKINGS} & {*body})
        if source.filter and not by_query:
            raise SourceError(
                "The filter cannot be added to this body, because the body ranks by more than its "
                "query; put the filter into the body."
            )
        self.can_rescore = self.can_count = by_query
        self.filterable = filterable(reader) if by_query else frozenset()

    def ranking(self, query: Query) -> Body:
        """Return the search for the best documents of a query."""
        body: Body = {}
        if query.only is not None:
            wanted = [self.matching(query)] if query.text else []
            body["query"] = {
                "bool": {"filter": self.filters(query), "should": wanted, "minimum_should_match": 0}
            }
        elif self._source.body is not None:
            filled = self._filled(query.words, query.n)
            body |= {key: part for key, part in filled.items() if key not in NOT_NEEDED}
            if query.every_word or self.filters(query):
                body["query"] = self._filtered(query)
        else:
            body["query"] = self._filtered(query)
        return body | self.reading(query)

    def counting(self, queries: Sequence[Query]) -> Body:
        """Return one search that counts matches for several queries with the same limits."""
        matching = [self.matching(query) if query.text else {"match_all": {}} for query in queries]
        return {
            "size": 0,
            "track_total_hits": False,
            "query": {"bool": {"filter": self.filters(queries[0])}},
            "aggs": {"matching": {"filters": {"filters": matching}}},
        }

    def reading(self, query: Query) -> Body:
        """Return the parts of a search that say how many hits to return, and with what."""
        among = query.only is not None
        size = min(query.n, len(query.only)) if query.only is not None else query.n
        # We count the documents to find out whether two share an id.
        return {"size": size, "track_total_hits": among, **self._reader.request}

    def filters(self, query: Query) -> list[Body]:
        """Return the source's filter and the filters for what the query is limited to."""
        filters = [self._source.filter] if self._source.filter else []
        if query.only is not None:
            filters.append(self._reader.among(list(dict.fromkeys(query.only))))
        if query.within is not None:
            attribute, group = query.within
            label = next(one for one in self._reader.labels if one.attribute.name == attribute)
            filters.append(group_query(label, group) or {"match_none": {}})
        return filters

    def matching(self, query: Query) -> Body:
        """Return the query for documents that match the words."""
        if self._source.body is not None:
            each = query.text.split() if query.every_word else []
            if len(each) > 1:
                return {"bool": {"must": [self._filled(word, query.n)["query"] for word in each]}}
            matching: Body = self._filled(query.words, query.n)["query"]
            return matching
        words = self._words(query.text, every=query.every_word)
        if not query.boost:
            return words
        return {"bool": {"must": [words], "should": [self._words(query.boost)]}}

    def _words(self, text: str, *, every: bool = False) -> Body:
        how = self._source.query or QueryFields()
        fields = list(self._source.searched_fields)
        if every and how.type != "phrase":
            # The words may be in different fields, each with its own analyzer.
            words = {"query": text, "fields": fields, "default_operator": "and"}
            return {"simple_query_string": {**words, "flags": "WHITESPACE"}}
        words = {"query": text, "fields": fields, "type": how.type, "operator": how.operator}
        return {"multi_match": words}

    def _filtered(self, query: Query) -> Body:
        matching, filters = self.matching(query), self.filters(query)
        return {"bool": {"must": [matching], "filter": filters}} if filters else matching

    def _filled(self, text: str, size: int) -> Body:
        filled: Body = fill_template(self._source.body, text, size)
        return filled
