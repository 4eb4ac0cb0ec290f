"""Files of ids and groups: CSV, JSON Lines and Parquet, read row by row."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from fairqr.base.errors import SourceError, one_line
from fairqr.retrieval.sources.documents import identifier, parse_object


class LabelRow(NamedTuple):
    """One row of a file of labels.

    Attributes:
        line: Its number in the file, or the row number in a Parquet file. Both count from 1.
        id: The document.
        label: The label, in any form that :meth:`Attribute.membership` reads.
        weight: Its share among the rows of the same document, before normalisation.
    """

    line: int
    id: str
    label: object
    weight: float = 1.0


class LabelRows(NamedTuple):
    """The rows of a file of labels.

    Attributes:
        rows: All rows, read from disk one at a time.
        weighted: Whether the file has weights, so that several rows can share a document.
        unit: What ``LabelRow.line`` counts: ``line`` or ``row``.
    """

    rows: Iterator[LabelRow]
    weighted: bool = False
    unit: str = "line"


def read_labels(path: Path, attribute: str) -> LabelRows:
    """Read a file of labels.

    A CSV file begins with ``id,group`` and may have a column ``weight``. A line of a JSON Lines
    file is ``{"id": …, "group": …}``. A Parquet file has the columns of either. The column or key
    ``group`` may have the attribute's name instead. ``.gz`` files are unpacked.

    Args:
        path: The file; its ending says the format.
        attribute: The attribute's name.

    Raises:
        SourceError: The file or one of its rows cannot be read; iterating the rows may raise it.
    """
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(".csv"):
        return _csv(path, attribute)
    if name.endswith((".jsonl", ".ndjson")):
        return LabelRows(_json_lines(path, attribute))
    if path.suffix.lower() in (".parquet", ".pq"):
        return _parquet(path, attribute)
    raise SourceError(
        f"The labels {path} must be a .csv, .jsonl or .parquet file; the first two may end in .gz."
    )


def _csv(path: Path, attribute: str) -> LabelRows:
    with _open(path) as stream, _Reading(path) as reading:
        header = [
            name.strip()
            for name in next(csv.reader(stream, skipinitialspace=True, strict=True), [])
        ]
        reading.line = 1
    id_, group, weight = _columns(path, header, attribute)
    return LabelRows(_csv_rows(path, id_, group, weight), weight is not None)


def _csv_rows(path: Path, id_: int, group: int, weight: int | None) -> Iterator[LabelRow]:
    needed = max(id_, group, -1 if weight is None else weight)
    with _open(path) as stream, _Reading(path) as reading:
        reader = csv.reader(stream, skipinitialspace=True, strict=True)
        next(reader)
        for row in reader:
            reading.line = reader.line_num
            if not row:
                continue
            if len(row) <= needed:
                raise ValueError("it has fewer columns than the first line")
            if not row[id_]:
                raise ValueError("it has no id")
            if weight is None:
                yield LabelRow(reader.line_num, row[id_], row[group])
            else:
                yield LabelRow(reader.line_num, row[id_], row[group], _weight(row[weight]))


def _json_lines(path: Path, attribute: str) -> Iterator[LabelRow]:
    with _open(path) as stream, _Reading(path) as reading:
        for reading.line, line in enumerate(stream, 1):
            if line.isspace():
                continue
            row = parse_object(line)
            if "group" not in row and attribute not in row:
                raise ValueError(f"it has neither 'group' nor '{attribute}'")
            label = row["group"] if "group" in row else row[attribute]
            yield LabelRow(reading.line, identifier(row.get("id")), label)


def _parquet(path: Path, attribute: str) -> LabelRows:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise SourceError(
            f"Reading the labels {path} needs pyarrow; run pip install 'fairqr[parquet]'."
        ) from None
    try:
        header = parquet.read_schema(path).names
    except (OSError, ArrowException) as error:
        raise SourceError(f"The labels {path} cannot be read: {one_line(error)}.") from None
    id_, group, weight = _columns(path, header, attribute)
    wanted = [header[id_], header[group], *([] if weight is None else [header[weight]])]
    return LabelRows(_parquet_rows(path, wanted), weight is not None, "row")


def _parquet_rows(path: Path, columns: list[str]) -> Iterator[LabelRow]:
    from pyarrow import ArrowException, parquet

    with _Reading(path, "row") as reading:
        try:
            with parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=65_536, columns=columns):
                    held = [batch.column(name).to_pylist() for name in columns]
                    for row in zip(*held, strict=True):
                        reading.line += 1
                        weight = _weight(row[2]) if len(row) > 2 else 1.0
                        label = dict(row[1]) if _is_map(row[1]) else row[1]
                        yield LabelRow(reading.line, identifier(row[0]), label, weight)
        except ArrowException as error:
            raise SourceError(
                f"The labels {path} break off after row {reading.line}: {one_line(error)}."
            ) from None


def _is_map(label: object) -> bool:
    """Return whether this is a map as pyarrow gives it: a list of pairs."""
    return isinstance(label, list) and bool(label) and all(isinstance(it, tuple) for it in label)


class _Reading:
    """Turns errors while reading a file into one sentence that names the file and the line."""

    def __init__(self, path: Path, unit: str = "line") -> None:
        self.path, self.unit, self.line = path, unit, 0

    def __enter__(self) -> _Reading:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        place, reason = f"{self.unit} {self.line}", one_line(error)
        if isinstance(error, UnicodeDecodeError):
            problem = f", after {place}, are not UTF-8 text; save the file as UTF-8"
        elif isinstance(error, OSError | EOFError | zlib.error):
            problem = f" break off after {place}: {reason}"
        elif isinstance(error, csv.Error):
            problem = f", after {place}, are not CSV: {reason}"
        elif isinstance(error, ValueError):
            problem = f", {place}, cannot be read: {reason}"
        else:
            return
        raise SourceError(f"The labels {self.path}{problem}.") from None


def _open(path: Path) -> IO[str]:
    try:
        raw: Any = path.open("rb")
    except OSError as error:
        raise SourceError(f"The labels {path} cannot be read: {error.strerror or error}.") from None
    if path.suffix.lower() == ".gz":
        raw = gzip.GzipFile(fileobj=raw)
    return io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")


def _columns(path: Path, header: list[str], attribute: str) -> tuple[int, int, int | None]:
    """Return the positions of id, group and weight."""
    if len(set(header)) < len(header):
        raise SourceError(f"The labels {path} have two columns of one name; rename one of them.")
    others = [name for name in header if name not in ("id", "weight")]
    named = [name for name in ("group", attribute) if name in others] or others
    if "id" not in header or not named or (len(named) > 1 and named is others):
        raise SourceError(
            f"The first line of the labels {path} must name the columns 'id' and 'group' (or "
            f"'{attribute}'); 'weight' is optional."
        )
    weight = header.index("weight") if "weight" in header else None
    return header.index("id"), header.index(named[0]), weight


def _weight(value: object) -> float:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        with suppress(ValueError):
            if 0 <= (weight := float(value)) < float("inf"):
                return weight
    raise ValueError(f"the weight must be 0 or more, not {value!r}")
