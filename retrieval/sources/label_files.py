"""Files of labels beside a source, which are read once.

For each file and attribute we keep a folder: the hashes of the ids, sorted, with the number of
their memberships; the distinct memberships; and the check's report.
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
from fairqr.retrieval.engines.report import AttributeReport
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.fairness.table import coded_rows, named_array
from fairqr.retrieval.sources.documents import IDS, identifier, other_form, wrong_line
from fairqr.retrieval.sources.group_values import as_name
from fairqr.retrieval.sources.label_rows import attribute_report, in_groups, label_key, label_rows
from fairqr.retrieval.sources.label_values import values_of
from fairqr.retrieval.sources.query_files import named_rows, weight_of
from fairqr.retrieval.sources.schema import UNKNOWN, Attribute, validated

FORMAT = 10
"""Changes when what we keep of a file does, so that it is read again."""

ROWS_AT_ONCE = 10_000
"""How many rows we read between two reports of progress."""

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

    has_weights = None
    for line, row in named_rows(path, "labels"):
        try:
            id_, label = _id_and_label(row, attribute)
            if has_weights is None:
                has_weights = "weight" in row
            if has_weights != ("weight" in row):
                raise ValueError("it needs a 'weight' like the other lines, or no line has one")
            weight = weight_of(row["weight"]) if has_weights else None
            yield line, identifier(id_), label, weight
        except ValueError as error:
            raise wrong_line(path, line, error, "labels") from None


def _id_and_label(row: Mapping[str, object], attribute: str) -> tuple[object, object]:
    """Return the id and the label of a row.

    Raises:
        ValueError: The row lacks one of them.
    """
    label_name = "group" if "group" in row else attribute.casefold()
    id_ = next((row[name] for name in IDS if name in row), None)
    if id_ is not None and label_name in row:
        return id_, row[label_name]

    # A head with tabs may stand above rows with spaces.
    is_one_cell = len(row) == 1 and len(str(id_).split()) > 1
    advice = ", separated as in the first line" if is_one_cell else ""
    raise ValueError(
        f"it needs an 'id' and a 'group' (or '{label_name}'){advice}; 'weight' is optional"
    )


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
        content = json.loads((folder / "about.json").read_bytes())
        self.attribute = _with_groups(path, attribute, content["groups"])
        self.report = AttributeReport.model_validate(content["report"])
        self._ids = np.load(folder / "ids.npy", mmap_mode="r")
        self._codes = np.load(folder / "codes.npy", mmap_mode="r")
        # Code -1 is the last row, for documents that the file lacks.
        if attribute.open:
            self._rows = named_array([*content["rows"], {}])
        else:
            self._rows = np.array([*content["rows"], self.attribute.membership(None)])

    def memberships(self, ids: Sequence[str]) -> NDArray[Any]:
        """Return the share of each group in these documents, as :data:`Memberships` has it."""
        return np.asarray(self._rows[self.codes(ids)])

    def codes(self, ids: Sequence[str]) -> NDArray[np.intp]:
        """Return a number for the label of each document, or -1 if the file lacks it.

        The file may have an id that is a whole number in its other form, as ``1.0``.
        """
        codes = self._codes_of(ids)
        forms = {}
        for position in np.flatnonzero(codes < 0).tolist():
            form = other_form(ids[position])
            if form is not None:
                forms[position] = form
        codes[[*forms]] = self._codes_of([*forms.values()])
        return codes

    def _codes_of(self, ids: Sequence[str]) -> NDArray[np.intp]:
        """Return what :meth:`codes` does, for ids written as in the file."""
        hashes = np.array([*map(_hash_of, ids)], dtype=np.uint64)
        positions = np.searchsorted(self._ids, hashes).clip(max=len(self._ids) - 1)
        is_in_file = self._ids[positions] == hashes
        return np.where(is_in_file, self._codes[positions], -1)


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

    def report_progress(count: int) -> None:
        if stop.is_set():
            raise asyncio.CancelledError
        if progress:
            progress(count)

    try:
        status = path.stat()
    except OSError as error:
        raise SourceError(f"The labels {path} cannot be read: {error.strerror}.") from None

    name = f"{_hash_of(repr((path.absolute(), attribute.name))):016x}"
    # The population does not affect what we keep.
    definition = attribute.model_dump_json(exclude={"population"})
    version = FORMAT, (status.st_size, status.st_mtime_ns), definition
    folder = store / f"{name}-{_hash_of(repr(version)):016x}"

    store.mkdir(parents=True, exist_ok=True)
    with FileLock(store / f"{name}.lock").acquire(cancel_check=stop.is_set):
        # If it does not exist yet, or is damaged, it is built.
        with contextlib.suppress(OSError, ValueError, EOFError):
            return LabelStore(folder, path, attribute)
        # This is from another version of the file or attribute, or from a killed build.
        for outdated in store.glob(f"{name}-*"):
            shutil.rmtree(outdated, ignore_errors=True)
        _build(path, attribute, folder, report_progress)
        return LabelStore(folder, path, attribute)


def _hash_of(text: str) -> int:
    """Return 64 bits: among ten million ids, two have the same in one of 300,000 files."""
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _with_groups(path: Path, attribute: Attribute, groups: Sequence[str]) -> Attribute:
    """Return an attribute, with the groups of its label file if it names no groups."""
    if attribute.groups or attribute.open:
        return attribute
    subject = f"The attribute {attribute.name} with the groups in the labels {path}"
    return validated(Attribute, {**attribute.model_dump(), "groups": groups}, subject, SourceError)


class _FileRows(NamedTuple):
    """The rows of a file of labels, those of one document beside each other.

    Attributes:
        labels: The distinct labels.
        ids: The hash of each row's document, ascending.
        codes: The label of each row, as its position among the labels.
        lines: The line of each row.
        weights: The weight of each row; None if the file has no weights.
        starts: The first row of each document.
    """

    labels: list[object]
    ids: NDArray[np.uint64]
    codes: NDArray[np.intp]
    lines: NDArray[np.intp]
    weights: FloatArray | None
    starts: NDArray[np.intp]


def _read_rows(
    path: Path, attribute: Attribute, report_progress: Callable[[int], None]
) -> _FileRows:
    """Read a file of labels.

    Raises:
        CorpusError: The file cannot be read to its end.
        SourceError: A row is wrong, or there are no rows.
    """
    code_of: dict[object, int] = {}
    labels: list[object] = []
    # Arrays of the standard library grow without an object for each number.
    hashes = array("Q")
    codes = array("q")
    lines = array("q")
    weights = array("d")
    for number, (line, id_, label, weight) in enumerate(read_labels(path, attribute.name), start=1):
        code = code_of.setdefault(label_key(label), len(labels))
        if code == len(labels):
            labels.append(label)
        hashes.append(_hash_of(id_))
        codes.append(code)
        lines.append(line)
        if weight is not None:
            weights.append(weight)
        if number % ROWS_AT_ONCE == 0:
            report_progress(number)
    if not labels:
        raise SourceError(f"The labels {path} have no rows; write one for each document.")
    report_progress(len(codes))

    order = np.argsort(np.array(hashes), kind="stable")
    ids = np.array(hashes)[order]
    is_new_document = np.append(True, ids[1:] != ids[:-1])
    return _FileRows(
        labels=labels,
        ids=ids,
        codes=np.array(codes)[order],
        lines=np.array(lines)[order],
        weights=np.array(weights)[order] if weights else None,
        starts=np.flatnonzero(is_new_document),
    )


def _build(
    path: Path, attribute: Attribute, folder: Path, report_progress: Callable[[int], None]
) -> None:
    """Read a file of labels into a new folder."""
    rows = _read_rows(path, attribute, report_progress)
    if not attribute.groups and not attribute.open:
        attribute = _with_groups(path, attribute, _named_groups(path, attribute, rows.labels))

    memberships = label_rows(attribute, rows.labels)
    if rows.weights is None:
        _refuse_several_groups(path, attribute, rows)
        row_of_document = rows.codes[rows.starts]
    else:
        memberships = _mixed(memberships[rows.codes], rows.weights, rows.starts, attribute)
        row_of_document = np.arange(len(rows.starts))
    distinct = coded_rows(memberships)
    codes = np.array(distinct["rows"], dtype=np.int32)[row_of_document]

    labelled = int(in_groups(attribute, memberships)[row_of_document].sum())
    counts: Counter[object] = Counter()
    for label, count in zip(rows.labels, np.bincount(rows.codes).tolist(), strict=True):
        counts.update(dict.fromkeys(values_of(label), count))
    report = attribute_report(attribute, len(rows.starts), labelled, counts)

    content = {
        "groups": attribute.groups,
        "report": report.model_dump(mode="json"),
        "rows": distinct["patterns"],
    }
    try:
        folder.mkdir()
        np.save(folder / "ids.npy", rows.ids[rows.starts])
        np.save(folder / "codes.npy", codes)
        # Written last, so a folder with it is whole.
        (folder / "about.json").write_text(json.dumps(content))
    except OSError as error:
        raise SourceError(
            f"The labels {path} cannot be kept in {folder.parent} ({error.strerror}); make room on "
            "the disk, or name another folder in FAIRQR_DATA_DIR."
        ) from None


def _refuse_several_groups(path: Path, attribute: Attribute, rows: _FileRows) -> None:
    """Refuse a file without weights that gives a document different labels.

    Raises:
        SourceError: It does; the error names the document.
    """
    is_same_document = rows.ids[1:] == rows.ids[:-1]
    is_other_label = rows.codes[1:] != rows.codes[:-1]
    several = np.flatnonzero(is_same_document & is_other_label)
    if not several.size:
        return

    first, last = rows.lines[several[0] : several[0] + 2]
    # We only keep hashes of ids, so we read the file again.
    id_ = next(row[1] for row in read_labels(path, attribute.name) if row[0] == first)
    raise SourceError(
        f"The labels {path} give the document '{one_line(id_, 80)}' several groups in "
        f"lines {first} to {last}; keep one, or weigh each in a column 'weight'."
    )


def _named_groups(path: Path, attribute: Attribute, labels: Iterable[object]) -> list[str]:
    """Return the groups that the labels name.

    pandas writes whole numbers as ``1.0`` where a label is missing.
    """
    names: set[str] = set()
    for label in labels:
        names.update(map(as_name, values_of(label)))
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
    has_weight = totals > 0
    means = sums / np.where(has_weight, totals, 1.0)
    return np.where(has_weight, means, unknown)


def _mixed_by_name(
    rows: NDArray[Any], weights: FloatArray, starts: NDArray[np.intp]
) -> NDArray[Any]:
    """Return what :func:`_mixed` does, for an open attribute."""
    documents = []
    for start, end in itertools.pairwise([*starts.tolist(), len(rows)]):
        weights_of_document = weights[start:end]
        total = float(weights_of_document.sum())
        mixed: dict[str, float] = {}
        for shares, weight in zip(rows[start:end], weights_of_document.tolist(), strict=True):
            if not weight:
                continue
            for group, share in shares.items():
                mixed[group] = mixed.get(group, 0.0) + share * weight / total
        documents.append(mixed)
    return named_array(documents)
