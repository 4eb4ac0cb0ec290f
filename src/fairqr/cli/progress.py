"""Progress of a run: bars on a terminal, lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
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
        self._bars = _bars() if sys.stderr.isatty() else None
        self._stage: Any = None
        self._total = self._before = self._steps = self._next_line = 0
        self._started = 0.0

    def __enter__(self) -> Self:
        if self._bars:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars:
            self._bars.stop()

    def stage(self, what: str, total: int, done: int) -> None:
        """Begin a stage, and end the one before.

        Args:
            what: The name of the stage.
            total: How many steps it has.
            done: How many of them an earlier run did.
        """
        if self._bars:
            if self._stage is not None:
                self._bars.remove_task(self._stage)
            self._stage = self._bars.add_task(
                what, total=total, completed=done, amount=_of(done, total)
            )
        else:
            typer.echo(f"{what}: {done} of {total} done", err=True)
        self._total, self._before, self._steps = total, done, 0
        self._next_line, self._started = FIRST, time.monotonic()

    def advance(self, steps: int = 1) -> None:
        """Count steps of the stage as done."""
        self._steps += steps
        done = self._before + self._steps
        if self._bars:
            self._bars.update(self._stage, completed=done, amount=_of(done, self._total))
        elif self._steps >= self._next_line and done < self._total:
            rate = (time.monotonic() - self._started) / self._steps
            left = time_left(rate * (self._total - done))
            typer.echo(f"  {done} of {self._total}, about {left} left", err=True)
            self._next_line = self._steps + max(self._total // 10, FIRST)

    def note(self, sentence: str) -> None:
        """Print a sentence above the bars."""
        if self._bars:
            self._bars.console.print(f"fairqr: {sentence}", markup=False)
        else:
            warn(sentence)

    def count(self, what: str) -> DocumentProgress:
        """Return a function that takes how many documents are done, and of how many if known.

        The bar appears when it is first called.
        """
        return self._counter(what, "{:,} documents".format)

    def prepare(self, name: str) -> DocumentProgress:
        """Return :meth:`count` for a corpus that is indexed or encoded first."""
        return self.count(f"preparing {name}")

    def download(self, what: str) -> Callable[[int, int], None]:
        """Return a function that takes how many bytes have arrived, of how many (0: unknown)."""
        update = self._counter(what, lambda done: f"{done / 1e6:,.1f} MB")
        return lambda done, total: update(done, total or None)

    def _counter(self, what: str, amount: Callable[[int], str]) -> Callable[..., None]:
        if (bars := self._bars) is None:
            return lambda done, total=None: None
        task = bars.add_task(what, total=None, visible=False, amount="")

        def update(done: int, total: int | None = None) -> None:
            bars.update(task, completed=done, total=total, visible=True, amount=amount(done))

        return update


def _of(done: int, total: int) -> str:
    return f"{done:,}/{total:,}"


def _bars() -> Any:
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    return Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[amount]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console(stderr=True),
        transient=True,
    )
