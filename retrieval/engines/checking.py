"""The check of a source: what it contains, and whether it can be searched as described."""

from __future__ import annotations

import asyncio
from itertools import islice
from pkgutil import resolve_name

from fairqr.retrieval.engines.engine import Query, SearchEngine
from fairqr.retrieval.engines.opening import open_source
from fairqr.retrieval.engines.report import SourceReport, count_groups, sample_hits
from fairqr.retrieval.engines.tantivy.store import Announce
from fairqr.retrieval.sources.documents import Document, read_documents
from fairqr.retrieval.sources.source import Source, TantivySource

LOOKED_AT = 10_000
"""How many documents of an embedded index we check for labels."""

SAMPLE = 5


async def check_source(source: Source, *, progress: Announce | None = None) -> SourceReport:
    """Open a source as a search would, and report what it contains.

    Args:
        source: The source.
        progress: Called with the name of what has to be indexed or read first.

    Raises:
        FairqrError: The source cannot be searched as described.
    """
    engine = await open_source(source, progress=progress)
    try:
        if isinstance(source, TantivySource):
            return await _check_embedded(source, engine)
        module, _, _ = source.opener.partition(":")
        report: SourceReport = await resolve_name(f"{module}:check")(engine)
        return report
    finally:
        await engine.aclose()


async def _check_embedded(source: TantivySource, engine: SearchEngine) -> SourceReport:
    def first_documents() -> list[Document]:
        return [*islice(read_documents(source.path(source.documents), engine.schema), LOOKED_AT)]

    documents = await asyncio.to_thread(first_documents)
    ids = tuple(document.id for document in documents)
    sample = documents[0].title or " ".join(documents[0].text.split()[:3])
    looked_at, hits = await engine.search([Query("", len(ids), only=ids), Query(sample, SAMPLE)])
    info = await engine.info()
    return SourceReport(
        name=source.name,
        engine=source.engine,
        location=info.location,
        documents=info.documents,
        attributes=[
            count_groups(attribute, looked_at.memberships[name])
            for name, attribute in engine.schema.attributes.items()
        ],
        capabilities=sorted(engine.capabilities),
        sample_query=sample,
        sample=sample_hits(engine.schema, hits, await engine.documents(hits.ids)),
    )
