"""How a checked request becomes an ephemeral run, for routes and for tools."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fairqr.graph.service.execution.checking import CheckedRequest
from fairqr.graph.service.execution.executor import Executor
from fairqr.graph.service.runs.live import EphemeralRun
from fairqr.graph.service.runs.manager import EphemeralRuns


async def start_checked(
    executor: Executor,
    runs: EphemeralRuns,
    checked: CheckedRequest,
    *,
    key: str,
    carrier: Mapping[str, str],
    steps: bool = True,
    seconds: float | None = None,
) -> EphemeralRun:
    """Start an ephemeral run of a checked request, once there is a slot.

    Args:
        executor: Runs the request.
        runs: The ephemeral runs of this process.
        checked: The request.
        key: The id of the key that asks.
        carrier: The headers of the caller's trace.
        steps: Whether somebody follows the steps, or only waits for the result.
        seconds: The time limit; at most ``limits.seconds``, which is the default.

    Raises:
        BusyError: As of :meth:`EphemeralRuns.start_ephemeral`.
    """
    execute = partial(executor.execute, checked, steps=steps)
    return await runs.start_ephemeral(
        checked.kind, checked.query, execute, key=key, carrier=carrier, seconds=seconds
    )
