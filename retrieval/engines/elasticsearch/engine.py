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
from fairqr.retrieval.engines.elasticsearch.hit_reader import ALL, HitReader, warnings_of
from fairqr.retrieval.engines.elasticsearch.mapping import VECTORS, WORDS, Hit, IndexMapping
from fairqr.retrieval.engines.elasticsearch.requests import (
    Search,
    SearchRequests,
    ranks_by_query,
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
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.sources.labels import LabelReader
from fairqr.retrieval.sources.source import ElasticsearchSource

Result = TypeVar("Result")
Step = Generator[list[Body], list[Any], Result]
"""A part of a plan: it yields bodies of searches, receives the answers, and returns a result."""

Plan = Step[Hits]
"""How a query is answered."""

PREFERENCE = "fairqr"
"""Sends each search to the same shard copies."""

SHARES_SECONDS = 600.0
"""How long the counted shares of groups stand."""
TIME_FOR_PARTS = 0.8
"""The share of the time limit after which the server should return a partial answer, if allowed."""


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
        _check_fields(source, mapping)
        self.source = source
        self.server = server
        self.labels = labels.with_dates(mapping.date_formats())
        self.mapping = mapping
        self.name = source.name
        self.schema = self.labels.schema
        self.reader = HitReader(source.id, self.labels.field_attributes, mapping)
        self._titles = Titles(source.title, mapping)
        self.requests = SearchRequests(source, self.reader, self._titles, mapping.window)
        # When the shares were counted, and they.
        self._shares: tuple[float, Mapping[str, FloatArray]] = (-math.inf, {})

        # Only a query can also score given documents, count, and be limited to a group.
        is_by_query = ranks_by_query(source)
        if source.filter and not is_by_query:
            raise SourceError(
                "The filter cannot be added to this body, because the body ranks by more than its "
                "query; put the filter into the body."
            )
        self.filterable = self._filterable() if is_by_query else frozenset()
        abilities: dict[Capability, object] = {
            "new_queries": True,
            "read_by_id": True,
            "rescore": is_by_query,
            "document_frequencies": is_by_query,
            "corpus_shares": self.reader.labels,
            "within_group": self.filterable,
        }
        self.capabilities = frozenset(
            capability for capability, is_able in abilities.items() if is_able
        )

    def _filterable(self) -> frozenset[tuple[str, str]]:
        """Return the groups whose documents a query can find."""
        groups = set()
        for label in self.reader.labels:
            for group in label.attribute.groups:
                if label.query(group) is not None:
                    groups.add((label.attribute.name, group))
        return frozenset(groups)

    async def info(self) -> EngineInfo:
        """Return what we know of the index."""
        (hits,) = await self.search([Query("", 0)])
        version = await self.server.version()
        location = f"{self.server.url}/{self.source.index}"
        state = f"{self.source.fingerprint} {self.mapping.fingerprint} {hits.total}"
        return EngineInfo(
            name=self.name,
            engine=self.source.engine,
            documents=hits.total,
            location=location,
            source=location,
            fingerprint=sha256(state.encode()).hexdigest(),
            server=f"{self.server.product} {version}" if version else NOT_TOLD,
        )

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        """Answer all queries in one request, each with at most ``n`` hits."""
        require_groups(self, queries)
        return await self.run([self.plan(self.search_for(query), query.n) for query in queries])

    async def run(self, plans: Sequence[Plan]) -> list[Hits]:
        """Carry out plans side by side; one request sends all that they ask for next."""
        results: dict[int, Hits] = {}
        answers: dict[int, Any] = dict.fromkeys(range(len(plans)))
        while answers:
            bodies_of: dict[int, list[Body]] = {}
            for number, answer in answers.items():
                try:
                    bodies_of[number] = plans[number].send(answer)
                except StopIteration as end:
                    results[number] = end.value

            bodies: list[Body] = []
            for bodies_of_plan in bodies_of.values():
                bodies += bodies_of_plan
            responses = iter(await self.msearch(bodies))
            answers = {
                number: list(islice(responses, len(bodies_of_plan)))
                for number, bodies_of_plan in bodies_of.items()
            }
        return [results[number] for number in range(len(plans))]

    def plan(self, search: Search, n: int) -> Plan:
        """Answer a query of n hits by one search; a warning says if the server returns fewer."""
        (hits,) = yield from self.send([search])
        only = search.query.only
        expected = n if only is None else min(n, len(only))
        window = self.requests.window
        is_cut_off = len(hits) == window and expected > window
        if not is_cut_off:
            return hits
        warning = (
            f"'{self.source.index}' returns at most {window:,} hits at once, not {expected:,}."
        )
        return replace(hits, warnings=(*hits.warnings, warning))

    def send(self, searches: Sequence[Search]) -> Step[list[Hits]]:
        """Send searches as a step of a plan, and return their hits."""
        bodies = [search.body for search in searches]
        if any(search.query.with_titles for search in searches):
            bodies += self._titles.probe(self.requests.filtered(ALL))
        answers = yield bodies
        hits = []
        for search, answer in zip(searches, answers, strict=False):
            hits.append(self._hits(search.query, answer))
        for answer in answers[len(searches) :]:
            self._titles.learn(answer)
        return hits

    def search_for(self, query: Query) -> Search:
        """Return the search that answers a query by its words, or counts what matches them.

        Raises:
            UnsupportedError: The source's own request cannot answer it.
        """
        if query.text and query.n < 1:
            require(self, "document_frequencies", "Counting the documents that match")
        elif query.text and query.only is not None:
            require(self, "rescore", "Ranking given documents")
        return self.requests.search_for(query)

    async def documents(self, ids: Sequence[str]) -> list[Document]:
        """Return these documents, in this order; ids that the index lacks are left out."""
        documents = await self._read(ids, self.requests.with_texts())
        return [documents[id_] for id_ in ids if id_ in documents]

    async def titles(self, ids: Sequence[str]) -> Mapping[str, str]:
        """Return the titles of these documents by id, without ids that the index lacks.

        We ask for those that no search and no reading of the last ten minutes has returned.
        """
        titles = self._titles.known(ids)
        missing = [id_ for id_ in ids if id_ not in titles]
        request = self._titles.in_documents(self.reader.request)
        for id_, document in (await self._read(missing, request)).items():
            titles[id_] = document.title
        return titles

    @property
    def sample_key(self) -> str:
        """Changes when the documents, or the texts that we read of them, may be others."""
        source = self.source
        index = [self.server.url, self.mapping.fingerprint, source.credentials]
        texts = [source.title, source.text, source.filter]
        # A filter in YAML may contain dates.
        return sha256(json.dumps([index, texts], default=str).encode()).hexdigest()

    async def random_documents(self, n: int) -> list[Document]:
        """Return n random documents, or all if there are fewer; the same ones each time."""
        body = self.requests.sample(n, self.requests.with_texts())
        (answer,) = await self.msearch([body])
        return [*self._documents(answer["hits"]["hits"]).values()]

    async def corpus_shares(self) -> Mapping[str, FloatArray]:
        """Return for each attribute labelled by a field the mean membership over all documents.

        We count at most once in ten minutes: counting a large index is costly, and the shares
        change slowly. Attributes whose labels are in files, or that the server cannot or may not
        count, are left out. So is an attribute that only part of the index counted; it is
        counted again next time.
        """
        last_time, last_shares = self._shares
        if time.monotonic() - last_time <= SHARES_SECONDS:
            return last_shares

        labels = [label for label in self.reader.labels if label.countable]
        query = self.requests.filtered(ALL)
        bodies: list[Body] = []
        for label in labels:
            aggregations = label.aggregations()
            bodies.append(
                {"size": 0, "track_total_hits": True, "query": query, "aggs": aggregations}
            )
        answers = await self.msearch(bodies, refuse=False)  # The server may forbid scripts.

        is_complete = True
        shares = {}
        for label, answer in zip(labels, answers, strict=True):
            if warnings_of(answer, self.source.index):
                is_complete = False
                continue
            shares_of_label = label.shares(answer)
            if shares_of_label is not None:
                shares[label.attribute.name] = shares_of_label
        if is_complete:
            self._shares = (time.monotonic(), shares)
        return shares

    async def labelled(self, hits: Sequence[Hit]) -> list[Hit]:
        """Return hits of the server with the fields of labels, without those that are gone.

        Args:
            hits: Hits that another search of the index found, each with its ``_id``.

        Raises:
            FairqrError: The server does not answer.
        """
        query = {"ids": {"values": [hit["_id"] for hit in hits]}}
        body = {"query": query, "size": len(hits), **self.reader.request}
        (answer,) = await self.msearch([body])
        # The indices of a pattern may have documents of the same id.
        hit_of = {(hit["_index"], hit["_id"]): hit for hit in answer["hits"]["hits"]}
        keys = [(hit.get("_index"), hit["_id"]) for hit in hits]
        return [hit_of[key] for key in keys if key in hit_of]

    async def names(self) -> frozenset[str]:
        """Return the names by which these documents are searched: of indices, and of aliases.

        Raises:
            FairqrError: The server does not say.
        """
        answer = await self.server.ask("indices.get_alias", index=self.source.index)
        names = {self.source.index, *answer}
        for state in answer.values():
            names.update(state.get("aliases", ()))
        return frozenset(names)

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
        allow_partial = self.source.allow_partial
        header = {"preference": PREFERENCE, "allow_partial_search_results": allow_partial}
        limit = {}
        if allow_partial:
            milliseconds = max(1, int(self.source.timeout * TIME_FOR_PARTS * 1000))
            limit = {"timeout": f"{milliseconds}ms"}
        lines: list[Body] = []
        for body in bodies:
            lines += [header, {**limit, **body}]
        answer = await self.server.ask("msearch", index=self.source.index, body=lines)
        responses = list(answer["responses"])
        if refuse:
            for response in responses:
                self._refuse_failed(response)
        return responses

    def _refuse_failed(self, response: Any) -> None:
        """Refuse the response to a search that failed, completely or in part.

        Raises:
            IndexUnavailableError: It did.
        """
        if "error" in response:
            raise self.server.refusal(int(response.get("status", 500)), response)
        if response["_shards"]["total"] == 0:
            raise self.server.no_index(self.source.index)
        warnings = warnings_of(response, self.source.index)
        if warnings and not self.source.allow_partial:
            raise IndexUnavailableError(
                f"{warnings[0]} Try again, or accept such results with 'allow_partial: true'."
            )

    def _hits(self, query: Query, answer: Any) -> Hits:
        """Return the hits in the server's response to a query, with their groups."""
        server_hits = answer["hits"]["hits"]
        ids = self.reader.ids(server_hits)
        memberships = self.labels.memberships(ids, self.reader.values(server_hits))
        if query.with_titles:
            self._titles.keep(ids, server_hits)
        warnings = warnings_of(answer, self.source.index)
        total = answer["hits"].get("total", {"value": 0})["value"]
        if query.n < 1:
            return Hits([], [], memberships, total, tuple(warnings))
        if query.only is not None and total > len(set(query.only)):
            self.reader.refuse_repeated("An id")
        if any(hit["_score"] is None for hit in server_hits):
            raise SourceError(
                "The body gives no scores; remove 'sort', or add 'track_scores: true'."
            )
        scores = [float(hit["_score"]) for hit in server_hits]
        return best_first(ids, scores, memberships, query.n, warnings=warnings)

    async def _read(self, ids: Iterable[str], request: Mapping[str, Any]) -> dict[str, Document]:
        """Read documents, and return those that the index has by id."""
        hits: list[Hit] = []
        for answer in await self.msearch(self.requests.by_ids(ids, request)):
            hits += answer["hits"]["hits"]
        return self._documents(hits)

    def _documents(self, hits: Sequence[Hit]) -> dict[str, Document]:
        """Return the documents in hits by id, and keep their titles."""
        ids = self.reader.ids(hits)
        documents = {id_: self._document(id_, hit) for id_, hit in zip(ids, hits, strict=True)}
        self._titles.keep_all({id_: document.title for id_, document in documents.items()})
        return documents

    def _document(self, id_: str, hit: Hit) -> Document:
        """Return the document in a hit."""
        values = hit.get("fields", {})
        title = joined(values.get(self.source.title, ()))
        texts = [joined(values.get(name, ())) for name in self.source.text]
        fields = {}
        link = self.source.link
        if link:
            fields[link] = next(iter(values.get(link, ())), None)
        return Document(id_, title, "\n".join(filter(None, texts)), fields)


def _check_fields(source: ElasticsearchSource, mapping: IndexMapping) -> None:
    """Refuse a source whose fields the index lacks, or that cannot be read or searched.

    Raises:
        SourceError: It names such a field.
    """
    any_type = frozenset(field.type for field in mapping.fields.values())
    for name in filter(None, (source.title, *source.text, source.link)):
        mapping.require(name, "a title, a text or a link", any_type)
    if source.body is None:
        for name in source.searched_fields:
            if "*" not in name:
                mapping.require(name.partition("^")[0], "a field to search", WORDS)
    if source.vectors:
        mapping.require(source.vectors.field, "the field of vectors", VECTORS)
