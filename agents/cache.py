"""Replies that were paid for already, kept on disk."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from fairqr.settings import cache_dir

__all__ = ["ReplyCache", "cache_key", "kept_in"]

ATTEMPTS = 100
SECONDS_BETWEEN = 0.05


def cache_key(**parts: Any) -> str:
    """Return the key of a question: a hash of the model, the prompt's sha256 and all inputs."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class ReplyCache:
    """A persistent mapping from the key of a question to the JSON object that answered it.

    Several processes may share the file. A damaged or unwritable one is worked around: the cache
    then forgets, and asking goes on.

    Args:
        path: The SQLite file; ``replies.sqlite`` in the cache folder where None.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or cache_dir() / "replies.sqlite"
        self._thread = threading.Lock()

    async def get(self, key: str) -> dict[str, Any] | None:
        """Return the stored object, or None."""
        return await asyncio.to_thread(self._get, key)

    async def put(self, key: str, value: Mapping[str, Any]) -> None:
        """Store an object."""
        await asyncio.to_thread(self._put, key, value)

    async def batches(self, size: int) -> AsyncIterator[dict[str, dict[str, Any]]]:
        """Yield all that is stored, so many at a time; nothing of a damaged file."""
        after = ""
        while found := await asyncio.to_thread(self._batch, after, size):
            after = max(found)
            yield {key: value for key, value in found.items() if value is not None}

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self.path, timeout=10, isolation_level=None)) as connection:
            _write_ahead(connection)
            connection.execute(
                "CREATE TABLE IF NOT EXISTS replies"
                " (key TEXT PRIMARY KEY, value TEXT NOT NULL, at TEXT DEFAULT CURRENT_TIMESTAMP)"
            )
            yield connection

    def _get(self, key: str) -> dict[str, Any] | None:
        try:
            with self._thread, self._connect() as connection:
                row = connection.execute("SELECT value FROM replies WHERE key=?", (key,)).fetchone()
        except (OSError, sqlite3.Error):
            return None
        return _read(row[0]) if row else None

    def _batch(self, after: str, size: int) -> dict[str, dict[str, Any] | None]:
        if not self.path.exists():
            return {}
        query = "SELECT key, value FROM replies WHERE key > ? ORDER BY key LIMIT ?"
        try:
            with self._thread, self._connect() as connection:
                rows = connection.execute(query, (after, size)).fetchall()
        except (OSError, sqlite3.Error):
            return {}
        return {key: _read(value) for key, value in rows}

    def _put(self, key: str, value: Mapping[str, Any]) -> None:
        try:
            with self._thread, self._connect() as connection:
                connection.execute(
                    "INSERT OR REPLACE INTO replies (key, value) VALUES (?, ?)",
                    (key, json.dumps(dict(value))),
                )
        except (OSError, sqlite3.Error):
            return


def _read(value: Any) -> dict[str, Any] | None:
    try:
        found = json.loads(value)
    except (TypeError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Let readers and a writer work at once.

    The change of mode does not wait for another process that makes it just now, as all else does.
    """
    for _ in range(ATTEMPTS):
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                return  # what is wrong will be seen with the first statement
            time.sleep(SECONDS_BETWEEN)


def kept_in(cache: bool | ReplyCache) -> ReplyCache | None:
    """Return where replies are kept: the cache that is given, the user's own, or nowhere."""
    if isinstance(cache, ReplyCache):
        return cache
    return ReplyCache() if cache else None
