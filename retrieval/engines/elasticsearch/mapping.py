"""The fields of an index: its mapping, and the ids and labels that we read, search and count.

Labels come with the hits. If a field has doc values (columns), we read those: they exist even if
``_source`` is not stored, and no document has to be opened and parsed. We read nested fields and
fields without doc values with the ``fields`` option, which needs ``_source``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from difflib import get_close_matches
from hashlib import sha256
from typing import Any

import numpy as np

from fairqr.base.errors import SourceError, one_line
from fairqr.retrieval.engines.elasticsearch.client import Body, Server
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.sources.schema import UNKNOWN, Attribute, Range, as_text
from fairqr.retrieval.sources.source import ElasticsearchSource

Hit = Mapping[str, Any]

NUMBERS = frozenset({"byte", "double", "float", "half_float", "integer", "long", "short"})
NUMBERS |= {"scaled_float", "unsigned_long"}
DATES = frozenset({"date", "date_nanos"})
TEXTS = frozenset({"annotated_text", "match_only_text", "search_as_you_type", "text"})
COLUMNS = frozenset({"boolean", "constant_keyword", "ip", "keyword", "version", "wildcard"})
COLUMNS |= NUMBERS | DATES
WORDS = TEXTS | {"constant_keyword", "flattened", "keyword", "wildcard"}
VECTORS = frozenset({"dense_vector", "knn_vector"})
DEFAULT_WINDOW = 10_000

ALL: Body = {"match_all": {}}
NONE: Body = {"match_none": {}}
DAY = "strict_date_optional_time"
KEYWORDS = frozenset({"constant_keyword", "keyword", "version", "wildcard"})
NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d*[1-9])?")
"""A number as we write it; ``1_0``, ``1e1`` and ``10.0`` are not 10."""

MOST_VALUES = 10_000
SIZE = "doc.containsKey(params.field) ? doc[params.field].size() : 0"
SHARE_OF_WEIGHTS = (
    "double all = 0; double own = 0; for (name in params.all) { "
    "if (!doc.containsKey(name) || doc[name].size() == 0) { continue; } all += doc[name].value; "
    "if (params.own.contains(name)) { own += doc[name].value; } } return all > 0 ? own / all : 0;"
)


@dataclass(frozen=True, slots=True)
class MappedField:
    """One field.

    Attributes:
        type: The type in the mapping; ``object`` for a field that only contains others.
        doc_values: Whether its values are stored in columns, which are fast to read.
        nested: The path of the nested documents that it belongs to; empty if it is not nested.
        settings: The field's entry in the mapping.
    """

    type: str
    doc_values: bool = False
    nested: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class IndexMapping:
    """The fields of an index, an alias or a pattern.

    Attributes:
        index: Its name.
        indices: The names of the indices behind it.
        fields: The fields by their full names.
        window: The most hits that one search may return.
        fingerprint: Changes when an index or its mapping changes.
    """

    index: str
    indices: frozenset[str]
    fields: Mapping[str, MappedField]
    window: int
    fingerprint: str

    def require(self, name: str, purpose: str, kinds: frozenset[str] | None = None) -> MappedField:
        """Return a field.

        Args:
            name: Its name.
            purpose: What needs it, for the message: ``the id``.
            kinds: The types that it may have; by default all but those of texts.

        Raises:
            SourceError: There is none, or it has another type.
        """
        found = self.fields.get(name)
        if found is None:
            near = get_close_matches(name, self.fields, n=1)
            hint = f"did you mean '{near[0]}'?" if near else "correct its name."
            said = f"'{self.index}' has no field '{one_line(name, 100)}' for {purpose}; {hint}"
            raise SourceError(said)
        unfit = found.type in TEXTS if kinds is None else found.type not in kinds
        if unfit or (found.nested and kinds is WORDS):
            below = [key for key, held in self.below(name).items() if held.type == "keyword"]
            hint = f"'{name}.{below[0]}'" if below else "a field of another type"
            said = f"The field '{name}' of type {found.type} cannot be {purpose}; name {hint}."
            raise SourceError(said)
        return found

    def below(self, name: str) -> dict[str, MappedField]:
        """Return the fields inside an object, by the rest of their names."""
        names = [key for key in self.fields if key.startswith(f"{name}.")]
        return {key.removeprefix(f"{name}."): self.fields[key] for key in names}


async def read_index(server: Server, index: str) -> IndexMapping:
    """Ask a server for the mapping of an index.

    Raises:
        IndexNotFoundError: There is no such index.
        IndexUnavailableError: The server cannot be reached, or is no such server.
    """
    wanted = "*.mappings,*.settings.index.max_result_window"
    answer = await server.ask("indices.get", index=index, filter_path=wanted)
    if not answer:
        raise server.no_index(index)
    fields: dict[str, MappedField] = {}
    windows = []
    try:
        for state in answer.values():
            settings = state.get("settings", {}).get("index", {})
            windows.append(int(settings.get("max_result_window", DEFAULT_WINDOW)))
            # If indices of a pattern differ, the first one counts.
            fields = {**dict(_fields(state.get("mappings", {}))), **fields}
    except (AttributeError, TypeError, ValueError):  # The JSON is not a mapping.
        raise server.another_product() from None
    fingerprint = sha256(json.dumps([index, {**answer}]).encode()).hexdigest()
    return IndexMapping(index, frozenset(answer), fields, min(windows), fingerprint)


def check_fields(source: ElasticsearchSource, mapping: IndexMapping) -> None:
    """Check the fields that a source searches and reads texts from.

    Raises:
        SourceError: A field is missing, or cannot be searched by words.
    """
    every = frozenset(held.type for held in mapping.fields.values())
    for name in filter(None, (source.title, *source.text, source.link)):
        mapping.require(name, "a title, a text or a link", every)
    for name in () if source.body else source.searched_fields:
        if "*" not in name:
            mapping.require(name.partition("^")[0], "a field to search", WORDS)
    if source.vectors:
        mapping.require(source.vectors.field, "the field of vectors", VECTORS)


def _fields(mappings: Mapping[str, Any]) -> Iterator[tuple[str, MappedField]]:
    found = dict(_properties(mappings.get("properties", {}), "", ""))
    for name, settings in mappings.get("runtime", {}).items():
        # A runtime field hides a mapped field of the same name.
        found[name] = MappedField(str(settings.get("type")), True, "", settings)
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
        has_columns = kind in COLUMNS and settings.get("doc_values", True) is not False
        yield name, MappedField(kind, has_columns, nested, settings)
        below = name if kind == "nested" else nested
        yield from _properties(settings.get("properties", {}), f"{name}.", below)
        yield from _properties(settings.get("fields", {}), f"{name}.", nested)


@dataclass(frozen=True, slots=True)
class LabelField:
    """The field of an attribute.

    Attributes:
        attribute: The attribute that it labels.
        name: The name of the field.
        mapped: The field in the mapping.
        weights: If it is an object of weights, such as ``{Europe: 2, Asia: 1}``, the numbers in it,
            by the full name of their fields; other fields in it are not read.
    """

    attribute: Attribute
    name: str
    mapped: MappedField
    weights: Mapping[str, str]

    @classmethod
    def of(cls, attribute: Attribute, mapping: IndexMapping) -> LabelField:
        """Find the field of an attribute.

        Raises:
            SourceError: It is missing, or cannot be read as a label.
        """
        name, below = attribute.field, mapping.below(attribute.field)
        mapped = mapping.require(name, f"the label of '{attribute.name}'")
        if mapped.type not in ("object", "nested"):
            return cls(attribute, name, mapped, {})
        numbers = {key: held for key, held in below.items() if held.type in NUMBERS}
        if mapped.type != "object" or mapped.nested or not numbers:
            inner = [key for key, held in below.items() if held.type == "keyword"]
            raise SourceError(
                f"The field '{name}' of the attribute '{attribute.name}' is an object without "
                f"weights; name a field in it, such as '{name}.{[*inner, *below, '…'][0]}'."
            )
        columns = MappedField("object", all(held.doc_values for held in numbers.values()))
        return cls(attribute, name, columns, {f"{name}.{key}": key for key in numbers})

    @property
    def asked(self) -> list[Any]:
        """The fields to request with each hit."""
        dated = {"field": self.name, "format": DAY}
        return [*self.weights] or [dated if self.mapped.type in DATES else self.name]

    def label(self, hit: Hit) -> object:
        """Return the label of a hit: one value, several, weights, or None."""
        fields = hit.get("fields", {})
        if self.weights:
            held = {key: [*values_of(fields, name)] for name, key in self.weights.items()}
            return {key: float(values[0]) for key, values in held.items() if values} or None
        values = [*values_of(fields, self.name)]
        return values[0] if len(values) == 1 else values or None

    def query(self, group: str) -> Body | None:
        """Return the query for documents with a share of a group.

        None if the server cannot decide which these are. It never can for ``unknown``: it finds
        documents without a label, but not those with some values that belong to a group and some
        that do not.
        """
        values, kind = self.attribute.values.get(group, (group,)), self.mapped.type
        settings, query = self.mapped.settings, None
        if settings.get("index") is False or "normalizer" in settings:
            return None  # The server would misread the values, or cannot search them.
        if self.weights:
            above = [{"range": {name: {"gt": 0}}} for name in self._weights_of(group)]
            return {"bool": {"should": above}} if above else NONE
        if isinstance(values, Range):
            query = _range_query(self.name, values, kind)
        elif kind in KEYWORDS:
            query = {"terms": {self.name: values}}
        elif kind in NUMBERS:
            query = {"terms": {self.name: [value for value in values if NUMBER.fullmatch(value)]}}
        elif kind == "boolean":
            query = {"terms": {self.name: [one for one in values if one in ("true", "false")]}}
        if query is None or not self.mapped.nested:
            return query
        return {"nested": {"path": self.mapped.nested, "query": query}}

    def queries(self) -> list[Body] | None:
        """Return the query of each group, or None if the server cannot decide one of them."""
        queries = [query for group in self.attribute.groups if (query := self.query(group))]
        return queries if len(queries) == len(self.attribute.groups) else None

    def share_counts(self) -> Body:
        """Return the aggregations that give the share of each group in all documents.

        Scripts sum up weights, and tell documents apart by how many labels share them.
        """
        if self.weights:
            own = [self._weights_of(group) for group in self.attribute.groups]
            params = [{"all": [*self.weights], "own": names} for names in own]
            scripts = [{"source": SHARE_OF_WEIGHTS, "params": one} for one in params]
            return {str(n): {"sum": {"script": script}} for n, script in enumerate(scripts)}
        script = {"source": SIZE, "params": {"field": self.name}}
        inner = values_in(self.name, self.mapped, MOST_VALUES)
        if queries := self.queries():
            inner["groups"] = {"filters": {"filters": queries}}
        terms = {"script": script, "value_type": "long", "size": 1000}
        return {"sizes": {"terms": terms, "aggs": inner}}

    def shares(self, answer: Mapping[str, Any]) -> FloatArray | None:
        """Return the mean membership in each group, from the answer to :meth:`share_counts`.

        None if the server could not count the labels.
        """
        found, groups = answer.get("aggregations"), self.attribute.groups
        if not found:
            return None
        sums, sizes = dict.fromkeys(groups, 0.0), found.get("sizes", {"buckets": []})
        lost = sizes.get("sum_other_doc_count", 0)
        for number, group in enumerate(groups if self.weights else ()):
            sums[group] = found[str(number)]["value"]
        for size in sizes["buckets"]:
            values, by_value = int(size["key"]), counts_of(size)
            if values == 1 and "groups" in size:
                for group, bucket in zip(groups, size["groups"]["buckets"], strict=True):
                    sums[group] += bucket["doc_count"]
                continue
            # A repeated number counts each time in the document's size, but once as a value.
            lost += values * size["doc_count"] - sum(by_value.values())
            for value, count in by_value.items():
                if (own := self.attribute.group_of(value)) is not None:
                    sums[own] += count / values
        total = answer["hits"]["total"]["value"]
        shares: FloatArray = np.array([*sums.values()]) / max(total, 1)
        if self.attribute.universe[-1] == UNKNOWN:
            shares = np.append(shares, 1 - shares.sum() if total else 0.0)
        return None if lost else shares

    def _weights_of(self, group: str) -> list[str]:
        """Return the fields in an object of weights that count for a group."""
        return [name for name, key in self.weights.items() if self.attribute.group_of(key) == group]


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
        self.id, self._mapping = id_, mapping
        self.labels = [LabelField.of(attribute, mapping) for attribute in attributes]
        columns: list[Any] = []
        fields: list[Any] = []
        for label in self.labels:
            by_column = label.mapped.doc_values and not label.mapped.nested
            (columns if by_column else fields).extend(label.asked)
        if id_ != "_id":
            (columns if mapping.require(id_, "the id").doc_values else fields).append(id_)
        self.request: dict[str, Any] = {
            "_source": False,
            "docvalue_fields": columns,
            "fields": fields,
        }

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
        values = [*values_of(hit.get("fields", {}), self.id)]
        if len(values) != 1:
            raise SourceError(
                f"A document of '{hit['_index']}' has {len(values) or 'no'} values in its id field "
                f"'{self.id}'; set 'id' to a field that has one value in each document."
            )
        return as_text(values[0])

    def values(self, hits: Sequence[Hit]) -> dict[str, list[object]]:
        """Return the label of each hit, by attribute."""
        return {label.attribute.name: [label.label(hit) for hit in hits] for label in self.labels}

    def among(self, ids: Sequence[str]) -> dict[str, Any]:
        """Return the query for documents with these ids."""
        return {"ids": {"values": ids}} if self.id == "_id" else {"terms": {self.id: ids}}

    def refuse_repeated(self, which: str) -> None:
        """Refuse documents that share an id.

        Raises:
            SourceError: Always.
        """
        where = " and ".join(sorted(self._mapping.indices))
        raise SourceError(
            f"{which} belongs to two documents ({where}); set 'id' to a field whose values are "
            "unique, or narrow 'index'."
        )


def warnings_of(answer: Mapping[str, Any], index: str) -> list[str]:
    """Return warnings about a search response that is only partial."""
    shards = answer.get("_shards", {})
    if shards.get("failed"):
        return [f"{shards['failed']} of {shards['total']} shards of '{index}' did not answer."]
    if answer.get("timed_out"):
        return [f"The search of '{index}' hit its time limit before it was complete."]
    return []


def values_of(fields: Mapping[str, Any], name: str) -> Iterator[Any]:
    """Yield the values of a field; in nested documents they are one level deeper."""
    for path, held in fields.items():
        if path == name:
            yield from held
        elif name.startswith(f"{path}."):
            for inner in held:
                if isinstance(inner, Mapping):
                    yield from values_of(inner, name.removeprefix(f"{path}."))


def values_in(name: str, mapped: MappedField, size: int) -> Body:
    """Return the aggregations that count the documents with each value of a field."""
    terms: Body = {"field": name, "size": size}
    if mapped.type in DATES:
        terms["format"] = DAY
    if not mapped.nested:
        return {"values": {"terms": terms}}
    values = {"terms": terms, "aggs": {"documents": {"reverse_nested": {}}}}
    return {"nested": {"nested": {"path": mapped.nested}, "aggs": {"values": values}}}


def counts_of(found: Mapping[str, Any]) -> dict[object, int]:
    """Return how many documents have each value, from the answer to :func:`values_in`."""
    return {
        bucket.get("key_as_string", bucket["key"]): bucket.get("documents", bucket)["doc_count"]
        for bucket in found.get("nested", found)["values"]["buckets"]
    }


def _range_query(name: str, wanted: Range, kind: str) -> Body | None:
    """Return the query for values in a range, or None if the server cannot compare them.

    Dates are compared with a number by year, and with a date by day. The server rounds a bound to
    the start or the end of its year or day, whichever the comparison needs.
    """
    bounds: dict[str, Any] = wanted.model_dump(exclude_none=True)
    if kind in NUMBERS:
        return NONE if wanted.is_of_dates else {"range": {name: bounds}}
    if kind not in DATES:
        return None
    for side, bound in bounds.items():
        if isinstance(bound, date):
            bounds[side] = f"{bound.isoformat()}||/d"
        else:
            year = math.ceil(bound) if side in ("gte", "lt") else math.floor(bound)
            bounds[side] = f"{min(max(year, 0), 9999):04}-01-01||/y"
    return {"range": {name: {**bounds, "format": "uuuu-MM-dd"}}}
