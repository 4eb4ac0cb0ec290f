"""Attaching an index of Elasticsearch or OpenSearch: opening and checking its source."""

from __future__ import annotations

from collections.abc import Sequence

from fairqr.retrieval.engines.elasticsearch import contents
from fairqr.retrieval.engines.elasticsearch.client import SearchServer
from fairqr.retrieval.engines.elasticsearch.engine import ElasticsearchEngine
from fairqr.retrieval.engines.elasticsearch.mapping import read_index
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.engines.report import SAMPLE_SIZE, SourceReport, report_on
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.sources.labels import LabelReader
from fairqr.retrieval.sources.source import ElasticsearchSource

SAMPLED = 10_000
"""How many random documents the check reads the labels of."""

SAMPLED_TEXTS = 20
"""How many of them it looks at for words to search."""

SAMPLED_WORDS = 3
"""How many words the sample query has."""


async def open_elasticsearch(
    source: ElasticsearchSource, labels: LabelReader
) -> ElasticsearchEngine:
    """Attach an index after reading its mapping.

    Raises:
        SourceError: The source does not fit the index.
        IndexNotFoundError: There is no such index.
        IndexUnavailableError: The server cannot be reached, or refuses the request.
        UnsupportedError: The OpenSearch client is needed and not installed.
    """
    server = SearchServer(source)
    try:
        return ElasticsearchEngine(source, server, labels, await read_index(server, source.index))
    except BaseException:
        await server.aclose()
        raise


async def check(engine: ElasticsearchEngine) -> SourceReport:
    """Report what random documents of an attached index contain, and try one search.

    Raises:
        SourceError: A field has no value that a group takes, or two documents share an id.
        FairqrError: The index cannot be searched as the source describes it.
    """
    for_labels = engine.requests.sample(SAMPLED, engine.reader.request)
    for_contents = engine.requests.sample(
        contents.SAMPLED_TEXTS, contents.request_for(engine.mapping)
    )
    labelled, with_texts = await engine.msearch([for_labels, for_contents])
    ids = engine.reader.ids(labelled["hits"]["hits"])
    labels = engine.reader.values(labelled["hits"]["hits"])

    sample_query = _sample_query(await engine.documents(ids[:SAMPLED_TEXTS]))
    (hits,) = await engine.search([Query(sample_query, SAMPLE_SIZE)])
    remarks = [*hits.warnings]
    if not ids:
        remarks.append("The index has no documents; correct the index, or the filter.")
    elif not sample_query:
        remarks.append("We tried no sample query, because the documents have no texts to read.")
    elif not hits.ids:
        remarks.append(
            f"The sample query '{sample_query}' finds nothing; check the searched fields."
        )
    fields = contents.contents_of(engine.mapping, with_texts["hits"]["hits"])
    remarks += contents.remarks_on_searched(engine.source, engine.mapping, fields)

    attributes = engine.labels.reports(labels, ids)
    report = await report_on(engine, attributes, sample_query, hits, remarks)
    capabilities = set(report.capabilities)
    if engine.source.vectors:
        capabilities.add("vectors")
    return report.model_copy(update={"capabilities": sorted(capabilities)})


def _sample_query(documents: Sequence[Document]) -> str:
    """Return the first words of the first document that has any."""
    for document in documents:
        words = f"{document.title} {document.text}".split()
        if words:
            return " ".join(words[:SAMPLED_WORDS])
    return ""
