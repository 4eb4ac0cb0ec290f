"""Keeps models' replies by the keys of their questions, so that nothing is asked twice."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from fairqr.agents.models.replies import Reply, Validate
from fairqr.base.kept_file import KeptFile
from fairqr.base.loops import PerLoop
from fairqr.base.settings import cache_dir

MAX_BYTES = 512 * 1024 * 1024
"""How large a file of replies may grow.

A reply with its key takes about 1 kB, so about half a million fit. That is enough for a large
experiment, and not too much for a cache folder.
"""

MAX_REPLIES = 10_000
"""How many replies are kept in memory."""


def cache_key(**parts: Any) -> str:
    """Return the key of a question: a hash of everything that can change the reply."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@dataclass(slots=True)
class _Call:
    """A call in flight, and how many callers wait for its reply."""

    task: asyncio.Future[Reply]
    waiting: int = 0


class ReplyCache:
    """JSON objects by the keys of the questions that they answer; also shares calls in flight.

    Several processes may share a file. What does not fit is forgotten, the oldest objects first;
    models are then asked again.

    Args:
        path: The SQLite file; by default replies are kept in memory, as long as this object lives.
        max_bytes: How large the file may grow.
    """

    def __init__(self, path: Path | None = None, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._file = None if path is None else KeptFile[str](path, max_bytes)
        self._memory: dict[str, str] = {}
        self._in_flight: PerLoop[dict[str, _Call]] = PerLoop()

    def is_usable(self) -> bool:
        """Return whether replies can be kept; their file is made if it is missing."""
        return self._file is None or self._file.is_usable()

    async def get_many(self, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return what is stored, by key."""
        if self._file is not None:
            return _objects(await asyncio.to_thread(self._file.get_many, keys))
        return _objects({key: self._memory[key] for key in keys if key in self._memory})

    async def put_many(self, values: Mapping[str, Mapping[str, Any]]) -> None:
        """Store several objects, all or none."""
        texts = {key: json.dumps(dict(value)) for key, value in values.items()}
        if self._file is not None:
            await asyncio.to_thread(self._file.put_many, texts)
            return
        self._memory = dict([*(self._memory | texts).items()][-MAX_REPLIES:])

    async def share(self, key: str, ask: Callable[[], Awaitable[Reply]]) -> Reply:
        """Return the reply of the call in flight for this key; if there is none, make one.

        The call runs while anybody waits for it, and is cancelled when the last one leaves. Each
        event loop has its own calls.
        """
        calls = self._in_flight.setdefault({})
        if key not in calls:
            calls[key] = _Call(asyncio.ensure_future(ask()))
        call = calls[key]
        call.waiting += 1
        try:
            return await asyncio.shield(call.task)
        finally:
            call.waiting -= 1
            if calls.get(key) is call and (call.task.done() or not call.waiting):
                del calls[key]
            if not call.waiting and not call.task.done():
                call.task.cancel()
                await asyncio.wait([call.task])


def _objects(texts: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    return {key: json.loads(text) for key, text in texts.items()}


def replies_file() -> Path:
    """Return the path of the user's own file of replies."""
    return cache_dir() / "replies.sqlite"


def kept_in(cache: bool | ReplyCache) -> ReplyCache | None:
    """Return the given cache, the user's own file for True, or None for False."""
    if isinstance(cache, ReplyCache):
        return cache
    return ReplyCache(replies_file()) if cache else None


class Journal(Protocol):
    """Keeps the replies of a run until it is over, so that it can resume after a crash."""

    async def once(self, key: str, check: Validate, ask: Callable[[], Awaitable[Reply]]) -> Reply:
        """Return the kept reply to a question, or ask and keep the reply.

        Args:
            key: The same for equal questions. If a question was asked twice, both replies are kept.
            check: Returns the value of a kept reply, or raises ValueError if it is wrong.
            ask: Asks the model.
        """


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the questions of a running step have in common.

    Attributes:
        cache: For models without a cache of their own.
        journal: The journal of the run.
        answered: Called after each question, whatever became of it.
        only_kept: Whether models only give replies that are kept, and are not asked.
    """

    cache: ReplyCache | None = None
    journal: Journal | None = None
    answered: Callable[[], object] = lambda: None
    only_kept: bool = False


_surroundings = ContextVar("fairqr_replies", default=Surroundings())  # noqa: B039 - frozen


def surroundings() -> Surroundings:
    """Return what surrounds the questions that are asked here."""
    return _surroundings.get()


@contextmanager
def asking_with(**changes: Any) -> Iterator[None]:
    """Change some of the :class:`Surroundings`, in this task and its children."""
    token = _surroundings.set(replace(_surroundings.get(), **changes))
    try:
        yield
    finally:
        _surroundings.reset(token)
