"""Elasticsearch and OpenSearch queries for the documents of a group."""

from __future__ import annotations

import math
from contextlib import suppress
from datetime import date, timedelta
from typing import Any

from fairqr.retrieval.engines.elasticsearch.fields import HitReader, LabelField
from fairqr.retrieval.engines.elasticsearch.mapping import DATES, NUMBERS
from fairqr.retrieval.sources.schema import Range, as_text

Body = dict[str, Any]

KEYWORDS = frozenset({"constant_keyword", "keyword", "version", "wildcard"})


def filterable(reader: HitReader) -> frozenset[tuple[str, str]]:
    """Return the groups that the server can filter by, as pairs of attribute and group.

    The group ``unknown`` is never included. A server finds documents without a label, but not those
    with some values that belong to a group and some that do not.
    """
    return frozenset(
        (label.attribute.name, group)
        for label in reader.labels
        if not label.mapped.other_types and label.mapped.settings.get("index") is not False
        for group in label.attribute.groups
        if group_query(label, group) is not None
    )


def existing(label: LabelField) -> Body:
    """Return the query for documents that have a label."""
    if label.mixed:
        held = [{"exists": {"field": name}} for name in label.number_fields]
        return {"bool": {"should": held}}
    return _of_parents(label, {"exists": {"field": label.name}})


def grouped(label: LabelField) -> Body | None:
    """Return the query for documents whose label is in any group, or None if there is none."""
    queries = [group_query(label, group) for group in label.attribute.groups]
    if label.weights or None in queries:
        return None
    return {"bool": {"should": queries}}


def group_query(label: LabelField, group: str) -> Body | None:
    """Return the query for documents with a share of a group.

    None if the server cannot decide which these are.
    """
    values = label.attribute.values.get(group, (group,))
    kind = label.mapped.type
    query: Body | None
    if label.weights:
        query = _weight_query(label, group)
    elif isinstance(values, Range):
        query = _range_query(label.name, values, kind)
    elif "normalizer" in label.mapped.settings:
        query = None  # The server would misread the values.
    elif kind in KEYWORDS:
        query = {"terms": {label.name: list(values)}}
    elif kind in NUMBERS:
        query = {"terms": {label.name: [value for value in values if _is_number(value)]}}
    elif kind == "boolean":
        query = {"terms": {label.name: [value for value in values if value in ("true", "false")]}}
    else:
        query = None
    return None if query is None else _of_parents(label, query)


def _weight_query(label: LabelField, group: str) -> Body | None:
    """Return the query for documents that give a group weight; None for flattened objects."""
    if not label.numbers:
        return None
    own = {rest for rest in label.numbers if label.attribute.group_of(rest) == group}
    values = label.attribute.values.get(group, (group,))
    if not (label.mixed or isinstance(values, Range)):
        own.update(values)  # Also read fields that are added later.
    above_zero = [{"range": {f"{label.name}.{rest}": {"gt": 0}}} for rest in sorted(own)]
    return {"bool": {"should": above_zero}} if own else {"match_none": {}}


def _of_parents(label: LabelField, query: Body) -> Body:
    if not label.mapped.nested:
        return query
    return {"nested": {"path": label.mapped.nested, "query": query}}


def _range_query(name: str, wanted: Range, kind: str) -> Body | None:
    """Return the query for values in a range, or None if the server cannot compare them.

    Dates are compared with a number by year, and with a date by day. So each bound becomes the
    first day inside the range, or the first day outside.
    """
    given = {
        name: bound
        for name in ("gte", "gt", "lte", "lt")
        if (bound := getattr(wanted, name)) is not None
    }
    if kind in NUMBERS:
        return {"match_none": {}} if wanted.is_of_dates else {"range": {name: given}}
    if kind not in DATES:
        return None
    bounds: Body = {"format": "yyyy-MM-dd"}
    for side, bound in given.items():
        is_lower = side in ("gte", "gt")
        first = _first_day(bound, later=side in ("gt", "lte"))
        if isinstance(first, date):
            bounds["gte" if is_lower else "lt"] = first.isoformat()
        elif is_lower == (first > 0):
            return {"match_none": {}}  # The range contains no date.
    return {"range": {name: bounds}}


def _first_day(bound: float | date, *, later: bool) -> date | float:
    """Return the first day at or after a bound; infinite if that is beyond all dates.

    Args:
        bound: A day, or a year.
        later: Whether to exclude the day or year of the bound itself.
    """
    if isinstance(bound, date):
        return math.inf if later and bound == date.max else bound + timedelta(days=later)
    year = math.floor(bound) + 1 if later else math.ceil(bound)
    if date.min.year <= year <= date.max.year:
        return date(year, 1, 1)
    return math.inf if year > 0 else -math.inf


def _is_number(text: str) -> bool:
    """Return whether a text is a number as we write it; ``1_0`` and ``1e1`` are not 10."""
    for kind in (int, float):
        with suppress(ValueError, OverflowError):
            number = kind(text)
            if math.isfinite(number) and as_text(number) == text:
                return True
    return False
