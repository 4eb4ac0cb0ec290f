"""The fields of an index, as its mapping describes them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any

from fairqr.base.errors import SourceError, nearest_names, one_line
from fairqr.retrieval.engines.elasticsearch.client import SearchServer
from fairqr.retrieval.sources.dates import DEFAULT_FORMATS

Hit = Mapping[str, Any]
"""A document in a response of the server."""

NUMBERS = frozenset({"byte", "double", "float", "half_float", "integer", "long", "short"})
NUMBERS |= {"scaled_float", "unsigned_long"}
DATES = frozenset({"date", "date_nanos"})
TEXTS = frozenset({"annotated_text", "match_only_text", "search_as_you_type", "text"})

COLUMNS = frozenset({"boolean", "constant_keyword", "ip", "keyword", "version", "wildcard"})
COLUMNS |= NUMBERS | DATES
"""The types that have columns, unless the mapping says otherwise."""

AS_WRITTEN = DATES | (NUMBERS - {"half_float", "scaled_float"}) | {"boolean", "ip", "keyword"}
"""The types whose values the server does not change."""

CHANGES = frozenset({"normalizer", "null_value", "script"})
"""The settings by which it does, or makes values."""

WORDS = TEXTS | {"constant_keyword", "flattened", "keyword", "wildcard"}
VECTORS = frozenset({"dense_vector", "knn_vector"})
WITHOUT_VALUES = TEXTS | {"nested", "object"}
DEFAULT_WINDOW = 10_000
"""The most hits that one search may return, if the settings say nothing."""

KEYWORDS = frozenset({"constant_keyword", "keyword", "version", "wildcard"})
"""The types whose values are texts as they are."""


@dataclass(frozen=True, slots=True)
class MappedField:
    """One field.

    Attributes:
        type: The type in the mapping; ``object`` for a field that only contains others.
        by_column: Whether a search can return its values from columns, which are fast to read.
        nested: Whether it belongs to nested documents.
        settings: The field's entry in the mapping.
        is_made: Whether its values are made by the server and stand in no ``_source``, as those of
            a runtime field.
    """

    type: str
    by_column: bool
    nested: bool
    settings: Mapping[str, Any]
    is_made: bool = False

    @property
    def is_in_source(self) -> bool:
        """Whether ``_source`` has the same values as columns, dates in their own format."""
        is_changed = self.is_made or not CHANGES.isdisjoint(self.settings)
        return self.type in AS_WRITTEN and not is_changed


@dataclass(frozen=True, slots=True)
class IndexMapping:
    """The fields of an index, an alias or a pattern.

    Attributes:
        index: Its name.
        fields: The fields by their full names.
        window: The most hits that one search may return.
        fingerprint: Changes when an index or its mapping changes.
        common: The names of fields that all its indices have.
        sources: What each index keeps in ``_source``, as its mapping says.
    """

    index: str
    fields: Mapping[str, MappedField]
    window: int
    fingerprint: str
    common: frozenset[str] = frozenset()
    sources: Sequence[Mapping[str, Any]] = ()

    def field(self, name: str) -> MappedField | None:
        """Return a field, or a key of one that is flattened; None if there is neither."""
        if name in self.fields:
            return self.fields[name]
        levels = name.split(".")
        for depth in range(1, len(levels)):
            parent = self.fields.get(".".join(levels[:depth]))
            if parent is not None and parent.type == "flattened":
                return _key_of_flattened(parent)
        return None

    def keeps(self, name: str) -> bool:
        """Return whether a field can be read from the documents: they are kept, and it in them."""
        field = self.field(name)
        path = str(field.settings.get("path", name)) if field else name
        return all(_is_kept(path, settings) for settings in self.sources)

    def column_of(self, name: str) -> str | None:
        """Return the column that has the values of a text as they are, or None."""
        text = self.fields.get(name)
        if text is None:
            return None
        path = text.settings.get("path", name)
        parts = [f"{path}.{part}" for part in text.settings.get("fields", {})]
        for column in (name, *parts):
            field = self.fields[column]
            is_text = field.type in KEYWORDS and "normalizer" not in field.settings
            if is_text and field.by_column and column in self.common:
                return column
        return None

    def date_formats(self) -> dict[str, str]:
        """Return how ``_source`` writes the dates of each field of dates."""
        return {
            name: str(field.settings.get("format", DEFAULT_FORMATS))
            for name, field in self.fields.items()
            if field.type in DATES
        }

    def require(self, name: str, purpose: str, kinds: frozenset[str] | None = None) -> MappedField:
        """Return a field.

        Args:
            name: Its name.
            purpose: What needs it, for the message: ``the id``.
            kinds: The types that it may have; by default all but those of texts and objects.

        Raises:
            SourceError: There is no such field, or it has another type.
        """
        field = self.field(name)
        if field is None:
            hint = nearest_names(name, self.fields) or "correct its name."
            problem = f"'{self.index}' has no field '{one_line(name, 100)}' for {purpose}"
            raise SourceError(f"{problem}; {hint}")

        has_type = field.type not in WITHOUT_VALUES if kinds is None else field.type in kinds
        may_be_nested = kinds is VECTORS
        if not has_type or (field.nested and not may_be_nested):
            hint = self._keyword_below(name) or "another field"
            position = " in nested documents" if field.nested else ""
            raise SourceError(
                f"The field '{name}' of type {field.type}{position} cannot be {purpose}; "
                f"name {hint}."
            )
        return field

    def _keyword_below(self, name: str) -> str:
        """Return the first keyword inside a field, in quotes; empty if there is none."""
        for key, field in self.fields.items():
            is_inside = key.startswith(f"{name}.")
            if is_inside and field.type == "keyword" and not field.nested:
                return f"'{key}'"
        return ""


async def read_index(server: SearchServer, index: str) -> IndexMapping:
    """Ask a server for the mapping of an index.

    Raises:
        IndexNotFoundError: There is no such index.
        IndexUnavailableError: The server cannot be reached, or is no such server.
    """
    filter_path = "*.mappings,*.settings.index.max_result_window,*.settings.index.uuid"
    answer = await server.ask("indices.get", index=index, filter_path=filter_path)
    if not answer:
        raise server.no_index(index)

    fields: dict[str, MappedField] = {}
    windows = []
    names = []
    sources = []
    try:
        for state in answer.values():
            settings = state.get("settings", {}).get("index", {})
            windows.append(int(settings.get("max_result_window", DEFAULT_WINDOW)))
            mappings = state.get("mappings", {})
            fields_of_index = _fields(mappings)
            names.append(frozenset(fields_of_index))
            sources.append(mappings.get("_source", {}))
            # If indices of a pattern differ, the first one counts.
            fields = {**fields_of_index, **fields}
    except (AttributeError, TypeError, ValueError):  # The JSON is not a mapping.
        raise server.another_product() from None
    fingerprint = sha256(json.dumps([index, {**answer}]).encode()).hexdigest()
    common = frozenset.intersection(*names)
    return IndexMapping(index, fields, min(windows), fingerprint, common, sources)


def _key_of_flattened(parent: MappedField) -> MappedField:
    """Return a key of a flattened field as a field."""
    has_column = parent.settings.get("doc_values", True) is not False
    settings = {}
    if "index" in parent.settings:
        settings["index"] = parent.settings["index"]
    return MappedField("keyword", has_column, parent.nested, settings, is_made=True)


def _is_kept(name: str, settings: Mapping[str, Any]) -> bool:
    """Return whether a field is in ``_source``, by the settings of that."""
    levels = name.split(".")
    names = [".".join(levels[:depth]) for depth in range(1, len(levels) + 1)]

    def is_among(patterns: Sequence[str]) -> bool:
        return any(fnmatchcase(*pair) for pair in itertools.product(names, patterns))

    is_enabled = settings.get("enabled", True) is not False
    is_included = is_among(settings.get("includes") or ["*"])
    is_excluded = is_among(settings.get("excludes") or ())
    return is_enabled and is_included and not is_excluded


def _fields(mappings: Mapping[str, Any]) -> dict[str, MappedField]:
    """Return the fields of a mapping by their full names, aliases of fields as what they name."""
    fields = dict(_properties(mappings.get("properties", {}), "", False))
    for name, settings in _runtime_fields(mappings.get("runtime", {})):
        # A runtime field hides a mapped field of the same name.
        fields[name] = MappedField(str(settings.get("type")), True, False, settings, is_made=True)
    for name, field in fields.items():
        if field.type == "alias":
            target = fields.get(str(field.settings.get("path")), field)
            settings = {**target.settings, **field.settings}
            fields[name] = replace(target, settings=settings, is_made=True)
    return fields


def _runtime_fields(runtime: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the runtime fields of a mapping; a composite one contains others."""
    for name, settings in runtime.items():
        if settings.get("type") == "composite":
            for part, settings_of_part in settings.get("fields", {}).items():
                yield f"{name}.{part}", settings_of_part
        else:
            yield name, settings


def _properties(
    properties: Mapping[str, Any], prefix: str, nested: bool
) -> Iterator[tuple[str, MappedField]]:
    """Yield the fields of a part of a mapping, and those inside of them, by their full names."""
    for key, settings in properties.items():
        name = f"{prefix}{key}"
        kind = str(settings.get("type", "object"))
        by_column = kind in COLUMNS and settings.get("doc_values", True) is not False
        yield name, MappedField(kind, by_column and not nested, nested, settings)
        inside = nested or kind == "nested"
        yield from _properties(settings.get("properties", {}), f"{name}.", inside)
        yield from _properties(settings.get("fields", {}), f"{name}.", nested)
