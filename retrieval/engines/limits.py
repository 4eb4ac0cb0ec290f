"""Limits on how many requests a server gets at a time, and how many a second."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, cast

from fairqr.base.errors import InputError
from fairqr.retrieval.engines.engine import Hits, Query, SearchEngine, lexical_of
from fairqr.retrieval.sources.documents import Document

PAUSE = 0.002
"""Seconds until we look again whether a request may start."""


class RequestLimits:
    """Lets through as many requests as a server should get; use ``async with limits:`` for each.

    The limits apply to all event loops of the process together.

    Args:
        concurrency: How many requests may run at a time.
        requests_per_second: The most requests a second, evenly spaced; no limit by default.
    """

    def __init__(self, concurrency: int, requests_per_second: float | None = None) -> None:
        self._slots = threading.Semaphore(concurrency)
        self._lock = threading.Lock()
        self._spacing = 1 / requests_per_second if requests_per_second else 0.0
        self._next_start = 0.0

    async def __aenter__(self) -> None:
        # A wait for the semaphore itself would block the event loop.
        while not self._slots.acquire(blocking=False):  # noqa: ASYNC110 - other loops, too
            await asyncio.sleep(PAUSE)
        try:
            if self._spacing:
                with self._lock:
                    start = max(time.monotonic(), self._next_start)
                    self._next_start = start + self._spacing
                await asyncio.sleep(start - time.monotonic())
        except BaseException:
            self._slots.release()
            raise

    async def __aexit__(self, *error: object) -> None:
        self._slots.release()


class _EngineAtRate:
    """An engine that gets at most a number of requests a second, evenly spaced."""

    def __init__(self, engine: SearchEngine, rate: float) -> None:
        self._engine = engine
        self.lexical = lexical_of(engine)
        self._limits = RequestLimits(sys.maxsize, rate)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        hits = []
        for query in queries:  # An engine may need a request for each.
            async with self._limits:
                hits += await self._engine.search([query])
        return hits

    async def documents(self, ids: Sequence[str]) -> list[Document]:
        async with self._limits:
            return await self._engine.documents(ids)


def at_rate(engine: SearchEngine, rate: float | None) -> SearchEngine:
    """Return an engine whose requests keep to a rate, in requests a second; None is no limit.

    Raises:
        InputError: The rate is not above 0 and finite.
    """
    if rate is None:
        return engine
    if not 0 < rate < math.inf:
        raise InputError(f"The rate is requests a second, above 0, not {rate:g}.")
    return cast("SearchEngine", _EngineAtRate(engine, rate))
