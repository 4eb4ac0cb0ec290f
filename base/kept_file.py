"""A store of values by key, kept between runs in one file of bounded size.

Several processes may share the file. In one process, all objects for a file share one connection,
which closes when the last of them is gone. When the file is full, the least recently used values
are dropped. A file that is damaged or cannot be written is not an error: it forgets its values.
"""

from __future__ import annotations

import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

Value = TypeVar("Value", str, bytes)

KEPT_SHARE = 0.9
"""How full the file is after values were dropped. The spare room means that few writes drop any."""

STALE = "-1 hour"
"""How old the recorded time of a value's last use may get, so that few reads must update it."""

KEYS_AT_ONCE = 500
"""How many keys one statement names; SQLite accepts at least 999."""

ATTEMPTS = 100
SECONDS_BETWEEN = 0.05


class KeptFile(Generic[Value]):
    """Texts or bytes on disk, by key.

    Args:
        path: The SQLite file.
        max_bytes: How large it may grow.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._file = _file_at(path)

    def get_many(self, keys: Sequence[str]) -> dict[str, Value]:
        """Return what is stored, by key."""
        rows: list[tuple[str, Value]] = []
        try:
            with self._file.connection() as connection:
                for start in range(0, len(keys), KEYS_AT_ONCE):
                    rows += _used(connection, keys[start : start + KEYS_AT_ONCE])
        except (OSError, sqlite3.Error):
            return {}
        return dict(rows)

    def put_many(self, values: Mapping[str, Value]) -> None:
        """Store several values, all or none."""
        try:
            with self._file.connection() as connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany(
                    "INSERT OR REPLACE INTO kept (key, value) VALUES (?, ?)", values.items()
                )
                connection.execute("COMMIT")
                _evict(connection, self._max_bytes)
        except (OSError, sqlite3.Error):
            return

    def after(self, key: str, size: int) -> dict[str, Value]:
        """Return the values of the next keys in alphabetical order, at most ``size`` of them."""
        if not self.path.exists():
            return {}
        query = "SELECT key, value FROM kept WHERE key > ? ORDER BY key LIMIT ?"
        try:
            with self._file.connection() as connection:
                return dict(connection.execute(query, (key, size)).fetchall())
        except (OSError, sqlite3.Error):
            return {}

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        self._file.close()


class _File:
    """A file, and the one connection that this process has to it.

    The connection opens on first use. It opens again after an error, and after somebody deleted or
    replaced the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None
        self._close_connection: Callable[[], object] = _nothing

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """Give the connection to one thread at a time."""
        with self._lock:
            try:
                if self._connection is None or self._inode != _inode_of(self._path):
                    self._disconnect()
                    self._connection = self._connect()
                yield self._connection
            except BaseException:
                self._disconnect()  # this also ends an open transaction
                raise

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._disconnect()

    def _connect(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(
            self._path, timeout=10, isolation_level=None, check_same_thread=False
        )
        # Also called when this object is garbage collected, and when the process ends.
        self._close_connection = weakref.finalize(self, connection.close)
        _write_ahead(connection)
        # A power failure may cost the last values, but does not damage the file.
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS kept"
            " (key TEXT PRIMARY KEY, value NOT NULL, at TEXT DEFAULT CURRENT_TIMESTAMP)"
        )
        connection.execute("CREATE INDEX IF NOT EXISTS kept_at ON kept (at)")
        self._inode = _inode_of(self._path)
        return connection

    def _disconnect(self) -> None:
        self._connection = None
        close, self._close_connection = self._close_connection, _nothing
        with suppress(sqlite3.Error):
            close()


_files: weakref.WeakValueDictionary[Path, _File] = weakref.WeakValueDictionary()
_files_lock = threading.Lock()


def _file_at(path: Path) -> _File:
    """Return the file at a path; the whole process shares one object per path."""
    place = path.absolute()
    with _files_lock:
        file = _files.get(place)
        if file is None:
            file = _files[place] = _File(place)
        return file


def _inode_of(path: Path) -> tuple[int, int] | None:
    """Return what distinguishes files of the same name, or None if there is no file."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_dev, state.st_ino


def _nothing() -> None:
    """Close nothing."""


def _used(connection: sqlite3.Connection, keys: Sequence[str]) -> list[tuple[str, Any]]:
    """Return the rows of some keys, and note that they were used."""
    marks = ",".join("?" * len(keys))
    rows = connection.execute(
        f"SELECT key, value, at < datetime('now', '{STALE}') FROM kept"  # noqa: S608
        f" WHERE key IN ({marks})",
        keys,
    ).fetchall()
    if stale := [key for key, _, is_stale in rows if is_stale]:
        marks = ",".join("?" * len(stale))
        # Another process may be writing for long; the values found are still good.
        with suppress(sqlite3.Error):
            connection.execute(
                f"UPDATE kept SET at = CURRENT_TIMESTAMP WHERE key IN ({marks})",  # noqa: S608
                stale,
            )
    return [(key, value) for key, value, _ in rows]


def _evict(connection: sqlite3.Connection, max_bytes: int) -> None:
    """Drop the least recently used values if the file is too large.

    One per cent is dropped at a time, so that other processes do not wait for long.
    """
    if _bytes_in(connection) <= max_bytes:
        return
    rows: int = connection.execute("SELECT count(*) FROM kept").fetchone()[0]
    while _bytes_in(connection) > max_bytes * KEPT_SHARE:
        dropped = connection.execute(
            "DELETE FROM kept WHERE rowid IN (SELECT rowid FROM kept ORDER BY at, rowid LIMIT ?)",
            (rows // 100 + 1,),
        )
        if dropped.rowcount == 0:
            return


def _bytes_in(connection: sqlite3.Connection) -> int:
    """Return how many bytes of the file are in use; SQLite fills free ones before it grows."""
    query = (
        "SELECT (page_count - freelist_count) * page_size"
        " FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
    )
    size: int = connection.execute(query).fetchone()[0]
    return size


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Let readers and a writer work at once.

    Unlike all other statements, this one does not wait if another process runs it at the same time,
    so we wait here.
    """
    for _ in range(ATTEMPTS):
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                return  # the next statement raises the real error
            time.sleep(SECONDS_BETWEEN)
