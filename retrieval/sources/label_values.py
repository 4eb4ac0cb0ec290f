"""The values in labels: how we tell two labels apart, and what the check reports about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairqr.base.errors import one_line
from fairqr.retrieval.engines.report import AttributeReport, ValueCount
from fairqr.retrieval.sources.schema import Attribute

MAX_VALUES = 1000


def label_key(label: object) -> object:
    """Return the key under which results for a label are cached; ``1`` is not ``True``."""
    return label if label is None or type(label) is str else ("", repr(label))


def values_of(label: object) -> Sequence[object]:
    """Return the values in a label, however it is written."""
    if label is None or label == "":
        return ()
    return list(label) if isinstance(label, Mapping | list | tuple) else [label]


def attribute_report(
    attribute: Attribute,
    documents: int,
    labelled: int,
    counts: Mapping[object, int],
    *,
    more: bool = False,
) -> AttributeReport:
    """Return the check's report on the labels of an attribute.

    Args:
        attribute: The attribute.
        documents: How many documents were checked.
        labelled: How many of them are in a group.
        counts: How many have each value.
        more: Whether there are more values than these.
    """
    order = sorted(counts, key=lambda value: (-counts[value], str(value)))
    return AttributeReport(
        name=attribute.name,
        origin=attribute.labels or attribute.field,
        documents=documents,
        labelled=labelled,
        values=[
            ValueCount(
                value=one_line(value), documents=counts[value], group=attribute.group_of(value)
            )
            for value in order[:MAX_VALUES]
        ],
        more_values=more or len(order) > MAX_VALUES,
    )
