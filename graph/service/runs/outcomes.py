"""How runs end, and how that is told."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from fairqr.base.errors import RunCancelledError, RunInterruptedError, StoreUnavailableError
from fairqr.graph.service.problems import CANCELLED, problem_of
from fairqr.graph.service.records import Event, Kind, Run, RunSummary, Status, path_of
from fairqr.graph.stream import Step

__all__ = [
    "Findings",
    "cancelled",
    "ended",
    "failed",
    "first_event",
    "given_up",
    "interrupted",
    "last_event",
    "step_event",
]

_FIELDS: dict[Kind, str] = {"search": "result", "answer": "answer", "probe": "probe"}
"""Where in the state of the graph the result of a run is."""

_LARGE = ("rankings",)
"""What of the state is not told: all that was retrieved, of which ``iterations`` has the best."""


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


def first_event(run: Run, number: int) -> Event:
    """Return the event that a run has begun."""
    summary = run.model_dump(include=set(RunSummary.model_fields))
    return Event(number=number, name="run", data=summary)


def step_event(step: Step, number: int) -> Event:
    """Return the event of a step."""
    update = {key: value for key, value in step.update.items() if key not in _LARGE}
    return Event(
        number=number, name="step", data={"step": step.name, "update": update, "id": step.id}
    )


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


def interrupted() -> RunInterruptedError:
    """Return the error of a run that ends with the service."""
    return RunInterruptedError(
        "The service stopped while this run was under way; ask again, with 'keep' if it is to go "
        "on by itself."
    )


def given_up() -> StoreUnavailableError:
    """Return the error of a run whose worker could not reach the store for too long."""
    return StoreUnavailableError(
        "The run was given up, as the database of runs could not be reached; try again later."
    )


def _problem(run: Run, error: BaseException) -> dict[str, Any]:
    return problem_of(error, path_of(run.id))
