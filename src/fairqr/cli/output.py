"""What commands print: JSON for programs; lines, tables and numbers for people."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from pathlib import Path

    from pandas import DataFrame
    from rich.console import Console, RenderableType
    from rich.table import Column, Table
    from rich.text import Text

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


def show(outcome: Printed, *, as_json: bool) -> None:
    """Print the outcome of a command, and end with its error or its exit code."""
    if as_json:
        print_json(outcome.data() if callable(outcome.data) else outcome.data)
    else:
        say(outcome.lines)

    for warning in outcome.warnings:
        warn(warning)
    if outcome.error:
        raise outcome.error
    if outcome.code:
        raise typer.Exit(outcome.code)


def say(lines: Iterable[RenderableType]) -> None:
    """Print lines and tables for people; see :class:`Printed`."""
    for line in lines:
        if isinstance(line, str):
            # Lists have tabs between their cells.
            cells = map(printable, line.split("\t"))
            typer.echo("\t".join(cells))
        else:
            console().print(line)


def row_lines(rows: Iterable[Iterable[str | None]]) -> list[str]:
    """Return the rows of a list, with tabs between their cells; empty cells are left out."""
    return ["\t".join(map(printable, filter(None, row))) for row in rows]


def fact_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each fact that has a value, such as ``documents: 1,200``."""
    for key, value in facts.items():
        name = key.replace("_", " ")
        if isinstance(value, Mapping):
            parts = {f"{name}, {part}": fact for part, fact in value.items()}
            yield from fact_lines(parts)
        elif value is not None:
            yield f"{name}: {_value_of_fact(value)}"


def _value_of_fact(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.4g}"
    # A bool is an int too, but reads as True or False.
    if type(value) is int:
        return f"{value:,}"
    return f"{value}"


def print_json(data: Any) -> None:
    """Print JSON on one line, as UTF-8 on any terminal; see :class:`Printed`."""
    if hasattr(data, "model_dump_json"):
        data = data.model_dump_json()
    if not isinstance(data, str):
        data = json.dumps(data, ensure_ascii=False, allow_nan=False, default=str)
    _write_bytes(data.encode() + b"\n")


def print_file(path: Path) -> None:
    """Print a file byte by byte; on a terminal, without what could steer it."""
    content = path.read_bytes()
    if sys.stdout.isatty():
        lines = content.decode().split("\n")
        content = "\n".join(map(printable, lines)).encode()
    _write_bytes(content)


def _write_bytes(content: bytes) -> None:
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def printable(text: str) -> str:
    """Return a text that cannot steer the terminal, which a document could otherwise do."""
    return "".join(character if character.isprintable() else " " for character in text)


def literal(text: str, style: str = "", *, lines: bool = False) -> Text:
    """Return a text that somebody else wrote, in a style.

    Args:
        text: What to show; markup in it has no effect.
        style: Its style.
        lines: Keep its line breaks.
    """
    from rich.text import Text

    parts = text.split("\n") if lines else [text]
    return Text("\n".join(map(printable, parts)), style)


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Return a console without colours for numbers."""
    from rich.console import Console

    # Some terminals say that they have no columns.
    width = 80 if os.environ.get("COLUMNS") == "0" else None
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
    from rich.table import Table

    by_column = [*zip_longest(*rows, fillvalue="")]
    columns: list[Column | str] = []
    for head, cells in zip_longest(heads, by_column, fillvalue=""):
        column = _column(head, cells) if isinstance(head, str) else head
        columns.append(column)

    drawn = Table(*columns, box=None, pad_edge=False, padding=(0, gap, 0, 0))
    drawn.show_header = any(column.header for column in drawn.columns)
    for row in zip(*by_column, strict=True):
        drawn.add_row(*(_cell(content, digits) for content in row))
    return drawn


def _column(head: str, cells: Sequence[Any]) -> Column:
    """Return the column for some cells, which are all numbers or may be broken."""
    from rich.table import Column

    are_numbers = all(isinstance(cell, Real | None) for cell in cells)
    if cells and are_numbers:
        return number(head)
    return Column(literal(head), overflow="fold")


def _cell(content: Any, digits: int) -> RenderableType:
    """Return what a cell of a table shows."""
    if isinstance(content, float | None):
        return decimal(content, digits)
    if hasattr(content, "__rich_console__"):
        return content  # type: ignore[no-any-return]
    return literal(str(content))


def listing(rows: Iterable[Mapping[str, Any]], *columns: str) -> Table:
    """Return a table of some values of rows; yes stands for True, and lists have commas."""
    cells = ([_listed_value(row.get(column)) for column in columns] for row in rows)
    return table(columns, cells)


def _listed_value(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return ", ".join(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.10g}"
    return value


def frame_table(frame: DataFrame, *columns: str) -> Table:
    """Return a table of some columns of a DataFrame, with three decimals."""
    rows = frame[[*columns]].itertuples(index=False)
    return table(columns, rows, digits=3)


def number(head: str = "") -> Column:
    """Return a column of numbers, which are never broken."""
    from rich.table import Column

    return Column(literal(head), justify="right", no_wrap=True)


def quantity(count: int, singular: str, plural: str | None = None) -> str:
    """Return a number of things in words: ``quantity(2, "query", "queries")``."""
    if count == 1:
        return f"{count} {singular}"
    return f"{count} {plural or singular + 's'}"


def percent(share: float | None, digits: int = 1) -> str:
    """Return a share as a percentage with this many digits after the point."""
    if share is None or math.isnan(share):
        return MISSING
    return f"{share:.{digits}%}"


def decimal(value: float | None, digits: int = 2) -> str:
    """Return a figure with this many digits after the point."""
    if value is None or math.isnan(value):
        return MISSING
    return f"{value:.{digits}f}"


def interval(low: float | None, high: float | None, digits: int = 2) -> str:
    """Return an interval in words; empty without one."""
    if low is None:
        return ""
    return f"{decimal(low, digits)} to {decimal(high, digits)}"


def shortened(text: str, width: int) -> str:
    """Cut a text to a width in cells of a terminal, and remove control codes."""
    line = literal(text)
    line.truncate(width, overflow="ellipsis")
    return line.plain


def cut(text: Text) -> Text:
    """Let a text end with an ellipsis where its column ends."""
    text.no_wrap = True
    text.overflow = "ellipsis"
    return text
