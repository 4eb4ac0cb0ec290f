"""Files of ids and groups: CSV, JSON Lines and Parquet, read row by row."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairqr.base.errors import SourceError, one_line
from fairqr.retrieval.sources.documents import identifier
from fairqr.retrieval.sources.query_files import named_rows

LabelRow = tuple[int, str, object, float | None]
"""The number of a line, a document, its label, and the label's share among those of the document.

The label is in any form that :meth:`Attribute.membership` reads. The share is None if the file has
no weights, so that a document has one label.
"""


def read_labels(path: Path, attribute: str) -> Iterator[LabelRow]:
    """Yield the rows of a file of labels.

    A CSV file begins with ``id,group`` and may have a column ``weight``. A line of a JSON Lines
    file is ``{"id": …, "group": …}``. A Parquet file has the columns of either. The column or key
    ``group`` may have the attribute's name instead. ``.gz`` files are unpacked.

    Args:
        path: The file; its ending says the format.
        attribute: The attribute's name.

    Raises:
        CorpusError: The file cannot be read to its end.
        SourceError: A row is wrong; the error names its line.
    """
    name = path.name.lower()
    if not name.removesuffix(".gz").endswith((".csv", ".jsonl", ".ndjson", ".parquet", ".pq")):
        raise SourceError(
            f"The labels {path} must be a .csv, .jsonl or .parquet file; the first two may end in "
            ".gz."
        )
    is_parquet = name.endswith((".parquet", ".pq"))
    rows = _parquet(path, attribute.casefold()) if is_parquet else named_rows(path, "labels")
    group, weighted = None, None
    for line, row in rows:
        try:
            if group is None or group not in row:
                group = _group_column(row, attribute.casefold())
            weighted = "weight" in row if weighted is None else weighted
            if weighted != ("weight" in row):
                raise ValueError("it needs a 'weight' like the other lines, or no line has one")
            weight = _weight(row["weight"]) if weighted else None
            yield line, identifier(row.get("id")), row[group], weight
        except ValueError as error:
            raise SourceError(f"The labels {path}, line {line}: {error}; correct it.") from None


def _group_column(row: dict[str, Any], attribute: str) -> str:
    """Return the column of the groups: ``group``, the attribute, or the only one that is left."""
    # A column without a name is that of the numbers of rows, as pandas writes it.
    others = [name for name in row if name not in ("", "id", "weight")]
    named = [name for name in ("group", attribute) if name in others] or others
    if "id" not in row or not named or (named is others and len(named) > 1):
        raise ValueError(f"it needs an 'id' and a 'group' (or '{attribute}'); 'weight' is optional")
    return named[0]


def _parquet(path: Path, attribute: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a Parquet file by the names of their columns, each with its number."""
    known = ("id", "group", "weight", attribute)
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise SourceError(
            f"Reading the labels {path} needs pyarrow; run pip install 'fairqr[parquet]'."
        ) from None
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            # Other columns may be large, such as texts and vectors.
            some = [name for name in names if name.casefold() in known]
            is_named = any(name.casefold() in ("group", attribute) for name in some)
            for batch in file.iter_batches(columns=some if is_named else None):
                for row in batch.to_pylist():
                    number += 1
                    yield number, {name.casefold(): _value(value) for name, value in row.items()}
    except (OSError, ArrowException) as error:
        raise SourceError(
            f"The labels {path} cannot be read after row {number}: {one_line(error)}."
        ) from None


def _value(value: Any) -> Any:
    """Return a value as JSON would have it: pyarrow gives a map as a list of pairs."""
    is_map = isinstance(value, list) and value and isinstance(value[0], tuple)
    return dict(value) if is_map else value


def _weight(value: Any) -> float:
    try:
        weight = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        weight = math.nan
    if not 0 <= weight < math.inf:
        raise ValueError(f"the weight must be 0 or more, not {value!r}")
    return weight
