"""The parts of the service that the routes use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Self

from starlette.requests import Request

from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.engine.engine import Auditor, Engine
from fairqr.graph.service.http.access import require_a_key
from fairqr.graph.service.http.metrics import Metrics
from fairqr.graph.service.runs.manager import Runs
from fairqr.graph.service.store import Store
from fairqr.retrieval.sources.documents import ProgressFunction

CHECKED_FOR = 2.0  # seconds for which we reuse the answer of a check
CHECKED_WITHIN = 5.0  # seconds that a check may take


class Readiness:
    """Checks whether the service can reach what it needs.

    Args:
        checks: The checks by name; each raises an error on failure.
    """

    def __init__(self, checks: dict[str, Callable[[], Awaitable[object]]]) -> None:
        self._checks = checks
        self._lock = asyncio.Lock()
        self._until = 0.0
        self._found: dict[str, bool] = {}

    async def look(self) -> dict[str, bool]:
        """Return for each name whether its check passes."""
        async with self._lock:
            if time.monotonic() >= self._until:
                found = await asyncio.gather(*map(_holds, self._checks.values()))
                self._found = dict(zip(self._checks, found, strict=True))
                self._until = time.monotonic() + CHECKED_FOR
            return self._found


async def _holds(check: Callable[[], Awaitable[object]]) -> bool:
    try:
        async with asyncio.timeout(CHECKED_WITHIN):
            await check()
    except Exception:  # any failure means that it cannot be reached
        return False
    return True


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a running service."""

    settings: ServiceSettings
    store: Store
    engine: Engine
    runs: Runs
    metrics: Metrics
    readiness: Readiness

    @classmethod
    @asynccontextmanager
    async def started(
        cls,
        settings: ServiceSettings,
        model: str | None = None,
        progress: Callable[[str], ProgressFunction] | None = None,
        auditor: Auditor | None = None,
        *,
        listens: bool = False,
    ) -> AsyncIterator[Self]:
        """Start all parts in order, and stop them in the end.

        Args:
            settings: The settings of the service.
            model: The default model; defaults to the configured one.
            progress: Reports what is being indexed.
            auditor: Runs audits; without it, the service offers none.
            listens: Whether clients will reach this process, and may need keys.

        Raises:
            FairqrError: Something is missing or cannot be reached; the message says what to do.
        """
        async with AsyncExitStack() as stack:
            store, metrics = await Store.open(settings.database), Metrics()
            stack.push_async_callback(store.close)
            if listens:
                await require_a_key(settings, store)
            engine = Engine(settings, default_model=model, auditor=auditor)
            stack.push_async_callback(engine.close)
            await engine.start(progress)
            runs = Runs(store, engine.execute_stored if settings.work else None, settings, metrics)
            stack.push_async_callback(runs.drain, 0)
            await runs.start()
            checks = {"index": engine.check_index, "model": engine.check_model}
            readiness = Readiness({**checks, "store": store.check})
            yield cls(settings, store, engine, runs, metrics, readiness)


def parts_of(request: Request) -> Parts:
    """Return the parts of the service that answers a request."""
    parts: Parts = request.app.state.parts
    return parts
