"""How long a run has been running: the time that its steps took.

The time between them does not count: a person may think for an hour about the keywords, and a run
that was killed may go on the next day.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from fairqr.graph.search.context import Context

__all__ = ["running_from", "running_seconds", "seconds_left"]

_began: ContextVar[float | None] = ContextVar("fairqr_began", default=None)


@contextmanager
def running_from(seconds: float) -> Iterator[None]:
    """Time a step of a run whose steps before took so long."""
    token = _began.set(time.perf_counter() - seconds)
    try:
        yield
    finally:
        _began.reset(token)


def running_seconds() -> float:
    """Return how long the run has been running until now; 0 outside of a step."""
    began = _began.get()
    return 0.0 if began is None else time.perf_counter() - began


def seconds_left(context: Context) -> float | None:
    """Return how much of the budget of time a run still has; None without such a budget."""
    if context.budget.seconds is None:
        return None
    return max(0.0, context.budget.seconds - running_seconds())
