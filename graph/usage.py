"""The models' cost and the time of a run, in its state and in its result.

Only the time within steps counts. Between two steps, a person may think for an hour about the
keywords, or a killed run may be resumed the next day.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict
from typing import Any

from fairqr.agents.models.replies import Usage
from fairqr.graph.search.context import Context, Frozen


class UsageReport(Frozen):
    """The cost of a search, an answer or a probe, in its result.

    Attributes:
        model_calls: Requests to models.
        cached_calls: Requests that the cache answered.
        prompt_tokens, completion_tokens: The tokens of the requests to models.
        cached_tokens: The tokens that cached replies cost when models were first asked.
        cached_milliseconds: How long models took for these replies, added up.
        milliseconds: How long the steps took.
    """

    model_calls: int
    cached_calls: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    cached_milliseconds: float = 0.0
    milliseconds: float


def usage_of(result: Mapping[str, Any]) -> Usage:
    """Return the usage in a result that is plain data."""
    return Usage(**{key: value for key, value in result["usage"].items() if key != "milliseconds"})


def total_usage(records: Iterable[Mapping[str, Any]], before: Usage | None = None) -> Usage:
    """Return the sum of several records, plus the usage before them."""
    return sum((Usage(**record) for record in records), before or Usage())


def usage_report(usage: Usage) -> UsageReport:
    """Return what a run has cost so far, for its result."""
    return UsageReport(**asdict(usage), milliseconds=round(running_seconds() * 1000, 1))


_began: ContextVar[float | None] = ContextVar("fairqr_began", default=None)


@contextmanager
def running_from(seconds: float) -> Iterator[None]:
    """Time a step of a run whose earlier steps took this many seconds."""
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
    """Return the seconds that are left of a run's budget, or None without such a budget."""
    if context.budget.seconds is None:
        return None
    return max(0.0, context.budget.seconds - running_seconds())


def longest(one: float, other: float) -> float:
    """Return the greater of two times; parallel steps each report the time of the whole run."""
    return max(one, other)
