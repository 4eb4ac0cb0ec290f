"""What labels say: the share of each group in documents with them, and how many have each value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairqr.base.errors import one_line
from fairqr.retrieval.engines.report import AttributeReport, ValueCount
from fairqr.retrieval.fairness.table import named_array
from fairqr.retrieval.sources.label_values import as_text
from fairqr.retrieval.sources.schema import Attribute

MAX_CACHED = 10_000
"""How many distinct labels of an attribute we remember the memberships of."""

MAX_VALUES = 1000
"""How many values of an attribute the check's report lists."""


def label_rows(
    attribute: Attribute,
    labels: Sequence[object],
    cache: dict[object, tuple[float, ...]] | None = None,
) -> NDArray[Any]:
    """Return the share of each group in documents with these labels, as :data:`Memberships` has it.

    What cannot be read is unknown.

    Args:
        attribute: The attribute.
        labels: The label of each document.
        cache: The rows of labels that were read before, by their keys; gets those that were not.
    """
    if attribute.open:
        return named_array([attribute.named_shares(label) for label in labels])

    # Documents mostly share their labels.
    row_by_label = {} if cache is None else cache
    rows = []
    for label in labels:
        key = label_key(label)
        row = row_by_label.get(key)
        if row is None:
            row = attribute.membership(label, strict=False)
            if len(row_by_label) >= MAX_CACHED:
                row_by_label.clear()
            row_by_label[key] = row
        rows.append(row)
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(attribute.universe))


def label_key(label: object) -> object:
    """Return the key under which results for a label are cached; ``1`` is not ``True``."""
    return label if label is None or type(label) is str else ("", repr(label))


def in_groups(attribute: Attribute, rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which rows have a share of any group, shape (n,)."""
    if attribute.open:
        return rows.astype(bool)
    return np.asarray(rows[:, : len(attribute.groups)].any(axis=1))


def attribute_report(
    attribute: Attribute, documents: int, labelled: int, counts: Mapping[object, int]
) -> AttributeReport:
    """Return the check's report on the labels of an attribute.

    Args:
        attribute: The attribute.
        documents: How many documents were checked.
        labelled: How many of them are in a group.
        counts: How many have each value.
    """
    by_frequency = sorted(counts, key=lambda value: (-counts[value], str(value)))
    values = []
    for value in by_frequency[:MAX_VALUES]:
        values.append(
            ValueCount(
                value=one_line(as_text(value)),
                documents=counts[value],
                group=attribute.group_of(value),
            )
        )
    return AttributeReport(
        name=attribute.name,
        origin=attribute.labels or attribute.field,
        documents=documents,
        labelled=labelled,
        values=values,
    )
