"""Files of queries: lines, tables and JSON Lines, read row by row.

The file name says the format; ``.gz`` files are unpacked:

- ``.jsonl``, ``.ndjson``: objects with ``query``, ``text`` or ``title``, and optionally ``id`` or,
  as BEIR names it, ``_id``; or searches of User Behavior Insights, as the index ``ubi_queries`` has
  them, each alone or in the ``_source`` of a hit.
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

from fairqr.base.errors import InputError, one_line
from fairqr.retrieval.sources.documents import (
    Cells,
    csv_cells,
    encodable,
    identifier,
    numbered_lines,
    parse_object,
    wrong_line,
)
from fairqr.retrieval.sources.file_forms import named_delimiter

TEXTS = ("query", "text", "title")
"""Possible names of a query's text; the first that is present is used."""

USER_QUERY = "user_query"
"""What users typed, in a search that User Behavior Insights recorded."""

IDS = ("id", "_id", "qid", "query_id", "query-id")
"""Possible names of a query's id; the first that is present is used."""

JSON_LINES = (".json", ".jsonl", ".ndjson")

MARKUP = ("<top", "<?xml", "<!doctype")
"""How a file of topics in SGML or XML begins."""

NamedRow = tuple[int, dict[str, Any]]
"""The line on which a row starts, and its values by the names of their columns, case-folded."""


@dataclass(frozen=True, slots=True)
class QueryColumns:
    """Says which columns of a table or keys of JSON objects to read, in any case.

    Attributes:
        text: The text of a query; by default the first name in :data:`TEXTS` that is present.
        id: The id of a query; by default the first name in :data:`IDS` that is present, if any.
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
    for row in query_rows(path, need_ids=True):
        if row.id is None or not row.text:
            raise _wrong(path, row.line, "it has no id or no text")
        if row.id in queries:
            raise _wrong(path, row.line, f"the query '{row.id}' is already above it")
        queries[row.id] = row.text
    return queries


def query_rows(
    path: Path, columns: QueryColumns | None = None, *, need_ids: bool = False
) -> Iterator[QueryRow]:
    """Yield the queries of a file.

    Blank lines are skipped.

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
    for number, row in _rows(path, columns, need_ids):
        try:
            query = query_row(number, row, columns)
        except ValueError as error:
            raise _wrong(path, number, error) from None
        yield query


def _lines_of_table(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file, but a first one that only names the delimiter for Excel."""
    lines = numbered_lines(path)
    for number, line in itertools.islice(lines, 1):
        if not named_delimiter(line):
            yield number, line
    yield from lines


def _rows(path: Path, columns: QueryColumns, need_ids: bool) -> Iterator[NamedRow]:
    """Yield the rows by the names of their columns: ``id`` and ``text`` where these are unnamed."""
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(JSON_LINES):
        yield from named_rows(path, "queries")
    elif name.endswith(".csv"):
        cells = csv_cells(path, "queries")
        number, head = next(cells, (1, []))
        if not need_ids or _names_columns(head, columns, need_ids):
            yield from _named(path, head, number, cells, "queries")
        else:
            yield from _ids_and_texts(path, number, head, cells, need_ids)
    else:
        yield from _rows_of_text(path, columns, need_ids)


def _rows_of_text(path: Path, columns: QueryColumns, need_ids: bool) -> Iterator[NamedRow]:
    """Yield the rows of a file with tabs between columns, or with a text on each line."""
    cells = _tabbed_cells(path)
    number, head = next(cells, (1, []))
    _require_no_markup(path, number, head)

    is_list = len(head) == 1 and not need_ids
    if is_list:
        if columns.named:
            problem = f"it has no columns, so none is called '{columns.named[0]}'"
            raise _wrong(path, number, problem)
        yield from _listed_texts(number, head, cells)
    elif _names_columns(head, columns, need_ids):
        yield from _named(path, head, number, cells, "queries")
    else:
        yield from _ids_and_texts(path, number, head, cells, need_ids)


def _tabbed_cells(path: Path) -> Iterator[Cells]:
    """Yield the cells of each line, which are between tabs, with its number."""
    for number, line in _lines_of_table(path):
        yield number, line.rstrip("\n").split("\t")


def _require_no_markup(path: Path, number: int, head: Sequence[str]) -> None:
    """Refuse a file of topics as TREC once wrote them.

    Raises:
        SourceError: The first row begins as SGML or XML does.
    """
    start = "".join(head).lstrip().lower()
    if start.startswith(MARKUP):
        problem = "it is SGML or XML; write each topic as its id, a tab, its text"
        raise _wrong(path, number, problem)


def _names_columns(head: Sequence[str], columns: QueryColumns, need_ids: bool) -> bool:
    """Return whether the first row names the columns: those that we look for, or by request."""
    if columns.named:
        return True
    names = {_key(cell) for cell in head}
    has_text = any(_key(text) in names for text in columns.texts)
    has_id = not names.isdisjoint(IDS)
    return has_text and (has_id or not need_ids)


def _listed_texts(number: int, head: Sequence[str], rows: Iterable[Cells]) -> Iterator[NamedRow]:
    """Yield the rows of a file that has a text on each line."""
    for line, row in itertools.chain([(number, head)], rows):
        yield line, {"text": " ".join(row)}


def _ids_and_texts(
    path: Path, number: int, head: Sequence[str], rows: Iterable[Cells], need_ids: bool
) -> Iterator[NamedRow]:
    """Yield the rows of a table of ids and texts whose columns have no names.

    Raises:
        SourceError: A row has other columns; the error names its line.
    """
    if not head:
        return
    for line, row in itertools.chain([(number, head)], rows):
        if len(row) < 2:
            raise _wrong(path, line, "it lacks the two columns, id and text")
        # Otherwise we would send the numbers of an export with unknown column names.
        is_export = len(row) > 2 or not math.isnan(_number(row[1]))
        if is_export and not need_ids:
            problem = "it is not an id and a text; name the columns in the first line"
            raise _wrong(path, line, problem)
        yield line, {"id": row[0], "text": row[1]}


def query_row(number: int, row: Mapping[str, Any], columns: QueryColumns) -> QueryRow:
    """Return the query in a row, whose keys are case-folded.

    Raises:
        ValueError: A column is missing, or has a wrong value.
    """
    if columns.text is None:
        row = _typed(row)
    text = _value(row, columns.texts)
    if text is not None and not isinstance(text, str):
        raise ValueError("its text is not text")
    weight = 1.0
    if columns.weight is not None:
        weight = weight_of(_value(row, [columns.weight]))
    segment = ""
    if columns.segment is not None:
        segment = segment_of(_value(row, [columns.segment]))
    return QueryRow(
        line=number,
        id=_id_of(row, columns),
        text=_spaced(encodable(text or "", "text")),
        weight=weight,
        segment=segment,
    )


def _value(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    """Return the value of the first of some columns that a row has.

    Raises:
        ValueError: It has none of them.
    """
    for name in names:
        if _key(name) in row:
            return row[_key(name)]
    present = ", ".join(f"'{name}'" for name in list(row)[:20])
    expected = " or ".join(f"'{name}'" for name in names)
    raise ValueError(f"it has no {expected}, only {one_line(present)}; say which columns to read")


def _id_of(row: Mapping[str, Any], columns: QueryColumns) -> str | None:
    """Return the id in a row; None if the usual columns have no id and the user named no column.

    Raises:
        ValueError: It is no id, or the column that the user named is missing.
    """
    if columns.id is not None:
        id_ = _value(row, [columns.id])
    else:
        id_ = next((row[name] for name in IDS if row.get(name) is not None), None)
        if id_ is None:
            return None
    return identifier(id_.strip() if isinstance(id_, str) else id_)


def _typed(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a search of User Behavior Insights as a query; other rows stay as they are.

    Its id is that of one search. Without it, all searches with the same text are one query.
    """
    search = row if USER_QUERY in row else row.get("_source")
    if not isinstance(search, Mapping) or USER_QUERY not in search:
        return row
    without_id = {name: value for name, value in search.items() if _key(name) not in IDS}
    return {**without_id, TEXTS[0]: search[USER_QUERY]}


def named_rows(path: Path, subject: str) -> Iterator[NamedRow]:
    """Yield the rows of JSON Lines or CSV by the names of their columns, each with its line.

    Args:
        path: The file.
        subject: What the file contains, for messages.

    Raises:
        CorpusError: The file cannot be read.
        SourceError: A line is wrong; the error names it.
    """
    if not path.name.lower().removesuffix(".gz").endswith(JSON_LINES):
        cells = csv_cells(path, subject)
        number, head = next(cells, (1, []))
        yield from _named(path, head, number, cells, subject)
        return

    for number, line in numbered_lines(path):
        try:
            row = parse_object(line)
        except ValueError as error:
            raise wrong_line(path, number, error, subject) from None
        yield number, {_key(name): value for name, value in row.items()}


def _named(
    path: Path, head: Sequence[str], number: int, rows: Iterable[Cells], subject: str
) -> Iterator[NamedRow]:
    """Yield the rows of a table by the names in its head, which is the line of that number."""
    names = [_key(name) for name in head]
    repeated = [name for name in names if name and names.count(name) > 1]
    if repeated:
        raise wrong_line(path, number, f"it names the column '{repeated[0]}' twice", subject)

    for line, cells in rows:
        # Otherwise an unquoted text with a comma would be cut off there.
        if any(cell.strip() for cell in cells[len(names) :]):
            problem = "it has more columns than the first line, perhaps from an unquoted comma"
            raise wrong_line(path, line, problem, subject)
        values = [cell.strip() for cell in cells]
        yield line, dict(zip(names, values, strict=False))


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


def _wrong(path: Path, line: int, problem: object) -> InputError:
    return wrong_line(path, line, problem, "queries")
