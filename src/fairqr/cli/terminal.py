"""The parts of results on a terminal: lines, tables, numbers, short texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from fairqr.cli.common import printable

__all__ = ["Output", "cell_len", "counted", "decimal", "number", "percent", "shortened", "table"]

MISSING = "–"
"""Shown in place of a figure without a value."""


class Output(Console):
    """Standard output, with markup off and no colours for numbers."""

    def __init__(self, width: int | None = None) -> None:
        super().__init__(highlight=False, width=width)

    def say(self, *parts: str | tuple[str, str], style: str = "") -> None:
        """Print texts of others on one line; a part with a style of its own is a pair."""
        safe = (
            printable(part) if isinstance(part, str) else (printable(part[0]), part[1])
            for part in parts
        )
        self.print(Text.assemble(*safe, style=style))

    def on_broken_pipe(self) -> None:
        """Leave the end of the program to the entry point when the reader has gone."""
        self.quiet = True
        raise BrokenPipeError


def table(
    heads: Sequence[str | Column], rows: Iterable[Sequence[str | Text]], *, gap: int = 2
) -> Table:
    """Return a table without lines.

    Args:
        heads: The columns; a str makes a column of words, :func:`number` one of numbers.
        rows: Their cells. A str is shown literally: it has no markup and cannot steer the terminal.
        gap: Spaces between two columns.
    """
    columns = [Column(head, overflow="fold") if isinstance(head, str) else head for head in heads]
    built = Table(*columns, box=None, pad_edge=False, padding=(0, gap, 0, 0))
    for row in rows:
        built.add_row(*(Text(printable(cell)) if isinstance(cell, str) else cell for cell in row))
    return built


def number(head: str = "") -> Column:
    """Return a column of numbers, which are never broken."""
    return Column(head, justify="right", no_wrap=True)


def counted(count: int, what: str, several: str | None = None) -> str:
    """Return a number of things in words: ``counted(2, "query", "queries")``."""
    return f"{count} {what if count == 1 else several or what + 's'}"


def percent(share: float | None, digits: int = 1) -> str:
    """Return a share as a percentage with this many digits after the point."""
    return MISSING if share is None or share != share else f"{share:.{digits}%}"


def decimal(value: float | None, digits: int = 2) -> str:
    """Return a figure with this many digits after the point."""
    return MISSING if value is None or value != value else f"{value:.{digits}f}"


def shortened(text: str, width: int) -> str:
    """Cut a text to a width in cells of a terminal, and remove control codes."""
    line = Text(printable(text))
    line.truncate(width, overflow="ellipsis")
    return line.plain
