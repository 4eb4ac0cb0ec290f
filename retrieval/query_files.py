"""Files of queries: lines, tables and JSON Lines, read row by row.

The name says the format, and ``.gz`` files are unpacked:

- ``.jsonl``, ``.ndjson``: objects with ``query``, ``text`` or ``title``, and optionally ``id``.
- ``.csv``: the first line names the columns, as these keys.
- Any other file: tab-separated columns if its first line has a tab, and else one query a line. A
  table whose first line names no column holds TREC topics: id and text.
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

__all__ = ["QueryColumns", "QueryRow", "query_rows", "read_queries"]

TEXTS = ("query", "text", "title")
"""What the text of a query may be called; the first that is there counts."""

MARKUP = ("<top", "<?xml", "<!doctype")

Row = tuple[int, list[str]]
"""The number of a line, and its cells."""


@dataclass(frozen=True, slots=True)
class QueryColumns:
    """Which columns of a table, in upper or lower case, or keys of JSON objects hold what.

    Attributes:
        text: The text of a query; by default the first of :data:`TEXTS` that is there.
        id: The id of a query; by default ``id``, if that is there.
        weight: How often a query was asked; by default each line counts once.
    """

    text: str | None = None
    id: str | None = None
    weight: str | None = None

    @property
    def texts(self) -> Sequence[str]:
        """What the text may be called."""
        return TEXTS if self.text is None else (self.text,)

    @property
    def named(self) -> list[str]:
        """The columns that were asked for by name."""
        return [name for name in (self.text, self.id, self.weight) if name is not None]


class QueryRow(NamedTuple):
    """A query of a file.

    Attributes:
        line: The line that it begins in, counted from 1.
        id: None if the file has no ids.
        text: With single spaces; may be empty.
        weight: At least 0, and finite.
    """

    line: int
    id: str | None
    text: str
    weight: float = 1.0


def read_queries(path: Path) -> dict[str, str]:
    """Return the text of each query by its id, which the file must have.

    A ``.csv`` file may hold id and text without a first line that names them.

    Raises:
        CorpusError: The file cannot be read.
        SourceError: A line is no query, or an id is in two lines; the line is named.
    """
    queries: dict[str, str] = {}
    lines: dict[str, int] = {}
    for row in query_rows(path, need_ids=True):
        if row.id is None or not row.text:
            raise _wrong(path, row.line, "it lacks an id or a text")
        if (first := lines.setdefault(row.id, row.line)) != row.line:
            raise _wrong(path, row.line, f"the query '{row.id}' is in line {first} already")
        queries[row.id] = row.text
    return queries


def query_rows(
    path: Path, columns: QueryColumns | None = None, *, need_ids: bool = False
) -> Iterator[QueryRow]:
    """Yield the queries of a file; blank lines are skipped.

    Args:
        path: The file.
        columns: Which columns hold what.
        need_ids: Refuse a file without ids. A table without names of columns then holds id and
            text, in ``.csv`` too.

    Raises:
        CorpusError: The file cannot be read.
        SourceError: A line is no query, or has no weight; the line is named.
    """
    columns = columns or QueryColumns()
    name = path.name.lower().removesuffix(".gz")
    if name.endswith((".json", ".jsonl", ".ndjson")):
        return _json_rows(path, columns)
    if name.endswith(".csv"):
        return _table(path, _csv_cells(path), columns, need_ids, headless=need_ids)
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
        raise _wrong(path, number, f"it has no columns, and so none called '{columns.named[0]}'")
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
                raise ValueError("it has an id, and the lines before it have none")
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


def _csv_cells(path: Path) -> Iterator[Row]:
    pulled: list[int] = []

    def lines() -> Iterator[str]:
        for number, line in _decoded(path):
            pulled.append(number)
            yield line

    # Strict, since else a quotation mark that is never closed would swallow the queries behind it.
    reader = csv.reader(lines(), strict=True, skipinitialspace=True)
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise _wrong(path, pulled[0], f"it is not CSV ({one_line(error)})") from None
        if cells is None:
            return
        yield pulled[0], cells
        pulled.clear()


def _decoded(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in numbered_lines(path):
        try:
            text = line.decode()
        except UnicodeDecodeError:
            raise _wrong(path, number, "it is not UTF-8 text") from None
        yield number, text


class _Places(NamedTuple):
    """Which cell of a row holds what."""

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
        columns: Which columns hold what.
        need_ids: Whether it must have ids.
        headless: Whether the first line may be a query already.
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
                raise ValueError(fewer if has_header else "it has no two columns, id and text")
            text = _spaced(cells[places.text])
            # Else the numbers of an export whose columns have other names would be asked.
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
    """Return where the first line says that the columns are; None if it is a query already."""
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
        what = f"it names no column {wanted}, but {one_line(named)}"
        raise _wrong(path, number, what, "name the columns of queries and weights")
    return _Places(text, id_, place(columns.weight))


def _id(cell: str) -> str:
    if not cell.strip():
        raise ValueError("it lacks an id or a text")
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


def _wrong(path: Path, number: int, what: str, todo: str = "fix the line") -> SourceError:
    return SourceError(f"The queries {path}, line {number}: {what}; {todo}.")
