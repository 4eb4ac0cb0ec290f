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
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from numbers import Number
from pathlib import Path
from typing import Any, NamedTuple

from fairqr.base.errors import SourceError, one_line
from fairqr.retrieval.sources.documents import encodable, identifier, numbered_lines, parse_object

TEXTS = ("query", "text", "title")
"""Possible names of a query's text; the first that is present is used."""

JSON_LINES = (".json", ".jsonl", ".ndjson")

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
    return _plain(lines)


def _json_rows(path: Path, columns: QueryColumns) -> Iterator[QueryRow]:
    id_key = columns.id or "id"
    has_ids: bool | None = None
    has_segments = columns.segment is None
    for number, line in numbered_lines(path):
        try:
            data = parse_object(line)
            text = _json_text(data, columns.texts)
            if has_ids is None:
                has_ids = columns.id is not None or data.get(id_key) is not None
            if not has_ids and data.get(id_key) is not None:
                raise ValueError("it has an id, but the lines before it have none")
            id_ = identifier(data.get(id_key)) if has_ids else None
            weight = 1.0 if columns.weight is None else weight_of(data.get(columns.weight))
            segment = "" if columns.segment is None else segment_of(data.get(columns.segment))
        except ValueError as error:
            raise _wrong(path, number, str(error)) from None
        has_segments |= columns.segment in data
        yield QueryRow(number, id_, text, weight, segment)
    if has_ids is not None and not has_segments:
        raise SourceError(f"The queries {path} have no '{columns.segment}'; name another key.")


def _json_text(data: Mapping[str, Any], keys: Sequence[str]) -> str:
    key = next((key for key in keys if key in data), None)
    if key is None:
        raise ValueError(f"it has no {_listed(keys)}")
    text = "" if data[key] is None else data[key]
    if not isinstance(text, str):
        raise ValueError(f"its '{key}' is not text")
    return _spaced(encodable(text, key))


def named_rows(path: Path, what: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of JSON Lines or CSV by the names of their columns, each with its line.

    Args:
        path: The file.
        what: What the file contains, for messages.

    Raises:
        CorpusError: The file cannot be read.
        SourceError: A line is wrong; the error names it.
    """
    if path.name.lower().removesuffix(".gz").endswith(JSON_LINES):
        for number, line in numbered_lines(path):
            try:
                row = parse_object(line)
            except ValueError as error:
                raise _wrong(path, number, str(error), what=what) from None
            yield number, row
        return
    rows = csv_cells(path, what)
    names = [name.strip().casefold() for name in next(rows, (0, []))[1]]
    for number, cells in rows:
        if not len(set(names)) == len(names) == len(cells):
            problem = f"it has {len(cells)} cells for {len(set(names))} different columns"
            raise _wrong(path, number, problem, what=what)
        yield number, dict(zip(names, cells, strict=True))


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


def _plain(lines: Iterable[tuple[int, str]]) -> Iterator[QueryRow]:
    last = 0
    for number, line in lines:
        yield from (QueryRow(blank, None, "") for blank in range(last + 1, number))
        yield QueryRow(number, None, _spaced(line))
        last = number


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
        places = {"text": 1, "id": 0}
        rows = itertools.chain([first], rows)
    needed = max(places.values())
    for number, cells in rows:
        try:
            if len(cells) <= needed:
                fewer = "it has fewer columns than the first line"
                raise ValueError(fewer if has_header else "it lacks the two columns, id and text")
            # Otherwise an unquoted text with a comma would be cut off there.
            if has_header and any(cell.strip() for cell in cells[len(first[1]) :]):
                more = "it has more columns than the first line, perhaps from an unquoted comma"
                raise ValueError(more)
            held = {name: cells[place].strip() for name, place in places.items()}
            text = _spaced(held["text"])
            # Otherwise we would send the numbers of an export with unknown column names.
            is_export = len(cells) > 2 or not math.isnan(_number(text))
            if not has_header and not need_ids and is_export:
                raise ValueError("it is not an id and a text; name the columns in the first line")
            id_ = identifier(held["id"]) if "id" in held else None
            weight = weight_of(held.get("weight", 1.0))
        except ValueError as error:
            raise _wrong(path, number, str(error)) from None
        yield QueryRow(number, id_, text, weight, _spaced(held.get("segment", "")))


def _places(
    path: Path, first: Row, columns: QueryColumns, need_ids: bool, *, headless: bool
) -> dict[str, int] | None:
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
    lacking = columns.texts if text is None else [it for it in columns.named if place(it) is None]
    if lacking:
        named = ", ".join(f"'{cell.strip()}'" for cell in cells[:20])
        what = f"it has no column {_listed(lacking)}, only {one_line(named)}"
        raise _wrong(path, number, what, "say which columns to read")
    found = {"text": text, "id": id_}
    found |= {"weight": place(columns.weight), "segment": place(columns.segment)}
    return {name: at for name, at in found.items() if at is not None}


def weight_of(value: Any) -> float:
    """Return a weight.

    Raises:
        ValueError: The value is not a finite number of 0 or more.
    """
    if value is None or value == "":
        raise ValueError("it has no weight")
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


def _spaced(text: str) -> str:
    return " ".join(text.split())


def _listed(names: Sequence[str]) -> str:
    *others, last = (f"'{name}'" for name in names)
    return f"{', '.join(others)} or {last}" if others else last


def _wrong(
    path: Path, number: int, problem: str, todo: str = "fix the line", *, what: str = "queries"
) -> SourceError:
    return SourceError(f"The {what} {path}, line {number}: {problem}; {todo}.")
