"""Drafts a source file for an index of Elasticsearch or OpenSearch, from what its fields hold."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from fairqr.base.errors import SourceError, one_line
from fairqr.retrieval.engines.elasticsearch.client import AnotherProductError, Body, SearchServer
from fairqr.retrieval.engines.elasticsearch.contents import (
    MOST_FIELDS,
    SAMPLED_TEXTS,
    FieldContents,
    contents_of,
    request_for,
)
from fairqr.retrieval.engines.elasticsearch.hit_reader import ALL
from fairqr.retrieval.engines.elasticsearch.mapping import TEXTS, IndexMapping, read_index
from fairqr.retrieval.engines.elasticsearch.requests import random_query
from fairqr.retrieval.sources.label_values import as_text
from fairqr.retrieval.sources.schema import UNKNOWN, validated
from fairqr.retrieval.sources.source import ElasticsearchSource, OpenSearchSource

TITLES = ("title", "headline", "heading", "subject", "label", "name")
"""How the names of titles end; a person is titled by a name, if nothing else is a title."""

LONGEST_TITLE = 30
"""The most words that a title has on average."""

COUNTABLE = ("boolean", "byte", "constant_keyword", "integer", "keyword", "long", "short")
"""The types of fields that may be attributes."""

MOST_TEXTS = 5
"""The most fields of texts that a draft proposes."""

FEW_VALUES = 20
"""A field with more values is no attribute."""
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


@dataclass(frozen=True, slots=True)
class ChosenFields:
    """The fields of titles and texts that a draft proposes.

    Attributes:
        title: The field of titles, if one looks like that.
        text: The fields of texts.
        searched: Fields that are searched, though their values cannot be read.
        reasons: Why, a line each.
    """

    title: str | None
    text: Sequence[str]
    searched: Sequence[str]
    reasons: Sequence[str]


async def draft(url: str | None, index: str, credentials: str | None = None) -> str:
    """Return the text of a source file for an index, for a person to read and correct.

    Args:
        url: The server; FAIRQR_ELASTICSEARCH_URL by default.
        index: An index, an alias, or a pattern.
        credentials: The name of a credentials entry in the settings.

    Raises:
        IndexNotFoundError: There is no such index.
        IndexUnavailableError: The server cannot be reached, or refuses the request.
        SourceError: The url is no address, or the index has no text to search.
    """
    parts = {**PLACEHOLDER, "url": url, "index": index, "credentials": credentials}
    try:
        return await _draft_of(validated(ElasticsearchSource, parts, "The source", SourceError))
    except AnotherProductError:
        return await _draft_of(validated(OpenSearchSource, parts, "The source", SourceError))


async def _draft_of(source: ElasticsearchSource) -> str:
    """Return the text of a source file for the index of a source."""
    server = SearchServer(source)
    try:
        await server.require_product()
        mapping = await read_index(server, source.index)
        names = _countable(mapping)
        *counts, sample = await _ask_for_contents(server, mapping, names)
    finally:
        await server.aclose()
    if "error" in sample:
        raise server.refusal(int(sample.get("status", 500)), sample)

    chosen = chosen_fields(mapping, contents_of(mapping, sample["hits"]["hits"]))
    values = {name: _readable_values(answer) for name, answer in zip(names, counts, strict=True)}
    index = source.index
    entries = {
        "name": re.sub(r"[^a-z0-9._-]+", "-", index.lower()).strip("-._")[:100] or "source",
        "engine": source.engine,
        "url": server.url,
        "credentials": source.credentials,
        "index": index,
        "title": chosen.title,
        "text": [*chosen.text],
        "query": {"fields": [*chosen.searched]} if chosen.searched else None,
        "attributes": _attributes(mapping, values),
    }
    entries = {name: value for name, value in entries.items() if value}
    text = yaml.safe_dump(entries, allow_unicode=True, sort_keys=False, default_flow_style=None)
    reasons = "".join(f"# {reason}\n" for reason in chosen.reasons)
    return f"# A draft of {one_line(index, 100)}.\n{reasons}{EXAMPLES}{text}"


async def _ask_for_contents(
    server: SearchServer, mapping: IndexMapping, names: Sequence[str]
) -> list[Any]:
    """Return the server's answers: the values of each field, and then random documents."""
    size = min(SAMPLED_TEXTS, mapping.window)
    sample = {**random_query(ALL), "size": size, **request_for(mapping)}
    lines: list[Body] = []
    for name in names:
        lines += [{}, {"size": 0, "aggs": _values_of(name)}]
    lines += [{}, sample]
    answer = await server.ask("msearch", index=mapping.index, body=lines)
    return list(answer["responses"])


def chosen_fields(mapping: IndexMapping, contents: Sequence[FieldContents]) -> ChosenFields:
    """Return the fields of titles and texts by what they hold.

    A text is long, and differs from document to document, unlike categories, ids and flags. If no
    field is long, those that differ most are texts.

    Raises:
        SourceError: No field of the index can be searched for words.
    """
    analysed = [field for field in contents if field.is_analysed]
    title = _title_among(analysed)
    texts = _texts_among(analysed, title)
    searched: list[str] = []
    if title is None and not texts:
        searched = _searchable(mapping)[:MOST_TEXTS]
    reasons = _reasons(title, texts, searched, contents)
    names = [field.name for field in texts]
    return ChosenFields(title.name if title else None, names, searched, reasons)


def _texts_among(
    contents: Sequence[FieldContents], title: FieldContents | None
) -> list[FieldContents]:
    """Return the fields of texts, those with the most words first."""
    others = [field for field in contents if field is not title]
    texts = [field for field in others if field.is_long]
    if not texts and title is None:
        # Short texts are better than none.
        varied = [field for field in others if field.distinct > 0.5 and field.words >= 2]
        texts = varied or others
    by_words = sorted(texts, key=lambda field: -field.words * field.documents)
    return by_words[:MOST_TEXTS]


def _searchable(mapping: IndexMapping) -> list[str]:
    """Return the fields whose words can be searched.

    Raises:
        SourceError: There are no such fields.
    """
    names = []
    for name, field in mapping.fields.items():
        if field.type in TEXTS and not field.nested:
            names.append(name)
    if not names:
        index = one_line(mapping.index, 100)
        raise SourceError(f"The index '{index}' has no text field; name another.")
    return names


def _title_among(contents: Sequence[FieldContents]) -> FieldContents | None:
    """Return the field that is named like a title and is as short as one."""
    candidates = []
    for field in contents:
        is_short = field.words <= LONGEST_TITLE
        if is_short and field.distinct > 0.5:
            candidates.append(field)
    for ending in TITLES:
        for field in candidates:
            if field.name.lower().endswith(ending):
                return field
    return None


def _reasons(
    title: FieldContents | None,
    texts: Sequence[FieldContents],
    searched: Sequence[str],
    contents: Sequence[FieldContents],
) -> list[str]:
    """Return why fields were chosen, or were not, a line each."""
    lines: list[str] = []
    if title is not None:
        lines.append(f"title: '{title.name}' by its name, with {title.in_words}.")
    lines += [f"text: '{field.name}' with {field.in_words}." for field in texts]
    if searched:
        lines.append("query: no text can be read, so these are fields whose words can be searched.")

    not_chosen = [field for field in contents if field is not title and field not in texts]
    short = [field.name for field in not_chosen if field.is_analysed]
    if short:
        lines.append(f"Not searched, as short or the same in many: {', '.join(short)}.")
    keywords = [field.name for field in not_chosen if not field.is_analysed and field.is_long]
    if keywords:
        lines.append(f"Not searched, since their words are not analysed: {', '.join(keywords)}.")
    lines.append(f"attributes: fields with 2 to {FEW_VALUES} different values.")
    return [one_line(line, 500) for line in lines]


def _countable(mapping: IndexMapping) -> list[str]:
    """Return the fields that may be attributes."""
    names = []
    for name, field in mapping.fields.items():
        is_alias = "path" in field.settings
        if field.type in COUNTABLE and field.by_column and not is_alias:
            names.append(name)
    return names[:MOST_FIELDS]


def _values_of(field: str) -> Body:
    """Return the aggregation of the values of a field, one more than an attribute may have."""
    return {"values": {"terms": {"field": field, "size": FEW_VALUES + 1}}}


def _readable_values(answer: Mapping[str, Any]) -> list[str]:
    """Return the values that were counted; empty if they could not be."""
    if "aggregations" not in answer:
        return []
    buckets = answer["aggregations"]["values"]["buckets"]
    values = [as_text(bucket.get("key_as_string", bucket["key"])) for bucket in buckets]
    return [value for value in values if value not in ("", UNKNOWN)]


def _attributes(mapping: IndexMapping, values: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return an attribute for each field with few values; flags come last."""
    attributes: dict[str, Any] = {}
    for field in sorted(values, key=lambda name: mapping.fields[name].type == "boolean"):
        if 2 <= len(values[field]) <= FEW_VALUES:
            groups = {value: [value] for value in values[field]}
            attributes[_name_for(field, attributes)] = {"field": field, "groups": groups}
    return attributes


def _name_for(field: str, taken: Collection[str]) -> str:
    """Return a name for the attribute of a field, other than those that are taken."""
    latin = unicodedata.normalize("NFKD", field.removesuffix(".keyword"))
    readable = re.sub(r"[^A-Za-z0-9_-]+", "_", latin.encode("ascii", "ignore").decode())
    readable = readable.strip("_-")[-56:] or "field"
    stem = readable if readable[0].isalpha() else f"a_{readable}"
    name = stem
    number = 1
    while name in taken:
        number += 1
        name = f"{stem}_{number}"
    return name
