"""A cache of models' replies by the keys of their questions, so that nothing is asked twice.

Replies are kept on disk (:class:`ReplyFile`) or in memory (:class:`ReplyMemory`). Both share calls
in flight: a second caller with an equal question waits for the same reply.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
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
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairqr.base.kept_file import KeptFile
from fairqr.base.loops import PerLoop
from fairqr.base.settings import cache_dir

if TYPE_CHECKING:
    from fairqr.agents.models.replies import Reply

MAX_BYTES = 512 * 1024 * 1024
"""How large a file of replies may grow.

A reply with its key takes about 1 kB, so about half a million fit. That is enough for a large
experiment, and not too much for a cache folder.
"""

MAX_REPLIES = 10_000
"""How many replies a memory keeps."""


def cache_key(**parts: Any) -> str:
    """Return the key of a question: a hash of everything that can change the reply."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@dataclass(slots=True)
class _Call:
    """A call in flight, and how many callers wait for its reply."""

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
        """Give the call that answers a question, and whether this caller started it.

        Shield the task when you await it: it runs while anybody waits, and is cancelled when the
        last caller leaves.

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

    When it is full, the least recently used replies are dropped.

    Args:
        max_replies: How many replies it keeps.
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
    """Return the memory of the running step, if there is one."""
    return _memory.get()


@contextmanager
def remembering() -> Iterator[None]:
    """Give models without a cache a memory, in this task and its children."""
    token = _memory.set(ReplyMemory())
    try:
        yield
    finally:
        _memory.reset(token)


class ReplyFile(ReplyCache):
    """Replies on disk, in a file that several processes may share.

    Replies that do not fit or are damaged are forgotten; models are then asked again.

    Args:
        path: The SQLite file; defaults to ``replies.sqlite`` in the cache folder.
        max_bytes: How large the file may grow.
    """

    def __init__(self, path: Path | None = None, max_bytes: int = MAX_BYTES) -> None:
        super().__init__()
        self.path = path or cache_dir() / "replies.sqlite"
        self._file: KeptFile[str] = KeptFile(self.path, max_bytes)

    async def get_many(self, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return what is stored, by key."""
        return _objects(await asyncio.to_thread(self._file.get_many, keys))

    async def put_many(self, values: Mapping[str, Mapping[str, Any]]) -> None:
        """Store several objects, all or none."""
        texts = {key: json.dumps(dict(value)) for key, value in values.items()}
        await asyncio.to_thread(self._file.put_many, texts)

    async def batches(self, size: int) -> AsyncIterator[dict[str, dict[str, Any]]]:
        """Yield everything that is stored, ``size`` objects at a time."""
        after = ""
        while texts := await asyncio.to_thread(self._file.after, after, size):
            after = max(texts)
            yield _objects(texts)

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        self._file.close()


def _objects(texts: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the JSON objects by key, without texts that are not JSON objects."""
    found = {}
    for key, text in texts.items():
        try:
            value = json.loads(text)
        except (TypeError, ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            found[key] = value
    return found


def kept_in(cache: bool | ReplyCache) -> ReplyCache | None:
    """Return the given cache, the user's own file for True, or None for False."""
    if isinstance(cache, ReplyCache):
        return cache
    return ReplyFile() if cache else None
