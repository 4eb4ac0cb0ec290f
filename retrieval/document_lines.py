"""Single documents of a JSON Lines file, read where they stand."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path

from fairqr.errors import IndexUnavailableError, SourceError
from fairqr.retrieval.documents import Document, parse_line, placed_lines

__all__ = ["DocumentLines"]


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
        for number, start, line in placed_lines(path):
            try:
                document = parse_line(line)
            except ValueError as error:
                raise SourceError(f"{path}, line {number}: {error}; mend the line.") from None
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
