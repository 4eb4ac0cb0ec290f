"""How long a run has been running: the time between a crash and going on does not count."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["paused_for", "seconds_since"]

_paused: ContextVar[float] = ContextVar("fairqr_paused", default=0.0)


@contextmanager
def paused_for(seconds: float) -> Iterator[None]:
    """Leave so many seconds out of what :func:`seconds_since` returns inside."""
    token = _paused.set(seconds)
    try:
        yield
    finally:
        _paused.reset(token)


def seconds_since(started: float) -> float:
    """Return how long a run has been running.

    Args:
        started: When it began, in seconds since the epoch; ``started`` in its state.
    """
    return max(0.0, time.time() - started - _paused.get())
