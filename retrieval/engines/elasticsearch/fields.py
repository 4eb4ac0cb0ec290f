"""Which fields of an attached index we read, and how we read ids and labels from its hits.

Labels come with the hits. If a field has doc values (columns), we read those: they exist even if
``_source`` is not stored, and no document has to be opened and parsed. We read nested fields and
fields without doc values with the ``fields`` option, which needs ``_source``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from fairqr.base.errors import SourceError, one_line
from fairqr.retrieval.engines.elasticsearch.mapping import (
    DATES,
    NUMBERS,
    TEXTS,
    IndexMapping,
    MappedField,
)
from fairqr.retrieval.sources.schema import Attribute, as_text
from fairqr.retrieval.sources.source import ElasticsearchSource

Hit = Mapping[str, Any]

DAY = "strict_date_optional_time"
WORDS = TEXTS | {"constant_keyword", "flattened", "keyword", "semantic_text", "wildcard"}


@dataclass(frozen=True, slots=True)
class LabelField:
    """The field of an attribute.

    Attributes:
        attribute: The attribute that it labels.
        name: The name of the field.
        mapped: The field in the mapping.
        weights: Whether it is an object of weights, such as ``{Europe: 2, Asia: 1}``.
        numbers: The fields in that object that are weights, by the rest of their names.
        mixed: Whether the object also has other fields, which we do not read.
    """

    attribute: Attribute
    name: str
    mapped: MappedField
    weights: bool = False
    numbers: tuple[str, ...] = ()
    mixed: bool = False

    @property
    def number_fields(self) -> list[str]:
        """The full names of the fields that are weights."""
        return [f"{self.name}.{rest}" for rest in self.numbers]

    @property
    def asked(self) -> list[Any]:
        """The fields to request."""
        if self.mapped.type in DATES:
            return [{"field": self.name, "format": DAY}]
        if self.mixed:
            return [*self.number_fields]
        # If all fields are weights, we also read those that are added later.
        return [f"{self.name}.*" if self.numbers else self.name]

    def label(self, fields: Mapping[str, Any]) -> object:
        """Return the label of a hit: one value, several, weights, or None."""
        if self.weights:
            return dict(_weights(fields, self.name, self.numbers if self.mixed else None)) or None
        values = values_of(fields, self.name)
        return values[0] if len(values) == 1 else values or None


@dataclass(frozen=True, slots=True)
class HitReader:
    """What we request for each hit, and how we read it.

    Attributes:
        id: The field of ids.
        labels: The label fields.
        request: The parts of a search request that ask for them.
    """

    id: str
    labels: tuple[LabelField, ...]
    request: Mapping[str, Any]

    def ids(self, hits: Sequence[Hit], index: str) -> list[str]:
        """Return the ids of hits.

        Raises:
            SourceError: A hit has no id or several, or two hits have the same id.
        """
        if self.id == "_id":
            ids = [str(hit["_id"]) for hit in hits]
        else:
            ids = [self._id_of(hit, index) for hit in hits]
        if len(set(ids)) < len(ids):
            first: dict[str, str] = {}
            for id_, hit in zip(ids, hits, strict=True):
                if id_ in first:
                    self.refuse_repeated(id_, {first[id_], str(hit.get("_index", index))})
                first[id_] = str(hit.get("_index", index))
        return ids

    def values(self, hits: Sequence[Hit]) -> dict[str, list[object]]:
        """Return the label of each hit, by attribute."""
        fields = [hit.get("fields", {}) for hit in hits]
        return {label.attribute.name: [label.label(f) for f in fields] for label in self.labels}

    def among(self, ids: Sequence[str]) -> dict[str, Any]:
        """Return the query for documents with these ids."""
        if self.id == "_id":
            return {"ids": {"values": list(ids)}}
        return {"terms": {self.id: list(ids)}}

    def refuse_repeated(self, id_: str | None, indices: set[str]) -> None:
        """Refuse documents that share an id.

        Raises:
            SourceError: Always.
        """
        which = f"The id '{one_line(id_, 80)}' belongs" if id_ is not None else "An id belongs"
        where = f" ({' and '.join(sorted(indices))})" if len(indices) > 1 else ""
        raise SourceError(
            f"{which} to two documents{where}; set 'id' to a field whose values are unique, or "
            "narrow 'index'."
        )

    def _id_of(self, hit: Hit, index: str) -> str:
        values = values_of(hit.get("fields", {}), self.id)
        if len(values) != 1:
            raise SourceError(
                f"A document of '{index}' has {len(values) or 'no'} values in its id field "
                f"'{self.id}'; set 'id' to a field that has one value in each document."
            )
        return as_text(values[0])


def plan_reading(
    source: ElasticsearchSource, attributes: Sequence[Attribute], mapping: IndexMapping
) -> HitReader:
    """Return how to read hits.

    Args:
        source: The description.
        attributes: The attributes that read a field.
        mapping: The mapping of the index.

    Raises:
        SourceError: A field is missing, or cannot be read as an id or a label.
    """
    labels = tuple(_label_field(source, attribute, mapping) for attribute in attributes)
    columns: list[Any] = []
    fields: list[Any] = []
    for label in labels:
        by_column = label.mapped.doc_values and not label.mapped.nested
        if not by_column and not mapping.has_source:
            raise SourceError(
                f"The field '{label.name}' of the attribute '{label.attribute.name}' cannot be "
                f"read, because '{source.index}' stores no _source; name a field with doc values "
                "that is not nested."
            )
        (columns if by_column else fields).extend(label.asked)
    request: dict[str, Any] = {"_source": False}
    if source.id != "_id":
        mapped = _known(source, mapping, source.id, "which 'id' names")
        _refuse_text(mapped, source.id, "as an id", mapping)
        (columns if mapped.doc_values else fields).append(source.id)
        if not fields:
            request["stored_fields"] = "_none_"  # Doc values suffice, so open no document.
    if columns:
        request["docvalue_fields"] = columns
    if fields:
        request["fields"] = fields
    return HitReader(source.id, labels, request)


def check_fields(source: ElasticsearchSource, mapping: IndexMapping) -> None:
    """Check the fields that a source searches and reads texts from.

    Raises:
        SourceError: A field is missing, or cannot be searched by words.
    """
    for name in filter(None, (source.title, *source.text)):
        _known(source, mapping, name, "which 'title' or 'text' names")
    if source.link:
        _known(source, mapping, source.link, "which 'link' names")
    if source.body is None:
        for boosted in source.searched_fields:
            name = boosted.partition("^")[0]
            for found in mapping.matching(name) if "*" in name else [name]:
                mapped = _known(source, mapping, found, "which is searched in")
                if mapped.nested and "*" not in name:
                    raise SourceError(
                        f"The field '{name}' belongs to nested documents, which cannot be searched "
                        "by name; remove it from query.fields, title and text, or write a 'body'."
                    )
                if mapped.type not in WORDS and "*" not in name:
                    raise SourceError(
                        f"The field '{name}' has type {mapped.type}, which cannot be searched by "
                        "words; remove it from query.fields, title and text."
                    )
    if source.vectors:
        name = source.vectors.field
        mapped = _known(source, mapping, name, "which 'vectors' names")
        if mapped.type not in ("dense_vector", "knn_vector", "semantic_text"):
            raise SourceError(
                f"The field '{name}' has type {mapped.type}, not vectors; name a field of "
                "vectors, or remove 'vectors'."
            )


def _label_field(
    source: ElasticsearchSource, attribute: Attribute, mapping: IndexMapping
) -> LabelField:
    name = attribute.field
    mapped = _known(source, mapping, name, f"which the attribute '{attribute.name}' reads")
    _refuse_text(mapped, name, f"as the label of '{attribute.name}'", mapping)
    if mapped.type in ("flattened", "flat_object"):
        return LabelField(attribute, name, mapped, weights=True)
    if mapped.type not in ("object", "nested"):
        return LabelField(attribute, name, mapped)
    below = mapping.below(name)
    numbers = {
        rest: held for rest, held in below.items() if held.type in NUMBERS and not held.nested
    }
    if mapped.type == "nested" or mapped.nested or not numbers:
        keywords = [rest for rest, held in below.items() if held.type == "keyword"]
        inner = f", such as '{name}.{[*keywords, *below][0]}'" if below else ""
        raise SourceError(
            f"The field '{name}' of the attribute '{attribute.name}' is an object without weights; "
            f"name a field in it{inner}."
        )
    columns = all(held.doc_values for held in numbers.values())
    return LabelField(
        attribute,
        name,
        MappedField("object", columns),
        weights=True,
        numbers=tuple(numbers),
        mixed=len(numbers) < len(below),
    )


def _known(
    source: ElasticsearchSource, mapping: IndexMapping, name: str, purpose: str
) -> MappedField:
    found = mapping.find(name)
    if found is None:
        near = get_close_matches(name, mapping.fields, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else "; correct its name."
        raise SourceError(f"'{source.index}' has no field '{one_line(name, 100)}', {purpose}{hint}")
    return found


def _refuse_text(mapped: MappedField, name: str, purpose: str, mapping: IndexMapping) -> None:
    if not ({mapped.type, *mapped.other_types} & TEXTS):
        return
    keyword = mapping.keyword_of(name)
    instead = f"name '{keyword}'" if keyword else "name a keyword field, or a file of labels"
    raise SourceError(f"The field '{name}' is a text, which cannot serve {purpose}; {instead}.")


def values_of(fields: Mapping[str, Any], name: str) -> list[Any]:
    """Return the values of a field; in nested documents they are one level deeper."""
    if name in fields:
        return list(fields[name])
    for dot in (match.start() for match in re.finditer(r"\.", name)):
        inner = fields.get(name[:dot])
        if isinstance(inner, list):
            rest = name[dot + 1 :]
            return [v for part in inner if isinstance(part, Mapping) for v in values_of(part, rest)]
    return []


def _weights(
    fields: Mapping[str, Any], name: str, numbers: Sequence[str] | None
) -> Iterator[tuple[str, float]]:
    """Yield the weights in an object, by field name; only those named, if names are given."""
    for held in fields.get(name, ()):  # A flattened field comes as it was sent.
        if isinstance(held, Mapping):
            yield from ((key, _number(value)) for key, value in held.items())
    start = f"{name}."
    for key, values in fields.items():
        if not key.startswith(start) or not values or isinstance(values[0], str):
            continue
        rest = key[len(start) :]
        if numbers is None or rest in numbers:
            yield rest, float(values[0])


def _number(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        raise SourceError(
            f"The weight '{one_line(value, 60)}' of a label is not a number."
        ) from None
