"""The labels of documents, read from fields of the hits or from files beside the source."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fairqr.base.settings import data_dir
from fairqr.retrieval.engines.engine import Memberships
from fairqr.retrieval.engines.report import AttributeReport
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.sources.label_files import LabelStore, open_label_store
from fairqr.retrieval.sources.label_rows import attribute_report, in_groups, label_rows
from fairqr.retrieval.sources.label_values import values_of
from fairqr.retrieval.sources.schema import Attribute, Schema


class LabelReader:
    """Turns the labels of documents into memberships.

    Attributes:
        schema: The attributes, with the groups that only a label file names.
        field_attributes: The attributes that read a field of the hit.
    """

    def __init__(self, schema: Schema, files: Mapping[str, LabelStore]) -> None:
        self.schema = schema
        self.field_attributes = [
            attribute for attribute in schema.attributes.values() if attribute.field
        ]
        self._files = files
        # For each attribute, the memberships of the labels that its field had so far.
        self._rows: dict[str, dict[object, tuple[float, ...]]] = {}

    @classmethod
    async def open(
        cls,
        attributes: Mapping[str, Attribute],
        folder: Path,
        *,
        store: Path | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> LabelReader:
        """Open the label files; a file that is new or has changed is read once.

        Args:
            attributes: The attributes by name.
            folder: File names are relative to this folder.
            store: The folder that keeps parsed labels; in the user's data folder by default.
            progress: Called with the number of rows read.

        Raises:
            SourceError: A file cannot be read, or its labels do not fit the attribute.
        """
        store = store or data_dir() / "labels"
        stop = threading.Event()
        files: dict[str, LabelStore] = {}
        resolved = dict(attributes)
        try:
            for name, attribute in attributes.items():
                if not attribute.labels:
                    continue
                path = folder / attribute.labels
                files[name] = await asyncio.to_thread(
                    open_label_store, path, attribute, store, progress, stop
                )
                resolved[name] = files[name].attribute
        finally:
            stop.set()  # Only matters if the wait was cancelled while the thread still runs.
        return cls(Schema(attributes=resolved), files)

    def with_dates(self, formats: Mapping[str, str]) -> LabelReader:
        """Return this reader with the formats of dates, by field, for attributes without one."""
        attributes = {}
        for name, attribute in self.schema.attributes.items():
            attributes[name] = attribute
            if attribute.field and not attribute.dates:
                dates = formats.get(attribute.field, "")
                attributes[name] = attribute.model_copy(update={"dates": dates})
        return LabelReader(Schema(attributes=attributes), self._files)

    def memberships(
        self, ids: Sequence[str], values: Mapping[str, Sequence[object]]
    ) -> Memberships:
        """Return the share of each group in these documents, for each attribute of the schema.

        Args:
            ids: The documents.
            values: For each attribute of ``field_attributes``, the label of each document as it is
                in the field, or None. What cannot be read is unknown.
        """
        memberships = {}
        for name, attribute in self.schema.attributes.items():
            if name in self._files:
                memberships[name] = self._files[name].memberships(ids)
            else:
                cache = self._rows.setdefault(name, {})
                memberships[name] = label_rows(attribute, values[name], cache)
        return memberships

    def reports_of_files(self) -> dict[str, AttributeReport]:
        """Return the check's report on each label file, by attribute."""
        return {name: store.report for name, store in self._files.items()}

    def in_files(self, ids: Sequence[str]) -> set[str]:
        """Return the documents that occur in a label file."""
        labelled: set[str] = set()
        for store in self._files.values():
            codes = store.codes(ids).tolist()
            labelled.update(id_ for id_, code in zip(ids, codes, strict=True) if code >= 0)
        return labelled

    def in_fields(self, documents: Sequence[Document]) -> dict[str, list[object]]:
        """Return the labels of documents for each attribute that reads a field."""
        labels = {}
        for attribute in self.field_attributes:
            labels[attribute.name] = [document.label(attribute) for document in documents]
        return labels

    def reports(
        self, labels: Mapping[str, Sequence[object]], ids: Sequence[str]
    ) -> list[AttributeReport]:
        """Return the check's report on each attribute's labels.

        Args:
            labels: For each attribute that reads a field, the labels of the checked documents.
            ids: The ids of these documents.
        """
        memberships = self.memberships(ids, labels)
        reports = []
        for name, attribute in self.schema.attributes.items():
            labelled = int(in_groups(attribute, memberships[name]).sum())
            if name in labels:
                counts: Counter[object] = Counter()
                for label in labels[name]:
                    counts.update(set(values_of(label)))
                reports.append(attribute_report(attribute, len(ids), labelled, counts))
            else:
                # The values that a file has do not depend on the documents that are checked.
                update = {"documents": len(ids), "labelled": labelled}
                reports.append(self._files[name].report.model_copy(update=update))
        return reports
