"""Running one run of either kind, within its time limit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, cast

from langchain_core.messages import AIMessageChunk

from fairqr.base.errors import RunTimeoutError
from fairqr.base.telemetry import continued
from fairqr.graph.service.problems import Refusal, told_in_log
from fairqr.graph.service.records import EventName, Kind, Run
from fairqr.graph.step_data import step_data
from fairqr.graph.stream import RunEvent, Step

Tell = Callable[[EventName, dict[str, Any], Step | None], Awaitable[None]]
"""Takes the name and the data of an event, and its step, if it is one."""

RESULTS: dict[Kind, str] = {
    "search": "result",
    "answer": "answer",
    "probe": "probe",
    "audit": "audit",
}
"""The field of a step's update that holds the result of a run, by kind."""

_log = logging.getLogger(__name__)


class Observer:
    """Hears what happens to runs; its methods must not raise. This one ignores everything."""

    def accepted(self, run: Run) -> None:
        """A run was accepted."""

    def begun(self, run: Run) -> None:
        """A worker starts or resumes a run."""

    def finished(self, run: Run) -> None:
        """A run is over; the end of a durable one is stored."""

    def refused(self, why: Refusal) -> None:
        """A run was refused."""


async def followed(
    kind: Kind,
    happenings: AsyncGenerator[RunEvent, None],
    tell: Tell,
    *,
    seconds: float,
    carrier: Mapping[str, str],
) -> dict[str, Any]:
    """Run a run, report its steps and the pieces of its answer, and return its result.

    Args:
        kind: The kind of the run.
        happenings: What happens in the run; closed in the end.
        tell: Awaited for each event.
        seconds: The time limit.
        carrier: The headers of the caller's trace.

    Raises:
        RunTimeoutError: The run took too long.
        LookupError: The run has no result.
    """
    field, result = RESULTS[kind], None
    limit: asyncio.Timeout | None = None
    try:
        async with asyncio.timeout(seconds) as limit:
            with continued(carrier):
                async with aclosing(happenings):
                    async for event in happenings:
                        if isinstance(event, AIMessageChunk):
                            await tell("token", {"text": str(event.text)}, None)
                        if isinstance(event, Step):
                            result = event.update.get(field) or result
                            await tell("step", step_data(kind, event), event)
    except TimeoutError:
        if limit is None or not limit.expired():
            raise
        raise RunTimeoutError(
            f"The run took longer than {seconds:g} seconds, the cap 'seconds'; ask for less, or "
            "ask whoever runs the service to raise the cap."
        ) from None
    if result is None:
        raise LookupError(field)
    return cast("dict[str, Any]", result)


def complain(run: Run, error: Exception) -> None:
    """Log a bug, without anything that may be private."""
    _log.error("Run %s failed because of a bug in fairqr: %s", run.id, told_in_log(error))
    _log.debug("Run %s", run.id, exc_info=error)
