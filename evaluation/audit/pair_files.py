"""Files of counterfactual pairs: the same document in two versions.

A file says which queries to ask and which documents to score for them, as Grep-BiasIR (Krieg et
al. 2023) does: a row is a query, a document, and the version that the document is in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairqr.base.errors import InputError, SourceError, one_line
from fairqr.retrieval.documents import encodable, identifier, numbered_lines, parse_object
from fairqr.retrieval.query_files import csv_cells

COLUMNS = ("query", "pair", "version", "document", "title", "text")


@dataclass(frozen=True, slots=True)
class PairDocument:
    """One version of a document.

    Attributes:
        pair: Tells which documents of a query are versions of the same.
        version: The name of the version.
        id: Of the document in the audited engine; None if the row holds a text.
        title: May be empty.
        text: May be empty.
    """

    pair: str
    version: str
    id: str | None = None
    title: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class PairQuery:
    """A query, and the documents to score for it.

    Attributes:
        id: Its place among the queries of the file, from 1 on.
        text: The query.
        documents: Each in at least two versions.
    """

    id: int
    text: str
    documents: tuple[PairDocument, ...]


@dataclass(frozen=True, slots=True)
class Pairs:
    """The content of a file of pairs.

    Attributes:
        queries: In the order of the file.
        are_texts: Whether rows hold texts, rather than ids of the audited engine.
    """

    queries: tuple[PairQuery, ...]
    are_texts: bool

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the content."""
        return hashlib.sha256(repr(self.queries).encode()).hexdigest()


def read_pairs(path: Path) -> Pairs:
    """Read a file of pairs: JSON Lines, or CSV with the columns in its first line.

    The columns are ``query``; ``version``; ``document``, an id of the engine, or ``text`` with
    perhaps ``title``; and ``pair``, which tells which documents of a query are versions of the
    same. Without ``pair`` all documents of a query are.

    Raises:
        CorpusError: The file cannot be read.
        SourceError: A line is wrong; it is named.
        InputError: The file holds no pairs.
    """
    are_texts: bool | None = None
    found: dict[str, dict[tuple[str, str], PairDocument]] = {}
    lines: dict[tuple[str, str], int] = {}
    for number, row in _rows(path):
        try:
            query, document = _document(row)
            if are_texts is None:
                are_texts = document.id is None
            if are_texts != (document.id is None):
                raise ValueError("some lines have a document's id, and others a text")
            held = found.setdefault(query, {})
            key = (document.pair, document.version)
            if key in held:
                which = f"'{one_line(document.version, 80)}'"
                raise ValueError(
                    f"the version {which} of its pair was there before; tell the pairs of a query "
                    "apart in a column 'pair'"
                )
        except ValueError as error:
            raise _wrong(path, number, str(error)) from None
        held[key] = document
        lines.setdefault((query, document.pair), number)
    if are_texts is None:
        raise InputError(f"The pairs {path} are empty; give a row for each version of a document.")
    for (query, pair), number in lines.items():
        if sum(one == pair for one, _ in found[query]) < 2:
            raise _wrong(path, number, "its document has no second version")
    queries = tuple(
        PairQuery(number, query, tuple(held.values()))
        for number, (query, held) in enumerate(found.items(), start=1)
    )
    return Pairs(queries, are_texts)


def _document(row: Mapping[str, Any]) -> tuple[str, PairDocument]:
    """Return the query of a row, and its document."""
    query, version, text = (_text(row, name) for name in ("query", "version", "text"))
    for name, value in (("query", query), ("version", version)):
        if not value:
            raise ValueError(f"it has no {name}")
    pair = "" if row.get("pair") is None else str(row["pair"]).strip()
    id_ = row.get("document")
    if id_ in (None, ""):
        if not text:
            raise ValueError("it has neither a document nor a text")
        return query, PairDocument(pair, version, None, _text(row, "title"), text)
    if text:
        raise ValueError("it has both a document and a text; leave one out")
    return query, PairDocument(pair, version, identifier(id_))


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"its {name} is not text")
    return " ".join(encodable(value, name).split())


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the number and the columns of each line."""
    if path.name.lower().removesuffix(".gz").endswith((".json", ".jsonl", ".ndjson")):
        for number, line in numbered_lines(path):
            try:
                yield number, parse_object(line)
            except ValueError as error:
                raise _wrong(path, number, str(error)) from None
        return
    rows = csv_cells(path, "pairs")
    number, first = next(rows, (0, []))
    names = [cell.strip().casefold() for cell in first]
    if number and (not {"query", "version"} <= set(names) or len(set(names)) != len(names)):
        what = f"it names {one_line(', '.join(names), 200)}"
        raise _wrong(path, number, what, f"name each column once, of {', '.join(COLUMNS)}")
    for number, cells in rows:
        if len(cells) != len(names):
            what = f"it has {len(cells)} columns, and the first line {len(names)}"
            raise _wrong(path, number, what)
        yield number, dict(zip(names, cells, strict=True))


def _wrong(path: Path, number: int, what: str, todo: str = "fix the line") -> SourceError:
    return SourceError(f"The pairs {path}, line {number}: {what}; {todo}.")
