"""Building the folder of a collection: hidden until it is complete, and in bounded memory.

The name of a folder under construction starts with a dot. The next build of the same name removes
the remains of a killed build.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import secrets
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from fairqr.base.errors import BuildInProgressError
from fairqr.evaluation.qrels import Qrels, write_qrels
from fairqr.retrieval.sources.documents import ProgressFunction

TELL_EVERY = 1000
CACHE_KIB = 65_536
COMPRESSION = 1
"""Fast rather than small: at higher levels, compression takes longer than the rest of an import."""


@dataclass(slots=True)
class ImportReport:
    """What an import found.

    Attributes:
        documents: How many were written.
        duplicates: How many were left out because their id came before.
        unlabelled: How many documents have no metadata.
        topics: How many topics, by the name of their judgements.
        judgements: How many judgements, likewise.
        missing: How many judged documents the documents lack, likewise; their judgements are kept.
        left_out: What of the files was not imported, and why.
        unrecognised: How often each label that names no group occurred; it counts as unknown.
    """

    documents: int = 0
    duplicates: int = 0
    unlabelled: int = 0
    topics: dict[str | None, int] = field(default_factory=dict)
    judgements: dict[str | None, int] = field(default_factory=dict)
    missing: dict[str | None, int] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    unrecognised: dict[str, int] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        lines = [f"{self.documents:,} documents"]
        if self.duplicates:
            lines.append(f"{self.duplicates:,} left out, whose id had come before")
        if self.unlabelled:
            lines.append(f"{self.unlabelled:,} without metadata: all their labels are unknown")
        for split, topics in self.topics.items():
            name = f"{split}: " if split else ""
            judged = f"{self.judgements.get(split, 0):,} judgements"
            lines.append(f"{name}{topics:,} topics, {judged}")
            if missing := self.missing.get(split, 0):
                lines.append(
                    f"{name}{missing:,} judged documents are not among the documents; "
                    "their judgements are kept"
                )
        for label, count in sorted(self.unrecognised.items(), key=lambda item: -item[1])[:10]:
            lines.append(f"the label '{label}' is no group: unknown in {count:,} documents")
        return lines + self.left_out


@contextlib.contextmanager
def locked(target: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock on a collection's folder; the system releases it when the process dies.

    Raises:
        BuildInProgressError: Another process holds it, and ``wait`` is false.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        held = FileLock(target.parent / f".{target.name}.lock").acquire(-1 if wait else 0)
    except Timeout:
        raise BuildInProgressError(
            f"Another process imports the collection '{target.name}'; wait until it has finished."
        ) from None
    with held:
        yield


@contextlib.contextmanager
def building(target: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``target``, which replaces ``target`` at the end.

    If the block fails, the new folder is removed and the old one stays. Hold the lock.
    """
    for rest in target.parent.glob(f".{target.name}.build-*"):
        shutil.rmtree(rest, ignore_errors=True)
    beside = target.with_name(f".{target.name}.build-{secrets.token_hex(8)}")
    beside.mkdir()
    try:
        yield beside
        if target.exists():
            old = target.with_name(f".{target.name}.build-old-{secrets.token_hex(8)}")
            target.rename(old)
            beside.rename(target)
            shutil.rmtree(old, ignore_errors=True)
        else:
            beside.rename(target)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


class DiskTable:
    """Values by key, on disk, for joining and for finding duplicates in bounded memory.

    Args:
        path: A new file, which is removed when the table is closed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database = sqlite3.connect(path, isolation_level=None)
        # The table does not outlive the import, so it need not survive a crash.
        for setting in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{CACHE_KIB}"):
            self._database.execute(f"PRAGMA {setting}")
        self._database.execute("CREATE TABLE entries (key PRIMARY KEY, value TEXT) WITHOUT ROWID")
        self._database.execute("BEGIN")

    def put(self, key: str, value: str = "") -> bool:
        """Store a value and return True; return False if the key exists."""
        entry = (_compact(key), value)
        done = self._database.execute("INSERT OR IGNORE INTO entries VALUES (?, ?)", entry)
        return done.rowcount > 0

    def get(self, key: str) -> str | None:
        """Return the value of a key."""
        found = self._database.execute(
            "SELECT value FROM entries WHERE key = ?", (_compact(key),)
        ).fetchone()
        return None if found is None else str(found[0])

    def __enter__(self) -> DiskTable:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()
        self._path.unlink(missing_ok=True)


class DocumentWriter:
    """Writes ``documents.jsonl.gz``, one document at a time, each id once.

    The same documents give the same bytes.

    Args:
        folder: Where.
        progress: Called now and then with the number of documents written.
    """

    def __init__(self, folder: Path, progress: ProgressFunction | None = None) -> None:
        self.count = 0
        self._progress = progress
        self._ids = DiskTable(folder / ".ids")
        self._file: IO[bytes] = (folder / "documents.jsonl.gz").open("wb")
        self._stream = gzip.GzipFile("", "wb", COMPRESSION, self._file, mtime=0)

    def write(self, id_: str, title: str, text: str, fields: Mapping[str, Any]) -> bool:
        """Write a document and return True; return False if its id came before."""
        if not self._ids.put(id_):
            return False
        document = {"id": id_, "title": title, "text": text, **fields}
        line = json.dumps(document, ensure_ascii=False)
        self._stream.write(line.encode("utf-8", "replace") + b"\n")
        self.count += 1
        if self._progress and not self.count % TELL_EVERY:
            self._progress(self.count)
        return True

    def has(self, id_: str) -> bool:
        """Return whether a document of that id was written."""
        return self._ids.get(id_) is not None

    def __enter__(self) -> DocumentWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._ids, self._file:
            self._stream.close()
            if kind is None:
                self._file.flush()
                os.fsync(self._file.fileno())
                if self._progress:
                    self._progress(self.count)


def write_judgements(
    folder: Path, split: str | None, qrels: Qrels, writer: DocumentWriter, report: ImportReport
) -> None:
    """Write judgements by their name, and count them and the judged documents that are missing."""
    report.judgements[split] = sum(map(len, qrels.values()))
    judged = {id_ for of_topic in qrels.values() for id_ in of_topic}
    report.missing[split] = sum(not writer.has(id_) for id_ in judged)
    write_qrels(folder / ("qrels.txt" if split is None else f"qrels-{split}.txt"), qrels)


def _compact(key: str) -> str | int:
    """Return a number for a key that is one written plainly: smaller, and in order faster.

    Two keys never become the same number, and SQLite's numbers have 64 bits.
    """
    plain = key.isascii() and key.isdigit() and len(key) < 19 and (key == "0" or key[0] != "0")
    return int(key) if plain else key
