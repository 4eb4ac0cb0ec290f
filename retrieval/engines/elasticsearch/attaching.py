"""Attaching an index of Elasticsearch or OpenSearch: opening and checking its source."""

from __future__ import annotations

from fairqr.retrieval.engines.elasticsearch import contents
from fairqr.retrieval.engines.elasticsearch.client import SearchServer
from fairqr.retrieval.engines.elasticsearch.engine import ElasticsearchEngine
from fairqr.retrieval.engines.elasticsearch.mapping import read_index
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.engines.report import SAMPLE_SIZE, SourceReport, report_on
from fairqr.retrieval.sources.labels import LabelReader
from fairqr.retrieval.sources.source import ElasticsearchSource

SAMPLED = 10_000
SAMPLED_TEXTS = 20
SAMPLED_WORDS = 3


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
    request = contents.request_for(engine.mapping)
    with_texts = engine.sample(contents.SAMPLED_TEXTS, request)
    labelled = engine.sample(SAMPLED, engine.reader.request)
    sampled, read = await engine.msearch([labelled, with_texts])
    found = sampled["hits"]["hits"]
    ids, values = engine.reader.ids(found), engine.reader.values(found)
    some = await engine.documents(ids[:SAMPLED_TEXTS])
    texts = [f"{document.title} {document.text}".strip() for document in some]
    query = " ".join(max(texts, key=bool, default="").split()[:SAMPLED_WORDS])
    (hits,) = await engine.search([Query(query, SAMPLE_SIZE)])
    remarks = [*hits.warnings]
    if not ids:
        remarks.append("The index has no documents; correct the index, or the filter.")
    elif not query:
        remarks.append("We tried no sample query, because the documents have no texts to read.")
    elif not hits.ids:
        remarks.append(f"The sample query '{query}' finds nothing; check the searched fields.")
    fields = contents.contents_of(engine.mapping, read["hits"]["hits"])
    remarks += contents.remarks_on_searched(engine.source, engine.mapping, fields)
    report = await report_on(engine, engine.labels.reports(values, ids), query, hits, remarks)
    able = {*report.capabilities, *(["vectors"] if engine.source.vectors else [])}
    return report.model_copy(update={"capabilities": sorted(able)})
