"""Drafting a source from the mapping of an index."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from fairqr.base.errors import SourceError, one_line
from fairqr.retrieval.engines.elasticsearch_connection import Connection
from fairqr.retrieval.engines.elasticsearch_mapping import (
    DATES,
    NUMBERS,
    TEXTS,
    IndexMapping,
    path_of,
    read_index,
)
from fairqr.retrieval.engines.elasticsearch_server import AnotherProductError, Server
from fairqr.retrieval.schema import UNKNOWN, as_text

__all__ = ["draft"]

YAML_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
TITLES = ("title", "headline", "name", "full_name", "fullname", "label", "subject", "heading")
COUNTABLE = frozenset(
    {"boolean", "byte", "constant_keyword", "integer", "keyword", "long", "short"}
)
MOST_TEXTS = 5
MOST_FIELDS = 200
FEW_VALUES = 20


async def draft(url: str | None, index: str, credentials: str | None = None) -> str:
    """Return the text of a source file for an index, for a person to read and correct.

    Args:
        url: The server; FAIRQR_ELASTICSEARCH_URL by default.
        index: An index, an alias, or a pattern.
        credentials: The name of a credentials entry in the settings.

    Raises:
        IndexNotFoundError: There is no such index.
        IndexUnavailableError: The server cannot be reached, or refuses the request.
        SourceError: The index has no text to search.
    """
    connection = Connection.to(url or (), credentials)
    server = Server(connection)
    engine = "elasticsearch"
    try:
        try:
            mapping = await read_index(server, index)
        except AnotherProductError:
            from fairqr.retrieval.engines.opensearch import OpenSearchServer

            await server.aclose()
            server, engine = OpenSearchServer(connection), "opensearch"
            mapping = await read_index(server, index)
        texts = list(_texts(mapping))
        if not texts:
            raise SourceError(
                f"The index '{one_line(index, 100)}' has no text field to search; name another "
                "index."
            )
        names = [name for name in mapping.fields if _is_countable(mapping, name)]
        counts = await _counted(server, index, mapping, names[:MOST_FIELDS])
        documents = (await server.request("POST", f"{path_of(index)}/_count"))["count"]
    finally:
        await server.aclose()
    head = {
        "name": re.sub(r"[^a-z0-9._-]+", "-", index.lower()).strip("-._")[:100] or "source",
        "engine": engine,
        "url": connection.shown,
        **({"credentials": credentials} if credentials else {}),
        "index": index,
    }
    lines = [
        f"# A draft, from the mapping of {one_line(index, 100)} ({documents:,} documents).",
        "# Keep the attributes that you want to measure, and correct their groups.",
        *(f"{key}: {_yaml(value)}" for key, value in head.items()),
        *texts,
        *_vectors(mapping),
        *_attributes(counts),
        *_ranges(mapping, counts),
    ]
    return "\n".join(lines) + "\n"


def _is_countable(mapping: IndexMapping, name: str) -> bool:
    held = mapping.fields[name]
    is_alias = held.settings.get("type") == "alias"
    return held.type in COUNTABLE and held.doc_values and not held.other_types and not is_alias


async def _counted(
    server: Server, index: str, mapping: IndexMapping, names: list[str]
) -> dict[str, dict[str, int]]:
    """Return the values of each field that has few, with the number of documents for each."""
    lines: list[dict[str, Any]] = []
    for name in names:
        values: dict[str, Any] = {"terms": {"field": name, "size": FEW_VALUES + 1}}
        counted: dict[str, Any] = {"values": values}
        if nested := mapping.fields[name].nested:
            values["aggs"] = {"documents": {"reverse_nested": {}}}
            counted = {"nested": {"nested": {"path": nested}, "aggs": counted}}
        lines += [{}, {"size": 0, "track_total_hits": False, "aggs": counted}]
    if not lines:
        return {}
    answer = await server.request("POST", f"{path_of(index)}/_msearch", body=lines)
    found: dict[str, dict[str, int]] = {}
    for name, part in zip(names, answer["responses"], strict=True):
        aggregations = part.get("aggregations", {})
        buckets = aggregations.get("nested", aggregations).get("values", {}).get("buckets", [])
        if 2 <= len(buckets) <= FEW_VALUES:
            found[name] = {
                as_text(bucket.get("key_as_string", bucket["key"])): bucket.get(
                    "documents", bucket
                )["doc_count"]
                for bucket in buckets
            }
    return found


def _texts(mapping: IndexMapping) -> Iterator[str]:
    def rank(name: str) -> int:
        last = name.rpartition(".")[2].lower()
        return TITLES.index(last) if last in TITLES else len(TITLES)

    texts = [
        name
        for name, held in mapping.fields.items()
        if held.type in TEXTS and not held.nested and not _is_second_form(mapping, name)
    ]
    texts.sort(key=rank)
    if not texts:
        return
    title = texts[0] if rank(texts[0]) < len(TITLES) else None
    if title:
        yield f"title: {_yaml(title)}"
    others = [name for name in texts if name != title]
    yield f"text: {_yaml(others[:MOST_TEXTS])}"
    if others[MOST_TEXTS:]:
        yield f"# Other texts: {one_line(', '.join(others[MOST_TEXTS:]), 500)}"


def _is_second_form(mapping: IndexMapping, name: str) -> bool:
    """Return whether a field only stores the values of another field in a second form."""
    parent = mapping.fields.get(name.rpartition(".")[0])
    return parent is not None and parent.type not in ("object", "nested")


def _vectors(mapping: IndexMapping) -> Iterator[str]:
    for name, held in mapping.fields.items():
        if held.type == "semantic_text":
            yield f"# vectors: {{field: {_yaml(name)}}}"
        elif held.type in ("dense_vector", "knn_vector"):
            size = held.settings.get("dims") or held.settings.get("dimension")
            yield f"# vectors: {{field: {_yaml(name)}, embeddings: …}}  # of {size} dimensions"


def _attributes(counts: dict[str, dict[str, int]]) -> Iterator[str]:
    yield "attributes:"
    taken: set[str] = set()
    for field, values in counts.items():
        last = field.removesuffix(".keyword").rpartition(".")[2]
        name = re.sub(r"[^A-Za-z0-9_-]+", "_", last)[:60]
        name = name if re.match(r"[A-Za-z_]", name) else f"a_{name}"
        name = f"{name}_{len(taken)}" if name in taken else name
        groups = {value: count for value, count in values.items() if value not in ("", UNKNOWN)}
        if len(groups) < 2:
            continue
        taken.add(name)
        yield f"  {_yaml(name)}:"
        yield f"    field: {_yaml(field)}"
        yield "    groups:"
        for value, count in groups.items():
            yield f"      {_yaml(value)}: [{_yaml(value)}]  # {count:,} documents"
    if not taken:
        yield "  # No field has few values. Name a field yourself, or a file of labels:"
        yield "  # gender: {field: …, groups: {female: [F], male: [M]}}"


def _ranges(mapping: IndexMapping, counts: dict[str, dict[str, int]]) -> Iterator[str]:
    others = [
        name
        for name, held in mapping.fields.items()
        if held.type in NUMBERS | DATES and held.doc_values and name not in counts
    ]
    if others:
        shown = one_line(", ".join(others), 300)
        yield f"# Numbers and dates take ranges, as groups: {{young: {{gte: 1980}}}}: {shown}"


def _yaml(value: object) -> str:
    """Return a value as one line of YAML; JSON is valid YAML."""
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", value)
    if plain and str(value).lower() not in YAML_WORDS:
        return str(value)
    return json.dumps(value, ensure_ascii=False)
