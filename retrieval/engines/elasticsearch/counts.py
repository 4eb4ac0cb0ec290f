"""Counting labels in an attached index: the share of each group, and the values of a field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fairqr.retrieval.engines.elasticsearch.fields import DAY, LabelField
from fairqr.retrieval.engines.elasticsearch.groups import existing, group_query, grouped
from fairqr.retrieval.engines.elasticsearch.mapping import DATES
from fairqr.retrieval.engines.elasticsearch.server import warnings_of
from fairqr.retrieval.engines.report import AttributeReport, ValueCount
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.sources.labels import attribute_report
from fairqr.retrieval.sources.schema import UNKNOWN, Attribute, Range

if TYPE_CHECKING:
    from fairqr.retrieval.engines.elasticsearch.engine import ElasticsearchEngine

Body = dict[str, Any]

MOST_VALUES = 10_000
VALUES_SHOWN = 100
SIZE = "doc.containsKey(params.field) ? doc[params.field].size() : 0"
SHARE_OF_WEIGHTS = """
double all = 0; double own = 0;
for (name in params.all) {
  if (doc.containsKey(name) && doc[name].size() > 0) {
    double weight = doc[name].value;
    all += weight;
    if (params.own.contains(name)) { own += weight; }
  }
}
return all > 0 ? own / all : 0;
"""


async def corpus_shares(engine: ElasticsearchEngine) -> tuple[Mapping[str, FloatArray], bool]:
    """Return for each attribute the mean membership over all documents that match the filter.

    One request counts the documents of each group. A second one, with scripts, handles labels with
    weights, and attributes with several labels a document. Attributes whose labels are in files, or
    that the server cannot or may not count, are left out.

    Returns:
        The shares, and whether all documents were counted. Attributes that only part of the index
        counted are left out.
    """
    labels = [label for label in engine.reader.labels if is_countable(label)]
    body = {"size": 0, "track_total_hits": True, "query": engine.filtered({"match_all": {}})}

    def partial(answer: Any) -> bool:
        return bool(warnings_of(answer, engine.source.index))

    plain = [label for label in labels if not label.weights]
    answers = await engine.msearch([{**body, "aggs": _plain_counts(label)} for label in plain])
    counted = list(zip(plain, answers, strict=True))
    scripted = [label for label in labels if label.weights]
    scripted += [
        label
        for label, answer in counted
        if not label.mapped.nested and not partial(answer) and not _sums(label, answer)
    ]
    answers = await engine.msearch(
        [{**body, "aggs": _scripted_counts(label)} for label in scripted],
        refuse=False,  # The server may forbid scripts.
    )
    counted += zip(scripted, answers, strict=True)
    shares = {
        label.attribute.name: _shares(label.attribute, sums, answer["hits"]["total"]["value"])
        for label, answer in counted
        if not partial(answer) and (sums := _sums(label, answer))
    }
    return shares, not any(partial(answer) for _, answer in counted)


def is_countable(label: LabelField) -> bool:
    """Return whether the server can count the values of a field."""
    return label.mapped.doc_values and not label.mapped.other_types


async def value_reports(
    engine: ElasticsearchEngine, labels: Sequence[LabelField]
) -> list[AttributeReport]:
    """Return the values of attributes' fields over all documents, with the group of each value.

    Args:
        engine: The index.
        labels: Fields that the server can count, and can count by groups.
    """
    body = {"size": 0, "track_total_hits": True, "query": engine.filtered({"match_all": {}})}
    answers = await engine.msearch([{**body, "aggs": _values(label)} for label in labels])
    return [_report(*pair) for pair in zip(labels, answers, strict=True)]


def _report(label: LabelField, answer: Any) -> AttributeReport:
    attribute, found = label.attribute, answer["aggregations"]
    total = answer["hits"]["total"]["value"]
    if "groups" not in found:
        values = found.get("nested", found)["values"]
        labelled = found["labelled"]["doc_count"]
        more = values["sum_other_doc_count"] > 0
        return attribute_report(attribute, total, labelled, _counts(values), more=more)
    buckets = [bucket["doc_count"] for bucket in found["groups"]["buckets"]]
    return AttributeReport(
        name=attribute.name,
        origin=attribute.field,
        documents=total,
        labelled=found["labelled"]["doc_count"],
        values=[
            ValueCount(value=_shown(attribute, group), documents=count, group=group)
            for group, count in zip(attribute.groups, buckets, strict=True)
        ],
    )


def _sums(label: LabelField, answer: Any) -> dict[str, float] | None:
    """Return the sums of memberships by group, or None if the counts are not enough for that."""
    groups, found = label.attribute.groups, answer.get("aggregations", {})
    if "sizes" in found:
        sizes = found["sizes"]["buckets"]
        lost = found["sizes"]["sum_other_doc_count"]
        if lost or any(size["values"]["sum_other_doc_count"] for size in sizes):
            return None
        shared: dict[object, float] = {}
        for size in sizes:
            by_value = _counts(size["values"])
            # A repeated number counts each time in the document's size, but once as a value.
            if sum(by_value.values()) != int(size["key"]) * size["doc_count"]:
                return None
            for value, count in by_value.items():
                shared[value] = shared.get(value, 0.0) + count / int(size["key"])
        return _by_group(label.attribute, shared)
    if label.weights:
        return {g: found[str(n)]["value"] for n, g in enumerate(groups)} if found else None
    inner = found.get("nested", found)
    if not found or inner["held"]["value"] > found["labelled"]["doc_count"]:
        return None
    if "groups" in found:
        counts = [bucket["doc_count"] for bucket in found["groups"]["buckets"]]
        return dict(zip(groups, counts, strict=True))
    if inner["values"]["sum_other_doc_count"]:
        return None
    return _by_group(label.attribute, _counts(inner["values"]))


def _plain_counts(label: LabelField) -> Body:
    """Return the aggregations that give the sums if no document has more than one label."""
    queries = [group_query(label, group) for group in label.attribute.groups]
    inner: Body = {"held": {"value_count": {"field": label.name}}}
    outer: Body = {"labelled": {"filter": existing(label)}}
    if None not in queries:
        outer["groups"] = {"filters": {"filters": queries}}
    else:
        inner["values"] = _terms(label, MOST_VALUES)
    return outer | _inside(label, inner)


def _scripted_counts(label: LabelField) -> Body:
    """Return the aggregations that give the sums if documents have several labels or weights."""
    if not label.weights:
        script = {"source": SIZE, "params": {"field": label.name}}
        sizes = {"script": script, "value_type": "long", "size": 1000}
        return {"sizes": {"terms": sizes, "aggs": {"values": _terms(label, MOST_VALUES)}}}
    names = label.number_fields
    groups = [label.attribute.group_of(rest) for rest in label.numbers]
    sums = {}
    for number, group in enumerate(label.attribute.groups):
        own = [name for name, its in zip(names, groups, strict=True) if its == group]
        params = {"all": names, "own": own}
        sums[str(number)] = {"sum": {"script": {"source": SHARE_OF_WEIGHTS, "params": params}}}
    return sums


def _values(label: LabelField) -> Body:
    """Return the aggregations that list the values of a field, or count its ranges."""
    queries = [group_query(label, group) for group in label.attribute.groups]
    aggregations: Body = {"labelled": {"filter": grouped(label)}}
    ranges = [isinstance(values, Range) for values in label.attribute.values.values()]
    if ranges and all(ranges):
        return aggregations | {"groups": {"filters": {"filters": queries}}}
    terms = _terms(label, VALUES_SHOWN)
    if label.mapped.nested:
        terms["aggs"] = {"documents": {"reverse_nested": {}}}
    return aggregations | _inside(label, {"values": terms})


def _terms(label: LabelField, size: int) -> Body:
    terms: Body = {"field": label.name, "size": size}
    if label.mapped.type in DATES:
        terms["format"] = DAY
    return {"terms": terms}


def _inside(label: LabelField, aggregations: Body) -> Body:
    if not label.mapped.nested:
        return aggregations
    return {"nested": {"nested": {"path": label.mapped.nested}, "aggs": aggregations}}


def _counts(terms: Any) -> dict[object, int]:
    return {
        bucket.get("key_as_string", bucket["key"]): bucket.get("documents", bucket)["doc_count"]
        for bucket in terms["buckets"]
    }


def _by_group(attribute: Attribute, counts: Mapping[object, float]) -> dict[str, float]:
    sums = dict.fromkeys(attribute.groups, 0.0)
    for value, count in counts.items():
        if (group := attribute.group_of(value)) in sums:
            sums[str(group)] += count
    return sums


def _shares(attribute: Attribute, sums: Mapping[str, float], total: int) -> FloatArray:
    shares = np.array([sums.get(group, 0.0) for group in attribute.universe], dtype=np.float64)
    shares /= max(total, 1)
    if attribute.universe[-1] == UNKNOWN and total:
        shares[-1] = 1 - shares[:-1].sum()
    return shares


def _shown(attribute: Attribute, group: str) -> str:
    values = attribute.values[group]
    assert isinstance(values, Range)  # noqa: S101 - the caller has checked
    bounds = values.model_dump(exclude_none=True)
    return ", ".join(
        f"{name} {bound:g}" if isinstance(bound, float) else f"{name} {bound}"
        for name, bound in bounds.items()
    )
