"""An index on an Elasticsearch or OpenSearch server, attached as it is. We never write to it.

A round of searches is one request, and the labels of the documents come with the hits. The server
sorts by score. Among documents tied with the last hit, the server decides which ones come, by its
storage order; we then sort those that come by id. A fixed preference sends each search to the same
shard copies, so this choice stays the same until the index changes.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import islice
from typing import Any, TypeVar

from fairqr.base.errors import IndexUnavailableError, SourceError
from fairqr.retrieval.engines.elasticsearch.client import Body, SearchServer
from fairqr.retrieval.engines.elasticsearch.mapping import (
    ALL,
    NONE,
    VECTORS,
    WORDS,
    Hit,
    HitReader,
    IndexMapping,
    warnings_of,
)
from fairqr.retrieval.engines.elasticsearch.titles import Titles, joined
from fairqr.retrieval.engines.engine import (
    NOT_TOLD,
    Capability,
    EngineInfo,
    Hits,
    Query,
    best_first,
    require,
    require_groups,
)
from fairqr.retrieval.engines.request_template import fill_template
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.sources.labels import LabelReader
from fairqr.retrieval.sources.source import ElasticsearchSource, QueryFields
from fairqr.retrieval.texts.words import sendable

Search = tuple[Query, Body]
"""The body to send, and the query that it is for."""

Result = TypeVar("Result")
Step = Generator[list[Body], list[Any], Result]
"""A part of a plan: it yields bodies of searches, receives the answers, and returns a result."""

Plan = Step[Hits]
"""How a query is answered."""

PREFERENCE = "fairqr"
DOCUMENTS_AT_ONCE = 1000
SHARES_SECONDS = 600.0
TIME_FOR_PARTS = 0.8
"""The share of the time limit after which the server should return a partial answer, if allowed."""

RANDOM = {"seed": 1, "field": "_seq_no"}

NOT_NEEDED = ("aggregations", "aggs", "highlight", "suggest", "explain", "profile")
OTHER_RANKINGS = ("knn", "retriever", "rank", "sub_searches", "rescore", "collapse")
"""Parts of a source's own request that affect the ranking beyond its query."""


def random_query(matching: Body) -> Body:
    """Return the search that puts documents in a random order, which is the same each time."""
    random = {"query": matching, "random_score": RANDOM, "boost_mode": "replace"}
    return {"query": {"function_score": random}}


def _ranks_by_query(body: Mapping[str, Any]) -> bool:
    """Return whether a source's own request ranks by its query alone, which others may hold."""
    query = body.get("query")
    # OpenSearch takes a hybrid query only by itself, and a pipeline makes its scores.
    is_hybrid = isinstance(query, Mapping) and "hybrid" in query
    return query is not None and not is_hybrid and not {*OTHER_RANKINGS} & {*body}


class ElasticsearchEngine:
    """An attached index; :class:`SearchEngine` documents its methods."""

    in_process = False
    retriever = "bm25"

    def __init__(
        self,
        source: ElasticsearchSource,
        server: SearchServer,
        labels: LabelReader,
        mapping: IndexMapping,
    ) -> None:
        """Take what we read when attaching the index.

        Raises:
            SourceError: The source does not fit the mapping.
        """
        labels = labels.with_dates(mapping.date_formats())
        self.source, self.server, self.labels, self.mapping = source, server, labels, mapping
        self.name, self.schema, self.most = source.name, labels.schema, mapping.window
        every = frozenset(held.type for held in mapping.fields.values())
        for name in filter(None, (source.title, *source.text, source.link)):
            mapping.require(name, "a title, a text or a link", every)
        for name in () if source.body else source.searched_fields:
            if "*" not in name:
                mapping.require(name.partition("^")[0], "a field to search", WORDS)
        if source.vectors:
            mapping.require(source.vectors.field, "the field of vectors", VECTORS)
        self.reader = HitReader(source.id, labels.field_attributes, mapping)
        # Only a query can also score given documents, count, and be limited to a group.
        by_query = source.body is None or _ranks_by_query(source.body)
        if source.filter and not by_query:
            raise SourceError(
                "The filter cannot be added to this body, because the body ranks by more than its "
                "query; put the filter into the body."
            )
        self.filterable = frozenset(
            (label.attribute.name, group)
            for label in self.reader.labels
            for group in label.attribute.groups
            if by_query and label.query(group) is not None
        )
        can: dict[Capability, object] = {
            "new_queries": True,
            "read_by_id": True,
            "rescore": by_query,
            "document_frequencies": by_query,
            "corpus_shares": self.reader.labels,
            "within_group": self.filterable,
        }
        self.capabilities = frozenset(capability for capability, able in can.items() if able)
        self._shares: tuple[float, Mapping[str, FloatArray]] = (-math.inf, {})
        self._titles = Titles(source.title, mapping)

    async def info(self) -> EngineInfo:
        """Return what we know of the index."""
        (hits,), version = await self.search([Query("", 0)]), await self.server.version()
        location = f"{self.server.url}/{self.source.index}"
        known = f"{self.source.fingerprint} {self.mapping.fingerprint} {hits.total}"
        return EngineInfo(
            name=self.name,
            engine=self.source.engine,
            documents=hits.total,
            location=location,
            source=location,
            fingerprint=sha256(known.encode()).hexdigest(),
            server=f"{self.server.product} {version}" if version else NOT_TOLD,
        )

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        """Answer all queries in one request, each with at most ``n`` hits."""
        require_groups(self, queries)
        return await self.run([self.plan(self.sought(query), query.n) for query in queries])

    async def run(self, plans: Sequence[Plan]) -> list[Hits]:
        """Carry out plans side by side; one request sends all that they ask for next."""
        results: dict[int, Hits] = {}
        answers: dict[int, Any] = dict.fromkeys(range(len(plans)))
        while answers:
            asked: dict[int, list[Body]] = {}
            for number, answer in answers.items():
                try:
                    asked[number] = plans[number].send(answer)
                except StopIteration as end:
                    results[number] = end.value
            found = iter(await self.msearch([body for own in asked.values() for body in own]))
            answers = {number: list(islice(found, len(own))) for number, own in asked.items()}
        return [results[number] for number in range(len(plans))]

    def plan(self, search: Search, n: int) -> Plan:
        """Answer a query of n hits by one search; a warning says if the server returns fewer."""
        query, _ = search
        (hits,) = yield from self.found([search])
        wanted = n if query.only is None else min(n, len(query.only))
        if not len(hits) == self.most < wanted:
            return hits
        said = f"'{self.source.index}' returns at most {self.most:,} hits at once, not {wanted:,}."
        return replace(hits, warnings=(*hits.warnings, said))

    def found(self, searches: Sequence[Search]) -> Step[list[Hits]]:
        """Send searches as a step of a plan, and return their hits."""
        is_titled = any(query.with_titles for query, _ in searches)
        probe = self._titles.probe(self.filtered(ALL)) if is_titled else []
        answers = yield [*(body for _, body in searches), *probe]
        pairs = zip(searches, answers, strict=False)
        found = [self._hits(query, answer) for (query, _), answer in pairs]
        for answer in answers[len(searches) :]:
            self._titles.learn(answer)
        return found

    def sought(self, query: Query) -> Search:
        """Return the search that answers a query by its words, or counts what matches them.

        Raises:
            UnsupportedError: The source's own request cannot answer it.
        """
        query = replace(query, text=sendable(query.text))
        if query.n < 1:
            return self._counted(query)
        if query.only is not None:
            return self._rescored(query)
        filters = self.filters(query)
        body: Body = {}
        if self.source.body is not None:
            filled = fill_template(self.source.body, query.text, min(query.n, self.most))
            body = {key: part for key, part in filled.items() if key not in NOT_NEEDED}
        # Otherwise the source's own request is sent as it is.
        if not body or filters or query.every_word:
            body["query"] = {"bool": {"must": [self._matching(query)], "filter": filters}}
        return self.limited(query, body)

    def _counted(self, query: Query) -> Search:
        """Return the search that counts what matches all words of a query.

        Raises:
            UnsupportedError: The source's own request cannot answer it.
        """
        must = ALL
        if query.text:
            require(self, "document_frequencies", "Counting the documents that match")
            must = self._matching(query)
        body = {"query": {"bool": {"must": [must], "filter": self.filters(query)}}}
        return self.limited(query, body)

    def _rescored(self, query: Query) -> Search:
        """Return the search that ranks given documents by the words of a query.

        Raises:
            UnsupportedError: The source's own request cannot answer it.
        """
        wanted: list[Body] = []
        if query.text:
            require(self, "rescore", "Ranking given documents")
            wanted = [self._matching(query)]
        ranked = {"filter": self.filters(query), "should": wanted, "minimum_should_match": 0}
        return self.limited(query, {"query": {"bool": ranked}})

    def limited(self, query: Query, body: Body) -> Search:
        """Return a search for no more hits than the server allows, with what we read of each."""
        if query.n < 1:
            return query, {**body, "size": 0, "track_total_hits": True}
        size = min(query.n, self.most, math.inf if query.only is None else len(query.only))
        # We count given documents to find out whether two share an id.
        counts = {"size": size, "track_total_hits": query.only is not None}
        request = self.reader.request
        if query.with_titles:
            request = self._titles.with_hits(request)
        return replace(query, n=min(query.n, self.most)), {**body, **counts, **request}

    def filters(self, query: Query) -> list[Body]:
        """Return the source's filter and the filters for what the query is limited to."""
        filters = [self.source.filter] if self.source.filter else []
        if query.only is not None:
            filters.append(self.reader.among(list(dict.fromkeys(query.only))))
        if query.within is not None:
            attribute, group = query.within
            label = next(one for one in self.reader.labels if one.attribute.name == attribute)
            filters.append(label.query(group) or NONE)
        return filters

    def _matching(self, query: Query) -> Body:
        """Return the query for documents that match the words."""
        if self.source.body is not None:
            each = query.text.split() if query.every_word else []
            filled = [fill_template(self.source.body, it, query.n) for it in each or [query.text]]
            return {"bool": {"must": [body["query"] for body in filled]}}
        return self._words(query.text, every=query.every_word)

    def _words(self, text: str, *, every: bool = False) -> Body:
        how = self.source.query or QueryFields()
        words: Body = {"query": text, "fields": self.source.searched_fields}
        if every and how.type != "phrase":
            # The words may be in different fields, each with its own analyzer.
            return {
                "simple_query_string": {**words, "default_operator": "and", "flags": "WHITESPACE"}
            }
        return {"multi_match": {**words, "type": how.type, "operator": how.operator}}

    def pieces(self, ids: Iterable[str]) -> list[list[str]]:
        """Return distinct ids in pieces that the server returns in one search."""
        distinct, most = list(dict.fromkeys(ids)), min(self.most, DOCUMENTS_AT_ONCE)
        return [distinct[at : at + most] for at in range(0, len(distinct), most)]

    def reading(self, ids: Iterable[str], request: Mapping[str, Any]) -> list[Body]:
        """Return the searches that read parts of given documents, in any order."""
        return [
            {"query": self.filtered(self.reader.among(piece)), "size": len(piece), **request}
            for piece in self.pieces(ids)
        ]

    async def documents(self, ids: Sequence[str]) -> list[Document]:
        """Return these documents, in this order; ids that the index lacks are left out."""
        answers = await self.msearch(self.reading(ids, self._whole))
        found = self._documents([hit for answer in answers for hit in answer["hits"]["hits"]])
        return [found[id_] for id_ in ids if id_ in found]

    async def titles(self, ids: Sequence[str]) -> Mapping[str, str]:
        """Return the titles of these documents by id, without ids that the index lacks.

        We ask for those that no search and no reading of the last ten minutes has returned.
        """
        known = self._titles.known(ids)
        missing = [id_ for id_ in ids if id_ not in known]
        request = self._titles.in_documents(self.reader.request)
        answers = await self.msearch(self.reading(missing, request))
        found = self._documents([hit for answer in answers for hit in answer["hits"]["hits"]])
        return {**known, **{id_: document.title for id_, document in found.items()}}

    @property
    def sample_key(self) -> str:
        """Changes when the documents, or the texts that we read of them, may be others."""
        source = self.source
        index = [self.server.url, self.mapping.fingerprint, source.credentials]
        read = [source.title, source.text, source.filter]
        # A filter in YAML may hold dates.
        return sha256(json.dumps([index, read], default=str).encode()).hexdigest()

    async def random_documents(self, n: int) -> list[Document]:
        """Return n random documents, or all if there are fewer; the same ones each time."""
        (answer,) = await self.msearch([self.sample(n, self._whole)])
        return [*self._documents(answer["hits"]["hits"]).values()]

    async def corpus_shares(self) -> Mapping[str, FloatArray]:
        """Return for each attribute labelled by a field the mean membership over all documents.

        We count at most once in ten minutes: counting a large index is costly, and the shares
        change slowly. Attributes whose labels are in files, or that the server cannot or may not
        count, are left out. So is an attribute that only part of the index counted; it is
        counted again next time.
        """
        counted, shares = self._shares
        if time.monotonic() - counted <= SHARES_SECONDS:
            return shares
        labels = [label for label in self.reader.labels if label.countable]
        body = {"size": 0, "track_total_hits": True, "query": self.filtered(ALL)}
        bodies = [{**body, "aggs": label.counted()} for label in labels]
        answers = await self.msearch(bodies, refuse=False)  # The server may forbid scripts.
        whole, shares = True, {}
        for label, answer in zip(labels, answers, strict=True):
            if warnings_of(answer, self.source.index):
                whole = False
            elif (share := label.shares(answer)) is not None:
                shares[label.attribute.name] = share
        if whole:
            self._shares = time.monotonic(), shares
        return shares

    async def labelled(self, hits: Sequence[Hit]) -> list[Hit]:
        """Return hits of the server with the fields of labels, without those that are gone.

        Args:
            hits: Hits that another search of the index found, each with its ``_id``.

        Raises:
            FairqrError: The server does not answer.
        """
        wanted = {"query": {"ids": {"values": [hit["_id"] for hit in hits]}}, "size": len(hits)}
        (answer,) = await self.msearch([{**wanted, **self.reader.request}])
        found = {(hit["_index"], hit["_id"]): hit for hit in answer["hits"]["hits"]}
        keys = [(hit.get("_index"), hit["_id"]) for hit in hits]
        return [found[key] for key in keys if key in found]

    async def names(self) -> frozenset[str]:
        """Return the names by which these documents are searched: of indices, and of aliases.

        Raises:
            FairqrError: The server does not say.
        """
        answer = await self.server.ask("indices.get_alias", index=self.source.index)
        aliases = [name for state in answer.values() for name in state.get("aliases", ())]
        return frozenset([self.source.index, *answer, *aliases])

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        await self.server.aclose()

    async def msearch(self, bodies: Sequence[Body], *, refuse: bool = True) -> list[Any]:
        """Send several searches as one request, and return the server's responses.

        Args:
            bodies: The searches.
            refuse: Whether a failed search is an error.

        Raises:
            IndexUnavailableError: A search failed, completely or in part.
        """
        if not bodies:
            return []
        partial, index = self.source.allow_partial, self.source.index
        header = {"preference": PREFERENCE, "allow_partial_search_results": partial}
        milliseconds = max(1, int(self.source.timeout * TIME_FOR_PARTS * 1000))
        limit = {"timeout": f"{milliseconds}ms"} if partial else {}
        lines = [line for body in bodies for line in (header, {**limit, **body})]
        answer = await self.server.ask("msearch", index=index, body=lines)
        for part in answer["responses"] if refuse else ():
            if "error" in part:
                raise self.server.refusal(int(part.get("status", 500)), part)
            if part["_shards"]["total"] == 0:
                raise self.server.no_index(index)
            if not partial and (warnings := warnings_of(part, index)):
                raise IndexUnavailableError(
                    f"{warnings[0]} Try again, or accept such results with 'allow_partial: true'."
                )
        return list(answer["responses"])

    def filtered(self, query: Body) -> Body:
        """Return a query, limited to the documents that match the source's filter."""
        return {"bool": {"filter": [query, *([self.source.filter] if self.source.filter else [])]}}

    def sample(self, n: int, request: Mapping[str, Any], matching: Body = ALL) -> Body:
        """Return the search for n random documents, which are the same each time."""
        return {**random_query(self.filtered(matching)), "size": min(n, self.most), **request}

    def _hits(self, query: Query, answer: Any) -> Hits:
        """Return the hits in the server's response to a query, with their groups."""
        found = answer["hits"]["hits"]
        ids = self.reader.ids(found)
        memberships = self.labels.memberships(ids, self.reader.values(found))
        if query.with_titles:
            self._titles.keep(ids, found)
        warnings = warnings_of(answer, self.source.index)
        total = answer["hits"].get("total", {"value": 0})["value"]
        if query.n < 1:
            return Hits([], [], memberships, total, tuple(warnings))
        if query.only is not None and total > len({*query.only}):
            self.reader.refuse_repeated("An id")
        if any(hit["_score"] is None for hit in found):
            raise SourceError(
                "The body gives no scores; remove 'sort', or add 'track_scores: true'."
            )
        scores = [float(hit["_score"]) for hit in found]
        return best_first(ids, scores, memberships, query.n, warnings=warnings)

    @property
    def _whole(self) -> Body:
        """What is requested of documents that are read with their texts."""
        names = [self.source.title, *self.source.text, self.source.link]
        request = self.reader.request
        return {**request, "fields": [*request["fields"], *filter(None, names)]}

    def _documents(self, hits: Sequence[Hit]) -> dict[str, Document]:
        """Return the documents in hits by id, and keep their titles."""
        ids = self.reader.ids(hits)
        documents = {id_: self._document(id_, hit) for id_, hit in zip(ids, hits, strict=True)}
        self._titles.keep_all({id_: document.title for id_, document in documents.items()})
        return documents

    def _document(self, id_: str, hit: Hit) -> Document:
        fields, link = hit.get("fields", {}), self.source.link
        title = joined(fields.get(self.source.title, ()))
        texts = [joined(fields.get(name, ())) for name in self.source.text]
        more = {link: next(iter(fields.get(link, ())), None)} if link else {}
        return Document(id_, title, "\n".join(filter(None, texts)), more)
