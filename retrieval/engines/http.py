"""Any search endpoint that answers JSON, as an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from fairqr.errors import SourceError
from fairqr.retrieval.credentials import Credentials, credentials_for
from fairqr.retrieval.documents import Document
from fairqr.retrieval.engines.engine import (
    Capability,
    EngineInfo,
    Hits,
    Query,
    best_first,
    require,
)
from fairqr.retrieval.engines.http_endpoint import Endpoint
from fairqr.retrieval.engines.http_hits import HitReader, ReadHits
from fairqr.retrieval.engines.met import MetDocuments
from fairqr.retrieval.engines.report import SourceReport, sample_hits
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.labels import LabelReader
from fairqr.retrieval.request_template import SIZE
from fairqr.retrieval.source import HttpSource

__all__ = ["HttpEngine", "check", "open_http"]

ENOUGH = 10
"""If none of so many documents has a label, the source names the wrong place."""

SAMPLES = ("the", "new", "information")
SAMPLE_HITS = 100

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class HttpEngine:
    """An endpoint; see :class:`SearchEngine`.

    It can read only documents that a search has met, since an endpoint is asked by words and not by
    id.
    """

    retriever = "http"
    capabilities: frozenset[Capability] = frozenset({"new_queries"})

    def __init__(self, source: HttpSource, labels: LabelReader, credentials: Credentials) -> None:
        self.source, self.labels = source, labels
        self.name, self.schema = source.name, labels.schema
        self._reader = HitReader(source, labels.field_attributes)
        self._endpoint = Endpoint(source, credentials)
        self._met = MetDocuments()
        self._unseen = {attribute.field: attribute.name for attribute in labels.field_attributes}

    async def info(self) -> EngineInfo:
        """Return what is known of the endpoint; how many documents it has is not."""
        return EngineInfo(
            name=self.name,
            engine="http",
            documents=None,
            location=self._endpoint.location,
            source=str(self.source.folder),
            fingerprint=self.source.fingerprint,
        )

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        """Send all queries at the same time, as far as the limits of the source allow."""
        for query in queries:
            self._refuse_what_it_cannot(query)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._answer(query)) for query in queries]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def documents(self, ids: Sequence[str]) -> list[Document]:
        """Return those of these documents that a search has met, in this order."""
        return self._met.get(ids)

    async def corpus_shares(self) -> Mapping[str, FloatArray]:
        """Refuse, since an endpoint does not show all documents."""
        require(self, "corpus_shares", "The share of each group in all documents")
        return {}

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        await self._endpoint.aclose()

    def _refuse_what_it_cannot(self, query: Query) -> None:
        if query.only is not None:
            require(self, "rescore", "Ranking given documents")
        if query.n < 1 or query.every_word:
            require(self, "document_frequencies", "Counting the documents with a word")

    async def _answer(self, query: Query) -> Hits:
        text = f"{query.text} {query.boost}".strip()
        answer = await self._endpoint.ask(text, query.n)
        found = await asyncio.to_thread(self._reader.read, answer)
        self._check_labels(found)
        self._met.add(found.documents)
        ids = [document.id for document in found.documents]
        memberships = self.labels.memberships(ids, self.labels.in_fields(found.documents))
        return best_first(ids, found.scores, memberships, query.n)

    def _check_labels(self, found: ReadHits) -> None:
        """Refuse an expression for labels that has never found anything."""
        for field in list(self._unseen):
            if any(document.fields[field] is not None for document in found.documents):
                self._unseen.pop(field, None)
            elif len(found.documents) >= ENOUGH:
                raise SourceError(
                    f"In the source '{self.name}', 'field: {field}' of {self._unseen[field]} finds "
                    f"nothing in any of {len(found.documents)} hits; correct it."
                )


async def open_http(source: HttpSource, labels: LabelReader) -> HttpEngine:
    """Open an endpoint; nothing is sent yet.

    Raises:
        ConfigError: The credentials are missing, or may not go to this address.
        SourceError: An expression is not JMESPath.
    """
    # Without a name nothing is sent: what variables hold belongs to other servers.
    named = source.credentials
    credentials = credentials_for(named, source.url) if named else Credentials()
    return HttpEngine(source, labels, credentials)


async def check(engine: HttpEngine) -> SourceReport:
    """Send sample queries, and report what they find and which labels that has."""
    source = engine.source
    info = await engine.info()
    for sample in (source.sample,) if source.sample else SAMPLES:
        (hits,) = await engine.search([Query(sample, SAMPLE_HITS)])
        if len(hits):
            break
    documents = await engine.documents(hits.ids)
    return SourceReport(
        name=engine.name,
        engine="http",
        location=info.location,
        attributes=engine.labels.reports(engine.labels.in_fields(documents)),
        sample_query=sample,
        sample=sample_hits(engine.schema, hits, documents),
        remarks=_remarks(source, len(hits)),
    )


def _remarks(source: HttpSource, found: int) -> list[str]:
    remarks = []
    if not found:
        remarks.append(
            "No sample query found anything; write a query that finds something in 'sample'."
        )
    elif found < SAMPLE_HITS:
        remarks.append(
            f"The endpoint gave {found} of {SAMPLE_HITS} hits that were wanted; a fair ranking can "
            "only choose from what it gives."
        )
    if SIZE not in f"{source.url} {source.body}":
        remarks.append(f"The source has no {SIZE}, so the endpoint decides how many hits it gives.")
    if source.score is None:
        remarks.append("The source names no score, so the score of a hit is 1/rank.")
    parts = urlsplit(source.url)
    if source.credentials and parts.scheme == "http" and parts.hostname not in LOOPBACK:
        remarks.append("The credentials travel without encryption; use an address with https.")
    return remarks
