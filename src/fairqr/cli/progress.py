"""Progress of a run: bars on a terminal, lines in a log."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Self

import typer

from fairqr.cli.output import console, warn
from fairqr.evaluation.experiments.progress import time_left

if TYPE_CHECKING:
    from fairqr.retrieval.sources.documents import ProgressFunction as DocumentProgress

FIRST = 5
"""The number of steps after which we estimate the time left."""


class Progress:
    """Shows on stderr how far a run is, inside of ``with``.

    A terminal gets bars that vanish at the end. A log gets lines about stages only: when each
    begins, and the time left after the first steps and after each tenth.
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
            disable=not sys.stderr.isatty(),
        )
        self._stage: Any = None
        self._total = self._before = self._steps = self._next_line = 0
        self._started = 0.0

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
        self._stage = self._bars.add_task(what, total=total, completed=done)
        if self._bars.disable:
            typer.echo(f"{what}: {done} of {total} done", err=True)
        self._total, self._before, self._steps = total, done, 0
        self._next_line, self._started = FIRST, time.monotonic()

    def advance(self, steps: int = 1) -> None:
        """Count steps of the stage as done."""
        self._steps += steps
        done = self._before + self._steps
        self._bars.update(self._stage, completed=done)
        if self._bars.disable and self._steps >= self._next_line and done < self._total:
            rate = (time.monotonic() - self._started) / self._steps
            left = time_left(rate * (self._total - done))
            typer.echo(f"  {done} of {self._total}, about {left} left", err=True)
            self._next_line = self._steps + max(self._total // 10, FIRST)

    def note(self, sentence: str) -> None:
        """Print a sentence above the bars."""
        if self._bars.disable:
            warn(sentence)
        else:
            self._bars.console.print(f"fairqr: {sentence}", markup=False)

    def count(self, what: str, unit: float = 1) -> DocumentProgress:
        """Return a function that takes how many are done, and of how many if known.

        The bar appears when it is first called.

        Args:
            what: What is counted.
            unit: How many count as one.
        """
        task = self._bars.add_task(what, total=None, visible=False)

        def update(done: int, total: int | None = None, /) -> None:
            of = total / unit if total else None
            self._bars.update(task, completed=done / unit, total=of, visible=True)

        return update

    def prepare(self, name: str) -> DocumentProgress:
        """Return :meth:`count` for a corpus that is indexed or encoded first."""
        return self.count(f"preparing {name}")
