"""Documents, and the JSON Lines files they come from."""

from __future__ import annotations

import codecs
import gzip
import json
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

from fairqr.base.errors import CorpusError, IndexUnavailableError, SourceError, one_line
from fairqr.retrieval.schema import Attribute, Schema

__all__ = [
    "Document",
    "DocumentLines",
    "Progress",
    "chunks",
    "encodable",
    "identifier",
    "numbered_lines",
    "open_text",
    "parse_document",
    "parse_line",
    "parse_object",
    "read_documents",
    "value_at",
]

T = TypeVar("T")


class Progress(Protocol):
    """Called now and then while documents are read, written or encoded."""

    def __call__(self, done: int, total: int | None = None, /) -> None:
        """Take the number so far, and of how many; None if that is not known."""
        ...


MAX_ID_BYTES = 512


@dataclass(frozen=True, slots=True)
class Document:
    """One document.

    Attributes:
        id: Unique in its corpus.
        title: May be empty.
        text: May be empty.
        fields: Everything else that the line of the corpus had, labels of groups included.
    """

    id: str
    title: str
    text: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    def label(self, attribute: Attribute) -> object:
        """Return what the document says of an attribute, as it stands in the corpus."""
        return value_at(self.fields, attribute.field)

    def membership(self, attribute: Attribute) -> tuple[float, ...]:
        """Return the share of each group of the attribute; see :meth:`Attribute.membership`."""
        return attribute.membership(self.label(attribute))


def value_at(fields: Mapping[str, Any], path: str) -> Any:
    """Return the value of a field; ``person.sex`` may be its name, or a field of ``person``."""
    if path in fields:
        return fields[path]
    value: Any = fields
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def parse_document(line: str | bytes, schema: Schema) -> Document:
    """Read one line of a corpus, and check it.

    Raises:
        ValueError: The line is no JSON object with an ``id``, it has neither title nor text, or a
            label does not fit the schema.
    """
    document = parse_line(line)
    if not document.title.strip() and not document.text.strip():
        raise ValueError("it has neither title nor text")
    for attribute in schema.attributes.values():
        document.membership(attribute)
    return document


def parse_line(line: str | bytes) -> Document:
    """Read one line of a corpus, whatever its labels are.

    Raises:
        ValueError: The line is no JSON object with an ``id``.
    """
    data = parse_object(line)
    return Document(
        id=identifier(data.pop("id", None)),
        title=_text(data.pop("title", ""), "title"),
        text=_text(data.pop("text", ""), "text"),
        fields=data,
    )


def parse_object(line: str | bytes) -> dict[str, Any]:
    """Read one line of a JSON Lines file.

    Raises:
        ValueError: The line is no JSON object.
    """
    try:
        data = json.loads(line)
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"it is not valid JSON ({one_line(error)})") from None
    if not isinstance(data, dict):
        raise ValueError("it is not a JSON object")
    return data


def identifier(value: object) -> str:
    """Return an id as text.

    Raises:
        ValueError: It is neither a text nor a whole number, or too long.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value:
        raise ValueError("it has no id (a text or a whole number)")
    if len(value.encode("utf-8", "surrogatepass")) > MAX_ID_BYTES:
        raise ValueError(f"its id is longer than {MAX_ID_BYTES} bytes")
    return encodable(value, "id")


def _text(value: object, name: str) -> str:
    if value is None:
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
    """Yield items in lists of this size; the last one may be shorter."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def open_text(path: Path) -> IO[bytes] | gzip.GzipFile:
    """Open a corpus for reading by lines, unpacked where its name ends in ``.gz``.

    Raises:
        CorpusError: The file does not exist or cannot be read.
    """
    try:
        return gzip.open(path) if path.suffix == ".gz" else path.open("rb")
    except OSError as error:
        raise CorpusError(f"The file {path} cannot be read: {error.strerror or error}.") from None


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the content of each line that is not blank.

    Raises:
        CorpusError: The file cannot be read to its end.
    """
    for number, _, line in _placed_lines(path):
        yield number, line


def _placed_lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield number, first byte and content of each line that is not blank.

    Raises:
        CorpusError: The file cannot be read to its end.
    """
    number, end = 0, 0
    with open_text(path) as stream:
        try:
            for number, whole in enumerate(stream, start=1):
                end += len(whole)
                # Some editors put a mark before the first character of a file.
                line = whole.removeprefix(codecs.BOM_UTF8) if number == 1 else whole
                if line.strip():
                    yield number, end - len(line), line
        except (OSError, EOFError, zlib.error) as error:
            why = "its packed data are damaged"
            if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
                why = error.strerror or str(error)
            raise CorpusError(
                f"The file {path} breaks off after line {number}: {why}. Copy or pack it again."
            ) from None


def read_documents(path: Path, schema: Schema) -> Iterator[Document]:
    """Yield the documents of a JSON Lines file, one at a time.

    Raises:
        CorpusError: The file cannot be read, or a line is no document; the line is named.
    """
    for number, line in numbered_lines(path):
        try:
            yield parse_document(line, schema)
        except ValueError as error:
            raise CorpusError(
                f"{path}, line {number}: {error}; "
                f"'fairqr corpus check {path}' lists all such lines."
            ) from None


class DocumentLines:
    """Some documents of a JSON Lines file; only where each begins is kept in memory.

    Args:
        path: The file; it cannot be packed, since single lines of it are read.
        wanted: The ids of the documents that may be asked for.
        seen: Called with each of these documents once, in the order of the file.

    Raises:
        CorpusError: The file cannot be read.
        SourceError: It is packed, a line is no document, or a document is in two lines.
    """

    def __init__(
        self, path: Path, wanted: Container[str], seen: Callable[[Document], object]
    ) -> None:
        if path.suffix == ".gz":
            raise SourceError(
                f"The documents {path} are packed; unpack the file, since single lines are read."
            )
        self.path = path
        self._starts: dict[str, int] = {}
        lines: dict[str, int] = {}
        for number, start, line in _placed_lines(path):
            try:
                document = parse_line(line)
            except ValueError as error:
                raise SourceError(f"{path}, line {number}: {error}; fix the line.") from None
            if document.id not in wanted:
                continue
            if (first := lines.setdefault(document.id, number)) != number:
                raise SourceError(
                    f"{path}, line {number}: the document '{document.id}' is in line {first} "
                    "already; keep one of them."
                )
            self._starts[document.id] = start
            seen(document)

    def __len__(self) -> int:
        return len(self._starts)

    def read(self, ids: Sequence[str]) -> Iterator[Document]:
        """Yield these documents, in this order; those that the file lacks are left out.

        Raises:
            IndexUnavailableError: The file was changed, or cannot be read any more.
        """
        try:
            with self.path.open("rb") as stream:
                for id_ in ids:
                    if id_ not in self._starts:
                        continue
                    stream.seek(self._starts[id_])
                    document = parse_line(stream.readline())
                    if document.id != id_:
                        raise ValueError("another document is in its place")
                    yield document
        except (OSError, ValueError) as error:
            raise IndexUnavailableError(
                f"The documents {self.path} have changed since they were opened ({error}); "
                "open the source again."
            ) from None
