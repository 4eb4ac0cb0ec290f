"""Drafting a source from the mapping of an index."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from fairqr.base.errors import SourceError, one_line
from fairqr.retrieval.engines.elasticsearch.connection import Connection
from fairqr.retrieval.engines.elasticsearch.mapping import (
    DATES,
    NUMBERS,
    TEXTS,
    IndexMapping,
    path_of,
    read_index,
)
from fairqr.retrieval.engines.elasticsearch.server import AnotherProductError, Server
from fairqr.retrieval.sources.schema import UNKNOWN, as_text
from fairqr.retrieval.texts.words import words_in

YAML_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
TITLES = ("title", "headline", "heading", "subject", "label")
PERSONS = ("name", "full_name", "fullname", "display_name")
"""Titles of last choice: a person is shown by a name, but other documents have a better title."""
PART_OF_NAME = re.compile(r"(?:^|_)(?:first|given|last|family|middle|nick|sur|user)_?name$")
BODIES = ("text", "body", "content", "description", "bio", "biography", "summary", "abstract")
ABOUT_PEOPLE = re.compile(
    r"(?:^|[._-])(?:gender|sex|age|birth\w*|ethnic\w*|race|religio\w*|national\w*|origin|country"
    r"|continent|region|languages?|disab\w*|pronouns?)(?:$|[._-])"
)
"""Names of fields that exposure is often measured over."""
FLAGS = frozenset({"true", "false", "yes", "no", "y", "n", "t", "f", "0", "1"})
LONGEST_TITLE = 30
SHORTEST_BODY = 3
"""In words, on average."""
SAMPLED = 50
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
            from fairqr.retrieval.engines.elasticsearch.opensearch import OpenSearchServer

            await server.aclose()
            server, engine = OpenSearchServer(connection), "opensearch"
            mapping = await read_index(server, index)
        texts = [
            name
            for name, held in mapping.fields.items()
            if held.type in TEXTS and not held.nested and not _is_second_form(mapping, name)
        ]
        if not texts:
            raise SourceError(
                f"The index '{one_line(index, 100)}' has no text field to search; name another "
                "index."
            )
        lengths, counts, middles = await _measured(server, index, mapping, texts)
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
        *_searched(texts, lengths, counts, mapping),
        *_vectors(mapping),
        *_attributes(counts, mapping),
        *_ranges(middles, counts),
    ]
    return "\n".join(lines) + "\n"


def _is_countable(mapping: IndexMapping, name: str) -> bool:
    held = mapping.fields[name]
    is_alias = held.settings.get("type") == "alias"
    return held.type in COUNTABLE and held.doc_values and not held.other_types and not is_alias


async def _measured(
    server: Server, index: str, mapping: IndexMapping, texts: list[str]
) -> tuple[dict[str, float], dict[str, dict[str, int]], dict[str, str]]:
    """Ask for what the mapping does not say, in one request.

    Returns:
        The average words of each text field; the values of each field that has few, with the number
        of documents for each; and the median of each field of numbers or dates.
    """
    names = [name for name in mapping.fields if _is_countable(mapping, name)][:MOST_FIELDS]
    ranged = [
        name
        for name, held in mapping.fields.items()
        if held.type in NUMBERS | DATES and held.doc_values and not held.other_types
    ][:MOST_FIELDS]
    bodies: list[dict[str, Any]] = [
        {"size": SAMPLED, "_source": False, "fields": texts[:MOST_FIELDS]}
    ]
    for name in names:
        values: dict[str, Any] = {"terms": {"field": name, "size": FEW_VALUES + 1}}
        if mapping.fields[name].nested:
            values["aggs"] = {"documents": {"reverse_nested": {}}}
        bodies.append(_aggregation(mapping, name, values))
    for name in ranged:
        bodies.append(
            _aggregation(mapping, name, {"percentiles": {"field": name, "percents": [50]}})
        )
    lines = [line for body in bodies for line in ({}, {**body, "track_total_hits": False})]
    answer = await server.request("POST", f"{path_of(index)}/_msearch", body=lines)
    sample, *parts = answer["responses"]
    found = [
        part.get("aggregations", {}).get("nested", part.get("aggregations", {})).get("found", {})
        for part in parts
    ]
    counts = {}
    for name, part in zip(names, found, strict=False):
        buckets = part.get("buckets", [])
        if 2 <= len(buckets) <= FEW_VALUES:
            counts[name] = {
                as_text(bucket.get("key_as_string", bucket["key"])): bucket.get(
                    "documents", bucket
                )["doc_count"]
                for bucket in buckets
            }
    middles = {}
    for name, part in zip(ranged, found[len(names) :], strict=True):
        values = part.get("values", {})
        if values.get("50.0") is not None:
            is_date = mapping.fields[name].type in DATES
            middles[name] = str(values.get("50.0_as_string"))[:10] if is_date else _rounded(values)
    return _lengths(sample, texts), counts, middles


def _aggregation(mapping: IndexMapping, name: str, found: dict[str, Any]) -> dict[str, Any]:
    aggregations: dict[str, Any] = {"found": found}
    if nested := mapping.fields[name].nested:
        aggregations = {"nested": {"nested": {"path": nested}, "aggs": aggregations}}
    return {"size": 0, "aggs": aggregations}


def _rounded(values: dict[str, float]) -> str:
    return f"{values['50.0']:.2f}".rstrip("0").rstrip(".")


def _lengths(sample: dict[str, Any], texts: list[str]) -> dict[str, float]:
    """Return the average words of each text field that a sample of documents has."""
    hits = [hit.get("fields", {}) for hit in sample.get("hits", {}).get("hits", [])]
    lengths = {}
    for name in texts:
        held = [" ".join(map(str, hit[name])) for hit in hits if name in hit]
        if held:
            lengths[name] = sum(len(words_in(text)) for text in held) / len(held)
    return lengths


def _searched(
    texts: list[str],
    lengths: dict[str, float],
    counts: dict[str, dict[str, int]],
    mapping: IndexMapping,
) -> Iterator[str]:
    """Yield the title and the texts, and examples of what may be searched otherwise."""
    ranked = [name for name in texts if _rank_of_title(name) < len(TITLES + PERSONS)]
    short = [name for name in ranked if lengths.get(name, 0) <= LONGEST_TITLE]
    title = min(short, key=_rank_of_title, default=None)
    others = [name for name in texts if name != title]
    bodies = [
        name
        for name in others
        if lengths.get(name, math.inf) >= SHORTEST_BODY and not _is_of_a_person(name)
    ] or others
    bodies.sort(key=lambda name: (-lengths.get(name, 0), _place(name, BODIES), texts.index(name)))
    kept, left = bodies[:MOST_TEXTS], [n for n in others if n not in bodies[:MOST_TEXTS]]
    if title:
        yield f"title: {_yaml(title)}"
    yield f"text: {_yaml(kept)}"
    if left:
        yield f"# Other texts: {one_line(', '.join(left), 500)}"
    best = [name for name in (title, *kept[:1]) if name]
    fields = [f"{best[0]}^2", *best[1:]] if title else best
    yield "# Delete the '# ' before what you need. The fields to search, with their weights:"
    yield f"# query: {{fields: {json.dumps(fields, ensure_ascii=False)}}}"
    yield "# Or, in place of 'query', your own request:"
    matches = [{"match": {name: "{{query}}"}} for name in best]
    yield f"# body: {json.dumps({'query': {'bool': {'should': matches}}}, ensure_ascii=False)}"
    yield "# Only documents that your users may find:"
    flags = [name for name in counts if _is_flag(name, counts, mapping)]
    wanted: dict[str, Any] = {"exists": {"field": best[0]}}
    if chosen := next((name for name in flags if not mapping.fields[name].nested), None):
        value = True if "true" in counts[chosen] else max(counts[chosen])
        wanted = {"term": {chosen: value}}
    yield f"# filter: {json.dumps(wanted, ensure_ascii=False)}"


def _rank_of_title(name: str) -> int:
    last = name.rpartition(".")[2].lower()
    if last in PERSONS:
        return len(TITLES) + PERSONS.index(last)
    ends = [place for place, one in enumerate(TITLES) if last == one or last.endswith(f"_{one}")]
    return min(ends, default=len(TITLES + PERSONS))


def _is_of_a_person(name: str) -> bool:
    last = name.rpartition(".")[2].lower()
    return last in PERSONS or PART_OF_NAME.search(last) is not None


def _place(name: str, names: tuple[str, ...]) -> int:
    last = name.rpartition(".")[2].lower()
    return names.index(last) if last in names else len(names)


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


def _is_flag(name: str, counts: dict[str, dict[str, int]], mapping: IndexMapping) -> bool:
    values = {value.lower() for value in counts[name]}
    return mapping.fields[name].type == "boolean" or (len(values) == 2 and values <= FLAGS)


def _attributes(counts: dict[str, dict[str, int]], mapping: IndexMapping) -> Iterator[str]:
    """Yield the attributes: first what is often measured, then few values first, flags last."""

    def rank(field: str) -> tuple[bool, bool, bool, int]:
        return (
            _is_flag(field, counts, mapping),
            not ABOUT_PEOPLE.search(field.lower()),
            mapping.fields[field].type in NUMBERS,
            len(counts[field]),
        )

    yield "attributes:"
    taken: set[str] = set()
    for field in sorted(counts, key=rank):
        values, name = counts[field], _name_of(field)
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


def _ranges(middles: dict[str, str], counts: dict[str, dict[str, int]]) -> Iterator[str]:
    """Yield numbers and dates as attributes in comments, each cut at its median."""
    ranged = [name for name in middles if name not in counts]
    if not ranged:
        return
    yield "# Ranges of numbers and dates are groups, too; choose where to cut:"
    for field in ranged:
        at = middles[field]
        value = json.dumps(at) if not re.fullmatch(r"-?[0-9.]+", at) else at
        groups = f"{{lower: {{lt: {value}}}, upper: {{gte: {value}}}}}"
        name = _yaml(_name_of(field))
        yield f"#   {name}: {{field: {_yaml(field)}, groups: {groups}}}"


def _name_of(field: str) -> str:
    last = field.removesuffix(".keyword").rpartition(".")[2]
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", last)[:60]
    return name if re.match(r"[A-Za-z_]", name) else f"a_{name}"


def _yaml(value: object) -> str:
    """Return a value as one line of YAML; JSON is valid YAML."""
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", value)
    if plain and str(value).lower() not in YAML_WORDS:
        return str(value)
    return json.dumps(value, ensure_ascii=False)
