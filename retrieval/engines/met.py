"""The documents that searches have returned, for engines that cannot read a document by its id."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from threading import Lock

from fairqr.retrieval.sources.documents import Document


class MetDocuments:
    """The documents returned last, by id; several threads may use it.

    An engine whose hits are whole documents keeps them here, and reads them back when something
    needs their texts.

    Args:
        limit: The most documents to keep.
        max_characters: The most characters to keep, in titles, texts and fields together. The last
            document stays even if it has more.
    """

    def __init__(self, limit: int = 100_000, max_characters: int = 200_000_000) -> None:
        self._limit, self._max_characters = limit, max_characters
        self._documents: OrderedDict[str, tuple[Document, int]] = OrderedDict()
        self._characters = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._documents)

    def add(self, documents: Iterable[Document]) -> None:
        """Keep documents, and forget the oldest ones if there are too many."""
        with self._lock:
            for document in documents:
                self._forget(document.id)
                size = _characters(document)
                self._documents[document.id] = document, size
                self._characters += size
                while self._is_too_full():
                    self._forget(next(iter(self._documents)))

    def get(self, ids: Sequence[str]) -> list[Document]:
        """Return those of these documents that are still here, in this order."""
        with self._lock:
            found = [self._documents[id_][0] for id_ in ids if id_ in self._documents]
            for document in found:
                self._documents.move_to_end(document.id)
        return found

    def _is_too_full(self) -> bool:
        count = len(self._documents)
        return count > self._limit or (self._characters > self._max_characters and count > 1)

    def _forget(self, id_: str) -> None:
        if known := self._documents.pop(id_, None):
            self._characters -= known[1]


def _characters(document: Document) -> int:
    """Return a document's approximate number of characters; other values count as one."""
    count = 0
    waiting: list[object] = [document.title, document.text, document.fields]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str | bytes):
            count += len(value)
        elif isinstance(value, Mapping):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple):
            waiting += value
        else:
            count += 1
    return count
