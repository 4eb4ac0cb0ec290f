"""The parts of the service that the routes use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request

from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.engine.engine import Engine
from fairqr.graph.service.http.metrics import Metrics
from fairqr.graph.service.runs.manager import Runs
from fairqr.graph.service.store import Store

CHECKED_FOR = 2.0
"""Seconds for which we reuse the answer of a check."""

CHECKED_WITHIN = 5.0
"""Seconds that a check may take."""


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


def parts_of(request: Request) -> Parts:
    """Return the parts of the service that answers a request."""
    parts: Parts = request.app.state.parts
    return parts
