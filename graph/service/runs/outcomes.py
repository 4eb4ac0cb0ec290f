"""How runs end, and their first and last events."""

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
"""The field of a step's update that holds the result of a run, by kind."""


@dataclass(slots=True)
class Findings:
    """Collects the result of a run from its steps."""

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
            LookupError: No step had it.
        """
        return self._found[_FIELDS[self.kind]]


def first_data(run: Run) -> dict[str, Any]:
    """Return the data of the first event of a run."""
    return run.model_dump(include=set(RunSummary.model_fields))


def step_private(step: Step) -> dict[str, Any]:
    """Return what a worker needs to resume the run after a step."""
    return {"id": step.id, "update": step.update, "overwrites": list(step.overwrites)}


def last_event(run: Run, number: int) -> Event:
    """Return the last event of a run. It follows from the run, so we do not store it."""
    if run.status == "done":
        return Event(number=number, name="end", data={"run": run.id, "result": run.result})
    return Event(number=number, name="error", data=run.problem or {})


def ended(
    run: Run,
    status: Status,
    result: dict[str, Any] | None = None,
    problem: dict[str, Any] | None = None,
) -> Run:
    """Return a run that has just ended."""
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
