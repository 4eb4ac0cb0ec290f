"""Reads the lines of proxies' logs: which lists of an index were shown, and how often."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from fairqr.base.errors import InputError
from fairqr.graph.integrations.logged import RERANKED
from fairqr.graph.service.proxy.records import Record
from fairqr.graph.service.proxy.seen import LOG, OLDER
from fairqr.graph.service.proxy.swaps import order_shown

OF_LIST = ("query", "arm", "page", "ids", "groups", "exposure")
"""The fields that tell lists apart, beside whether the fair one was shown."""

OF_BOTH_LISTS = ("order", "quality")
"""The fields that also tell lists apart where the fair list is known."""

DAMAGED = (ValueError, LookupError, TypeError, AttributeError)
"""What reading a line raises that a proxy wrote which was killed, or had no room."""


@dataclass(slots=True)
class LoggedList:
    """A list, where a log first has it.

    Attributes:
        file: The file of the log.
        offset: Where its line begins.
        weight: How often it was shown.
    """

    file: BinaryIO
    offset: int
    weight: int = 0

    def record(self) -> Record:
        """Read the line again."""
        self.file.seek(self.offset)
        record: Record = json.loads(self.file.readline())
        return record


@dataclass(slots=True)
class IndexLists:
    """The searches of an index.

    Attributes:
        name: The index.
        lists: The lists that were shown, by a hash.
        k: How many ranks of them counted at most.
        discount: How much each counted in the newest.
        outcomes: How many searches there were, by what became of them.
        unseen: How many of them are in no figure, by the reason.
    """

    name: str
    lists: dict[bytes, LoggedList] = field(default_factory=dict)
    k: int = 1
    discount: str = ""
    outcomes: Counter[str] = field(default_factory=Counter)
    unseen: Counter[str] = field(default_factory=Counter)

    def add_list(self, record: Mapping[str, Any], logged: LoggedList) -> None:
        """Count a list that was shown, or nothing of it.

        Raises:
            LookupError: Its record lacks something.
        """
        key = _key_of(record)
        ranks = min(record["k"], record["page"])
        discount = str(record["discount"])
        self.lists.setdefault(key, logged).weight += 1
        self.k = max(self.k, ranks)
        self.discount = discount


class LogReader:
    """Reads the lines of logs.

    Attributes:
        damaged: How many lines cannot be read.
    """

    def __init__(self) -> None:
        self.damaged = 0
        self._indexes: dict[str, IndexLists] = {}

    def add_all(self, file: BinaryIO) -> None:
        """Add the lines of a file."""
        offset = 0
        for line in file:
            try:
                if line.strip():
                    self._add(json.loads(line), LoggedList(file, offset))
            except DAMAGED:
                self.damaged += 1
            offset += len(line)

    def _add(self, record: Mapping[str, Any], logged: LoggedList) -> None:
        """Add a record, or nothing of it.

        Raises:
            LookupError: It lacks something.
        """
        name = str(record["index"])
        outcome = str(record["outcome"])
        index = self._indexes.get(name) or IndexLists(name)
        if "unseen" in record:
            index.unseen[str(record["unseen"])] += 1
        else:
            index.add_list(record, logged)
        index.outcomes[outcome] += 1
        self._indexes[name] = index

    def lists_of(self, name: str | None) -> IndexLists:
        """Return the searches of an index.

        Raises:
            InputError: There are none, or there are several indexes and none is named.
        """
        if name is None and len(self._indexes) > 1:
            names = ", ".join(self._indexes)
            raise InputError(f"The log has searches of {names}; name one by --corpus.")
        for index in self._indexes.values():
            if name in (None, index.name):
                return index
        raise InputError("The log has no such searches; name the folder of a proxy's log.")


def log_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a log, the older one first."""
    for path in (folder / OLDER, folder / LOG):
        if path.is_file():
            yield path


def is_fair_shown(record: Mapping[str, Any]) -> bool:
    """Return whether the fair list was shown."""
    return bool(record["outcome"] == RERANKED)


def ids_shown(record: Record, ids: Sequence[str], k: int) -> list[str]:
    """Return the documents of a list in the order in which they were shown.

    Those behind a page stay as candidates, unless the page has less than k: they were not shown.

    Args:
        record: What the log has of the list.
        ids: The ids of its documents, in the order of the engine.
        k: How many ranks count.
    """
    shown = [*ids]
    if is_fair_shown(record):
        shown = [ids[position] for position in order_shown(record)]
    page = int(record["page"])
    return shown[:page] if page < k else shown


def _key_of(record: Mapping[str, Any]) -> bytes:
    """Return a hash of what tells lists apart.

    Raises:
        LookupError: The record lacks something.
    """
    is_fair = is_fair_shown(record)
    names = [*OF_LIST]
    for name in OF_BOTH_LISTS:
        if is_fair or name in record:
            names.append(name)
    values = [record[name] for name in names]
    text = json.dumps([is_fair, *values, record.get("swap")])
    return hashlib.sha256(text.encode()).digest()
