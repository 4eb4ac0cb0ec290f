"""An index on an Elasticsearch server, attached as it is. We never write to it.

A round of searches is one request, and the labels of the documents come with the hits. The server
sorts by score. Among documents tied with the last hit, the server decides which ones come, by its
storage order; we then sort those that come by id. A fixed preference sends each search to the same
shard copies, so this choice stays the same until the index changes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np

from fairqr.base.errors import IndexUnavailableError, SourceError
from fairqr.base.loops import run_together
from fairqr.retrieval.engines.elasticsearch.counts import corpus_shares
from fairqr.retrieval.engines.elasticsearch.fields import (
    HitReader,
    check_fields,
    plan_reading,
    values_of,
)
from fairqr.retrieval.engines.elasticsearch.mapping import IndexMapping, path_of, read_index
from fairqr.retrieval.engines.elasticsearch.requests import Requests
from fairqr.retrieval.engines.elasticsearch.server import BusyServer, Server, warnings_of
from fairqr.retrieval.engines.elasticsearch.vectors import MOST_CANDIDATES, VectorSearch
from fairqr.retrieval.engines.engine import (
    NOT_TOLD,
    Capability,
    EngineInfo,
    Hits,
    Memberships,
    Query,
    best_first,
    require,
    require_groups,
)
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.sources.labels import LabelReader
from fairqr.retrieval.sources.schema import Schema
from fairqr.retrieval.sources.source import ElasticsearchSource
from fairqr.retrieval.texts.sendable import sendable

Body = dict[str, Any]

PREFERENCE = "fairqr"
UNLABELLED = 20
"""After this many hits without any label of an attribute, we read the mapping again."""
DOCUMENTS_AT_ONCE = 1000
BUSY = frozenset({429, 502, 503, 504})
SHARES_SECONDS = 600.0
TIME_FOR_PARTS = 0.8
"""The share of the time limit after which the server should return a partial answer, if allowed."""


class ElasticsearchEngine:
    """An attached index; :class:`SearchEngine` documents its methods."""

    in_process = False

    def __init__(
        self,
        source: ElasticsearchSource,
        server: Server,
        labels: LabelReader,
        mapping: IndexMapping,
    ) -> None:
        """Take what we read when attaching the index.

        Raises:
            SourceError: The source does not fit the mapping.
        """
        self.source, self.server, self.labels = source, server, labels
        self.path = path_of(source.index)
        self.vectors: VectorSearch | None = None
        self._shares: tuple[float, Mapping[str, FloatArray]] = (-math.inf, {})
        self._use(mapping)

    def _use(self, mapping: IndexMapping) -> None:
        check_fields(self.source, mapping)
        self.reader: HitReader = plan_reading(self.source, self.labels.field_attributes, mapping)
        self.requests = Requests(self.source, self.reader)
        self.mapping = mapping

    @property
    def name(self) -> str:
        """The name of the source."""
        return self.source.name

    @property
    def schema(self) -> Schema:
        """The attributes and groups of its documents."""
        return self.labels.schema

    @property
    def retriever(self) -> str:
        """``bm25``, or ``dense:<encoder>``."""
        return self.vectors.retriever if self.vectors else "bm25"

    @property
    def lexical(self) -> ElasticsearchEngine:
        """The engine that matches words over the same documents."""
        if self.vectors is None:
            return self
        return ElasticsearchEngine(self.source, self.server, self.labels, self.mapping)

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What it can do beyond searching."""
        can: dict[Capability, bool] = {
            "new_queries": True,
            "read_by_id": True,
            "rescore": (self.vectors or self.requests).can_rescore,
            "document_frequencies": self.requests.can_count,
            "corpus_shares": bool(self.reader.labels),
            "within_group": bool(self.filterable),
            "vectors": self.vectors is not None,
        }
        return frozenset(capability for capability, able in can.items() if able)

    @property
    def filterable(self) -> frozenset[tuple[str, str]]:
        """The groups that the server can filter by; their labels are in a field."""
        if self.vectors is not None and not self.vectors.can_filter:
            return frozenset()
        return self.requests.filterable

    async def info(self) -> EngineInfo:
        """Return what we know of the index."""
        documents, version = await self.count(), await self.server.version()
        location = f"{self.server.url}/{self.source.index}"
        known = f"{self.source.fingerprint} {self.mapping.fingerprint} {documents}"
        return EngineInfo(
            name=self.name,
            engine=self.source.engine,
            documents=documents,
            location=location,
            source=location,
            fingerprint=sha256(known.encode()).hexdigest(),
            server=f"{self.server.product} {version}" if version else NOT_TOLD,
        )

    async def count(self) -> int:
        """Return how many documents match the source's filter."""
        query = self.source.filter or {"match_all": {}}
        answer = await self.server.request("POST", f"{self.path}/_count", body={"query": query})
        return int(answer["count"])

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        """Answer all queries in one request, each with at most ``n`` hits.

        Queries that only count are combined if they are limited to the same documents.
        """
        return (await self.search_with(queries, []))[0]

    async def search_with(
        self, queries: Sequence[Query], others: Sequence[Body]
    ) -> tuple[list[Hits], list[Any]]:
        """Answer all queries and other searches in one request.

        Returns:
            The hits of the queries, and the server's answers to the other searches.
        """
        require_groups(self, queries)
        queries = [replace(query, text=sendable(query.text)) for query in queries]
        for query in queries:
            self._refuse(query)
        allowed = [self._allowed(query) for query in queries if query.n > 0]
        pieces = [piece for own in allowed for piece in own]
        bodies = await run_together(map(self._ranking, pieces))
        counted: dict[object, list[Query]] = {}
        for query in queries:
            if query.n < 1:
                counted.setdefault((query.only, query.within), []).append(query)
        counts = [self.requests.counting(group) for group in counted.values()]
        answers = await self.msearch([*bodies, *counts, *others])
        last = len(bodies) + len(counts)
        totals: dict[int, Hits] = {}
        nothing = self._memberships([], [])
        for group, answer in zip(counted.values(), answers[len(bodies) : last], strict=True):
            buckets = answer["aggregations"]["matching"]["buckets"]
            warnings = tuple(warnings_of(answer, self.source.index))
            for query, bucket in zip(group, buckets, strict=True):
                totals[id(query)] = Hits([], [], nothing, int(bucket["doc_count"]), warnings)
        ranked = iter(await self._ranked(pieces, answers[: len(bodies)]))
        whole = iter([[next(ranked) for _ in own] for own in allowed])
        hits = [
            self._joined(query, next(whole)) if query.n > 0 else totals[id(query)]
            for query in queries
        ]
        return hits, answers[last:]

    def _allowed(self, query: Query) -> list[Query]:
        """Return the searches that answer a query, each for no more hits than the server allows."""
        most = self._most
        if not query.only:
            return [replace(query, n=min(query.n, most))]
        ids = tuple(dict.fromkeys(query.only))
        return [replace(query, only=ids[i : i + most]) for i in range(0, len(ids), most)]

    @property
    def _most(self) -> int:
        """The most hits of one search; one by vectors looks at no more candidates than that."""
        return min(self.mapping.window, MOST_CANDIDATES) if self.vectors else self.mapping.window

    def _joined(self, query: Query, parts: Sequence[Hits]) -> Hits:
        """Return the hits of the searches that answer a query as one ranking."""
        warnings = [text for part in parts for text in part.warnings]
        if query.only is None and len(parts[0]) == self._most < query.n:
            by = (
                "index.max_result_window" if self._most == self.mapping.window else "num_candidates"
            )
            warnings.append(
                f"'{self.source.index}' returns at most {self._most:,} hits in one search ({by}), "
                f"so the search for {query.n:,} found no more."
            )
        if len(parts) == 1:
            return replace(parts[0], warnings=tuple(warnings))
        memberships = {
            name: np.concatenate([part.memberships[name] for part in parts])
            for name in parts[0].memberships
        }
        ids = [id_ for part in parts for id_ in part.ids]
        scores = [score for part in parts for score in part.scores]
        return best_first(ids, scores, memberships, query.n, warnings=[*dict.fromkeys(warnings)])

    async def documents(self, ids: Sequence[str]) -> list[Document]:
        """Return these documents, in this order; ids that the index lacks are left out."""
        names = [*filter(None, (self.source.title, *self.source.text, self.source.link))]
        if not self.mapping.has_source:
            names = [name for name in names if self._has_columns(name)]
        asked: dict[str, Any] = {"_source": False, "fields": [], "docvalue_fields": []}
        asked["fields" if self.mapping.has_source else "docvalue_fields"] += names
        if self.source.id != "_id":
            by_column = self._has_columns(self.source.id)
            asked["docvalue_fields" if by_column else "fields"].append(self.source.id)
        distinct = list(dict.fromkeys(ids))
        most = min(DOCUMENTS_AT_ONCE, self.mapping.window)
        pieces = [distinct[i : i + most] for i in range(0, len(distinct), most)]
        answers = await self.msearch(
            [
                {"query": self.filtered(self.reader.among(piece)), "size": len(piece), **asked}
                for piece in pieces
            ]
        )
        found = {}
        for answer in answers:
            hits = answer["hits"]["hits"]
            for id_, hit in zip(self.reader.ids(hits, self.source.index), hits, strict=True):
                found[id_] = self._document(id_, hit.get("fields", {}))
        return [found[id_] for id_ in ids if id_ in found]

    async def corpus_shares(self) -> Mapping[str, FloatArray]:
        """Return for each attribute labelled by a field the mean membership over all documents.

        We count at most once in ten minutes: counting a large index is costly, and the shares
        change slowly. An attribute that only part of the index counted is left out, and counted
        again next time.
        """
        counted, shares = self._shares
        if time.monotonic() - counted > SHARES_SECONDS:
            shares, whole = await corpus_shares(self)
            if whole:
                self._shares = time.monotonic(), shares
        return shares

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
        header = {
            "preference": PREFERENCE,
            "allow_partial_search_results": self.source.allow_partial,
        }
        limit = {}
        if self.source.allow_partial:
            limit["timeout"] = f"{max(1, int(self.source.timeout * TIME_FOR_PARTS * 1000))}ms"
        lines = [line for body in bodies for line in (header, {**limit, **body})]
        answer = await self.server.request(
            "POST", f"{self.path}/_msearch", body=lines, judge=_judge
        )
        for part in answer["responses"] if refuse else ():
            await self._refuse_failed(part)
        return list(answer["responses"])

    async def refuse_changed_mapping(self) -> None:
        """Read the mapping again, and continue with it if the source still fits.

        Raises:
            SourceError: The source no longer fits.
        """
        mapping = await read_index(self.server, self.source.index)
        if mapping.fingerprint == self.mapping.fingerprint:
            return
        try:
            self._use(mapping)
        except SourceError as error:
            raise SourceError(
                f"The mapping of '{self.source.index}' changed while it was in use: {error}"
            ) from None

    async def _ranking(self, query: Query) -> Body:
        if self.vectors is None or query.every_word:
            return self.requests.ranking(query)
        vector = await self.vectors.encode(query)
        return self.vectors.ranking(query, vector, self.requests)

    async def _ranked(self, queries: Sequence[Query], answers: Sequence[Any]) -> list[Hits]:
        found = [self.hits(*pair) for pair in zip(queries, answers, strict=True)]
        if found and not any(hits.ids for hits in found):
            # An unmapped field matches nothing, without an error.
            await self.refuse_changed_mapping()
        if sum(map(len, found)) >= UNLABELLED:
            for label in self.reader.labels:
                name, groups = label.attribute.name, len(label.attribute.groups)
                if not any(hits.memberships[name][:, :groups].any() for hits in found):
                    await self.refuse_changed_mapping()
                    break
        return found

    def hits(self, query: Query, answer: Any) -> Hits:
        """Return the hits in the server's response to a query, with their groups."""
        found = answer["hits"]["hits"]
        ids = self.reader.ids(found, self.source.index)
        if query.only is not None and answer["hits"]["total"]["value"] > len({*query.only}):
            self.reader.refuse_repeated(None, {*self.mapping.indices})
        if any(hit["_score"] is None for hit in found):
            raise SourceError(
                "The body of the source returns hits without scores; remove its 'sort', or add "
                "'track_scores: true'."
            )
        scores = [float(hit["_score"]) for hit in found]
        warnings = warnings_of(answer, self.source.index)
        return best_first(ids, scores, self._memberships(ids, found), query.n, warnings=warnings)

    def _memberships(self, ids: Sequence[str], hits: Sequence[Any]) -> Memberships:
        return self.labels.memberships(ids, self.reader.values(hits))

    def _has_columns(self, name: str) -> bool:
        found = self.mapping.find(name)
        return found is not None and found.doc_values

    def _document(self, id_: str, fields: Mapping[str, Any]) -> Document:
        texts = [" ".join(map(str, values_of(fields, name))) for name in self.source.text]
        title = values_of(fields, self.source.title) if self.source.title else []
        link = self.source.link
        more = {link: next(iter(values_of(fields, link)), None)} if link else {}
        return Document(id_, " ".join(map(str, title)), "\n".join(filter(None, texts)), more)

    def filtered(self, query: Body) -> Body:
        """Return a query, limited to the documents that match the source's filter."""
        return {"bool": {"filter": [query, *([self.source.filter] if self.source.filter else [])]}}

    def _refuse(self, query: Query) -> None:
        if query.n < 1 and query.text:
            require(self, "document_frequencies", "Counting the documents that match")
        if query.n > 0 and query.only is not None and query.text:
            require(self, "rescore", "Ranking given documents")

    async def _refuse_failed(self, answer: Any) -> None:
        if "error" in answer:
            if answer.get("status") == 400:
                await self.refuse_changed_mapping()
            raise self.server.refusal(int(answer.get("status", 500)), answer)
        if answer["_shards"]["total"] == 0:
            raise self.server.no_index(self.source.index)
        if not self.source.allow_partial and (warnings := warnings_of(answer, self.source.index)):
            raise IndexUnavailableError(
                f"{warnings[0]} Try again, or accept such results with 'allow_partial: true'."
            )


def _judge(answer: Mapping[str, Any]) -> None:
    for part in answer.get("responses", ()):
        if part.get("status") in BUSY:
            raise BusyServer(int(part["status"]), part)
