"""The labels of documents, read from fields of the hits or from files beside the source.

A file is read once. For each file and attribute we keep a SQLite database: the ids with the number
of their memberships, the distinct memberships, and the check's report.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import secrets
import shutil
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from operator import itemgetter
from pathlib import Path

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from pydantic import ValidationError

from fairqr.base.errors import SourceError, first_problem, one_line
from fairqr.base.settings import data_dir
from fairqr.retrieval.engines.engine import Memberships
from fairqr.retrieval.engines.report import AttributeReport, ValueCount
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.sources.label_files import read_labels
from fairqr.retrieval.sources.schema import UNKNOWN, Attribute, Schema, as_text

FORMAT = 3
ROWS_AT_ONCE = 10_000
MAX_CACHED = 10_000
MAX_VALUES = 1000
ENOUGH = 20
"""If this many documents have no label at all, it is not by chance."""

MAX_GROUPS = 1000
"""If only the file names the groups, more than this means that the wrong column was read."""

MAX_LABELS = 100_000
"""So many distinct labels of a file are counted for the check."""

_TABLES = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE labels (id TEXT PRIMARY KEY, code INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE about (json TEXT);
CREATE TEMP TABLE file (id TEXT, code INTEGER, weight REAL, line INTEGER);
BEGIN;
"""
# Two codes of one id become NULL, which is refused. Sorted ids are appended, which is faster.
_ONE_CODE_EACH = """
INSERT INTO labels
SELECT id, iif(min(code) = max(code), min(code), NULL) FROM file GROUP BY id ORDER BY id
"""
_SEVERAL_CODES = """
SELECT id, min(line), max(line) FROM file GROUP BY id HAVING min(code) < max(code) LIMIT 1
"""
_WEIGHTS = "SELECT id, code, sum(weight) FROM file GROUP BY id, code ORDER BY id"
# One value, because a row for each id would take a third longer.
_CODES = """
SELECT json_group_array(labels.code)
FROM json_each(?) AS wanted LEFT JOIN labels ON labels.id = wanted.value
"""


class _StoppedError(Exception):
    """Nobody is waiting for the labels any more."""


class LabelStore:
    """The memberships of the documents in a label file.

    Attributes:
        attribute: The attribute, including groups that only the file names.
        report: The check's report on the file.
    """

    def __init__(self, file: Path, path: Path, attribute: Attribute) -> None:
        """Open what was kept of a label file.

        Raises:
            sqlite3.Error: It does not exist, or is damaged.
            SourceError: The groups that the file names do not fit the attribute.
        """
        address = f"{file.absolute().as_uri()}?mode=ro&immutable=1"
        self._database = sqlite3.connect(address, uri=True, check_same_thread=False)
        self._database.execute(f"PRAGMA mmap_size = {1 << 40}")
        self._lock = threading.Lock()
        self._path = path
        about = json.loads(self._database.execute("SELECT json FROM about").fetchone()[0])
        self.attribute = attribute
        if not attribute.groups:
            self.attribute = _with_groups(path, attribute, about["groups"])
        self.report = AttributeReport.model_validate(about["report"])
        # Code -1 is the last row: that of documents which the file lacks.
        self._rows = np.array([*about["rows"], self.attribute.membership(None)])

    def memberships(self, ids: Sequence[str]) -> FloatArray:
        """Return the share of each group in these documents, shape (len(ids), G)."""
        codes = [-1 if code is None else code for code in self._codes(ids)]
        found: FloatArray = self._rows[np.array(codes, dtype=np.intp)]
        return found

    def names(self, ids: Sequence[str]) -> NDArray[np.bool_]:
        """Return for each document whether the file has it, with any label."""
        return np.array([code is not None for code in self._codes(ids)], dtype=np.bool_)

    def _codes(self, ids: Sequence[str]) -> list[int | None]:
        try:
            wanted = json.dumps([_without_zeros(id_) for id_ in ids])
            with self._lock:
                ((codes,),) = self._database.execute(_CODES, [wanted])
        except sqlite3.Error as error:
            raise SourceError(
                f"What was kept of the labels {self._path} is damaged ({error}); change the time "
                "of that file, so that it is read again."
            ) from None
        found: list[int | None] = json.loads(codes)
        return found


def open_label_store(
    path: Path,
    attribute: Attribute,
    store: Path,
    progress: Callable[[int], None] | None = None,
    stop: threading.Event | None = None,
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
    stop = stop or threading.Event()

    def tell(count: int) -> None:
        if stop.is_set():
            raise _StoppedError
        if progress:
            progress(count)

    state = _state(path)
    place = _hash(path.absolute(), attribute.name)
    # The population does not affect what we keep.
    built_from = attribute.model_dump_json(exclude={"population"})
    file = store / f"{place}-{_hash(FORMAT, state, built_from)}.sqlite"
    store.mkdir(parents=True, exist_ok=True)
    with FileLock(store / f"{place}.lock").acquire(cancel_check=stop.is_set):
        # If it does not exist yet, or is damaged, it is built.
        with contextlib.suppress(sqlite3.Error):
            return LabelStore(file, path, attribute)
        # This is from another version of the file or attribute, or from a killed build.
        for old in store.glob(f"{place}-*"):
            if old.is_dir():  # as versions before 1.0 kept it
                shutil.rmtree(old, ignore_errors=True)
            else:
                old.unlink(missing_ok=True)
        beside = file.with_name(f"{file.name}-{secrets.token_hex(8)}")
        try:
            _build(path, attribute, beside, tell)
            if _state(path) != state:
                raise SourceError(f"The labels {path} changed while we read them; try again.")
            beside.replace(file)
        except sqlite3.Error as error:
            raise SourceError(
                f"The labels {path} cannot be kept in {store} ({error}); make room on the disk, or "
                "name another folder in FAIRQR_DATA_DIR."
            ) from None
        finally:
            beside.unlink(missing_ok=True)
        return LabelStore(file, path, attribute)


def _state(path: Path) -> tuple[int, int]:
    """Return something that changes when the file changes."""
    try:
        status = path.stat()
    except OSError as error:
        raise SourceError(f"The labels {path} cannot be read: {error.strerror}.") from None
    return status.st_size, status.st_mtime_ns


def _without_zeros(id_: str) -> str:
    """Return an id as it is kept: SQLite would cut it off at a zero, and so take it for another."""
    return id_.replace("\0", "\ufffd")


def _hash(*parts: object) -> str:
    return blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def _with_groups(path: Path, attribute: Attribute, groups: Sequence[str]) -> Attribute:
    """Return an attribute with the groups that its label file names."""
    try:
        return Attribute.model_validate({**attribute.model_dump(), "groups": groups})
    except ValidationError as error:
        raise SourceError(
            f"The labels {path} do not fit the attribute {attribute.name}: "
            f"{first_problem(error)[1]}."
        ) from None


def _build(path: Path, attribute: Attribute, file: Path, tell: Callable[[int], None]) -> None:
    """Read a file of labels into a new database, and make sure that it is on disk."""
    labels = _FileLabels(path, attribute)
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as database:
        database.executescript(_TABLES)
        database.executemany("INSERT INTO file VALUES (?, ?, ?, ?)", labels.rows_of_file(tell))
        attribute, rows = labels.memberships()
        if labels.weighted:
            of_documents = _weighed(database.execute(_WEIGHTS), rows, attribute.membership(None))
            database.executemany("INSERT INTO labels VALUES (?, ?)", of_documents)
        else:
            try:
                database.execute(_ONE_CODE_EACH)
            except sqlite3.IntegrityError:
                id_, first, last = database.execute(_SEVERAL_CODES).fetchone()
                raise SourceError(
                    f"The labels {path} give the document '{one_line(id_, 80)}' several groups in "
                    f"lines {first} to {last}; keep one of them, or add a column 'weight' that "
                    "weighs each."
                ) from None
        counts = dict(database.execute("SELECT code, count(*) FROM labels GROUP BY code"))
        groups = len(attribute.groups)
        labelled = sum(count for code, count in counts.items() if any(rows[code][:groups]))
        report = attribute_report(
            attribute, sum(counts.values()), labelled, labels.values(), more=labels.more
        )
        about = {"groups": attribute.groups, "report": report.model_dump(mode="json"), "rows": rows}
        database.execute("INSERT INTO about VALUES (?)", [json.dumps(about)])
        database.execute("COMMIT")
    with file.open("rb") as stream:
        os.fsync(stream.fileno())


class _FileLabels:
    """The distinct labels of a file, each with a number.

    Usually few labels are distinct. If very many are, such as exact amounts, only the first ones
    are counted for the check.
    """

    def __init__(self, path: Path, attribute: Attribute) -> None:
        self.weighted = self.more = False
        self._path, self._attribute = path, attribute
        self._codes: dict[object, int] = {}
        self._labels: list[tuple[object, int]] = []  # Each with its first line.
        self._counts: Counter[int] = Counter()

    def rows_of_file(
        self, tell: Callable[[int], None]
    ) -> Iterator[tuple[str, int, float | None, int]]:
        """Yield the id, the number of its label, the weight and the line of each row."""
        count, codes, counts = 0, self._codes, self._counts
        for line, id_, label, weight in read_labels(self._path, self._attribute.name):
            if (code := codes.get(label_key(label))) is None:
                code = self._new(label, line)
            counts[code] += 1
            yield _without_zeros(id_), code, weight, line
            count += 1
            if count % ROWS_AT_ONCE == 0:
                tell(count)
        if not count:
            raise SourceError(f"The labels {self._path} have no rows; write one for each document.")
        self.weighted = weight is not None
        if count % ROWS_AT_ONCE:
            tell(count)

    def _new(self, label: object, line: int) -> int:
        """Return the number of a label that was not seen before."""
        key = label_key(label)
        if len(self._codes) >= MAX_LABELS:
            if not self._attribute.groups:
                raise self._too_many()
            # Instead of the label we note its memberships, of which there are fewer.
            self.more, key = True, self._row(label, line)
        code = self._codes.setdefault(key, len(self._labels))
        if code == len(self._labels):
            self._labels.append((label, line))
        return code

    def memberships(self) -> tuple[Attribute, list[tuple[float, ...]]]:
        """Return the attribute with its groups, and the memberships of each label by number."""
        if not self._attribute.groups:
            values = (value for label, _ in self._labels for value in values_of(label))
            named = sorted(set(map(as_text, values)) - {UNKNOWN})
            if len(named) > MAX_GROUPS:
                raise self._too_many()
            if len(named) < 2:
                raise SourceError(
                    f"The labels {self._path} have {len(named)} groups for {self._attribute.name}, "
                    "which needs at least two; correct the file."
                )
            self._attribute = _with_groups(self._path, self._attribute, named)
        return self._attribute, [self._row(label, line) for label, line in self._labels]

    def values(self) -> Counter[object]:
        """Return how many rows have each value."""
        values: Counter[object] = Counter()
        for code, (label, _) in enumerate(self._labels[:MAX_LABELS]):
            values.update(dict.fromkeys(values_of(label), self._counts[code]))
        return values

    def _row(self, label: object, line: int) -> tuple[float, ...]:
        try:
            return self._attribute.membership(label, strict=False)
        except ValueError as error:
            raise SourceError(
                f"The labels {self._path}, line {line}: {one_line(error)}; correct it."
            ) from None

    def _too_many(self) -> SourceError:
        return SourceError(
            f"The labels {self._path} have more than {MAX_GROUPS:,} groups for "
            f"{self._attribute.name}; list its groups and their values under 'groups:' in the "
            "source."
        )


def _weighed(
    lines: Iterable[tuple[str, int, float]],
    rows: list[tuple[float, ...]],
    unlabelled: tuple[float, ...],
) -> Iterator[tuple[str, int]]:
    """Yield each document once, and append the mean of its memberships by weight to the rows."""
    codes = {row: code for code, row in enumerate(rows)}
    for id_, own in itertools.groupby(lines, key=itemgetter(0)):
        held = [(rows[code], weight) for _, code, weight in own]
        total = sum(weight for _, weight in held)
        mean = held[0][0] if total else unlabelled
        if total and len(held) > 1:
            shares = zip(*([share * weight for share in row] for row, weight in held), strict=True)
            mean = tuple(sum(share) / total for share in shares)
        if (code := codes.setdefault(mean, len(rows))) == len(rows):
            rows.append(mean)
        yield id_, code


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
            values = ", ".join(one_line(it.value, 30) for it in store.report.without_group[:10])
            remedy = f", and list the values {values} under 'groups:'" if values else ""
            raise SourceError(
                f"The labels {attribute.labels} put none of the {len(ids):,} checked documents, "
                f"such as '{one_line(ids[0], 80)}', into a group; check which column has the ids"
                f"{remedy}."
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
