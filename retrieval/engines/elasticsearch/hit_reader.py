"""The ids and labels of hits: what we request, how we read it, and how we search and count labels.

Labels come with the hits. If a field has doc values (columns), we read those: they exist even if
``_source`` is not stored, and no document has to be opened and parsed. We read fields without doc
values with the ``fields`` option, which needs ``_source``. We read nothing in nested documents.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairqr.base.errors import SourceError, one_line
from fairqr.retrieval.engines.elasticsearch.client import Body
from fairqr.retrieval.engines.elasticsearch.mapping import (
    DATES,
    KEYWORDS,
    NUMBERS,
    Hit,
    IndexMapping,
    MappedField,
)
from fairqr.retrieval.engines.engine import SearchEngine, lexical_of
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.sources.group_values import Range
from fairqr.retrieval.sources.label_values import as_text
from fairqr.retrieval.sources.schema import UNKNOWN, Attribute

ALL: Body = {"match_all": {}}
NONE: Body = {"match_none": {}}

DAY = "strict_date_optional_time"
"""The format in which we read dates."""

NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d*[1-9])?")
"""A number as we write it; ``1_0``, ``1e1`` and ``10.0`` are not 10."""

MOST_LABELS = 60_000
"""How many distinct labels we count; by default a server returns up to 65,535 buckets."""

JOINED = (
    "String all = ''; if (doc.containsKey(params.field)) { for (value in doc[params.field]) "
    "{ all += value + params.end; } } return all;"
)


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
        labels: list[object] = []
        for hit in hits:
            values = hit.get("fields", {}).get(self.name, [])
            labels.append(values[0] if len(values) == 1 else values or None)
        return labels

    def query(self, group: str) -> Body | None:
        """Return the query for documents with a share of a group.

        None if the server cannot decide which these are. It never can for ``unknown``: it finds
        documents without a label, but not those with some values that belong to a group and some
        that do not.
        """
        settings = self.mapped.settings
        if settings.get("index") is False or "normalizer" in settings:
            return None  # The server would misread the values, or cannot search them.
        kind = self.mapped.type
        values = self.attribute.values.get(group, (group,))
        if isinstance(values, Range):
            return _range_query(self.name, values, kind)

        texts = self.attribute.spellings(group)
        if kind in NUMBERS:
            texts = [text for text in texts if NUMBER.fullmatch(text)]
        elif kind == "boolean":
            texts = [text for text in texts if text in ("true", "false")]
        elif kind not in KEYWORDS:
            return None
        return {"terms": {self.name: texts}}

    @property
    def _counts_ranges(self) -> bool:
        """Whether the server counts ranges; a field may have millions of values in them."""
        values = self.attribute.values
        are_ranges = all(isinstance(group_values, Range) for group_values in values.values())
        return bool(values) and are_ranges and all(map(self.query, values))

    @property
    def countable(self) -> bool:
        """Whether the server can count the labels: it joins dates in another form than hits.

        Those of an open attribute may be too many to be counted.
        """
        if self.attribute.open or not self.mapped.by_column:
            return False
        return self._counts_ranges or self.mapped.type not in DATES

    def aggregations(self) -> Body:
        """Return the aggregations that count the documents with each label, values joined."""
        if self._counts_ranges:
            return {
                "groups": {"filters": {"filters": [*map(self.query, self.attribute.groups)]}},
                "labelled": {"filter": {"exists": {"field": self.name}}},
                "values": {"value_count": {"field": self.name}},
            }
        script = {"source": JOINED, "params": {"field": self.name, "end": "\0"}}
        return {"labels": {"terms": {"script": script, "size": MOST_LABELS}}}

    def shares(self, answer: Mapping[str, Any]) -> FloatArray | None:
        """Return the mean membership in each group, from the answer to :meth:`aggregations`.

        None if the server could not count the labels, or not all of them.
        """
        results = answer.get("aggregations", {})
        if "groups" in results:
            return self._shares_of_ranges(results, answer["hits"]["total"]["value"])
        labels = results.get("labels", {})
        if labels.get("sum_other_doc_count", 1):
            return None

        read = json.loads if self.mapped.type in NUMBERS else str
        rows = []
        counts = []
        for bucket in labels["buckets"]:
            values = bucket["key"].split("\0")[:-1]
            label = [read(value) for value in values]
            rows.append(self.attribute.membership(label, strict=False))
            counts.append(bucket["doc_count"])
        table = np.array(rows).reshape(len(rows), len(self.attribute.universe))
        return np.asarray(np.array(counts) @ table / max(1, sum(counts)))

    def _shares_of_ranges(self, results: Mapping[str, Any], total: int) -> FloatArray | None:
        """Return the mean membership by counts of ranges; None if a document has several values."""
        if results["values"]["value"] > results["labelled"]["doc_count"]:
            return None
        counts = [bucket["doc_count"] for bucket in results["groups"]["buckets"]]
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
        self.id = id_
        self._index = mapping.index
        self.labels = []
        for attribute in attributes:
            mapped = mapping.require(attribute.field, f"the label of '{attribute.name}'")
            self.labels.append(LabelField(attribute, mapped))

        requested = {label.name: label.mapped for label in self.labels}
        if id_ != "_id":
            requested[id_] = mapping.require(id_, "the id")
        columns: list[Body] = []
        fields: list[Body] = []
        for name, mapped in requested.items():
            entry: Body = {"field": name}
            if mapped.type in DATES:
                entry["format"] = DAY
            if mapped.by_column:
                columns.append(entry)
            else:
                fields.append(entry)
        self.request: Body = {"_source": False, "docvalue_fields": columns, "fields": fields}

    def ids(self, hits: Sequence[Hit]) -> list[str]:
        """Return the ids of hits.

        Raises:
            SourceError: A hit has no id or several, or two hits have the same id.
        """
        ids = [self.id_of(hit) for hit in hits]
        if len(set(ids)) < len(ids):
            repeated = next(id_ for id_ in ids if ids.count(id_) > 1)
            self.refuse_repeated(f"The id '{one_line(repeated, 80)}'")
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
        if self.id == "_id":
            return {"ids": {"values": ids}}
        return {"terms": {self.id: ids}}

    def refuse_repeated(self, subject: str) -> None:
        """Refuse documents that share an id.

        Raises:
            SourceError: Always.
        """
        raise SourceError(
            f"{subject} belongs to two documents of '{self._index}'; set 'id' to a field whose "
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


def _range_query(name: str, values: Range, kind: str) -> Body | None:
    """Return the query for values in a range, or None if the server cannot compare them.

    Dates are compared by year. The server rounds a bound to the start or the end of its year,
    whichever the comparison needs.
    """
    bounds: dict[str, Any] = values.model_dump(exclude_none=True)
    if kind in NUMBERS:
        return {"range": {name: bounds}}
    if kind not in DATES:
        return None
    for side, bound in bounds.items():
        year = math.ceil(bound) if side in ("gte", "lt") else math.floor(bound)
        readable_year = min(max(year, 0), 9999)
        bounds[side] = f"{readable_year:04}-01-01||/y"
    return {"range": {name: {**bounds, "format": "uuuu-MM-dd"}}}
