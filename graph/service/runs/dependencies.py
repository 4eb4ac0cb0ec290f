"""What doing runs needs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from fairqr.graph.service.records import Run
from fairqr.graph.service.store import Store
from fairqr.graph.stream import RunEvent

__all__ = ["Dependencies", "Execute", "Observer"]

Execute = Callable[[Run, bool], AsyncGenerator[RunEvent, None]]
"""Does a run, or goes on with one that was begun before, and yields what happens."""


class Observer(Protocol):
    """Is told what becomes of runs; it must not raise."""

    def accepted(self, run: Run) -> None:
        """A run was taken on."""

    def begun(self, run: Run) -> None:
        """A worker has begun with it, or goes on with it."""

    def finished(self, run: Run) -> None:
        """It is over, and that is stored."""

    def refused(self, reason: Literal["draining", "queue", "live"]) -> None:
        """A run was not taken on: the service is about to end, or there are too many runs."""


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What doing runs needs.

    Attributes:
        worker: The id of this process.
        store: Where runs end, and where the events are of those that are kept.
        execute: Does a run.
        seconds: How long a run may take.
        observer: Told of runs.
    """

    worker: str
    store: Store
    execute: Execute
    seconds: float
    observer: Observer
