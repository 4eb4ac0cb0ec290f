"""Files of queries: lines, tables and JSON Lines, read row by row.

The file name says the format; ``.gz`` files are unpacked:

- ``.jsonl``, ``.ndjson``: objects with ``query``, ``text`` or ``title``, and optionally ``id``.
- ``.csv``: the first line names the columns, by the same keys.
- Any other file: tab-separated columns if its first line has a tab, otherwise one query a line. A
  table whose first line names no column contains TREC topics: id and text.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from numbers import Number
from pathlib import Path
from typing import Any, NamedTuple

from fairqr.base.errors import SourceError, one_line
from fairqr.retrieval.sources.documents import (
    Cells,
    csv_cells,
    encodable,
    identifier,
    numbered_lines,
    parse_object,
)

TEXTS = ("query", "text", "title")
"""Possible names of a query's text; the first that is present is used."""

JSON_LINES = (".json", ".jsonl", ".ndjson")

MARKUP = ("<top", "<?xml", "<!doctype")


@dataclass(frozen=True, slots=True)
class QueryColumns:
    """Says which columns of a table or keys of JSON objects to read, in any case.

    Attributes:
        text: The text of a query; by default the first name in :data:`TEXTS` that is present.
        id: The id of a query; by default ``id``, if present.
        weight: How often a query was asked; by default each line counts once.
        segment: What the queries are grouped by, such as their topic; by default nothing.
    """

    text: str | None = None
    id: str | None = None
    weight: str | None = None
    segment: str | None = None

    @property
    def texts(self) -> Sequence[str]:
        """The possible names of the text."""
        return TEXTS if self.text is None else (self.text,)

    @property
    def named(self) -> list[str]:
        """The columns that the user asked for by name."""
        return [name for name in astuple(self) if name is not None]


class QueryRow(NamedTuple):
    """A query in a file.

    Attributes:
        line: The line on which it starts, counted from 1.
        id: The id, or None if the file has no ids.
        text: The text, with single spaces; may be empty.
        weight: At least 0, and finite.
        segment: With single spaces; empty if the query has none.
    """

    line: int
    id: str | None
    text: str
    weight: float = 1.0
    segment: str = ""


def read_queries(path: Path) -> dict[str, str]:
    """Return the text of each query by its id, which the file must contain.

    A ``.csv`` file may hold id and text without a first line that names them.

    Raises:
        CorpusError: The file cannot be read.
        SourceError: A line is not a query, or two lines have the same id; the error names the line.
    """
    queries: dict[str, str] = {}
    lines: dict[str, int] = {}
    for row in query_rows(path, need_ids=True):
        if row.id is None or not row.text:
            raise _wrong(path, row.line, "it has no id or no text")
        if (first := lines.setdefault(row.id, row.line)) != row.line:
            raise _wrong(path, row.line, f"the query '{row.id}' is already in line {first}")
        queries[row.id] = row.text
    return queries


def query_rows(
    path: Path, columns: QueryColumns | None = None, *, need_ids: bool = False
) -> Iterator[QueryRow]:
    """Yield the queries of a file.

    In a plain list a blank line between others is a query without text; elsewhere it is skipped.

    Args:
        path: The file.
        columns: Which columns to read.
        need_ids: Refuse a file without ids. A table without column names is then read as id and
            text, even if it is ``.csv``.

    Raises:
        CorpusError: The file cannot be read.
        SourceError: A line is not a query, or has no weight; the error names the line.
    """
    columns = columns or QueryColumns()
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(JSON_LINES):
        rows = named_rows(path, "queries")
    elif name.endswith(".csv"):
        rows = _table(path, csv_cells(path, "queries"), columns, need_ids, headless=need_ids)
    else:
        lines = _decoded(path)
        number, line = first = next(lines, (0, ""))
        if line.lstrip().lower().startswith(MARKUP):
            what = "it is SGML or XML; write each topic as its id, a tab, its text"
            raise _wrong(path, number, what)
        lines = itertools.chain([first] if number else [], lines)
        if "\t" not in line and not need_ids:
            if columns.named and number:
                what = f"it has no columns, so none is called '{columns.named[0]}'"
                raise _wrong(path, number, what)
            yield from _plain(lines)
            return
        cells = ((number, line.rstrip("\r\n").split("\t")) for number, line in lines)
        rows = _table(path, cells, columns, need_ids, headless=True)
    for number, row in rows:
        try:
            yield _query(number, row, columns)
        except ValueError as error:
            raise _wrong(path, number, str(error)) from None


def _query(number: int, row: Mapping[str, Any], columns: QueryColumns) -> QueryRow:
    """Return the query in a row.

    Raises:
        ValueError: A column is missing, or has a wrong value.
    """

    def value(*names: str) -> Any:
        keys = [_key(name) for name in names]
        if (key := next((key for key in keys if key in row), None)) is None:
            there = ", ".join(f"'{name}'" for name in list(row)[:20])
            what = f"it has no {_listed(names)}, only {one_line(there)}"
            raise ValueError(f"{what}; say which columns to read")
        return row[key]

    text = value(*columns.texts)
    if text is not None and not isinstance(text, str):
        raise ValueError("its text is not text")
    id_ = row.get("id") if columns.id is None else value(columns.id)
    return QueryRow(
        number,
        None
        if id_ is None and columns.id is None
        else identifier(id_.strip() if isinstance(id_, str) else id_),
        _spaced(encodable(text or "", "text")),
        1.0 if columns.weight is None else weight_of(value(columns.weight)),
        "" if columns.segment is None else segment_of(value(columns.segment)),
    )


def named_rows(path: Path, what: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of JSON Lines or CSV by the names of their columns, each with its line.

    Args:
        path: The file.
        what: What the file contains, for messages.

    Raises:
        CorpusError: The file cannot be read.
        SourceError: A line is wrong; the error names it.
    """
    if not path.name.lower().removesuffix(".gz").endswith(JSON_LINES):
        rows = csv_cells(path, what)
        yield from _named(path, next(rows, (0, [])), rows, what)
        return
    for number, line in numbered_lines(path):
        try:
            row = parse_object(line)
        except ValueError as error:
            raise _wrong(path, number, str(error), what) from None
        yield number, {_key(name): value for name, value in row.items()}


def _named(
    path: Path, first: Cells, rows: Iterable[Cells], what: str = "queries"
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a table by the names in its first line."""
    names = [_key(name) for name in first[1]]
    if twice := [name for name in names if name and names.count(name) > 1]:
        raise _wrong(path, first[0], f"it names the column '{twice[0]}' twice", what)
    for number, cells in rows:
        # Otherwise an unquoted text with a comma would be cut off there.
        if len(cells) > len(names) and any(cell.strip() for cell in cells[len(names) :]):
            more = "it has more columns than the first line, perhaps from an unquoted comma"
            raise _wrong(path, number, more, what)
        yield number, dict(zip(names, cells, strict=False))


def _table(
    path: Path,
    rows: Iterator[Cells],
    columns: QueryColumns,
    need_ids: bool,
    *,
    headless: bool,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a table whose first line may, if headless, already be an id and a text."""
    first = next(rows, (0, []))
    names = [_key(cell) for cell in first[1]]
    has_text = any(_key(name) in names for name in columns.texts)
    if not headless or columns.named or (has_text and ("id" in names or not need_ids)):
        yield from _named(path, first, rows)
        return
    for number, cells in itertools.chain([first] if names else [], rows):
        if len(cells) < 2:
            raise _wrong(path, number, "it lacks the two columns, id and text")
        # Otherwise we would send the numbers of an export with unknown column names.
        if not need_ids and (len(cells) > 2 or not math.isnan(_number(cells[1]))):
            what = "it is not an id and a text; name the columns in the first line"
            raise _wrong(path, number, what)
        yield number, {"id": cells[0], "text": cells[1]}


def _decoded(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in numbered_lines(path):
        try:
            text = line.decode()
        except UnicodeDecodeError:
            raise _wrong(path, number, "it is not UTF-8 text") from None
        yield number, text


def _plain(lines: Iterable[tuple[int, str]]) -> Iterator[QueryRow]:
    last = 0
    for number, line in lines:
        yield from (QueryRow(blank, None, "") for blank in range(last + 1, number))
        yield QueryRow(number, None, _spaced(line))
        last = number


def weight_of(value: Any) -> float:
    """Return a weight.

    Raises:
        ValueError: The value is not a finite number of 0 or more.
    """
    weight = -1.0 if isinstance(value, bool) else _number(value)
    if 0 <= weight < math.inf:
        return weight
    raise ValueError(f"its weight must be a number of 0 or more, not {one_line(repr(value), 50)}")


def segment_of(value: object) -> str:
    """Return a segment with single spaces; empty if there is no value.

    Raises:
        ValueError: The value is neither text nor a number.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if not isinstance(value, str | Number):
        raise ValueError(f"its segment is neither text nor a number: {one_line(repr(value), 50)}")
    return _spaced(encodable(str(value), "segment"))


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _key(name: str) -> str:
    return name.strip().casefold()


def _spaced(text: str) -> str:
    return " ".join(text.split())


def _listed(names: Sequence[str]) -> str:
    *others, last = (f"'{name}'" for name in names)
    return f"{', '.join(others)} or {last}" if others else last


def _wrong(path: Path, number: int, problem: str, what: str = "queries") -> SourceError:
    return SourceError(f"The {what} {path}, line {number}: {problem}; correct the file.")
