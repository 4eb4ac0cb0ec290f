"""The labels of documents, read from fields of the hits or from files beside the source."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from fairqr.base.errors import SourceError, one_line
from fairqr.base.settings import data_dir
from fairqr.retrieval.engines.engine import Memberships
from fairqr.retrieval.engines.report import AttributeReport
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.sources.label_store import LabelStore, open_label_store
from fairqr.retrieval.sources.label_values import attribute_report, label_key, values_of
from fairqr.retrieval.sources.schema import Attribute, Schema

MAX_CACHED = 10_000
ENOUGH = 20
"""If this many documents have no label at all, it is not by chance."""


class LabelReader:
    """Turns the labels of documents into memberships.

    Attributes:
        schema: The attributes, with the groups that only a label file names.
        field_attributes: The attributes that read a field of the hit.
    """

    def __init__(
        self, schema: Schema, files: Mapping[str, LabelStore], *, strict: bool = False
    ) -> None:
        self.schema = schema
        self._strict = strict
        self.field_attributes = [a for a in schema.attributes.values() if a.field]
        self._files = files
        self._rows: dict[str, dict[object, tuple[float, ...]]] = {
            attribute.name: {} for attribute in self.field_attributes
        }

    @classmethod
    async def open(
        cls,
        attributes: Mapping[str, Attribute],
        folder: Path,
        *,
        store: Path | None = None,
        progress: Callable[[int], None] | None = None,
        strict: bool = False,
    ) -> LabelReader:
        """Open the label files; a file that is new or has changed is read once.

        Args:
            attributes: The attributes by name.
            folder: File names are relative to this folder.
            store: The folder that keeps parsed labels; in the user's data folder by default.
            progress: Called with the number of rows read.
            strict: Refuse a field value that is not a group, see :meth:`Attribute.membership`.

        Raises:
            SourceError: A file cannot be read, or its labels do not fit the attribute.
        """
        store = store or data_dir() / "labels"
        stop = threading.Event()
        files: dict[str, LabelStore] = {}
        try:
            for name, attribute in attributes.items():
                if attribute.labels:
                    path = folder / attribute.labels
                    files[name] = await asyncio.to_thread(
                        open_label_store, path, attribute, store, progress, stop
                    )
        finally:
            stop.set()  # Only matters if the wait was cancelled while the thread still runs.
        resolved = {n: files[n].attribute if n in files else a for n, a in attributes.items()}
        return cls(Schema(attributes=resolved), files, strict=strict)

    def memberships(
        self, ids: Sequence[str], values: Mapping[str, Sequence[object]]
    ) -> Memberships:
        """Return the share of each group in these documents, for each attribute of the schema.

        Args:
            ids: The documents.
            values: For each attribute of ``field_attributes``, the label of each document as it is
                in the field, or None.

        Raises:
            SourceError: A field contains something that cannot be a label.
        """
        return {
            name: self._files[name].memberships(ids)
            if name in self._files
            else self._of_field(attribute, ids, values[name])
            for name, attribute in self.schema.attributes.items()
        }

    def in_files(self, ids: Sequence[str]) -> list[str]:
        """Return the documents that occur in a label file."""
        if not ids or not self._files:
            return []
        held = np.any([store.names(ids) for store in self._files.values()], axis=0)
        return [id_ for id_, is_named in zip(ids, held.tolist(), strict=True) if is_named]

    def in_fields(self, documents: Sequence[Document]) -> dict[str, list[object]]:
        """Return the labels of documents for each attribute that reads a field."""
        return {
            attribute.name: [document.label(attribute) for document in documents]
            for attribute in self.field_attributes
        }

    def unlabelled(self, documents: Sequence[Document]) -> list[Attribute]:
        """Return the attributes whose field is missing in all documents; none without documents."""
        labels = self.in_fields(documents)
        return [
            attribute
            for attribute in self.field_attributes
            if documents and all(label is None for label in labels[attribute.name])
        ]

    def reports(
        self, labels: Mapping[str, Sequence[object]], ids: Sequence[str]
    ) -> list[AttributeReport]:
        """Return the check's report on each attribute's labels.

        Args:
            labels: For each attribute that reads a field, the labels of the checked documents.
            ids: The ids of these documents.

        Raises:
            SourceError: There are many documents, and a label file has none of them, or only
                values that no group takes.
        """
        return [
            self.field_report(name, labels[name])
            if name in labels
            else self._file_report(attribute, ids)
            for name, attribute in self.schema.attributes.items()
        ]

    def _file_report(self, attribute: Attribute, ids: Sequence[str]) -> AttributeReport:
        """Return the values of a file, and how many of these documents it labels."""
        store = self._files[attribute.name]
        rows = store.memberships(ids)[:, : len(attribute.groups)]
        labelled = int(rows.any(axis=1).sum())
        if not labelled and len(ids) >= ENOUGH:
            if store.names_any(ids):
                values = [one_line(one.value, 30) for one in store.report.without_group[:10]]
                remedy = (
                    f"no group has the values {', '.join(values)}; list them under 'groups:' with "
                    "the group they belong to"
                    if values
                    else "write the groups into the file"
                )
                raise SourceError(
                    f"The labels {attribute.labels} put none of the {len(ids):,} checked documents "
                    f"into a group; {remedy}."
                )
            raise SourceError(
                f"The labels {attribute.labels} have none of the {len(ids):,} checked documents, "
                f"such as '{one_line(ids[0], 80)}'; check which column has the ids."
            )
        return store.report.model_copy(update={"documents": len(ids), "labelled": labelled})

    def field_report(self, attribute: str, labels: Sequence[object]) -> AttributeReport:
        """Return the check's report on the labels in a field of some documents.

        Args:
            attribute: An attribute that reads a field.
            labels: The label of each checked document.
        """
        described = self.schema.attribute(attribute)
        rows = self._of_field(described, [""] * len(labels), labels)
        counts: Counter[object] = Counter()
        for label in labels:
            counts.update(set(values_of(label)))
        labelled = int(rows[:, : len(described.groups)].any(axis=1).sum())
        return attribute_report(described, len(labels), labelled, counts)

    def _of_field(
        self, attribute: Attribute, ids: Sequence[str], labels: Sequence[object]
    ) -> FloatArray:
        cached = self._rows[attribute.name]
        rows = []
        for id_, label in zip(ids, labels, strict=True):
            key = label_key(label)
            if (row := cached.get(key)) is None:
                try:
                    row = attribute.membership(label, strict=self._strict)
                except ValueError as error:
                    raise SourceError(
                        f"The field '{attribute.field}' of the document '{one_line(id_, 80)}' "
                        f"cannot be read as {attribute.name}: {one_line(error)}."
                    ) from None
                if len(cached) >= MAX_CACHED:
                    cached.clear()
                cached[key] = row
            rows.append(row)
        return np.array(rows, dtype=np.float64).reshape(len(rows), len(attribute.universe))
