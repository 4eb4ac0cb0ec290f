"""What commands print: JSON for programs; lines, tables, numbers and progress for people."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import typer

from fairqr.evaluation.experiments.progress import StageWatcher, time_left

if TYPE_CHECKING:
    from pathlib import Path

    from pandas import DataFrame
    from rich.console import Console, RenderableType
    from rich.table import Column, Table
    from rich.text import Text

    from fairqr.retrieval.sources.documents import ProgressFunction

MISSING = "–"
"""Shown in place of a figure without a value."""


class Printed(NamedTuple):
    """The outcome of a command.

    Attributes:
        data: What ``--json`` prints: a JSON text, a pydantic model, or anything that
            ``json`` can write; or a function that returns it.
        lines: What people see. A text is shown literally: it has no markup and cannot steer the
            terminal.
        code: The exit code.
        warnings: What people are told at the end, on stderr.
        error: What is wrong nevertheless; it is raised once all is printed.
    """

    data: Any
    lines: Iterable[RenderableType] = ()
    code: int = 0
    warnings: Iterable[str] = ()
    error: Exception | None = None


def show(found: Printed, *, as_json: bool) -> None:
    """Print the outcome of a command, and end with its error or its exit code."""
    if as_json:
        print_json(found.data() if callable(found.data) else found.data)
    else:
        say(found.lines)
    for warning in found.warnings:
        warn(warning)
    if found.error:
        raise found.error
    if found.code:
        raise typer.Exit(found.code)


def say(lines: Iterable[RenderableType]) -> None:
    """Print lines and tables for people; see :class:`Printed`."""
    for line in lines:
        if isinstance(line, str):
            # Tabs are those of lists.
            typer.echo("\t".join(map(printable, line.split("\t"))))
        else:
            console().print(line)


def row_lines(rows: Iterable[Iterable[str | None]]) -> list[str]:
    """Return the rows of a list, with tabs between their cells; empty cells are left out."""
    return ["\t".join(map(printable, filter(None, row))) for row in rows]


def fact_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each fact that is known, such as ``documents: 1,200``."""
    for name, value in facts.items():
        said = name.replace("_", " ")
        if isinstance(value, Mapping):
            yield from fact_lines({f"{said}, {key}": it for key, it in value.items()})
        elif isinstance(value, list):
            yield f"{said}: {', '.join(map(str, value))}"
        elif isinstance(value, float):
            yield f"{said}: {value:.4g}"
        elif value is not None:
            yield f"{said}: {value:,}" if type(value) is int else f"{said}: {value}"


def print_json(data: Any) -> None:
    """Print JSON on one line, as UTF-8 on any terminal; see :class:`Printed`."""
    if hasattr(data, "model_dump_json"):
        data = data.model_dump_json()
    if not isinstance(data, str):
        data = json.dumps(data, ensure_ascii=False, allow_nan=False, default=str)
    sys.stdout.buffer.write(data.encode() + b"\n")
    sys.stdout.buffer.flush()


def print_file(path: Path) -> None:
    """Print a file, exactly where it becomes a copy; on a terminal, it cannot steer that."""
    content = path.read_bytes()
    if sys.stdout.isatty():
        content = "\n".join(map(printable, content.decode().split("\n"))).encode()
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def printable(text: str) -> str:
    """Return a text that cannot steer the terminal, which a document could otherwise do."""
    return "".join(character if character.isprintable() else " " for character in text)


def literal(text: str, style: str = "", *, lines: bool = False) -> Text:
    """Return a text of others in a style, in one line or in the lines that it has."""
    from rich.text import Text

    return Text("\n".join(map(printable, text.split("\n") if lines else [text])), style)


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Return a console without colours for numbers."""
    from rich.console import Console

    width = 80 if os.environ.get("COLUMNS") == "0" else None  # as some terminals say
    return Console(highlight=False, stderr=stderr, quiet=quiet, width=width)


def warn(message: str) -> None:
    """Print a warning to stderr."""
    typer.echo(f"fairqr: {printable(message)}", err=True)


def table(
    heads: Sequence[str | Column], rows: Iterable[Iterable[Any]], *, digits: int = 2, gap: int = 2
) -> Table:
    """Return a table without lines; numbers stand to the right, and are never broken.

    Args:
        heads: The columns; :func:`number` makes one of texts that read as numbers.
        rows: Their cells: texts, which are shown literally as in :class:`Printed`, or numbers.
        digits: How many digits a float has after the point.
        gap: Spaces between two columns.
    """
    from rich.table import Column, Table

    by_column = [*zip_longest(*rows, fillvalue="")]
    columns: list[Column | str] = []
    for head, cells in zip_longest(heads, by_column, fillvalue=""):
        if isinstance(head, str):
            numeric = cells and all(isinstance(each, Real | None) for each in cells)
            head = number(head) if numeric else Column(literal(head), overflow="fold")
        columns.append(head)
    built = Table(*columns, box=None, pad_edge=False, padding=(0, gap, 0, 0))
    built.show_header = any(column.header for column in built.columns)
    for row in zip(*by_column, strict=True):
        built.add_row(*(_cell(each, digits) for each in row))
    return built


def _cell(content: Any, digits: int) -> RenderableType:
    """Return what a cell of a table shows."""
    if isinstance(content, float | None):
        return decimal(content, digits)
    return content if hasattr(content, "__rich_console__") else literal(str(content))


def listing(rows: Iterable[Mapping[str, Any]], *columns: str) -> Table:
    """Return a table of some values of rows; yes stands for True, and lists have commas."""

    def shown(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return ", ".join(value)
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, float):
            return f"{value:.10g}"
        return "" if value is None else value

    return table(columns, ([shown(row.get(each)) for each in columns] for row in rows))


def frame_table(frame: DataFrame, *columns: str) -> Table:
    """Return a table of some columns of a DataFrame, with three decimals."""
    return table(columns, frame[[*columns]].itertuples(index=False), digits=3)


def number(head: str = "") -> Column:
    """Return a column of numbers, which are never broken."""
    from rich.table import Column

    return Column(literal(head), justify="right", no_wrap=True)


def counted(count: int, what: str, several: str | None = None) -> str:
    """Return a number of things in words: ``counted(2, "query", "queries")``."""
    return f"{count} {what if count == 1 else several or what + 's'}"


def percent(share: float | None, digits: int = 1) -> str:
    """Return a share as a percentage with this many digits after the point."""
    return MISSING if share is None or share != share else f"{share:.{digits}%}"


def decimal(value: float | None, digits: int = 2) -> str:
    """Return a figure with this many digits after the point."""
    return MISSING if value is None or value != value else f"{value:.{digits}f}"


def interval(low: float | None, high: float | None, digits: int = 2) -> str:
    """Return an interval in words; empty without one."""
    return "" if low is None else f"{decimal(low, digits)} to {decimal(high, digits)}"


def shortened(text: str, width: int) -> str:
    """Cut a text to a width in cells of a terminal, and remove control codes."""
    line = literal(text)
    line.truncate(width, overflow="ellipsis")
    return line.plain


FIRST = 5
"""The number of steps after which we estimate the time left."""

SOON, EVERY = 2.0, 10.0
"""Seconds until the first line of a log about what is read, and until the next of any kind."""


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
        self._next_line, self._due = 0, 0.0

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
        self._next_line, self._due = done + FIRST, time.monotonic() + EVERY

    def advance(self, steps: int = 1) -> None:
        """Count steps of the stage as done."""
        self._bars.advance(self._stage, steps)
        done, total, told = self._told(self._stage)
        is_due = self._next_line <= done or time.monotonic() >= self._due
        if self._bars.disable and is_due and done < total:
            typer.echo(f"  {told}", err=True)
            self._next_line = done + max(total // 10, FIRST)
            self._due = time.monotonic() + EVERY

    def _told(self, stage: Any) -> tuple[int, int, str]:
        """Return how many steps of a stage are done, of how many, and that with the time left."""
        (task,) = (each for each in self._bars.tasks if each.id == stage)
        done, total = int(task.completed), int(task.total or 0)
        if not total or not (new := done - task.fields.get("first", 0)):
            return done, total, f"{done} of {total}" if total else str(done)
        # The bars know no speed before the second step.
        left = time_left(task.time_remaining or (task.elapsed or 0) / new * (total - done))
        return done, total, f"{done} of {total}, about {left} left"

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
        task, due = self._bars.add_task(what, total=None, visible=False), time.monotonic() + SOON

        def update(done: int, total: int | None = None, /) -> None:
            nonlocal due
            of = total / unit if total else None
            self._bars.update(task, completed=done / unit, total=of, visible=True)
            if self._bars.disable and time.monotonic() >= due:
                typer.echo(f"{what}: {self._told(task)[2]}", err=True)
                due = time.monotonic() + EVERY

        return update

    def prepare(self, name: str) -> ProgressFunction:
        """Return :meth:`count` for a corpus that is indexed or encoded first."""
        return self.count(f"preparing {name}")
