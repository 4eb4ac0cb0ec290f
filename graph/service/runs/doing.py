"""Doing one run, whichever kind it is: its steps are told, and its time is limited."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Literal, Protocol

from langchain_core.messages import AIMessageChunk

from fairqr.base.errors import RunTimeoutError
from fairqr.base.telemetry import continued
from fairqr.graph.service.problems import told_in_log
from fairqr.graph.service.records import EventName, Kind, Run
from fairqr.graph.service.runs.outcomes import Findings
from fairqr.graph.step_data import step_data
from fairqr.graph.stream import RunEvent, Step

__all__ = ["Observer", "Tell", "Unobserved", "complain", "followed"]

Tell = Callable[[EventName, dict[str, Any], Step | None], Awaitable[None]]
"""Takes the name and the data of an event, and the step that it tells of."""

_log = logging.getLogger(__name__)


class Observer(Protocol):
    """Is told what becomes of runs; it must not raise."""

    def accepted(self, run: Run) -> None:
        """A run was accepted."""

    def begun(self, run: Run) -> None:
        """A worker begins with a run, or resumes it."""

    def finished(self, run: Run) -> None:
        """A run is over; if it is a durable one, that is stored."""

    def refused(self, reason: Literal["draining", "queue", "live"]) -> None:
        """A run was not accepted: the service is about to end, or there are too many runs."""


class Unobserved:
    """An observer that counts nothing, where nobody asks for figures."""

    def accepted(self, run: Run) -> None:
        """A run was accepted."""

    def begun(self, run: Run) -> None:
        """A run begins."""

    def finished(self, run: Run) -> None:
        """A run is over."""

    def refused(self, reason: Literal["draining", "queue", "live"]) -> None:
        """A run was not accepted."""


async def followed(
    kind: Kind,
    happenings: AsyncGenerator[RunEvent, None],
    tell: Tell,
    *,
    seconds: float,
    carrier: Mapping[str, str],
) -> dict[str, Any]:
    """Do a run, tell its steps and the pieces of its answer, and return its result.

    Args:
        kind: Of the run.
        happenings: What happens in it, as it happens; closed in the end.
        tell: Awaited for each event.
        seconds: That the run may take.
        carrier: Headers of the caller's trace.

    Raises:
        RunTimeoutError: It took longer.
        LookupError: It ended without a result.
    """
    findings = Findings(kind)
    limit: asyncio.Timeout | None = None
    try:
        async with asyncio.timeout(seconds) as limit:
            with continued(carrier):
                async with aclosing(happenings):
                    async for event in happenings:
                        if isinstance(event, AIMessageChunk):
                            await tell("token", {"text": str(event.text)}, None)
                        if isinstance(event, Step):
                            findings.add(event)
                            await tell("step", step_data(kind, event), event)
    except TimeoutError:
        if limit is None or not limit.expired():
            raise
        raise RunTimeoutError(
            f"The run took longer than {seconds:g} seconds, which is the cap 'seconds'; ask for "
            "less, or have the cap raised."
        ) from None
    return findings.result()


def complain(run: Run, error: Exception) -> None:
    """Log a mistake of ours, without what may be a user's."""
    _log.error("Run %s failed by a mistake of fairqr: %s", run.id, told_in_log(error))
    _log.debug("Run %s", run.id, exc_info=error)
