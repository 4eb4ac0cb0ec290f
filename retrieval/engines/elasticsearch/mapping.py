"""The fields of an index: its mapping, and the ids and labels that we read, search and count.

Labels come with the hits. If a field has doc values (columns), we read those: they exist even if
``_source`` is not stored, and no document has to be opened and parsed. We read fields without doc
values with the ``fields`` option, which needs ``_source``. We read nothing in nested documents.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any

import numpy as np

from fairqr.base.errors import SourceError, nearest_names, one_line
from fairqr.retrieval.engines.elasticsearch.client import Body, SearchServer
from fairqr.retrieval.engines.engine import SearchEngine, lexical_of
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.sources.dates import DEFAULT_FORMATS
from fairqr.retrieval.sources.group_values import Range
from fairqr.retrieval.sources.label_values import as_text
from fairqr.retrieval.sources.schema import UNKNOWN, Attribute

Hit = Mapping[str, Any]

NUMBERS = frozenset({"byte", "double", "float", "half_float", "integer", "long", "short"})
NUMBERS |= {"scaled_float", "unsigned_long"}
DATES = frozenset({"date", "date_nanos"})
TEXTS = frozenset({"annotated_text", "match_only_text", "search_as_you_type", "text"})
COLUMNS = frozenset({"boolean", "constant_keyword", "ip", "keyword", "version", "wildcard"})
COLUMNS |= NUMBERS | DATES
AS_WRITTEN = DATES | (NUMBERS - {"half_float", "scaled_float"}) | {"boolean", "ip", "keyword"}
"""The types whose values the server does not change."""

CHANGES = frozenset({"normalizer", "null_value", "script"})
"""The settings by which it does, or makes values."""

WORDS = TEXTS | {"constant_keyword", "flattened", "keyword", "wildcard"}
VECTORS = frozenset({"dense_vector", "knn_vector"})
WITHOUT_VALUES = TEXTS | {"nested", "object"}
DEFAULT_WINDOW = 10_000

ALL: Body = {"match_all": {}}
NONE: Body = {"match_none": {}}
DAY = "strict_date_optional_time"
KEYWORDS = frozenset({"constant_keyword", "keyword", "version", "wildcard"})
NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d*[1-9])?")
"""A number as we write it; ``1_0``, ``1e1`` and ``10.0`` are not 10."""

MOST_LABELS = 60_000
"""How many distinct labels we count; by default a server returns up to 65,535 buckets."""

JOINED = (
    "String all = ''; if (doc.containsKey(params.field)) { for (value in doc[params.field]) "
    "{ all += value + params.end; } } return all;"
)


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
        found = self.fields.get(name)
        if found is not None:
            return found
        levels = name.split(".")
        for depth in range(1, len(levels)):
            above = self.fields.get(".".join(levels[:depth]))
            if above is not None and above.type == "flattened":
                has_column = above.settings.get("doc_values", True) is not False
                settings = {key: above.settings[key] for key in ("index",) if key in above.settings}
                return MappedField("keyword", has_column, above.nested, settings, is_made=True)
        return None

    def keeps(self, name: str) -> bool:
        """Return whether a field can be read from the documents: they are kept, and it in them."""
        held = self.field(name)
        path = str(held.settings.get("path", name)) if held else name
        return all(_is_kept(path, settings) for settings in self.sources)

    def column_of(self, name: str) -> str | None:
        """Return the column that has the values of a text as they are, or None."""
        title = self.fields.get(name)
        if title is None:
            return None
        path = title.settings.get("path", name)
        for column in (name, *(f"{path}.{part}" for part in title.settings.get("fields", {}))):
            held = self.fields[column]
            is_text = held.type in KEYWORDS and "normalizer" not in held.settings
            if is_text and held.by_column and column in self.common:
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
            SourceError: There is none, or it has another type.
        """
        found = self.field(name)
        if found is None:
            hint = nearest_names(name, self.fields) or "correct its name."
            said = f"'{self.index}' has no field '{one_line(name, 100)}' for {purpose}; {hint}"
            raise SourceError(said)
        unfit = found.type in WITHOUT_VALUES if kinds is None else found.type not in kinds
        if unfit or (found.nested and kinds is not VECTORS):
            inside = {key: own for key, own in self.fields.items() if key.startswith(f"{name}.")}
            below = [key for key, own in inside.items() if own.type == "keyword" and not own.nested]
            hint = f"'{below[0]}'" if below else "another field"
            place = " in nested documents" if found.nested else ""
            raise SourceError(
                f"The field '{name}' of type {found.type}{place} cannot be {purpose}; name {hint}."
            )
        return found


async def read_index(server: SearchServer, index: str) -> IndexMapping:
    """Ask a server for the mapping of an index.

    Raises:
        IndexNotFoundError: There is no such index.
        IndexUnavailableError: The server cannot be reached, or is no such server.
    """
    wanted = "*.mappings,*.settings.index.max_result_window,*.settings.index.uuid"
    answer = await server.ask("indices.get", index=index, filter_path=wanted)
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
            own = _fields(mappings)
            names.append(frozenset(own))
            sources.append(mappings.get("_source", {}))
            # If indices of a pattern differ, the first one counts.
            fields = {**own, **fields}
    except (AttributeError, TypeError, ValueError):  # The JSON is not a mapping.
        raise server.another_product() from None
    fingerprint = sha256(json.dumps([index, {**answer}]).encode()).hexdigest()
    common = frozenset.intersection(*names)
    return IndexMapping(index, fields, min(windows), fingerprint, common, sources)


def _is_kept(name: str, settings: Mapping[str, Any]) -> bool:
    """Return whether a field is in ``_source``, by the settings of that."""
    levels = name.split(".")
    names = [".".join(levels[:depth]) for depth in range(1, len(levels) + 1)]

    def is_among(patterns: Sequence[str]) -> bool:
        return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)

    included = settings.get("includes") or ["*"]
    is_enabled = settings.get("enabled", True) is not False
    return is_enabled and is_among(included) and not is_among(settings.get("excludes") or ())


def _fields(mappings: Mapping[str, Any]) -> dict[str, MappedField]:
    found = dict(_properties(mappings.get("properties", {}), "", False))
    for name, settings in _runtime_fields(mappings.get("runtime", {})):
        # A runtime field hides a mapped field of the same name.
        found[name] = MappedField(str(settings.get("type")), True, False, settings, is_made=True)
    for name, held in found.items():
        if held.type == "alias":
            target = found.get(str(held.settings.get("path")), held)
            settings = {**target.settings, **held.settings}
            found[name] = replace(target, settings=settings, is_made=True)
    return found


def _runtime_fields(runtime: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the runtime fields of a mapping; a composite one holds others."""
    for name, settings in runtime.items():
        if settings.get("type") == "composite":
            parts = settings.get("fields", {})
            yield from ((f"{name}.{part}", parts[part]) for part in parts)
        else:
            yield name, settings


def _properties(
    properties: Mapping[str, Any], prefix: str, nested: bool
) -> Iterator[tuple[str, MappedField]]:
    for key, settings in properties.items():
        name = f"{prefix}{key}"
        kind = str(settings.get("type", "object"))
        by_column = kind in COLUMNS and settings.get("doc_values", True) is not False
        yield name, MappedField(kind, by_column and not nested, nested, settings)
        inside = nested or kind == "nested"
        yield from _properties(settings.get("properties", {}), f"{name}.", inside)
        yield from _properties(settings.get("fields", {}), f"{name}.", nested)


@dataclass(frozen=True, slots=True)
class LabelField:
    """The field of an attribute.

    Attributes:
        attribute: The attribute that it labels.
        mapped: The field in the mapping.
    """

    attribute: Attribute
    mapped: MappedField

    @property
    def name(self) -> str:
        """The name of the field."""
        return self.attribute.field

    def labels(self, hits: Sequence[Hit]) -> list[object]:
        """Return the label of each hit: one value, several, or None."""
        found = [hit.get("fields", {}).get(self.name, []) for hit in hits]
        return [values[0] if len(values) == 1 else values or None for values in found]

    def query(self, group: str) -> Body | None:
        """Return the query for documents with a share of a group.

        None if the server cannot decide which these are. It never can for ``unknown``: it finds
        documents without a label, but not those with some values that belong to a group and some
        that do not.
        """
        values, kind = self.attribute.values.get(group, (group,)), self.mapped.type
        settings = self.mapped.settings
        if settings.get("index") is False or "normalizer" in settings:
            return None  # The server would misread the values, or cannot search them.
        if isinstance(values, Range):
            return _range_query(self.name, values, kind)
        texts = self.attribute.spellings(group)
        if kind in KEYWORDS:
            return {"terms": {self.name: texts}}
        if kind in NUMBERS:
            return {"terms": {self.name: [text for text in texts if NUMBER.fullmatch(text)]}}
        if kind == "boolean":
            return {"terms": {self.name: [text for text in texts if text in ("true", "false")]}}
        return None

    @property
    def _counts_ranges(self) -> bool:
        """Whether the server counts ranges; a field may have millions of values in them."""
        values = self.attribute.values
        are_ranges = bool(values) and all(isinstance(it, Range) for it in values.values())
        return are_ranges and all(map(self.query, values))

    @property
    def countable(self) -> bool:
        """Whether the server can count the labels: it joins dates in another form than hits.

        Those of an open attribute may be too many to be counted.
        """
        if self.attribute.open:
            return False
        return self.mapped.by_column and (self._counts_ranges or self.mapped.type not in DATES)

    def counted(self) -> Body:
        """Return the aggregation that counts the documents with each label, values joined."""
        if self._counts_ranges:
            return {
                "groups": {"filters": {"filters": [*map(self.query, self.attribute.groups)]}},
                "labelled": {"filter": {"exists": {"field": self.name}}},
                "values": {"value_count": {"field": self.name}},
            }
        script = {"source": JOINED, "params": {"field": self.name, "end": "\0"}}
        return {"labels": {"terms": {"script": script, "size": MOST_LABELS}}}

    def shares(self, answer: Mapping[str, Any]) -> FloatArray | None:
        """Return the mean membership in each group, from the answer to :meth:`counted`.

        None if the server could not count the labels, or not all of them.
        """
        counted = answer.get("aggregations", {})
        if "groups" in counted:
            return self._shares_of_ranges(counted, answer["hits"]["total"]["value"])
        found = counted.get("labels", {})
        if found.get("sum_other_doc_count", 1):
            return None
        read = json.loads if self.mapped.type in NUMBERS else str
        labels = [[*map(read, it["key"].split("\0")[:-1])] for it in found["buckets"]]
        rows = [self.attribute.membership(label, strict=False) for label in labels]
        counts = np.array([bucket["doc_count"] for bucket in found["buckets"]])
        table = np.array(rows).reshape(len(rows), len(self.attribute.universe))
        return np.asarray(counts @ table / max(1, counts.sum()))

    def _shares_of_ranges(self, counted: Mapping[str, Any], total: int) -> FloatArray | None:
        """Return the same of counts by range; None if some documents have several values."""
        if counted["values"]["value"] > counted["labelled"]["doc_count"]:
            return None
        counts = [bucket["doc_count"] for bucket in counted["groups"]["buckets"]]
        if self.attribute.universe[-1] == UNKNOWN:
            counts.append(total - sum(counts))
        return np.array(counts) / max(1, total)


class HitReader:
    """What we request for each hit, and how we read it.

    Attributes:
        id: The field of ids.
        labels: The label fields.
        request: The parts of a search request that ask for them.
    """

    def __init__(self, id_: str, attributes: Sequence[Attribute], mapping: IndexMapping) -> None:
        """Plan the reading of an index.

        Args:
            id_: The field of ids.
            attributes: The attributes that read a field.
            mapping: The mapping of the index.

        Raises:
            SourceError: A field is missing, or cannot be read as an id or a label.
        """
        self.id, self._index, asked = id_, mapping.index, dict[str, MappedField]()
        self.labels = [
            LabelField(it, mapping.require(it.field, f"the label of '{it.name}'"))
            for it in attributes
        ]
        asked |= {label.name: label.mapped for label in self.labels}
        if id_ != "_id":
            asked[id_] = mapping.require(id_, "the id")
        columns, fields = list[Body](), list[Body]()
        for name, mapped in asked.items():
            wanted = {"field": name, **({"format": DAY} if mapped.type in DATES else {})}
            (columns if mapped.by_column else fields).append(wanted)
        self.request: Body = {"_source": False, "docvalue_fields": columns, "fields": fields}

    def ids(self, hits: Sequence[Hit]) -> list[str]:
        """Return the ids of hits.

        Raises:
            SourceError: A hit has no id or several, or two hits have the same id.
        """
        ids = [self.id_of(hit) for hit in hits]
        if len({*ids}) < len(ids):
            twice = next(id_ for id_ in ids if ids.count(id_) > 1)
            self.refuse_repeated(f"The id '{one_line(twice, 80)}'")
        return ids

    def id_of(self, hit: Hit) -> str:
        """Return the id of a hit; for the error see :meth:`ids`."""
        if self.id == "_id":
            return str(hit["_id"])
        values = hit.get("fields", {}).get(self.id, [])
        if len(values) != 1:
            raise SourceError(
                f"A document of '{hit['_index']}' has {len(values) or 'no'} values in its id field "
                f"'{self.id}'; set 'id' to a field that has one value in each document."
            )
        return as_text(values[0])

    def values(self, hits: Sequence[Hit]) -> dict[str, list[object]]:
        """Return the label of each hit, by attribute."""
        return {label.attribute.name: label.labels(hits) for label in self.labels}

    def among(self, ids: Sequence[str]) -> Body:
        """Return the query for documents with these ids."""
        return {"ids": {"values": ids}} if self.id == "_id" else {"terms": {self.id: ids}}

    def refuse_repeated(self, which: str) -> None:
        """Refuse documents that share an id.

        Raises:
            SourceError: Always.
        """
        raise SourceError(
            f"{which} belongs to two documents of '{self._index}'; set 'id' to a field whose "
            "values are unique, or narrow 'index'."
        )


def reader_of(engine: SearchEngine) -> HitReader | None:
    """Return what reads the hits of an attached index; None for an engine of another kind."""
    reader: HitReader | None = getattr(lexical_of(engine), "reader", None)
    return reader


def warnings_of(answer: Mapping[str, Any], index: str) -> list[str]:
    """Return warnings about a search response that is only partial."""
    shards = answer.get("_shards", {})
    if shards.get("failed"):
        return [f"{shards['failed']} of {shards['total']} shards of '{index}' did not answer."]
    if answer.get("timed_out"):
        return [f"The search of '{index}' hit its time limit before it was complete."]
    return []


def _range_query(name: str, wanted: Range, kind: str) -> Body | None:
    """Return the query for values in a range, or None if the server cannot compare them.

    Dates are compared by year. The server rounds a bound to the start or the end of its year,
    whichever the comparison needs.
    """
    bounds: dict[str, Any] = wanted.model_dump(exclude_none=True)
    if kind in NUMBERS:
        return {"range": {name: bounds}}
    if kind not in DATES:
        return None
    for side, bound in bounds.items():
        year = math.ceil(bound) if side in ("gte", "lt") else math.floor(bound)
        bounds[side] = f"{min(max(year, 0), 9999):04}-01-01||/y"
    return {"range": {name: {**bounds, "format": "uuuu-MM-dd"}}}
