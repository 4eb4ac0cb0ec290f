"""Shows how far a command is: bars on a terminal, lines in a log."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Self

import typer

from fairqr.cli.output import console, warn
from fairqr.evaluation.experiments.progress import StageWatcher, time_left

if TYPE_CHECKING:
    from rich.progress import Task

    from fairqr.retrieval.sources.documents import ProgressFunction

FIRST_STEPS = 5
"""The number of steps after which we estimate the time left."""

FIRST_LINE_AFTER = 2.0
"""Seconds until the first line of a log about what is read."""

NEXT_LINE_AFTER = 10.0
"""Seconds until the next line of a log, of any kind."""


class Progress(StageWatcher):
    """Shows on stderr how far a run is, inside of ``with``.

    A terminal gets bars that vanish at the end. A log gets lines: when a stage begins, and the time
    left after its first steps, after each tenth, and every ten seconds; and the same of what is
    read or encoded, if that takes more than two.
    """

    def __init__(self) -> None:
        from rich import progress

        self._bars = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            console=console(stderr=True),
            transient=True,
            speed_estimate_period=3600,  # a step may take minutes
            disable=not sys.stderr.isatty(),
        )
        self._stage: Any = None
        # A log gets its next line at this many steps, or at this time.
        self._next_steps = 0
        self._next_time = 0.0

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def stage(self, what: str, total: int, done: int) -> None:
        """Begin a stage, and end the one before.

        Args:
            what: The name of the stage.
            total: How many steps it has.
            done: How many of them an earlier run did.
        """
        if self._stage is not None:
            self._bars.remove_task(self._stage)
        self._stage = self._bars.add_task(what, total=total, completed=done, first=done)
        if self._bars.disable:
            typer.echo(f"{what}: {done} of {total} done", err=True)
        self._next_steps = done + FIRST_STEPS
        self._next_time = time.monotonic() + NEXT_LINE_AFTER

    def advance(self, steps: int = 1) -> None:
        """Count steps of the stage as done."""
        self._bars.advance(self._stage, steps)
        task = self._task(self._stage)
        done = int(task.completed)
        total = int(task.total or 0)
        is_due = self._next_steps <= done or time.monotonic() >= self._next_time
        if self._bars.disable and is_due and done < total:
            typer.echo(f"  {_line_about(task)}", err=True)
            self._next_steps = done + max(total // 10, FIRST_STEPS)
            self._next_time = time.monotonic() + NEXT_LINE_AFTER

    def _task(self, task_id: Any) -> Task:
        """Return what the bars know of a task."""
        return next(task for task in self._bars.tasks if task.id == task_id)

    def note(self, sentence: str) -> None:
        """Print a sentence above the bars."""
        if self._bars.disable:
            warn(sentence)
        else:
            self._bars.console.print(f"fairqr: {sentence}", markup=False)

    def count(self, what: str, unit: float = 1) -> ProgressFunction:
        """Return a function that takes how many are done, and of how many if known.

        The bar appears when it is first called.

        Args:
            what: What is counted.
            unit: How many count as one.
        """
        task = self._bars.add_task(what, total=None, visible=False)
        next_time = time.monotonic() + FIRST_LINE_AFTER

        def update(done: int, total: int | None = None, /) -> None:
            nonlocal next_time
            units = total / unit if total else None
            self._bars.update(task, completed=done / unit, total=units, visible=True)
            if self._bars.disable and time.monotonic() >= next_time:
                typer.echo(f"{what}: {_line_about(self._task(task))}", err=True)
                next_time = time.monotonic() + NEXT_LINE_AFTER

        return update

    def prepare(self, name: str) -> ProgressFunction:
        """Return :meth:`count` for a corpus that is indexed or encoded first."""
        return self.count(f"preparing {name}")


def _line_about(task: Task) -> str:
    """Say how many steps of a task are done, and how long the others will take."""
    done = int(task.completed)
    total = int(task.total or 0)
    if not total:
        return str(done)
    count = f"{done} of {total}"
    done_now = done - task.fields.get("first", 0)
    if not done_now:
        return count

    seconds = task.time_remaining
    if not seconds:
        # The bars know no speed before the second step.
        per_step = (task.elapsed or 0) / done_now
        seconds = per_step * (total - done)
    return f"{count}, about {time_left(seconds)} left"
