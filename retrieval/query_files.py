"""Files of queries: lines, tables and JSON Lines, read row by row.

The file name says the format; ``.gz`` files are unpacked:

- ``.jsonl``, ``.ndjson``: objects with ``query``, ``text`` or ``title``, and optionally ``id``.
- ``.csv``: the first line names the columns, by the same keys.
- Any other file: tab-separated columns if its first line has a tab, otherwise one query a line. A
  table whose first line names no column contains TREC topics: id and text.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fairqr.base.errors import SourceError, one_line
from fairqr.retrieval.documents import encodable, identifier, numbered_lines, parse_object

TEXTS = ("query", "text", "title")
"""Possible names of a query's text; the first that is present is used."""

MARKUP = ("<top", "<?xml", "<!doctype")

Row = tuple[int, list[str]]
"""The number of a line, and its cells."""


@dataclass(frozen=True, slots=True)
class QueryColumns:
    """Says which columns of a table (in any case) or keys of JSON objects to read.

    Attributes:
        text: The text of a query; by default the first name in :data:`TEXTS` that is present.
        id: The id of a query; by default ``id``, if present.
        weight: How often a query was asked; by default each line counts once.
    """

    text: str | None = None
    id: str | None = None
    weight: str | None = None

    @property
    def texts(self) -> Sequence[str]:
        """The possible names of the text."""
        return TEXTS if self.text is None else (self.text,)

    @property
    def named(self) -> list[str]:
        """The columns that the user asked for by name."""
        return [name for name in (self.text, self.id, self.weight) if name is not None]


class QueryRow(NamedTuple):
    """A query in a file.

    Attributes:
        line: The line on which it starts, counted from 1.
        id: The id, or None if the file has no ids.
        text: The text, with single spaces; may be empty.
        weight: At least 0, and finite.
    """

    line: int
    id: str | None
    text: str
    weight: float = 1.0


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
    """Yield the queries of a file; blank lines are skipped.

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
    if name.endswith((".json", ".jsonl", ".ndjson")):
        return _json_rows(path, columns)
    if name.endswith(".csv"):
        return _table(path, csv_cells(path), columns, need_ids, headless=need_ids)
    lines = _decoded(path)
    first = next(lines, None)
    if first is None:
        return iter(())
    number, line = first
    if line.lstrip().lower().startswith(MARKUP):
        raise _wrong(path, number, "it is SGML or XML; write each topic as its id, a tab, its text")
    lines = itertools.chain([first], lines)
    if "\t" in line or need_ids:
        cells = ((number, line.rstrip("\r\n").split("\t")) for number, line in lines)
        return _table(path, cells, columns, need_ids, headless=True)
    if columns.named:
        raise _wrong(path, number, f"it has no columns, so none is called '{columns.named[0]}'")
    return (QueryRow(number, None, _spaced(line)) for number, line in lines)


def _json_rows(path: Path, columns: QueryColumns) -> Iterator[QueryRow]:
    id_key = columns.id or "id"
    has_ids: bool | None = None
    for number, line in numbered_lines(path):
        try:
            data = parse_object(line)
            text = _json_text(data, columns.texts)
            if has_ids is None:
                has_ids = columns.id is not None or data.get(id_key) is not None
            if not has_ids and data.get(id_key) is not None:
                raise ValueError("it has an id, but the lines before it have none")
            id_ = identifier(data.get(id_key)) if has_ids else None
            weight = 1.0 if columns.weight is None else _weight(data.get(columns.weight))
        except ValueError as error:
            raise _wrong(path, number, str(error)) from None
        yield QueryRow(number, id_, text, weight)


def _json_text(data: Mapping[str, Any], keys: Sequence[str]) -> str:
    key = next((key for key in keys if key in data), None)
    if key is None:
        raise ValueError(f"it has no {_listed(keys)}")
    text = "" if data[key] is None else data[key]
    if not isinstance(text, str):
        raise ValueError(f"its '{key}' is not text")
    return _spaced(encodable(text, key))


def csv_cells(path: Path, what: str = "queries") -> Iterator[Row]:
    """Yield the cells of each row of a CSV file, with the line on which the row starts.

    Args:
        path: The file.
        what: What the file contains, for messages.

    Raises:
        CorpusError: The file cannot be read.
        SourceError: It is not CSV, or not text; the error names the line.
    """
    pulled: list[int] = []

    def lines() -> Iterator[str]:
        for number, line in _decoded(path, what):
            pulled.append(number)
            yield line

    # Strict, because otherwise an unclosed quotation mark would swallow the queries after it.
    reader = csv.reader(lines(), strict=True, skipinitialspace=True)
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise _wrong(path, pulled[0], f"it is not CSV ({one_line(error)})", what=what) from None
        if cells is None:
            return
        yield pulled[0], cells
        pulled.clear()


def _decoded(path: Path, what: str = "queries") -> Iterator[tuple[int, str]]:
    for number, line in numbered_lines(path):
        try:
            text = line.decode()
        except UnicodeDecodeError:
            raise _wrong(path, number, "it is not UTF-8 text", what=what) from None
        yield number, text


class _Places(NamedTuple):
    """The positions of the cells of a row."""

    text: int
    id: int | None
    weight: int | None


def _table(
    path: Path, rows: Iterator[Row], columns: QueryColumns, need_ids: bool, *, headless: bool
) -> Iterator[QueryRow]:
    """Yield the queries of a table.

    Args:
        path: The file.
        rows: Its lines.
        columns: Which columns to read.
        need_ids: Whether the file must have ids.
        headless: Whether the first line may already be a query.
    """
    first = next(rows, None)
    if first is None:
        return
    places = _places(path, first, columns, need_ids, headless=headless)
    has_header = places is not None
    if places is None:
        places = _Places(text=1, id=0, weight=None)
        rows = itertools.chain([first], rows)
    needed = max(place for place in places if place is not None)
    for number, cells in rows:
        try:
            if len(cells) <= needed:
                fewer = "it has fewer columns than the first line"
                raise ValueError(fewer if has_header else "it lacks the two columns, id and text")
            # Otherwise an unquoted text with a comma would be cut off there.
            if has_header and any(cell.strip() for cell in cells[len(first[1]) :]):
                more = "it has more columns than the first line, perhaps from an unquoted comma"
                raise ValueError(more)
            text = _spaced(cells[places.text])
            # Otherwise we would send the numbers of an export with unknown column names.
            if not has_header and not need_ids and (len(cells) > 2 or _is_number(text)):
                raise ValueError("it is not an id and a text; name the columns in the first line")
            id_ = None if places.id is None else _id(cells[places.id])
            weight = 1.0 if places.weight is None else _weight(cells[places.weight].strip())
        except ValueError as error:
            raise _wrong(path, number, str(error)) from None
        yield QueryRow(number, id_, text, weight)


def _places(
    path: Path, first: Row, columns: QueryColumns, need_ids: bool, *, headless: bool
) -> _Places | None:
    """Return where the first line puts the columns, or None if it is already a query."""
    number, cells = first
    names = [cell.strip().casefold() for cell in cells]

    def place(name: str | None) -> int | None:
        name = None if name is None else name.strip().casefold()
        if name is not None and names.count(name) > 1:
            raise _wrong(path, number, f"it names the column '{name}' twice")
        return names.index(name) if name in names else None

    text = next((at for name in columns.texts if (at := place(name)) is not None), None)
    id_ = place(columns.id or "id")
    if headless and not columns.named and (text is None or (need_ids and id_ is None)):
        return None
    lacking = [name for name in (columns.id, columns.weight) if name and place(name) is None]
    if text is None or lacking:
        wanted = _listed(columns.texts if text is None else lacking)
        named = ", ".join(f"'{cell.strip()}'" for cell in cells[:20])
        what = f"it has no column {wanted}, only {one_line(named)}"
        raise _wrong(path, number, what, "say which columns have the queries and the weights")
    return _Places(text, id_, place(columns.weight))


def _id(cell: str) -> str:
    if not cell.strip():
        raise ValueError("it has no id or no text")
    return identifier(cell.strip())


def _weight(value: object) -> float:
    if value is None or value == "":
        raise ValueError("it has no weight")
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            weight = float(value)
        except (ValueError, OverflowError):
            weight = -1.0
        if 0 <= weight < float("inf"):
            return weight
    raise ValueError(f"its weight must be a number of 0 or more, not {one_line(repr(value), 50)}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _spaced(text: str) -> str:
    return " ".join(text.split())


def _listed(names: Sequence[str]) -> str:
    *others, last = (f"'{name}'" for name in names)
    return f"{', '.join(others)} or {last}" if others else last


def _wrong(
    path: Path, number: int, problem: str, todo: str = "fix the line", *, what: str = "queries"
) -> SourceError:
    return SourceError(f"The {what} {path}, line {number}: {problem}; {todo}.")
