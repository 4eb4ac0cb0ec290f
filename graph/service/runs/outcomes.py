"""How runs end, and their first and last events."""

from __future__ import annotations

import time
from typing import Any

from fairqr.base.errors import RunCancelledError
from fairqr.graph.service.problems import problem_of
from fairqr.graph.service.records import Event, Run, RunSummary, Status, path_of


def first_data(run: Run) -> dict[str, Any]:
    """Return the data of the first event of a run."""
    return run.model_dump(include=set(RunSummary.model_fields))


def last_event(run: Run, number: int) -> Event:
    """Return the last event of a run. It follows from the run, so we do not store it."""
    if run.status == "done":
        return Event(number=number, name="end", data={"run": run.id, "result": run.result})
    return Event(number=number, name="error", data=run.problem or {})


def done(run: Run, result: dict[str, Any]) -> Run:
    """Return a run that has just come to its result."""
    return _ended(run, "done", result=result)


def failed(run: Run, error: BaseException, instance: str | None = None) -> Run:
    """Return a run that has just failed, or was cancelled if the error says so.

    Args:
        run: As it was.
        error: Why it ended.
        instance: The path of what failed; by default the run's own.
    """
    status: Status = "cancelled" if isinstance(error, RunCancelledError) else "failed"
    return _ended(run, status, problem=problem_of(error, instance or path_of(run.id)))


def _ended(run: Run, status: Status, **more: Any) -> Run:
    return run.model_copy(update={"status": status, "finished": time.time(), **more})
