"""Attaching an index of Elasticsearch or OpenSearch: opening, checking and drafting its source."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import yaml

from fairqr.base.errors import SourceError, one_line
from fairqr.retrieval.encoders.encoder import Encoder
from fairqr.retrieval.engines.elasticsearch.client import AnotherProductError, Server
from fairqr.retrieval.engines.elasticsearch.engine import ElasticsearchEngine
from fairqr.retrieval.engines.elasticsearch.mapping import (
    ALL,
    TEXTS,
    IndexMapping,
    counts_of,
    read_index,
    values_in,
)
from fairqr.retrieval.engines.elasticsearch.queries import VectorSearch, encoder_for
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.engines.report import AttributeReport, SourceReport, report_on
from fairqr.retrieval.sources.labels import LabelReader, attribute_report
from fairqr.retrieval.sources.schema import UNKNOWN, as_text, validated
from fairqr.retrieval.sources.source import ElasticsearchSource, OpenSearchSource

SAMPLED = 1000
SAMPLED_TEXTS = 20
SAMPLED_WORDS = 3
VALUES_SHOWN = 100

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
#   age: {field: born, groups: {older: {lt: 1980}, younger: {gte: 1980}}}"""


async def open_elasticsearch(
    source: ElasticsearchSource, labels: LabelReader, *, retriever: str | Encoder = "bm25"
) -> ElasticsearchEngine:
    """Attach an index after reading its mapping.

    Args:
        source: The description.
        labels: Reads the labels.
        retriever: ``bm25``; ``dense``, which searches the source's vector field; or an encoder for
            that field.

    Raises:
        SourceError: The source does not fit the index.
        IndexNotFoundError: There is no such index.
        IndexUnavailableError: The server cannot be reached, or refuses the request.
        UnsupportedError: The OpenSearch client is needed and not installed.
    """
    server = Server(source)
    try:
        mapping = await read_index(server, source.index)
        vectors = None
        if retriever != "bm25":
            encoder = encoder_for(source, mapping, retriever)
            vectors = VectorSearch(source, mapping, encoder)
        return ElasticsearchEngine(source, server, labels, mapping, vectors)
    except BaseException:
        await server.aclose()
        raise


async def check(engine: ElasticsearchEngine) -> SourceReport:
    """Report what an attached index contains, and try one search.

    The server counts labels over all documents. Labels that it cannot count, such as weights and
    those in files, are counted over a sample.

    Raises:
        SourceError: A field has no value that a group takes, or two documents share an id.
        FairqrError: The index cannot be searched as the source describes it.
    """
    size = min(SAMPLED, engine.mapping.window)
    body = {"size": size, "track_total_hits": True, **engine.reader.request}
    (sampled,) = await engine.msearch([{"query": engine.filtered(ALL), **body}])
    found, documents = sampled["hits"]["hits"], sampled["hits"]["total"]["value"]
    ids = engine.reader.ids(found)
    some = await engine.documents(ids[:SAMPLED_TEXTS])
    texts = [f"{document.title} {document.text}".strip() for document in some]
    query = " ".join(max(texts, key=bool, default="").split()[:SAMPLED_WORDS])
    (hits,) = await engine.search([Query(query, 5)])
    counted = await _counted(engine)
    reports = engine.labels.reports(engine.reader.values(found), ids)
    attributes = [counted.get(report.name, report) for report in reports]
    remarks = [*hits.warnings]
    if not documents:
        remarks.append("The index has no documents; correct the index, or the filter.")
    elif not query:
        remarks.append("We tried no sample query, because the documents have no texts to read.")
    elif not hits.ids:
        remarks.append(f"The sample query '{query}' finds nothing; check the searched fields.")
    report = await report_on(engine, attributes, query, hits, remarks)
    able = {*report.capabilities, *(["vectors"] if engine.source.vectors else [])}
    return report.model_copy(update={"capabilities": sorted(able)})


async def _counted(engine: ElasticsearchEngine) -> dict[str, AttributeReport]:
    """Return the reports of the attributes whose labels the server can count in all documents.

    Raises:
        SourceError: A field has no value that a group takes.
    """
    labels = [it for it in engine.reader.labels if it.mapped.doc_values and not it.weights]
    bodies = []
    for label in labels:
        counts = values_in(label.name, label.mapped, VALUES_SHOWN)
        if queries := label.queries():
            counts["labelled"] = {"filter": {"bool": {"should": queries}}}
        body = {"size": 0, "track_total_hits": True, "query": engine.filtered(ALL)}
        bodies.append({**body, "aggs": counts})
    reports = {}
    for label, answer in zip(labels, await engine.msearch(bodies), strict=True):
        attribute, found = label.attribute, answer["aggregations"]
        total, by_value = answer["hits"]["total"]["value"], counts_of(found)
        in_group = sum(count for value, count in by_value.items() if attribute.group_of(value))
        labelled = found.get("labelled", {}).get("doc_count", min(total, in_group))
        more = found.get("nested", found)["values"]["sum_other_doc_count"] > 0
        if total and not (labelled or more):
            held = ", ".join(one_line(value, 30) for value in [*by_value][:10])
            held = f"contains {held}, none of which is in a group" if held else "is empty"
            raise SourceError(
                f"The field '{label.name}' of the attribute '{attribute.name}' {held}; correct the "
                "field or the filter, or list under 'groups' which values belong to which group."
            )
        reports[attribute.name] = attribute_report(attribute, total, labelled, by_value, more=more)
    return reports


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
    server, index = Server(source), source.index
    try:
        mapping = await read_index(server, index)
        counts = await _few_values(server, mapping)
    finally:
        await server.aclose()
    fields = mapping.fields.items()
    texts = [name for name, held in fields if held.type in TEXTS and not held.nested]
    if not texts:
        raise SourceError(f"The index '{one_line(index, 100)}' has no text field; name another.")
    titles = [name for end in TITLES for name in texts if name.lower().endswith(end)]
    head = {
        "name": re.sub(r"[^a-z0-9._-]+", "-", index.lower()).strip("-._")[:100] or "source",
        "engine": source.engine,
        "url": server.url,
        "credentials": source.credentials,
        "index": index,
        "title": titles[0] if titles else None,
        "text": [text for text in texts if text not in titles[:1]][:MOST_TEXTS],
    }
    written = "".join(f"{key}: {_yaml(value)}\n" for key, value in head.items() if value)
    attributes = "\n".join(_attributes(counts, mapping))
    return f"# A draft of {one_line(index, 100)}.\n{written}{EXAMPLES}\nattributes:\n{attributes}\n"


async def _few_values(server: Server, mapping: IndexMapping) -> dict[str, dict[str, int]]:
    """Return the number of documents with each value, for fields that have few values."""
    fields = [
        (name, held)
        for name, held in mapping.fields.items()
        if held.type in COUNTABLE and held.doc_values and "path" not in held.settings
    ][:MOST_FIELDS]
    bodies = [{"size": 0, "aggs": values_in(*pair, FEW_VALUES + 1)} for pair in fields]
    lines = [line for body in bodies for line in ({}, body)]
    answer = await server.ask("msearch", index=mapping.index, body=lines) if lines else {}
    counts = {}
    for (name, _), part in zip(fields, answer.get("responses", ()), strict=True):
        found = counts_of(part["aggregations"]) if "aggregations" in part else {}
        named = {as_text(value): count for value, count in found.items()}
        counts[name] = {value: n for value, n in named.items() if value not in ("", UNKNOWN)}
    return {name: found for name, found in counts.items() if 2 <= len(found) <= FEW_VALUES}


def _attributes(counts: dict[str, dict[str, int]], mapping: IndexMapping) -> Iterator[str]:
    """Yield the attributes, flags last."""
    for field in sorted(counts, key=lambda field: mapping.fields[field].type == "boolean"):
        name = re.sub(r"[^A-Za-z0-9_-]+", "_", field.removesuffix(".keyword"))[-60:]
        yield f"  {_yaml(name if name[0].isalpha() else f'a_{name}')}:"
        yield f"    field: {_yaml(field)}"
        yield "    groups:"
        for value, count in counts[field].items():
            yield f"      {_yaml(value)}: [{_yaml(value)}]  # {count:,} documents"


def _yaml(value: object) -> str:
    """Return a value as one line of YAML."""
    written = yaml.safe_dump([value], default_flow_style=True, allow_unicode=True, width=math.inf)
    return str(written).strip()[1:-1]
