"""Documents, and the JSON Lines files they come from."""

from __future__ import annotations

import codecs
import contextlib
import csv
import gzip
import io
import json
import math
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar, cast

from fairqr.base.errors import CorpusError, InputError, SourceError, one_line
from fairqr.base.files import open_file
from fairqr.retrieval.sources.file_forms import (
    named_delimiter,
    other_form_of_bytes,
    other_form_of_json,
    other_form_of_objects,
)
from fairqr.retrieval.sources.schema import Attribute, Schema

T = TypeVar("T")

Cells = tuple[int, list[str]]
"""The line on which a row of a table starts, and its cells."""


class ProgressFunction(Protocol):
    """Called now and then while documents are read, written or encoded."""

    def __call__(self, done: int, total: int | None = None, /) -> None:
        """Receive the number done so far and the total, or None if the total is unknown."""
        ...


MAX_ID_BYTES = 512
"""Elasticsearch takes no longer ids."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document.

    Attributes:
        id: Unique in its corpus.
        title: May be empty.
        text: May be empty.
        fields: All other fields of the document's line, including labels.
    """

    id: str
    title: str
    text: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    def label(self, attribute: Attribute) -> object:
        """Return the document's label for an attribute, as the corpus has it."""
        return value_at(self.fields, attribute.field)

    def membership(self, attribute: Attribute) -> tuple[float, ...]:
        """Return the share of each group of the attribute; see :meth:`Attribute.membership`."""
        return attribute.membership(self.label(attribute))


def value_at(fields: Mapping[str, Any], path: str) -> Any:
    """Return a field; ``person.sex`` is its name, or the field ``sex`` of ``person``.

    Of a list of objects it is the list of their fields, as an engine has it.
    """
    values = [*_values_at(fields, path)]
    if not values:
        return None
    if len(values) == 1:
        return values[0]

    flat = []
    for value in values:
        if isinstance(value, list):
            flat += value
        else:
            flat.append(value)
    return flat


SUBFIELDS = ("keyword", "raw")
"""What engines call a field that holds the same as the one above it, as one value."""


def _values_at(value: Any, path: str) -> Iterator[Any]:
    """Yield the fields at a path below a value, one for each object of a list on the way."""
    if isinstance(value, list):
        for entry in value:
            yield from _values_at(entry, path)
    elif isinstance(value, Mapping):
        yield from _fields_at(value, path)
    elif value is not None and path in SUBFIELDS:
        yield value


def _fields_at(fields: Mapping[str, Any], path: str) -> Iterator[Any]:
    """Yield the fields at a path in an object, any part of which may be a name with dots."""
    if path in fields:
        yield fields[path]
        return
    head, _, tail = path.partition(".")
    while tail:
        if head in fields:
            yield from _values_at(fields[head], tail)
        name, _, tail = tail.partition(".")
        head = f"{head}.{name}"


IDS = ("id", "_id", "docid", "doc_id", "docno")
TITLES = ("title",)
TEXTS = ("text", "contents", "content", "body", "passage")
"""Possible names of a document's id and text: ours, and those of BEIR, Pyserini and ir_datasets."""

DELIMITERS = ",;\t"
"""What stands between the cells of a CSV file; the first of these in its first line counts."""

GZIP = b"\x1f\x8b"
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
LONGEST_MARK = 8
"""How many bytes at the beginning of a file say what it is."""


def parse_document(line: str, schema: Schema) -> Document:
    """Read one line of a corpus, and check it.

    Raises:
        ValueError: The line is not a JSON object with an ``id``, it has neither title nor text, or
            a label does not fit the schema.
    """
    document = parse_line(line)
    if not document.title.strip() and not document.text.strip():
        raise ValueError(f"it has neither title nor text{_only(document.fields)}")
    for attribute in schema.attributes.values():
        attribute.check_label(document.label(attribute))
    return document


def parse_line(line: str) -> Document:
    """Read one line of a corpus, without checking its labels.

    Raises:
        ValueError: The line is not a JSON object with an ``id``.
    """
    data = parse_object(line)
    if isinstance(data.get("_source"), Mapping):  # a hit, as elasticdump writes it
        data = {"_id": data.get("_id"), **data["_source"]}

    id_ = _take(data, IDS)
    if id_ is None:
        raise ValueError(f"it has no id{_only(data)}")
    text = _take(data, TEXTS)
    title = _take(data, TITLES)
    return Document(
        id=identifier(id_), title=_text(title, "title"), text=_text(text, "text"), fields=data
    )


def _take(data: dict[str, Any], names: Sequence[str]) -> Any:
    """Take the first member of that name out of an object, or else one in another case."""
    for name in names:
        value = data.pop(name, None)
        if value is not None:
            return value

    key_by_name = {key.casefold(): key for key, value in data.items() if value is not None}
    for name in names:
        if name in key_by_name:
            return data.pop(key_by_name[name])
    return None


def _only(fields: Iterable[str]) -> str:
    """Return the end of a sentence about what is missing: what is there."""
    names = ", ".join(f"'{name}'" for name in fields)
    return f", only {one_line(names, 100)}" if names else ""


def parse_object(line: str) -> dict[str, Any]:
    """Read one line of a JSON Lines file.

    Raises:
        ValueError: The line is not a JSON object.
    """
    try:
        data = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        problem = other_form_of_json(line) or f"it is not valid JSON ({one_line(error)})"
        raise ValueError(problem) from None
    if not isinstance(data, dict):
        raise ValueError(other_form_of_json(line) or "it is not a JSON object")
    return data


def identifier(value: object) -> str:
    """Return an id as text.

    Raises:
        ValueError: The id is neither text nor a whole number, or is too long.
    """
    if isinstance(value, float) and value.is_integer():  # as pandas writes it
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value:
        raise ValueError("it has no id (text or a whole number)")
    if len(value.encode("utf-8", "surrogatepass")) > MAX_ID_BYTES:
        raise ValueError(f"its id is longer than {MAX_ID_BYTES} bytes")
    return encodable(value, "id")


def other_form(id_: str) -> str | None:
    """Return the other form of an id that is a whole number: pandas writes 1 as ``1.0``."""
    whole = id_.removesuffix(".0")
    is_whole_number = whole.isascii() and whole.isdigit()
    if not is_whole_number:
        return None
    return f"{id_}.0" if whole == id_ else whole


def known_form(id_: str, known: Container[str]) -> str:
    """Return the form of an id that is known; the id itself if neither is."""
    if id_ in known:
        return id_
    form = other_form(id_)
    if form is not None and form in known:
        return form
    return id_


def in_known_forms(values: Mapping[str, T], known: Container[str]) -> dict[str, T]:
    """Return values by id, with each id in the form that is known elsewhere.

    An id that has a value in both forms keeps them apart.
    """
    in_forms = {}
    for id_, value in values.items():
        form = known_form(id_, known)
        in_forms[id_ if form in values else form] = value
    return in_forms


def _text(value: object, name: str) -> str:
    is_nan = isinstance(value, float) and math.isnan(value)  # an empty cell of pandas
    if value is None or is_nan:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"its {name} is not text")
    return encodable(value, name)


def encodable(value: str, name: str) -> str:
    """Refuse lone surrogates, which JSON can carry and no index can store."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"its {name} has half a surrogate pair") from None
    return value


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield items in lists of the given size; the last one may be shorter."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


@contextlib.contextmanager
def open_text(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading, unpacked if it is packed with gzip.

    Raises:
        CorpusError: The file does not exist, cannot be read to its end, or is not UTF-8.
    """
    head = b""
    try:
        with open_file(path) as file:
            head = file.peek(LONGEST_MARK)[:LONGEST_MARK]
            if head.startswith(GZIP):
                with gzip.open(file) as unpacked:
                    yield cast("IO[bytes]", unpacked)
            else:
                yield file
    except UnicodeDecodeError:
        form = other_form_of_bytes(head)
        problem = f"is {form}" if form else "is not UTF-8 text; save it as UTF-8"
        raise CorpusError(f"The file {path} {problem}.") from None
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise CorpusError(f"The file {path} cannot be read ({reason}); check it.") from None


def _decoded(stream: IO[bytes], newline: str | None = None) -> io.TextIOWrapper:
    """Return the text of a file in UTF-8, or in UTF-16 where its first bytes say so.

    Some editors put a byte order mark at the start of a file, which is left out.
    """
    head = cast("io.BufferedReader", stream).peek(LONGEST_MARK)
    encoding = "utf-16" if head.startswith(UTF_16) else "utf-8-sig"
    return io.TextIOWrapper(stream, encoding, newline=newline)


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and the content of each non-blank line.

    Raises:
        CorpusError: The file cannot be read to its end, or is not UTF-8.
    """
    with open_text(path) as stream:
        for number, line in enumerate(_decoded(stream), start=1):
            if not line.isspace():
                yield number, line


def document_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and the content of each line of what should be JSON Lines of documents.

    Raises:
        CorpusError: The file cannot be read to its end, or its first line shows another form.
    """
    lines = numbered_lines(path)
    first_line = next(lines, None)
    if first_line is None:
        return
    number, line = first_line
    form = other_form_of_objects(line)
    if form:
        raise CorpusError(f"The documents {path} are not JSON Lines: {form}.")
    yield number, line
    yield from lines


def delimiter_in(line: str) -> str | None:
    """Return what stands between the cells of a table whose first line this is, if that is seen."""
    return next((delimiter for delimiter in DELIMITERS if delimiter in line), None)


def csv_cells(path: Path, subject: str) -> Iterator[Cells]:
    """Yield the rows of a CSV file that are not blank.

    Args:
        path: The file.
        subject: What the file contains, for messages.

    Raises:
        CorpusError: The file cannot be read to its end, or is not UTF-8.
        SourceError: It is not CSV; the error names the line.
    """
    with open_text(path) as stream:
        lines = _decoded(stream, newline="")
        head = next(lines, "")
        # Excel lets a first line of its own name the delimiter.
        delimiter = named_delimiter(head)
        skipped = 0
        if delimiter:
            head = next(lines, "")
            skipped = 1
        else:
            delimiter = delimiter_in(head) or ","

        # Strict, because otherwise an unclosed quotation mark would swallow the rows after it.
        reader = csv.reader(
            chain([head], lines), delimiter=delimiter, strict=True, skipinitialspace=True
        )
        last_line = skipped
        try:
            for cells in reader:
                if any(cells):
                    yield last_line + 1, cells
                last_line = skipped + reader.line_num
        except csv.Error as error:
            problem = f"it is not CSV ({one_line(error)})"
            raise wrong_line(path, last_line + 1, problem, subject) from None


def wrong_line(
    path: Path,
    line: int,
    problem: object,
    subject: str = "file",
    kind: type[InputError] = SourceError,
) -> InputError:
    """Return the error about a line of a file.

    Args:
        path: The file.
        line: Its number.
        problem: What is wrong, as ``it has no id``.
        subject: What the file contains.
        kind: The class of the error.
    """
    return kind(f"The {subject} {path}, line {line}: {problem}; correct it.")


def read_documents(path: Path, schema: Schema | None = None) -> Iterator[Document]:
    """Yield the documents of a JSON Lines file, one at a time.

    Args:
        path: The file.
        schema: What labels are checked by; without it, a document needs no more than an id.

    Raises:
        CorpusError: The file cannot be read, or a line is not a document; the error names the line.
    """
    for number, line in document_lines(path):
        try:
            document = parse_document(line, schema) if schema else parse_line(line)
        except ValueError as error:
            problem = str(error)
            if schema is not None:
                problem += f" ('fairqr corpus check {path}' lists all such lines)"
            raise wrong_line(path, number, problem, "documents", CorpusError) from None
        yield document
