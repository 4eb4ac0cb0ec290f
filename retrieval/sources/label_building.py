"""Turns a file of labels into sorted hashes of ids, with one row of memberships each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairqr.base.errors import SourceError, one_line
from fairqr.retrieval.engines.report import AttributeReport
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.sources.documents import chunks
from fairqr.retrieval.sources.label_files import read_labels
from fairqr.retrieval.sources.label_store import LabelStore, digests, with_groups
from fairqr.retrieval.sources.label_values import attribute_report, label_key, values_of
from fairqr.retrieval.sources.schema import UNKNOWN, Attribute, as_text

MAX_GROUPS = 1000
"""If only the file names the groups, more than this means that the wrong column was read."""

MAX_LABELS = 100_000
CHUNK = 10_000

Codes = NDArray[np.uint32]


class _Rows(NamedTuple):
    """All rows of a file, as parallel arrays; ``weights`` is empty if the file has no weights."""

    hashes: NDArray[np.uint64]
    more_hashes: NDArray[np.uint64]
    labels: Codes
    lines: Codes
    weights: FloatArray
    unit: str


def built_labels(path: Path, attribute: Attribute, tell: Callable[[int], None]) -> LabelStore:
    """Read a file of labels.

    Args:
        path: The file.
        attribute: The attribute that the file labels.
        tell: Called now and then with the number of rows read.

    Raises:
        SourceError: The file cannot be read, or its labels do not fit the attribute.
    """
    if not attribute.groups:
        attribute = _with_groups_of_file(path, attribute, tell)
    book = _LabelBook(attribute)
    read = _read(path, attribute, book, tell)
    hashes, codes, rows = _one_row_each(path, read, book)
    labelled = rows[:, : len(attribute.groups)].sum(axis=1) > 0
    return LabelStore(
        attribute,
        book.report(len(hashes), int(labelled[codes].sum())),
        hashes,
        codes.astype(np.uint16) if len(rows) <= 1 << 16 else codes,
        np.vstack([rows, attribute.membership(None)]),
    )


def _with_groups_of_file(
    path: Path, attribute: Attribute, tell: Callable[[int], None]
) -> Attribute:
    """Return the attribute with the groups that the file names."""
    groups: set[str] = set()
    for chunk in chunks(read_labels(path, attribute.name).rows, CHUNK):
        for key, label in {label_key(row.label): row.label for row in chunk}.items():
            if key not in groups:
                groups.update(map(as_text, values_of(label)))
        if len(groups) > MAX_GROUPS:
            raise SourceError(
                f"The labels {path} have more than {MAX_GROUPS:,} groups for {attribute.name}; "
                "list its groups and their values under 'groups:' in the source."
            )
        tell(0)
    named = sorted(groups - {UNKNOWN})
    if len(named) < 2:
        raise SourceError(
            f"The labels {path} have {len(named)} groups for {attribute.name}, which needs at "
            "least two; correct the file."
        )
    return with_groups(path, attribute, named)


class _LabelBook:
    """The distinct labels of a file, with the memberships and the count of each.

    Usually few labels are distinct. If very many are, such as exact amounts, only the first ones
    are counted for the check.
    """

    def __init__(self, attribute: Attribute) -> None:
        self.rows: list[tuple[float, ...]] = []
        self.counts: Counter[int] = Counter()
        self.unlabelled = attribute.membership(None)
        self._attribute = attribute
        self._labels: list[object] = []
        self._codes: dict[object, int] = {}
        self._more = False

    def code(self, label: object) -> int:
        """Return the number of a label.

        Raises:
            ValueError: The label is not valid.
        """
        key = label_key(label)
        if (code := self._codes.get(key)) is not None:
            return code
        row = self._attribute.membership(label, strict=False)
        if len(self.rows) >= MAX_LABELS:
            self._more, key, label = True, row, None
        if (code := self._codes.setdefault(key, len(self.rows))) == len(self.rows):
            self.rows.append(row)
            self._labels.append(label)
        return code

    def report(self, documents: int, labelled: int) -> AttributeReport:
        """Return the check's report on the file."""
        counts: Counter[object] = Counter()
        for code, label in enumerate(self._labels):
            counts.update(dict.fromkeys(values_of(label), self.counts[code]))
        return attribute_report(self._attribute, documents, labelled, counts, more=self._more)


def _read(path: Path, attribute: Attribute, book: _LabelBook, tell: Callable[[int], None]) -> _Rows:
    rows = read_labels(path, attribute.name)
    parts: list[tuple[NDArray[Any], ...]] = []
    count = 0
    for chunk in chunks(rows.rows, CHUNK):
        codes = []
        for row in chunk:
            try:
                codes.append(book.code(row.label))
            except ValueError as error:
                raise SourceError(
                    f"The labels {path}, {rows.unit} {row.line}, cannot be read: {one_line(error)}."
                ) from None
        book.counts.update(codes)
        labels = np.array(codes, np.uint32)
        lines = np.array([row.line for row in chunk], np.uint32)
        weights = np.array([row.weight for row in chunk] if rows.weighted else [])
        parts.append((*digests(row.id for row in chunk).T.copy(), labels, lines, weights))
        count += len(chunk)
        tell(count)
    if not count:
        raise SourceError(f"The labels {path} have no rows; write one for each document.")
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return _Rows._make([*columns, rows.unit])


def _one_row_each(
    path: Path, read: _Rows, book: _LabelBook
) -> tuple[NDArray[np.uint64], Codes, FloatArray]:
    """Return the sorted hashes, the row of each, and the distinct rows.

    Raises:
        SourceError: A document has two labels and no weights, or two documents have one hash.
    """
    rows, row_of_label = np.unique(np.array(book.rows), axis=0, return_inverse=True)
    order = np.argsort(read.hashes, kind="stable")
    hashes = read.hashes[order]
    codes: Codes = row_of_label.astype(np.uint32)[read.labels[order]]
    repeated = np.flatnonzero(hashes[1:] == hashes[:-1])
    if not len(repeated) and not len(read.weights):
        return hashes, codes, rows
    more = read.more_hashes
    if len(two := repeated[more[order[repeated]] != more[order[repeated + 1]]]):
        first, second = read.lines[order[two[0]]], read.lines[order[two[0] + 1]]
        raise SourceError(
            f"The labels {path} have two ids with the same hash in {read.unit}s {first} and "
            f"{second}, which almost never happens by chance; rename one of the documents."
        )
    is_first = np.ones(len(hashes), bool)
    is_first[repeated + 1] = False
    starts = np.flatnonzero(is_first)
    if len(read.weights):
        codes, rows = _weighted(codes, rows, read.weights[order], starts, book)
    elif len(two := repeated[codes[repeated] != codes[repeated + 1]]):
        place = int(read.lines[order[two + 1]].argmin())
        first, second = read.lines[order[two[place]]], read.lines[order[two[place] + 1]]
        raise SourceError(
            f"The labels {path} give one document two groups in {read.unit}s {first} and {second}; "
            "keep one of them, or add a column 'weight' that weighs both."
        )
    else:
        codes = codes[starts]
    return hashes[starts], codes, rows


def _weighted(
    codes: Codes, rows: FloatArray, weights: FloatArray, starts: NDArray[np.intp], book: _LabelBook
) -> tuple[Codes, FloatArray]:
    """Return each document's row number, and the rows, merging the rows of one document."""
    sizes = np.diff(starts, append=len(codes))
    totals = np.add.reduceat(weights, starts)
    mixed = (sizes > 1) | (totals == 0)
    if not mixed.any():
        return codes[starts], rows
    taken = np.repeat(mixed, sizes)
    places = np.concatenate([[0], np.cumsum(sizes[mixed])[:-1]])
    sums = np.add.reduceat(weights[taken, None] * rows[codes[taken]], places)
    found = np.where(
        totals[mixed, None] > 0,
        sums / np.where(totals[mixed], totals[mixed], 1.0)[:, None],
        book.unlabelled,
    )
    new_rows, new_codes = np.unique(found, axis=0, return_inverse=True)
    codes = codes[starts]
    codes[mixed] = len(rows) + new_codes
    return codes, np.vstack([rows, new_rows])
