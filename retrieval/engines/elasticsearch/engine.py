"""An index on an Elasticsearch or OpenSearch server, attached as it is. We never write to it.

A round of searches is one request, and the labels of the documents come with the hits. The server
sorts by score. Among documents tied with the last hit, the server decides which ones come, by its
storage order; we then sort those that come by id. A fixed preference sends each search to the same
shard copies, so this choice stays the same until the index changes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import islice
from typing import Any

import numpy as np

from fairqr.base.errors import IndexUnavailableError, SourceError
from fairqr.base.loops import run_together
from fairqr.retrieval.encoders.encoder import Encoder, EncoderMark, Float32Array, encode_query
from fairqr.retrieval.engines.elasticsearch.client import Body, Server
from fairqr.retrieval.engines.elasticsearch.mapping import (
    ALL,
    HitReader,
    IndexMapping,
    check_fields,
    values_of,
    warnings_of,
)
from fairqr.retrieval.engines.elasticsearch.queries import MOST_CANDIDATES, Queries, VectorSearch
from fairqr.retrieval.engines.engine import (
    NOT_TOLD,
    Capability,
    EngineInfo,
    EngineOverWords,
    Hits,
    Query,
    SearchEngine,
    best_first,
    first_of,
    require,
    require_groups,
)
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.fairness.relevance import (
    CALIBRATED,
    Background,
    fused_best,
    moved_toward,
    rank_evidence,
)
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.sources.labels import LabelReader
from fairqr.retrieval.sources.retriever_parameters import Hybrid
from fairqr.retrieval.sources.source import ElasticsearchSource
from fairqr.retrieval.texts.sendable import sendable

Search = tuple[Query, Body]
"""The body to send, and the query that it is for."""

Plan = Generator[list[Body], list[Any], Hits]
"""How a query is answered: it yields bodies of searches, receives the answers, and so on."""

PREFERENCE = "fairqr"
DOCUMENTS_AT_ONCE = 1000
SHARES_SECONDS = 600.0
TIME_FOR_PARTS = 0.8
"""The share of the time limit after which the server should return a partial answer, if allowed."""

SAMPLED, SEED = 500, 1
"""On notables, the estimates are off by .03 on average with 500 documents, by .06 with 200."""


class ElasticsearchEngine:
    """An attached index; :class:`SearchEngine` documents its methods."""

    in_process = False

    def __init__(
        self,
        source: ElasticsearchSource,
        server: Server,
        labels: LabelReader,
        mapping: IndexMapping,
        vectors: VectorSearch | None = None,
    ) -> None:
        """Take what we read when attaching the index.

        Raises:
            SourceError: The source does not fit the mapping.
        """
        check_fields(source, mapping)
        self.source, self.server, self.labels, self.mapping = source, server, labels, mapping
        self.name, self.schema, self.vectors = source.name, labels.schema, vectors
        self.retriever = f"dense:{vectors.encoder.name}" if vectors else "bm25"
        self.reader = HitReader(source.id, labels.field_attributes, mapping)
        self.queries = Queries(source, self.reader)
        self.filterable = self.queries.filterable
        if vectors and not vectors.filters_first:
            self.filterable = frozenset()
        by_query = self.queries.by_query
        can: dict[Capability, bool] = {
            "new_queries": True,
            "read_by_id": True,
            "rescore": vectors.filters_first if vectors else by_query,
            "document_frequencies": by_query,
            "corpus_shares": bool(self.reader.labels),
            "within_group": bool(self.filterable),
            "vectors": vectors is not None,
        }
        self.capabilities = frozenset(capability for capability, able in can.items() if able)
        self._shares: tuple[float, Mapping[str, FloatArray]] = (-math.inf, {})
        # A search by vectors looks at no more candidates than this.
        self.most = min(mapping.window, MOST_CANDIDATES) if vectors else mapping.window

    @property
    def lexical(self) -> ElasticsearchEngine:
        """The engine that matches words over the same documents."""
        if self.vectors is None:
            return self
        return ElasticsearchEngine(self.source, self.server, self.labels, self.mapping)

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
        vectors: Sequence[Any] = [None] * len(queries)
        if self.vectors:
            vectors = await run_together(map(self.vectors.encode, queries))
        return await self.run(list(map(self.plan, queries, vectors)))

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

    def plan(self, query: Query, vector: list[float] | None = None) -> Plan:
        """Answer a query by the source's own ranking, or by its vector."""
        (hits,) = yield from self.found([self.sought(query, vector)])
        wanted = query.n if query.only is None else min(query.n, len(query.only))
        if not len(hits) == self.most < wanted:
            return hits
        said = f"'{self.source.index}' returns at most {self.most:,} hits at once, not {wanted:,}."
        return replace(hits, warnings=(*hits.warnings, said))

    def found(self, searches: Sequence[Search]) -> Generator[list[Body], list[Any], list[Hits]]:
        """Send searches as a step of a plan, and return their hits."""
        answers = yield [body for _, body in searches]
        pairs = zip(searches, answers, strict=True)
        return [self._hits(query, answer) for (query, _), answer in pairs]

    def sought(self, query: Query, vector: list[float] | None = None) -> Search:
        """Return the search that answers a query, for no more hits than the server allows.

        Args:
            query: The query.
            vector: Its vector, if this searches by vectors.

        Raises:
            UnsupportedError: The source's own request cannot answer it.
        """
        text, boost = sendable(query.text), sendable(query.boost)
        query = replace(query, text=text, boost=boost, n=min(query.n, self.most))
        if query.n < 1 and text:
            require(self, "document_frequencies", "Counting the documents that match")
        if query.n > 0 and query.only is not None and text:
            require(self, "rescore", "Ranking given documents")
        if self.vectors is None or query.n < 1 or query.every_word:
            return query, self.queries.ranking(query)
        near = self.vectors.ranking(query, vector, self.queries.filters(query))
        return query, {"query": near, **self.queries.reading(query)}

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
        names = [self.source.title, *self.source.text, self.source.link]
        request = self.reader.request
        fields = [*request["fields"], *filter(None, names)]
        answers = await self.msearch(self.reading(ids, {**request, "fields": fields}))
        hits = [hit for answer in answers for hit in answer["hits"]["hits"]]
        found = dict(zip(self.reader.ids(hits), map(self._document, hits), strict=True))
        return [replace(found[id_], id=id_) for id_ in ids if id_ in found]

    async def corpus_shares(self) -> Mapping[str, FloatArray]:
        """Return for each attribute labelled by a field the mean membership over all documents.

        We count at most once in ten minutes: counting a large index is costly, and the shares
        change slowly. Attributes whose labels are in files or nested, or that the server cannot or
        may not count, are left out. So is an attribute that only part of the index counted; it is
        counted again next time.
        """
        counted, shares = self._shares
        if time.monotonic() - counted <= SHARES_SECONDS:
            return shares
        labels = [it for it in self.reader.labels if it.mapped.doc_values and not it.mapped.nested]
        body = {"size": 0, "track_total_hits": True, "query": self.filtered(ALL)}
        bodies = [{**body, "aggs": label.share_counts()} for label in labels]
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

    def _hits(self, query: Query, answer: Any) -> Hits:
        """Return the hits in the server's response to a query, with their groups."""
        found = answer["hits"]["hits"]
        ids = self.reader.ids(found)
        memberships = self.labels.memberships(ids, self.reader.values(found))
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

    def _document(self, hit: Mapping[str, Any]) -> Document:
        named, link = (self.source.title, *self.source.text), self.source.link
        fields = hit.get("fields", {})
        title, *texts = [" ".join(map(str, values_of(fields, name or ""))) for name in named]
        more = {link: next(values_of(fields, link), None)} if link else {}
        return Document("", title, "\n".join(filter(None, texts)), more)


class FieldHybridEngine(EngineOverWords):
    """Estimates how likely documents are relevant, by the server's own ranking and its vectors.

    The server's ranking stays as it is, with its scores. Behind it come documents that are near to
    the query by their vectors, the most likely ones first; see ``Hits.own``. The server's nearest
    neighbours are approximate, and the mean and deviation of similarities come from 500 random
    documents. Within a group, the candidates by words come from the group.

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
        background: Background,
        options: Hybrid,
    ) -> None:
        """Take what :meth:`open` has prepared."""
        super().__init__(lexical)
        self.field, self.background, self.options = field, background, options
        self.retriever = options.named("hybrid", field.encoder.name)
        self.capabilities: frozenset[Capability] = lexical.capabilities | {"vectors", "relevance"}

    @classmethod
    async def open(
        cls, lexical: SearchEngine, encoder: Encoder, options: Hybrid
    ) -> FieldHybridEngine | None:
        """Open hybrid retrieval over the field of vectors that the source of an index names.

        One request reads a sample of the vectors.

        Args:
            lexical: The index; closed if this fails.
            encoder: The encoder that made the vectors.
            options: The parameters.

        Returns:
            The engine, or None if the field cannot be searched so, or the server returns no vectors
            or no cosines, for instance because it forbids scripts.

        Raises:
            ModelError: The encoder failed, or its vectors do not fit the field.
            FairqrError: Any error of the index.
        """
        if not isinstance(lexical, ElasticsearchEngine):
            return None
        field = VectorSearch(lexical.source, lexical.mapping, encoder)
        try:
            mark = await EncoderMark.of(encoder)
            field.refuse_other(mark.dimensions)
            vectors = await _sampled(lexical, field, mark.dimensions)
        except BaseException:
            await lexical.aclose()
            raise
        return cls(lexical, field, Background.of(vectors), options) if vectors.any() else None

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        """Answer all queries in at most three requests.

        Behind at most ``n`` hits of the server's own ranking come at most ``pool`` others.
        """
        require_groups(self, queries)
        words = [query.words if query.is_ranking else "" for query in queries]
        encoder, dimensions = self.field.encoder, self.background.vectors.shape[1]
        vectors = await run_together(encode_query(encoder, text, dimensions) for text in words)
        return await self.lexical.run(list(map(self._plan, queries, vectors)))

    def _plan(self, query: Query, vector: Float32Array) -> Plan:
        """Search by words and vectors, then by the vector moved toward the best of both."""
        lexical, options = self.lexical, self.options
        if not query.is_ranking:
            return (yield from lexical.plan(query))
        # Ranks are those among all documents, also for a query that is limited to some.
        whole = replace(query, n=min(options.candidates, lexical.most), only=None, within=None)
        given = replace(query, n=whole.n if query.only is None else len(query.only) or 1)
        if query.only is not None and "rescore" not in lexical.capabilities:
            # A body that cannot score given documents still has their groups.
            given = replace(given, text="", boost="")
        near = self._nearest(replace(whole, n=options.depth), vector)
        own = [] if given == whole else [lexical.sought(given)]
        leading, nearest, *limited = yield from lexical.found([lexical.sought(whole), near, *own])
        scored = limited[0] if limited else leading
        if not (vector.any() or leading.ids):
            return first_of(scored, query.n)
        best = fused_best([leading.ids, nearest.ids], options)
        answers = yield lexical.reading(best, self.field.with_vectors(lexical.reader.request))
        hits = [hit for answer in answers for hit in answer["hits"]["hits"]]
        hits.sort(key=lambda hit: best.index(lexical.reader.id_of(hit)))
        moved = moved_toward(vector, self.field.read(hits, len(vector)), options.weight)
        wide = [self._nearest(query, moved)] if query.only is None else []
        compared = [self._compared(query, ids, moved) for ids in lexical.pieces(scored.ids)]
        found = yield from lexical.found([*wide, *compared])
        cosines: dict[str, float] = {}
        for hits_ in found:
            cosines |= {i: s - 2 for i, s in zip(hits_.ids, hits_.scores, strict=True) if s > 0}
        behind, there = found[0] if wide else first_of(scored, 0), {*scored.ids}
        new = [row for row, id_ in enumerate(behind.ids) if id_ not in there]
        ids = [*scored.ids, *(behind.ids[row] for row in new)]
        chances = self.calibrations.rank.probability(
            rank_evidence(ids, leading.ids),
            self.background.standardised(moved, np.array([cosines.get(i, np.nan) for i in ids])),
        )
        own_ = min(len(scored), query.n)
        # Given documents have none behind them; see ``Hits.own``.
        order = own_ + np.argsort(-chances[own_:].round(9), kind="stable")[: options.pool]
        rows = [*range(own_), *(order.tolist() if wide else ())]
        last = min(0.0, scored.scores[own_ - 1]) if own_ else 0.0
        memberships = {
            name: np.concatenate([shares, behind.memberships[name][new]])[rows]
            for name, shares in scored.memberships.items()
        }
        return Hits(
            [ids[row] for row in rows],
            [*scored.scores[:own_], *[last] * (len(rows) - own_)],
            memberships,
            warnings=tuple(dict.fromkeys(w for one in (scored, *found) for w in one.warnings)),
            relevance=chances[rows],
            own=own_,
        )

    def _nearest(self, query: Query, vector: Float32Array) -> Search:
        """Return the search for documents with the highest cosines."""
        queries, asked = self.lexical.queries, replace(query, n=min(query.n, self.lexical.most))
        near = self.field.nearest(vector, asked.n, queries.filters(asked))
        return asked, {"query": near, **queries.reading(asked)}

    def _compared(self, query: Query, ids: Sequence[str], vector: Float32Array) -> Search:
        """Return the search for the cosines of documents."""
        queries, asked = self.lexical.queries, replace(query, n=len(ids), only=tuple(ids))
        given = {"bool": {"filter": queries.filters(asked)}}
        return asked, {"query": self.field.by_cosine(vector, given), **queries.reading(asked)}


async def _sampled(
    lexical: ElasticsearchEngine, field: VectorSearch, dimensions: int
) -> Float32Array:
    """Return vectors of random documents; none if the server returns none, or no cosines."""
    nothing = np.zeros((0, dimensions), dtype=np.float32)
    if not field.gives_cosines:
        return nothing
    probe = np.full(dimensions, 1 / np.sqrt(dimensions), dtype=np.float32)
    having = lexical.filtered({"exists": {"field": field.field}})
    random = {"query": having, "random_score": {"seed": SEED, "field": "_seq_no"}}
    sample: Body = {"query": {"function_score": {**random, "boost_mode": "replace"}}}
    sample |= {"size": min(SAMPLED, lexical.most), **field.with_vectors(lexical.reader.request)}
    tried = {"query": field.nearest(probe, 1, []), "size": 1}
    answers = await lexical.msearch([tried, sample], refuse=False)
    if any("error" in answer for answer in answers):
        return nothing
    return field.read(answers[-1]["hits"]["hits"], dimensions)
