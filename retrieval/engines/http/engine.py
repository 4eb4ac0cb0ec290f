"""Any search endpoint that returns JSON, as an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from fairqr.base.errors import SourceError, UnsupportedError
from fairqr.base.loops import run_together
from fairqr.retrieval.engines.engine import (
    Capability,
    EngineInfo,
    Hits,
    Query,
    best_first,
    require,
    require_groups,
)
from fairqr.retrieval.engines.http.endpoint import Endpoint
from fairqr.retrieval.engines.http.hits import AnswerReader
from fairqr.retrieval.engines.met import MetDocuments
from fairqr.retrieval.engines.report import SourceReport, remarks_on_labels, sample_hits
from fairqr.retrieval.engines.request_template import SIZE
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.sources.credentials import Credentials, credentials_for
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.sources.labels import LabelReader
from fairqr.retrieval.sources.source import HttpSource
from fairqr.retrieval.texts.sendable import sendable

ENOUGH = 10
"""If none of this many documents has a label, or a text, the source names the wrong place."""

SAMPLES = ("the", "new", "information")
SAMPLE_HITS = 100

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class HttpEngine:
    """An endpoint; see :class:`SearchEngine`.

    It can only read documents that a search has returned, because endpoints are searched by words,
    not by id.
    """

    retriever = "http"
    in_process = False
    capabilities: frozenset[Capability] = frozenset({"new_queries"})
    filterable: frozenset[tuple[str, str]] = frozenset()

    def __init__(self, source: HttpSource, labels: LabelReader, credentials: Credentials) -> None:
        self.source, self.labels = source, labels
        self.name, self.schema = source.name, labels.schema
        self._reader = AnswerReader(source, labels.field_attributes)
        self._endpoint = Endpoint(source, credentials)
        self._met = MetDocuments()

    async def info(self) -> EngineInfo:
        """Return what we know of the endpoint; the number of documents is unknown."""
        return EngineInfo(
            name=self.name,
            engine="http",
            documents=None,
            location=self._endpoint.location,
            source=str(self.source.folder),
            fingerprint=self.source.fingerprint,
        )

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        """Send all queries at once, within the limits of the source."""
        require_groups(self, queries)
        for query in queries:
            self._refuse_what_it_cannot(query)
        return await run_together(self._answer(query) for query in queries)

    async def documents(self, ids: Sequence[str]) -> list[Document]:
        """Return those of these documents that a search has returned, in this order."""
        return self._met.get(ids)

    async def corpus_shares(self) -> Mapping[str, FloatArray]:
        """Raise an error, because an endpoint does not show all its documents."""
        require(self, "corpus_shares", "The share of each group in all documents")
        return {}

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        await self._endpoint.aclose()

    def _refuse_what_it_cannot(self, query: Query) -> None:
        if query.only is not None and not query.text:
            raise UnsupportedError(
                f"The groups of given documents cannot be looked up in '{self.name}', because an "
                "endpoint is searched by words, not by id."
            )
        if query.only is not None:
            require(self, "rescore", "Ranking given documents")
        if query.n < 1 or query.every_word:
            require(self, "document_frequencies", "Counting the documents with a word")

    async def _answer(self, query: Query) -> Hits:
        text = sendable(query.words.strip())
        answer = await self._endpoint.ask(text, query.n)
        found = await asyncio.to_thread(self._reader.read, answer)
        ids = [document.id for document in found.documents]
        memberships = self.labels.memberships(ids, self.labels.in_fields(found.documents))
        warnings = [
            f"None of the {len(ids)} hits has '{attribute.field}', which '{attribute.name}' reads; "
            "correct the field if there should be one."
            for attribute in self.labels.unlabelled(found.documents)
        ]
        hits = best_first(ids, found.scores, memberships, query.n, warnings=warnings)
        best = set(hits.ids)
        self._met.add(document for document in found.documents if document.id in best)
        return hits


async def open_http(source: HttpSource, labels: LabelReader) -> HttpEngine:
    """Open an endpoint; nothing is sent yet.

    Raises:
        ConfigError: The credentials are missing, or may not be sent to this address.
        SourceError: An expression is not valid JMESPath.
    """
    # Without a name we send no credentials: those in variables belong to other servers.
    named = source.credentials
    credentials = credentials_for(named, source.url) if named else Credentials()
    return HttpEngine(source, labels, credentials)


async def check(engine: HttpEngine) -> SourceReport:
    """Send sample queries, and report what they find and its labels.

    Raises:
        SourceError: A field of labels, titles, texts or links is in none of ten or more hits.
    """
    source = engine.source
    info = await engine.info()
    for sample in (source.sample,) if source.sample else SAMPLES:
        (hits,) = await engine.search([Query(sample, SAMPLE_HITS)])
        if len(hits):
            break
    documents = await engine.documents(hits.ids)
    empty = _empty_texts(source, documents)
    unlabelled = engine.labels.unlabelled(documents)
    missing = [*(f"'field: {one.field}' of {one.name}" for one in unlabelled), *empty]
    if missing and len(documents) >= ENOUGH:
        raise SourceError(
            f"In the source '{engine.name}', {missing[0]} finds nothing in any of "
            f"{len(documents)} hits; correct it."
        )
    attributes = engine.labels.reports(engine.labels.in_fields(documents), hits.ids)
    return SourceReport(
        name=engine.name,
        engine="http",
        location=info.location,
        attributes=attributes,
        sample_query=sample,
        sample=sample_hits(engine.schema, hits, documents),
        remarks=[
            *_remarks(source, len(hits)),
            *(f"{where} finds nothing in the hits; correct it." for where in empty),
            *remarks_on_labels(attributes),
        ],
    )


def _empty_texts(source: HttpSource, documents: Sequence[Document]) -> list[str]:
    """Return the expressions for titles, texts and links that find nothing in any document."""
    found: dict[str, tuple[str | None, list[Any]]] = {
        "title": (source.title, [document.title for document in documents]),
        "text": (source.text, [document.text for document in documents]),
        "link": (source.link, [document.fields.get(source.link or "") for document in documents]),
    }
    return [
        f"'{name}: {expression}'"
        for name, (expression, texts) in found.items()
        if documents and expression and not any(texts)
    ]


def _remarks(source: HttpSource, found: int) -> list[str]:
    remarks = []
    if not found:
        remarks.append(
            "No sample query found anything; set 'sample' to a query that finds something."
        )
    elif found < SAMPLE_HITS:
        remarks.append(
            f"The endpoint returned only {found} of {SAMPLE_HITS} requested hits; a fair ranking "
            "can only choose from what it returns."
        )
    if SIZE not in f"{source.url} {source.body}":
        remarks.append(
            f"The source has no {SIZE}, so the endpoint decides how many hits to return."
        )
    if source.score is None:
        remarks.append("The source names no score, so the score of a hit is 1/rank.")
    parts = urlsplit(source.url)
    if source.credentials and parts.scheme == "http" and parts.hostname not in LOOPBACK:
        remarks.append("The credentials are sent unencrypted; use an address with https.")
    return remarks
