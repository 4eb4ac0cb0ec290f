"""The labels of documents, read from fields of the hits or from files beside the source.

A file is read once. For each file and attribute we keep a folder: the hashes of the ids, sorted,
with the number of their memberships; the distinct memberships; and the check's report.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import shutil
import threading
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from fairqr.base.errors import SourceError, one_line
from fairqr.base.settings import data_dir
from fairqr.retrieval.engines.engine import Memberships
from fairqr.retrieval.engines.report import AttributeReport, ValueCount
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.fairness.table import coded_rows, named_array
from fairqr.retrieval.sources.documents import IDS, Document, identifier, other_form, wrong_line
from fairqr.retrieval.sources.label_values import as_text, values_of
from fairqr.retrieval.sources.query_files import named_rows, weight_of
from fairqr.retrieval.sources.schema import UNKNOWN, Attribute, Schema, as_name, validated

FORMAT = 10
ROWS_AT_ONCE = 10_000
MAX_CACHED = 10_000
MAX_VALUES = 1000
MAX_GROUPS = 1000
"""If only the file names the groups, more than this means that the wrong column was read."""

LabelRow = tuple[int, str, object, float | None]
"""The number of a line, a document, its label, and the label's share among those of the document.

The share is None if the file has no weights, so that a document has one label.
"""


def read_labels(path: Path, attribute: str) -> Iterator[LabelRow]:
    """Yield the rows of a file of labels.

    A CSV file begins with ``id,group`` and may have a column ``weight``. A line of a JSON Lines
    file is ``{"id": …, "group": …}``. The column or key ``group`` may have the attribute's name
    instead, and ``id`` may be called as in files of documents. ``.gz`` files are unpacked.

    Args:
        path: The file; its ending says the format.
        attribute: The attribute's name.

    Raises:
        CorpusError: The file cannot be read to its end.
        SourceError: A row is wrong; the error names its line.
    """
    name = path.name.lower()
    if not name.removesuffix(".gz").endswith((".csv", ".tsv", ".jsonl", ".ndjson")):
        problem = "must be a .csv, .tsv or .jsonl file (each may be .gz)"
        raise SourceError(f"The labels {path} {problem}.")
    weighted = None
    for line, row in named_rows(path, "labels"):
        try:
            group = "group" if "group" in row else attribute.casefold()
            id_ = next((row[key] for key in IDS if key in row), None)
            if id_ is None or group not in row:
                # A head with tabs may stand above rows with spaces.
                is_one_cell = len(row) == 1 and len(str(id_).split()) > 1
                how = ", separated as in the first line" if is_one_cell else ""
                raise ValueError(
                    f"it needs an 'id' and a 'group' (or '{group}'){how}; 'weight' is optional"
                )
            weighted = "weight" in row if weighted is None else weighted
            if weighted != ("weight" in row):
                raise ValueError("it needs a 'weight' like the other lines, or no line has one")
            weight = weight_of(row["weight"]) if weighted else None
            yield line, identifier(id_), row[group], weight
        except ValueError as error:
            raise wrong_line(path, line, error, "labels") from None


class LabelStore:
    """The memberships of the documents in a label file.

    Attributes:
        attribute: The attribute, including groups that only the file names.
        report: The check's report on the file.
    """

    def __init__(self, folder: Path, path: Path, attribute: Attribute) -> None:
        """Open what was kept of a label file.

        Raises:
            OSError: It does not exist.
            ValueError: It is damaged, or the groups that the file names do not fit the attribute.
        """
        about = json.loads((folder / "about.json").read_bytes())
        self.attribute = _with_groups(path, attribute, about["groups"])
        self.report = AttributeReport.model_validate(about["report"])
        self._ids = np.load(folder / "ids.npy", mmap_mode="r")
        self._codes = np.load(folder / "codes.npy", mmap_mode="r")
        # Code -1 is the last row, for documents that the file lacks.
        if attribute.open:
            self._rows = named_array([*about["rows"], {}])
        else:
            self._rows = np.array([*about["rows"], self.attribute.membership(None)])

    def memberships(self, ids: Sequence[str]) -> NDArray[Any]:
        """Return the share of each group in these documents, as :data:`Memberships` has it."""
        return np.asarray(self._rows[self.codes(ids)])

    def codes(self, ids: Sequence[str]) -> NDArray[np.intp]:
        """Return a number for the label of each document, or -1 if the file lacks it.

        The file may have an id that is a whole number in its other form, as ``1.0``.
        """
        found = self._codes_of(ids)
        others = {row: other_form(ids[row]) for row in np.flatnonzero(found < 0).tolist()}
        forms = {row: form for row, form in others.items() if form is not None}
        found[[*forms]] = self._codes_of([*forms.values()])
        return found

    def _codes_of(self, ids: Sequence[str]) -> NDArray[np.intp]:
        """Return what :meth:`codes` does, for ids written as in the file."""
        wanted = np.array([*map(_hash_of, ids)], dtype=np.uint64)
        places = np.searchsorted(self._ids, wanted).clip(max=len(self._ids) - 1)
        return np.where(self._ids[places] == wanted, self._codes[places], -1)


def open_label_store(
    path: Path,
    attribute: Attribute,
    store: Path,
    progress: Callable[[int], None] | None,
    stop: threading.Event,
) -> LabelStore:
    """Open the labels of a file, building them first if the file or the attribute is new.

    Args:
        path: The file.
        attribute: Its attribute.
        store: The folder that keeps all labels.
        progress: Called with the number of rows read.
        stop: Stops the build when set.

    Raises:
        SourceError: The file cannot be read, or its labels do not fit the attribute.
    """

    def tell(count: int) -> None:
        if stop.is_set():
            raise asyncio.CancelledError
        if progress:
            progress(count)

    try:
        status = path.stat()
    except OSError as error:
        raise SourceError(f"The labels {path} cannot be read: {error.strerror}.") from None
    place = f"{_hash_of(repr((path.absolute(), attribute.name))):016x}"
    # The population does not affect what we keep.
    kept = attribute.model_dump_json(exclude={"population"})
    made_from = FORMAT, (status.st_size, status.st_mtime_ns), kept
    folder = store / f"{place}-{_hash_of(repr(made_from)):016x}"
    store.mkdir(parents=True, exist_ok=True)
    with FileLock(store / f"{place}.lock").acquire(cancel_check=stop.is_set):
        # If it does not exist yet, or is damaged, it is built.
        with contextlib.suppress(OSError, ValueError, EOFError):
            return LabelStore(folder, path, attribute)
        # This is from another version of the file or attribute, or from a killed build.
        for old in store.glob(f"{place}-*"):
            shutil.rmtree(old, ignore_errors=True)
        _build(path, attribute, folder, tell)
        return LabelStore(folder, path, attribute)


def _hash_of(text: str) -> int:
    """Return 64 bits: among ten million ids, two have the same in one of 300,000 files."""
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _with_groups(path: Path, attribute: Attribute, groups: Sequence[str]) -> Attribute:
    """Return an attribute, with the groups of its label file if it names none."""
    if attribute.groups or attribute.open:
        return attribute
    what = f"The attribute {attribute.name} with the groups in the labels {path}"
    return validated(Attribute, {**attribute.model_dump(), "groups": groups}, what, SourceError)


class _FileRows(NamedTuple):
    """The rows of a file of labels, those of one document beside each other.

    Attributes:
        labels: The distinct labels, each with the line that had it first.
        ids: The hash of each row's document, ascending.
        codes: The label of each row, as its place among the labels.
        lines: The line of each row.
        weights: The weight of each row; None if the file has no weights.
        starts: The first row of each document.
    """

    labels: list[tuple[object, int]]
    ids: NDArray[np.uint64]
    codes: NDArray[np.intp]
    lines: NDArray[np.intp]
    weights: FloatArray | None
    starts: NDArray[np.intp]


def _read_rows(path: Path, attribute: Attribute, tell: Callable[[int], None]) -> _FileRows:
    """Read a file of labels.

    Raises:
        CorpusError: The file cannot be read to its end.
        SourceError: A row is wrong, or there is none.
    """
    code_of: dict[object, int] = {}
    labels: list[tuple[object, int]] = []
    hashes, codes, lines, weights = array("Q"), array("q"), array("q"), array("d")
    for number, (line, id_, label, weight) in enumerate(read_labels(path, attribute.name), start=1):
        code = code_of.setdefault(label_key(label), len(labels))
        if code == len(labels):
            labels.append((label, line))
        hashes.append(_hash_of(id_))
        codes.append(code)
        lines.append(line)
        if weight is not None:
            weights.append(weight)
        if number % ROWS_AT_ONCE == 0:
            tell(number)
    if not labels:
        raise SourceError(f"The labels {path} have no rows; write one for each document.")
    tell(len(codes))
    ids = np.array(hashes)
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    return _FileRows(
        labels=labels,
        ids=ids,
        codes=np.array(codes)[order],
        lines=np.array(lines)[order],
        weights=np.array(weights)[order] if weights else None,
        starts=np.flatnonzero(np.append(True, ids[1:] != ids[:-1])),
    )


def _build(path: Path, attribute: Attribute, folder: Path, tell: Callable[[int], None]) -> None:
    """Read a file of labels into a new folder."""
    read = _read_rows(path, attribute, tell)
    labels = [label for label, _ in read.labels]
    if not attribute.groups and not attribute.open:
        attribute = _with_groups(path, attribute, _named_groups(path, attribute, labels))
    rows = label_rows(attribute, labels)
    of_documents = read.codes[read.starts]
    if read.weights is None:
        _refuse_several_groups(path, attribute, read)
    else:
        rows = _mixed(rows[read.codes], read.weights, read.starts, attribute)
        of_documents = np.arange(len(read.starts))
    distinct = coded_rows(rows)
    numbers = np.array(distinct["rows"], dtype=np.int32)[of_documents]
    labelled = int(in_groups(attribute, rows)[of_documents].sum())
    values: Counter[object] = Counter()
    for label, count in zip(labels, np.bincount(read.codes).tolist(), strict=True):
        values.update(dict.fromkeys(values_of(label), count))
    report = attribute_report(attribute, len(read.starts), labelled, values)
    about = {"groups": attribute.groups, "report": report.model_dump(mode="json")}
    try:
        folder.mkdir()
        np.save(folder / "ids.npy", read.ids[read.starts])
        np.save(folder / "codes.npy", numbers)
        # Written last, so a folder with it is whole.
        (folder / "about.json").write_text(json.dumps({**about, "rows": distinct["patterns"]}))
    except OSError as error:
        raise SourceError(
            f"The labels {path} cannot be kept in {folder.parent} ({error.strerror}); make room on "
            "the disk, or name another folder in FAIRQR_DATA_DIR."
        ) from None


def _refuse_several_groups(path: Path, attribute: Attribute, read: _FileRows) -> None:
    """Refuse a file without weights that gives a document different labels.

    Raises:
        SourceError: It does; the error names the document.
    """
    is_same = read.ids[1:] == read.ids[:-1]
    several = np.flatnonzero(is_same & (read.codes[1:] != read.codes[:-1]))
    if not several.size:
        return
    first, last = read.lines[several[0] : several[0] + 2]
    id_ = next(row[1] for row in read_labels(path, attribute.name) if row[0] == first)
    raise SourceError(
        f"The labels {path} give the document '{one_line(id_, 80)}' several groups in "
        f"lines {first} to {last}; keep one, or weigh each in a column 'weight'."
    )


def _named_groups(path: Path, attribute: Attribute, labels: Iterable[object]) -> list[str]:
    """Return the groups that the labels name.

    pandas writes whole numbers as ``1.0`` where a label is missing.
    """
    names = {as_name(value) for label in labels for value in values_of(label)}
    groups = sorted(names - {UNKNOWN, ""})
    if len(groups) > MAX_GROUPS:
        raise SourceError(
            f"The labels {path} have more than {MAX_GROUPS:,} groups for {attribute.name}; list "
            "its groups and their values under 'groups:' in the source."
        )
    if len(groups) < 2:
        problem = f"The labels {path} have {len(groups)} groups"
        raise SourceError(f"{problem} for {attribute.name}, which needs at least two.")
    return groups


def label_rows(
    attribute: Attribute,
    labels: Sequence[object],
    known: dict[object, tuple[float, ...]] | None = None,
) -> NDArray[Any]:
    """Return the share of each group in documents with these labels, as :data:`Memberships` has it.

    What cannot be read is unknown.

    Args:
        attribute: The attribute.
        labels: The label of each document.
        known: The rows of labels that were read before, by their keys; gets those that were not.
    """
    if attribute.open:
        return named_array([attribute.named_shares(label) for label in labels])
    # Documents mostly share their labels.
    by_label = {} if known is None else known
    rows = []
    for label in labels:
        key = label_key(label)
        if (row := by_label.get(key)) is None:
            row = attribute.membership(label, strict=False)
            if len(by_label) >= MAX_CACHED:
                by_label.clear()
            by_label[key] = row
        rows.append(row)
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(attribute.universe))


def in_groups(attribute: Attribute, rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which rows have a share of any group, shape (n,)."""
    if attribute.open:
        return rows.astype(bool)
    return np.asarray(rows[:, : len(attribute.groups)].any(axis=1))


def _mixed_by_name(
    rows: NDArray[Any], weights: FloatArray, starts: NDArray[np.intp]
) -> NDArray[Any]:
    """Return what :func:`_mixed` does, for an open attribute."""
    documents = []
    for start, end in itertools.pairwise([*starts.tolist(), len(rows)]):
        total = float(weights[start:end].sum())
        mixed: dict[str, float] = {}
        for shares, weight in zip(rows[start:end], weights[start:end].tolist(), strict=True):
            for group, share in shares.items():
                if weight:
                    mixed[group] = mixed.get(group, 0.0) + share * weight / total
        documents.append(mixed)
    return named_array(documents)


def _mixed(
    rows: NDArray[Any], weights: FloatArray, starts: NDArray[np.intp], attribute: Attribute
) -> NDArray[Any]:
    """Return the mean memberships of documents by weight; unknown if they have no weight.

    Args:
        rows: The memberships of all rows of the file, those of one document beside each other.
        weights: The weights of the rows.
        starts: The first row of each document.
        attribute: The attribute of the labels.
    """
    if attribute.open:
        return _mixed_by_name(rows, weights, starts)
    unknown = attribute.membership(None)
    totals = np.add.reduceat(weights, starts)[:, None]
    sums = np.add.reduceat(rows * weights[:, None], starts)
    return np.where(totals > 0, sums / np.where(totals > 0, totals, 1.0), unknown)


def label_key(label: object) -> object:
    """Return the key under which results for a label are cached; ``1`` is not ``True``."""
    return label if label is None or type(label) is str else ("", repr(label))


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
    order = sorted(counts, key=lambda value: (-counts[value], str(value)))
    values = [
        ValueCount(value=one_line(as_text(it)), documents=counts[it], group=attribute.group_of(it))
        for it in order[:MAX_VALUES]
    ]
    return AttributeReport(
        name=attribute.name,
        origin=attribute.labels or attribute.field,
        documents=documents,
        labelled=labelled,
        values=values,
    )


class LabelReader:
    """Turns the labels of documents into memberships.

    Attributes:
        schema: The attributes, with the groups that only a label file names.
        field_attributes: The attributes that read a field of the hit.
    """

    def __init__(self, schema: Schema, files: Mapping[str, LabelStore]) -> None:
        self.schema = schema
        self.field_attributes = [a for a in schema.attributes.values() if a.field]
        self._files = files
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
        return cls(Schema(attributes=resolved), files)

    def with_dates(self, formats: Mapping[str, str]) -> LabelReader:
        """Return this reader with the formats of dates, by field, where attributes state none."""
        attributes = {
            name: attribute.model_copy(update={"dates": formats.get(attribute.field, "")})
            if attribute.field and not attribute.dates
            else attribute
            for name, attribute in self.schema.attributes.items()
        }
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
        files = {name: store.memberships(ids) for name, store in self._files.items()}
        fields = {it.name: self._of_field(it, values[it.name]) for it in self.field_attributes}
        return {name: (files | fields)[name] for name in self.schema.attributes}

    def reports_of_files(self) -> dict[str, AttributeReport]:
        """Return the check's report on each label file, by attribute."""
        return {name: store.report for name, store in self._files.items()}

    def in_files(self, ids: Sequence[str]) -> set[str]:
        """Return the documents that occur in a label file."""
        codes = [store.codes(ids) for store in self._files.values()]
        return {
            id_ for own in codes for id_, code in zip(ids, own.tolist(), strict=True) if code >= 0
        }

    def in_fields(self, documents: Sequence[Document]) -> dict[str, list[object]]:
        """Return the labels of documents for each attribute that reads a field."""
        attributes = self.field_attributes
        return {it.name: [document.label(it) for document in documents] for it in attributes}

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
                continue
            update = {"documents": len(ids), "labelled": labelled}
            reports.append(self._files[name].report.model_copy(update=update))
        return reports

    def _of_field(self, attribute: Attribute, labels: Sequence[object]) -> NDArray[Any]:
        return label_rows(attribute, labels, self._rows.setdefault(attribute.name, {}))
