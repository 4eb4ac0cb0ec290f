"""The documents that searches have met, for engines that cannot read a document by its id."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from threading import Lock

from fairqr.retrieval.documents import Document

__all__ = ["MetDocuments"]


class MetDocuments:
    """The documents that were met last, by id; several threads may use it.

    An engine that answers searches with whole documents keeps them here, and reads them again when
    something asks for their texts.
    """

    def __init__(self, limit: int = 100_000) -> None:
        self._limit = limit
        self._documents: OrderedDict[str, Document] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._documents)

    def add(self, documents: Iterable[Document]) -> None:
        """Keep documents, and forget those that were met longest ago where there are too many."""
        with self._lock:
            for document in documents:
                self._documents[document.id] = document
                self._documents.move_to_end(document.id)
            while len(self._documents) > self._limit:
                self._documents.popitem(last=False)

    def get(self, ids: Sequence[str]) -> list[Document]:
        """Return those of these documents that are still known, in this order."""
        with self._lock:
            found = [self._documents[id_] for id_ in ids if id_ in self._documents]
            for document in found:
                self._documents.move_to_end(document.id)
        return found
