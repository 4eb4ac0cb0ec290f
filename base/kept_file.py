"""A store of values by key, kept between runs in one file of bounded size.

Several processes may share the file. When it is full, the oldest values are dropped.
A file that is damaged or cannot be written is not an error: it forgets its values.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Generic, TypeVar

Value = TypeVar("Value", str, bytes)

_TABLE = "CREATE TABLE IF NOT EXISTS kept (key TEXT PRIMARY KEY, value NOT NULL)"
# SQLite fills free pages before it grows.
_SIZE = (
    "SELECT (page_count - freelist_count) * page_size"
    " FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
)
# A twentieth at once, so that few writes drop any and other processes do not wait for long.
_DROP = (
    "DELETE FROM kept WHERE rowid IN (SELECT rowid FROM kept ORDER BY rowid"
    " LIMIT (SELECT count(*) / 20 + 1 FROM kept))"
)


class KeptFile(Generic[Value]):
    """Texts or bytes on disk, by key.

    Each use opens the file and closes it, so that somebody may delete or replace it at any time.

    Args:
        path: The SQLite file.
        max_bytes: How large it may grow.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes

    def is_usable(self) -> bool:
        """Return whether values can be kept; the file is made if it is missing."""
        with suppress(OSError, sqlite3.Error), self._opened(writes=True) as connection:
            connection.execute("BEGIN IMMEDIATE")
            return True
        return False

    def get_many(self, keys: Sequence[str]) -> dict[str, Value]:
        """Return what is stored, by key."""
        query = "SELECT key, value FROM kept WHERE key IN (SELECT value FROM json_each(?))"
        with suppress(OSError, sqlite3.Error), self._opened() as connection:
            return dict(connection.execute(query, [json.dumps(list(keys))]).fetchall())
        return {}

    def put_many(self, values: Mapping[str, Value]) -> None:
        """Store several values, all or none."""
        insert = "INSERT OR REPLACE INTO kept (key, value) VALUES (?, ?)"
        with suppress(OSError, sqlite3.Error), self._opened(writes=True) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(insert, values.items())
            connection.execute("COMMIT")
            while connection.execute(_SIZE).fetchone()[0] > self._max_bytes:
                if not connection.execute(_DROP).rowcount:
                    return

    @contextmanager
    def _opened(self, *, writes: bool = False) -> Iterator[sqlite3.Connection]:
        """Open the file for one use; only a write makes it. Closing ends an open transaction."""
        if writes:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        else:
            self._path.stat()
        with closing(sqlite3.connect(self._path, timeout=10, isolation_level=None)) as connection:
            if writes:
                # This fails if another process does the same at this moment; the file is then
                # changed by that.
                with suppress(sqlite3.OperationalError):
                    connection.execute("PRAGMA journal_mode=WAL")
                # A power failure may cost the last values, but does not damage the file.
                connection.execute("PRAGMA synchronous=NORMAL")
                connection.execute(_TABLE)
            yield connection
