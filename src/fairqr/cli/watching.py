"""Showing how far a long run is: a bar for people who watch, lines for logs."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Self

import typer

from fairqr.cli.common import notes, warn

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["Bar", "Stages", "time_left"]

FIRST = 5
"""After so many steps the time that is left can be told."""


def _progress_bar() -> Progress | None:
    """Return a bar on stderr, not started, or None where nobody watches."""
    if not sys.stderr.isatty():
        return None
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=notes(),
        transient=True,
    )


def time_left(seconds: float) -> str:
    """Return a duration in words, coarsely.

    Args:
        seconds: At least 0.
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


class Bar:
    """A bar that is shown inside of ``with``; there is none where nobody watches."""

    def __init__(self) -> None:
        self._bar = _progress_bar()

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()


class Stages(Bar):
    """Shows one stage after the other: the ``StageWatcher`` of the evaluation's runs.

    In logs the time that is left is told after the first steps, and then at each tenth.
    """

    def __init__(self) -> None:
        super().__init__()
        self._task: Any = None
        self._total = self._before = self._steps = self._told = 0
        self._begun = 0.0

    def stage(self, what: str, total: int, done: int) -> None:
        """Take what begins, of how many steps, and how many of them were done before."""
        if self._bar:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(what, total=total, completed=done)
        else:
            typer.echo(f"{what}: {total}, of which {done} are done", err=True)
        self._total, self._before, self._steps = total, done, 0
        self._told, self._begun = FIRST, time.monotonic()

    def advance(self, steps: int = 1) -> None:
        """Take that so many steps are done."""
        if self._bar:
            self._bar.advance(self._task, steps)
            return
        self._steps += steps
        left = self._total - self._before - self._steps
        if self._steps >= self._told and left > 0:
            rate = (time.monotonic() - self._begun) / self._steps
            done = self._before + self._steps
            typer.echo(f"  {done} of {self._total}, about {time_left(rate * left)} left", err=True)
            self._told = self._steps + max(self._total // 10, FIRST)

    def note(self, sentence: str) -> None:
        """Take a sentence for people."""
        if self._bar:
            self._bar.console.print(f"fairqr: {sentence}", markup=False)
        else:
            warn(sentence)
