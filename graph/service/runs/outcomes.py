"""How runs end, and how that is told."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from fairqr.base.errors import RunCancelledError
from fairqr.graph.service.problems import CANCELLED, problem_of
from fairqr.graph.service.records import Event, Kind, Run, RunSummary, Status, path_of
from fairqr.graph.stream import Step

__all__ = [
    "Findings",
    "cancelled",
    "ended",
    "failed",
    "first_data",
    "last_event",
    "step_private",
]

_FIELDS: dict[Kind, str] = {
    "search": "result",
    "answer": "answer",
    "probe": "probe",
    "audit": "audit",
}
"""Where in the updates of its steps the result of a run is."""


@dataclass(slots=True)
class Findings:
    """What the steps of a run came to."""

    kind: Kind
    _found: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, step: Step) -> None:
        """Look at a step."""
        for name in _FIELDS.values():
            if (value := step.update.get(name)) is not None:
                self._found[name] = value

    def result(self) -> dict[str, Any]:
        """Return the result.

        Raises:
            LookupError: There is none.
        """
        return self._found[_FIELDS[self.kind]]


def first_data(run: Run) -> dict[str, Any]:
    """Return the data of the event that a run has begun."""
    return run.model_dump(include=set(RunSummary.model_fields))


def step_private(step: Step) -> dict[str, Any]:
    """Return what a worker that resumes the run needs of a step."""
    return {"id": step.id, "update": step.update, "overwrites": list(step.overwrites)}


def last_event(run: Run, number: int) -> Event:
    """Return the event that a run is over. It follows from the run, and is not stored."""
    if run.status == "done":
        return Event(number=number, name="end", data={"run": run.id, "result": run.result})
    return Event(number=number, name="error", data=run.problem or {})


def ended(
    run: Run,
    status: Status,
    result: dict[str, Any] | None = None,
    problem: dict[str, Any] | None = None,
) -> Run:
    """Return a run as it is when it has just ended."""
    update = {"status": status, "result": result, "problem": problem, "finished": time.time()}
    return run.model_copy(update=update)


def failed(run: Run, error: BaseException) -> Run:
    """Return a run that has just failed."""
    return ended(run, "failed", problem=_problem(run, error))


def cancelled(run: Run) -> Run:
    """Return a run that has just been cancelled."""
    return ended(run, "cancelled", problem=_problem(run, RunCancelledError(CANCELLED)))


def _problem(run: Run, error: BaseException) -> dict[str, Any]:
    return problem_of(error, path_of(run.id))
