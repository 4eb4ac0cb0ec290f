"""Replies of models by the keys of their questions, so that nothing is asked twice.

Replies are kept on disk (:class:`ReplyFile`) or in memory (:class:`ReplyMemory`). Both share the
calls in flight: whoever asks what is being asked waits for that reply.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairqr.base.loops import PerLoop
from fairqr.base.settings import cache_dir

if TYPE_CHECKING:
    from fairqr.agents.replies import Reply

__all__ = [
    "MAX_BYTES",
    "MAX_REPLIES",
    "ReplyCache",
    "ReplyFile",
    "ReplyMemory",
    "cache_key",
    "current_memory",
    "kept_in",
    "remembering",
]

MAX_BYTES = 512 * 1024 * 1024
"""How large a file of replies may grow.

A reply with its key takes about 1 kB, so about half a million fit: enough for a large experiment,
and not too much for a folder that nobody looks at.
"""

KEPT_SHARE = 0.9
"""How full a file is after replies were dropped. Room to spare, so that few writes drop any."""

MAX_REPLIES = 10_000
"""How many replies a memory holds."""

STALE = "-1 hour"
"""How old the time of a reply's last use may be, so that few reads have to write it."""

KEYS_AT_ONCE = 500
"""How many keys one statement names; SQLite takes at least 999."""

ATTEMPTS = 100
SECONDS_BETWEEN = 0.05


def cache_key(**parts: Any) -> str:
    """Return the key of a question: a hash of everything that can change the reply."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@dataclass(slots=True)
class _Call:
    """A call in flight, and how many wait for its reply."""

    task: asyncio.Task[Reply]
    waiting: int = 0


class ReplyCache(ABC):
    """A mapping from the key of a question to the JSON object that answered it."""

    def __init__(self) -> None:
        self._in_flight: PerLoop[dict[str, _Call]] = PerLoop()

    @abstractmethod
    async def get_many(self, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return what is stored, by key."""

    @abstractmethod
    async def put_many(self, values: Mapping[str, Mapping[str, Any]]) -> None:
        """Store several objects, all or none."""

    async def get(self, key: str) -> dict[str, Any] | None:
        """Return the stored object, or None."""
        return (await self.get_many([key])).get(key)

    async def put(self, key: str, value: Mapping[str, Any]) -> None:
        """Store an object."""
        await self.put_many({key: value})

    @asynccontextmanager
    async def join(
        self, key: str, ask: Callable[[], Coroutine[Any, Any, Reply]]
    ) -> AsyncIterator[tuple[asyncio.Task[Reply], bool]]:
        """Give the call that answers a question, and whether it was started here.

        Shield the task where you await it: it runs while anybody waits, and is cancelled when the
        last one leaves.

        Args:
            key: The same for equal questions.
            ask: Asks the question; not called if this event loop is asking it already.
        """
        calls = self._in_flight.setdefault({})
        leads = key not in calls
        if leads:
            calls[key] = _Call(asyncio.create_task(ask()))
        call = calls[key]
        call.waiting += 1
        try:
            yield call.task, leads
        finally:
            call.waiting -= 1
            if calls.get(key) is call and (call.task.done() or not call.waiting):
                del calls[key]
            if not call.waiting and not call.task.done():
                call.task.cancel()
                await asyncio.wait([call.task])


class ReplyMemory(ReplyCache):
    """Replies in memory, for as long as this object lives.

    When it is full, the replies that were not used for the longest time are dropped.

    Args:
        max_replies: How many it holds.
    """

    def __init__(self, max_replies: int = MAX_REPLIES) -> None:
        super().__init__()
        self._max_replies = max_replies
        self._replies: OrderedDict[str, dict[str, Any]] = OrderedDict()

    async def get_many(self, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return what is stored, by key."""
        found = {key: self._replies[key] for key in keys if key in self._replies}
        for key in found:
            self._replies.move_to_end(key)
        return found

    async def put_many(self, values: Mapping[str, Mapping[str, Any]]) -> None:
        """Store several objects."""
        for key, value in values.items():
            self._replies[key] = dict(value)
            self._replies.move_to_end(key)
        while len(self._replies) > self._max_replies:
            self._replies.popitem(last=False)


_memory: ContextVar[ReplyMemory | None] = ContextVar("fairqr_memory", default=None)


def current_memory() -> ReplyMemory | None:
    """Return the memory of the step that is running, if there is one."""
    return _memory.get()


@contextmanager
def remembering() -> Iterator[None]:
    """Give the models that have no cache a memory, in this task and its children."""
    token = _memory.set(ReplyMemory())
    try:
        yield
    finally:
        _memory.reset(token)


class ReplyFile(ReplyCache):
    """Replies on disk.

    Several processes may share the file. In one process, all objects for a file share one
    connection, which closes when the last of them is gone. When the file is full, the replies that
    were not used for the longest time are dropped. A file that is damaged or cannot be written is
    not an error: it then forgets, and models are asked again.

    Args:
        path: The SQLite file; defaults to ``replies.sqlite`` in the cache folder.
        max_bytes: How large the file may grow.
    """

    def __init__(self, path: Path | None = None, max_bytes: int = MAX_BYTES) -> None:
        super().__init__()
        self.path = path or cache_dir() / "replies.sqlite"
        self._max_bytes = max_bytes
        self._file = _file_at(self.path)

    async def get_many(self, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return what is stored, by key."""
        return await asyncio.to_thread(self._get_many, keys)

    async def put_many(self, values: Mapping[str, Mapping[str, Any]]) -> None:
        """Store several objects, all or none."""
        await asyncio.to_thread(self._put_many, values)

    async def batches(self, size: int) -> AsyncIterator[dict[str, dict[str, Any]]]:
        """Yield everything that is stored, ``size`` objects at a time."""
        after = ""
        while rows := await asyncio.to_thread(self._batch, after, size):
            after = rows[-1][0]
            yield _objects(rows)

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        self._file.close()

    def _get_many(self, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
        rows: list[tuple[str, Any]] = []
        try:
            with self._file.connection() as connection:
                for start in range(0, len(keys), KEYS_AT_ONCE):
                    rows += _used(connection, keys[start : start + KEYS_AT_ONCE])
        except (OSError, sqlite3.Error):
            return {}
        return _objects(rows)

    def _put_many(self, values: Mapping[str, Mapping[str, Any]]) -> None:
        rows = [(key, json.dumps(dict(value))) for key, value in values.items()]
        try:
            with self._file.connection() as connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany(
                    "INSERT OR REPLACE INTO replies (key, value) VALUES (?, ?)", rows
                )
                connection.execute("COMMIT")
                _evict(connection, self._max_bytes)
        except (OSError, sqlite3.Error):
            return

    def _batch(self, after: str, size: int) -> list[tuple[str, Any]]:
        if not self.path.exists():
            return []
        query = "SELECT key, value FROM replies WHERE key > ? ORDER BY key LIMIT ?"
        try:
            with self._file.connection() as connection:
                return connection.execute(query, (after, size)).fetchall()
        except (OSError, sqlite3.Error):
            return []


class _File:
    """A file of replies, and the one connection that this process has to it.

    The connection opens on first use. It opens again after an error, and when somebody has deleted
    or replaced the file.
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
                self._disconnect()  # which also ends a transaction that was under way
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
        # Also called when nobody holds this object any more, and when the process ends.
        self._close_connection = weakref.finalize(self, connection.close)
        _write_ahead(connection)
        # A power failure may cost the last replies, but does not damage the file.
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS replies"
            " (key TEXT PRIMARY KEY, value TEXT NOT NULL, at TEXT DEFAULT CURRENT_TIMESTAMP)"
        )
        connection.execute("CREATE INDEX IF NOT EXISTS replies_at ON replies (at)")
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
    """Return the file at a path; the same one for everybody in this process."""
    place = path.absolute()
    with _files_lock:
        file = _files.get(place)
        if file is None:
            file = _files[place] = _File(place)
        return file


def _inode_of(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from another of the same name; None if there is no file."""
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
        f"SELECT key, value, at < datetime('now', '{STALE}') FROM replies"  # noqa: S608
        f" WHERE key IN ({marks})",
        keys,
    ).fetchall()
    if stale := [key for key, _, is_stale in rows if is_stale]:
        marks = ",".join("?" * len(stale))
        # Another process may be writing for long; what was found counts all the same.
        with suppress(sqlite3.Error):
            connection.execute(
                f"UPDATE replies SET at = CURRENT_TIMESTAMP WHERE key IN ({marks})",  # noqa: S608
                stale,
            )
    return [(key, value) for key, value, _ in rows]


def _evict(connection: sqlite3.Connection, max_bytes: int) -> None:
    """Drop the replies that were not used for the longest time, if the file is too large.

    A hundredth goes at a time, so that other processes need not wait for long.
    """
    if _bytes_in(connection) <= max_bytes:
        return
    rows: int = connection.execute("SELECT count(*) FROM replies").fetchone()[0]
    while _bytes_in(connection) > max_bytes * KEPT_SHARE:
        dropped = connection.execute(
            "DELETE FROM replies WHERE rowid IN"
            " (SELECT rowid FROM replies ORDER BY at, rowid LIMIT ?)",
            (rows // 100 + 1,),
        )
        if dropped.rowcount == 0:
            return


def _bytes_in(connection: sqlite3.Connection) -> int:
    """Return how many bytes of the file are in use; it reuses the others before it grows."""
    query = (
        "SELECT (page_count - freelist_count) * page_size"
        " FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
    )
    size: int = connection.execute(query).fetchone()[0]
    return size


def _objects(rows: Sequence[tuple[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the JSON objects of rows by key, without those that are none."""
    found = {}
    for key, text in rows:
        try:
            value = json.loads(text)
        except (TypeError, ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            found[key] = value
    return found


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Let readers and a writer work at once.

    Unlike every other statement, the change of mode does not wait for another process that makes it
    at the same time.
    """
    for _ in range(ATTEMPTS):
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                return  # the next statement says what is wrong
            time.sleep(SECONDS_BETWEEN)


def kept_in(cache: bool | ReplyCache) -> ReplyCache | None:
    """Return where replies are kept: the given cache, the user's own file for True, or nowhere."""
    if isinstance(cache, ReplyCache):
        return cache
    return ReplyFile() if cache else None
