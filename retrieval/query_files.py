"""Files of queries with their ids."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from fairqr.base.errors import SourceError
from fairqr.retrieval.documents import numbered_lines, parse_object

__all__ = ["read_queries"]

TEXTS = ("text", "title", "query")
"""What the text of a query may be called."""


def read_queries(path: Path) -> dict[str, str]:
    """Return the text of each query by its id.

    A file ``.jsonl`` has objects with ``id`` and ``text``, ``title`` or ``query``. Other files have
    columns: id and text, or those that a first line names so; commas separate them in ``.csv``, and
    tabs in any other.

    Raises:
        CorpusError: The file cannot be read.
        SourceError: A line is no query, or an id is in two lines; the line is named.
    """
    name = path.name.lower().removesuffix(".gz")
    rows = _json_lines if name.endswith((".jsonl", ".ndjson")) else _columns
    queries: dict[str, str] = {}
    lines: dict[str, int] = {}
    for number, id_, text in rows(path):
        if not id_ or not text.strip():
            raise _wrong(path, number, "it lacks an id or a text")
        if (first := lines.setdefault(id_, number)) != number:
            raise _wrong(path, number, f"the query '{id_}' is in line {first} already")
        queries[id_] = text.strip()
    return queries


def _json_lines(path: Path) -> Iterator[tuple[int, str, str]]:
    for number, line in numbered_lines(path):
        try:
            data = parse_object(line)
        except ValueError as error:
            raise _wrong(path, number, str(error)) from None
        text = next((data[name] for name in TEXTS if isinstance(data.get(name), str)), "")
        id_ = data.get("id")
        whole = isinstance(id_, int) and not isinstance(id_, bool)
        yield number, str(id_) if whole else id_ if isinstance(id_, str) else "", text


def _columns(path: Path) -> Iterator[tuple[int, str, str]]:
    with_commas = path.name.lower().removesuffix(".gz").endswith(".csv")
    id_at, text_at = 0, 1
    for number, line in numbered_lines(path):
        try:
            text = line.decode()
            cells = next(csv.reader([text])) if with_commas else text.split("\t")
        except (UnicodeDecodeError, csv.Error) as error:
            raise _wrong(path, number, f"it cannot be read ({error})") from None
        cells = [cell.strip() for cell in cells]
        named = [name for name in TEXTS if name in cells]
        if number == 1 and "id" in cells and named:
            id_at, text_at = cells.index("id"), cells.index(named[0])
            continue
        if len(cells) <= max(id_at, text_at):
            raise _wrong(path, number, "it has no two columns, id and text")
        yield number, cells[id_at], cells[text_at]


def _wrong(path: Path, number: int, what: str) -> SourceError:
    return SourceError(f"The queries {path}, line {number}: {what}; fix the line.")
