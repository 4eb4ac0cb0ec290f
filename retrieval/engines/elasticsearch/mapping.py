"""The fields of an index, read from its mapping."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from fairqr.retrieval.engines.elasticsearch.server import Server

NUMBERS = frozenset({"byte", "double", "float", "half_float", "integer", "long", "short"})
NUMBERS |= {"scaled_float", "unsigned_long"}
DATES = frozenset({"date", "date_nanos"})
TEXTS = frozenset({"annotated_text", "match_only_text", "search_as_you_type", "text"})
WITH_DOC_VALUES = frozenset({"boolean", "constant_keyword", "ip", "keyword", "version", "wildcard"})
WITH_DOC_VALUES |= NUMBERS | DATES
DEFAULT_WINDOW = 10_000


@dataclass(frozen=True, slots=True)
class MappedField:
    """One field.

    Attributes:
        type: The type in the mapping; ``object`` for a field that only contains others.
        doc_values: Whether its values are stored in columns, which are fast to read.
        nested: The path of the nested documents that it belongs to; empty if it is not nested.
        settings: The field's entry in the mapping.
        other_types: Its types in other indices of the pattern, if they differ.
    """

    type: str
    doc_values: bool = False
    nested: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict, compare=False, hash=False)
    other_types: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class IndexMapping:
    """The fields of an index, an alias or a pattern.

    Attributes:
        indices: The names of the indices.
        fields: The fields by their full names.
        has_source: Whether all of them store the documents as they were sent.
        window: The most hits that one search may return.
        fingerprint: Changes when an index or its mapping changes.
    """

    indices: tuple[str, ...]
    fields: Mapping[str, MappedField]
    has_source: bool
    window: int
    fingerprint: str

    def find(self, name: str) -> MappedField | None:
        """Return a field, or None. Any name below a flattened field counts as a field."""
        if found := self.fields.get(name):
            return found
        parent = name.rpartition(".")[0]
        while parent:
            held = self.fields.get(parent)
            if held is not None and held.type in ("flattened", "flat_object"):
                return MappedField("keyword", held.type == "flattened", held.nested)
            parent = parent.rpartition(".")[0]
        return None

    def below(self, name: str) -> dict[str, MappedField]:
        """Return the fields inside an object, by the rest of their names."""
        start = f"{name}."
        return {
            key[len(start) :]: held
            for key, held in self.fields.items()
            if key[: len(start)] == start
        }

    def matching(self, pattern: str) -> list[str]:
        """Return the names of the fields that match a name with ``*``."""
        if "*" not in pattern:
            return [pattern] if self.find(pattern) else []
        return [name for name in self.fields if fnmatchcase(name, pattern)]

    def keyword_of(self, name: str) -> str | None:
        """Return a keyword field with the values of a text field, if there is one."""
        return next(
            (f"{name}.{rest}" for rest, held in self.below(name).items() if held.type == "keyword"),
            None,
        )


def path_of(index: str) -> str:
    """Return the start of the path of requests to an index, an alias, or a pattern."""
    return f"/{quote(index, safe=',*')}"


async def read_index(server: Server, index: str) -> IndexMapping:
    """Ask a server for the mapping of an index.

    Raises:
        IndexNotFoundError: There is no such index.
    """
    wanted = "*.mappings,*.settings.index.max_result_window"
    # Do not wait four times for a server that is not there.
    total = 2 * server.connection.timeout
    answer = await server.request(
        "GET", path_of(index), params={"filter_path": wanted}, total=total
    )
    if not answer:
        raise server.no_index(index)
    try:
        return read_mapping(answer)
    except (AttributeError, TypeError, ValueError):  # The JSON is not a mapping.
        raise server.another_product() from None


def read_mapping(answer: Mapping[str, Any]) -> IndexMapping:
    """Read the server's response about the indices behind a name.

    Args:
        answer: The ``mappings`` and ``settings`` of each index.
    """
    fields: dict[str, MappedField] = {}
    window, has_source = DEFAULT_WINDOW, True
    for place, state in enumerate(answer.values()):
        mappings = state.get("mappings", {})
        settings = state.get("settings", {}).get("index", {})
        limit = int(settings.get("max_result_window", DEFAULT_WINDOW))
        window = min(window, limit) if place else limit
        has_source &= str(mappings.get("_source", {}).get("enabled", True)) != "False"
        for name, found in _fields(mappings):
            fields[name] = _merged(fields[name], found) if name in fields else found
    described = json.dumps({name: state.get("mappings") for name, state in answer.items()})
    return IndexMapping(
        indices=tuple(sorted(answer)),
        fields=fields,
        has_source=has_source,
        window=window,
        fingerprint=hashlib.sha256(described.encode()).hexdigest(),
    )


def _merged(one: MappedField, other: MappedField) -> MappedField:
    types = {one.type, *one.other_types, other.type} - {one.type}
    both = one.doc_values and other.doc_values
    return replace(one, doc_values=both, other_types=frozenset(types))


def _fields(mappings: Mapping[str, Any]) -> Iterator[tuple[str, MappedField]]:
    found = dict(_properties(mappings.get("properties", {}), "", ""))
    for name, settings in mappings.get("runtime", {}).items():
        # A runtime field hides a mapped field of the same name.
        for key, held in (settings.get("fields") or {"": settings}).items():
            found[f"{name}.{key}" if key else name] = MappedField(
                str(held.get("type", "keyword")), True, "", {**held, "runtime": True}
            )
    for name, held in found.items():
        if held.type == "alias":
            target = found.get(str(held.settings.get("path")), held)
            yield name, replace(target, settings={**target.settings, **held.settings})
        else:
            yield name, held


def _properties(
    properties: Mapping[str, Any], prefix: str, nested: str
) -> Iterator[tuple[str, MappedField]]:
    for key, settings in properties.items():
        name = f"{prefix}{key}"
        kind = str(settings.get("type", "object"))
        has_columns = kind in WITH_DOC_VALUES and settings.get("doc_values", True) is not False
        yield name, MappedField(kind, has_columns, nested, settings)
        below = name if kind == "nested" else nested
        yield from _properties(settings.get("properties", {}), f"{name}.", below)
        yield from _properties(settings.get("fields", {}), f"{name}.", nested)
