"""Attaching an index of Elasticsearch or OpenSearch: opening, checking and drafting its source."""

from __future__ import annotations

import re
from typing import Any

import yaml

from fairqr.base.errors import SourceError, one_line
from fairqr.retrieval.engines.elasticsearch.client import AnotherProductError, SearchServer
from fairqr.retrieval.engines.elasticsearch.engine import ElasticsearchEngine
from fairqr.retrieval.engines.elasticsearch.mapping import TEXTS, read_index
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.engines.report import SAMPLE_SIZE, SourceReport, report_on
from fairqr.retrieval.sources.labels import LabelReader
from fairqr.retrieval.sources.schema import UNKNOWN, as_text, validated
from fairqr.retrieval.sources.source import ElasticsearchSource, OpenSearchSource

SAMPLED = 10_000
SAMPLED_TEXTS = 20
SAMPLED_WORDS = 3

TITLES = ("title", "headline", "heading", "subject", "label", "name")
"""How the names of titles end; a person is titled by a name, if nothing else is a title."""

COUNTABLE = ("boolean", "byte", "constant_keyword", "integer", "keyword", "long", "short")
MOST_TEXTS = 5
MOST_FIELDS = 200
FEW_VALUES = 20
PLACEHOLDER: dict[str, Any] = {
    "name": "draft",
    "text": "text",
    "attributes": {"label": {"field": "label", "groups": ["one", "another"]}},
}
EXAMPLES = """\
# Keep the attributes that you want to measure, and correct their groups. What else may stand here:
# query: {fields: [title^2, text]}
# filter: {term: {published: true}}
# vectors: {field: embedding, embeddings: minilm}
#   age: {field: born, groups: {older: {lt: 1980}, younger: {gte: 1980}}}
"""


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
    (sampled,) = await engine.msearch([engine.sample(SAMPLED, engine.reader.request)])
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
    report = await report_on(engine, engine.labels.reports(values, ids), query, hits, remarks)
    able = {*report.capabilities, *(["vectors"] if engine.source.vectors else [])}
    return report.model_copy(update={"capabilities": sorted(able)})


async def draft(url: str | None, index: str, credentials: str | None = None) -> str:
    """Return the text of a source file for an index, for a person to read and correct.

    Args:
        url: The server; FAIRQR_ELASTICSEARCH_URL by default.
        index: An index, an alias, or a pattern.
        credentials: The name of a credentials entry in the settings.

    Raises:
        IndexNotFoundError: There is no such index.
        IndexUnavailableError: The server cannot be reached, or refuses the request.
        SourceError: The url is none, or the index has no text to search.
    """
    parts = {**PLACEHOLDER, "url": url, "index": index, "credentials": credentials}
    try:
        return await _drafted(validated(ElasticsearchSource, parts, "The source", SourceError))
    except AnotherProductError:
        return await _drafted(validated(OpenSearchSource, parts, "The source", SourceError))


async def _drafted(source: ElasticsearchSource) -> str:
    server, index = SearchServer(source), source.index
    try:
        fields = (await read_index(server, index)).fields
        asked = [
            name
            for name, held in fields.items()
            if held.type in COUNTABLE and held.by_column and "path" not in held.settings
        ][:MOST_FIELDS]
        terms = [{"values": {"terms": {"field": it, "size": FEW_VALUES + 1}}} for it in asked]
        lines = [line for aggs in terms for line in ({}, {"size": 0, "aggs": aggs})]
        answer = await server.ask("msearch", index=index, body=lines) if lines else {}
    finally:
        await server.aclose()
    attributes: dict[str, Any] = {}
    pairs = zip(asked, answer.get("responses", ()), strict=True)
    # Flags come last.
    for field, part in sorted(pairs, key=lambda pair: fields[pair[0]].type == "boolean"):
        buckets = part["aggregations"]["values"]["buckets"] if "aggregations" in part else []
        found = [as_text(bucket.get("key_as_string", bucket["key"])) for bucket in buckets]
        values = [value for value in found if value not in ("", UNKNOWN)]
        if 2 <= len(values) <= FEW_VALUES:
            name = re.sub(r"[^A-Za-z0-9_-]+", "_", field.removesuffix(".keyword"))[-60:]
            name = name if name[0].isalpha() else f"a_{name}"
            attributes[name] = {"field": field, "groups": {text: [text] for text in values}}
    texts = [name for name, held in fields.items() if held.type in TEXTS and not held.nested]
    if not texts:
        raise SourceError(f"The index '{one_line(index, 100)}' has no text field; name another.")
    titles = [name for end in TITLES for name in texts if name.lower().endswith(end)]
    written = {
        "name": re.sub(r"[^a-z0-9._-]+", "-", index.lower()).strip("-._")[:100] or "source",
        "engine": source.engine,
        "url": server.url,
        "credentials": source.credentials,
        "index": index,
        "title": titles[0] if titles else None,
        "text": [text for text in texts if text not in titles[:1]][:MOST_TEXTS],
        "attributes": attributes,
    }
    written = {key: value for key, value in written.items() if value}
    shown = yaml.safe_dump(written, allow_unicode=True, sort_keys=False, default_flow_style=None)
    return f"# A draft of {one_line(index, 100)}.\n{EXAMPLES}{shown}"
