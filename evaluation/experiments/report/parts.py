"""What a report consists of, however it is written down.

All text is plain: what a collection, a model or a user named is never markup. The renderers see to
that, so that nothing else has to.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = [
    "Block",
    "Cell",
    "Figure",
    "Heading",
    "Items",
    "Paragraph",
    "Report",
    "Table",
    "plain",
]


_NUMBER = re.compile(r"$|–$|[+−<]?\s*[0-9][0-9.,]*%?(?:$| / | of )")


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: What it says.
        note: What stands below it in smaller type, such as an interval.
        best: Whether it is the best of its column.
    """

    text: str
    note: str = ""
    best: bool = False


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading; level 2 begins a section, level 3 a part of one."""

    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph."""

    text: str


@dataclass(frozen=True, slots=True)
class Items:
    """A list of sentences."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table; the first cell of each row is the row's header.

    Attributes:
        caption: What it shows.
        header: Of the columns.
        rows: As many cells each as the header has.
    """

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def has_numbers(self, column: int) -> bool:
        """Return whether a column has numbers, which stand to the right, rather than words."""
        return column > 0 and all(_NUMBER.match(row[column].text) for row in self.rows)


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot.

    Attributes:
        name: Of its file, without the ending; each figure of a report has another.
        caption: What it shows and how to read it.
        alt: What can be seen in it, for those who do not see it.
        svg: The drawing, as a whole SVG file.
    """

    name: str
    caption: str
    alt: str
    svg: str


Block = Heading | Paragraph | Items | Table | Figure


@dataclass(frozen=True, slots=True)
class Report:
    """A report: its title and what follows."""

    title: str
    blocks: tuple[Block, ...]


def plain(text: object) -> str:
    """Return text on one line, without characters that cannot be printed or that turn it round.

    Such characters show as U+FFFD.
    """
    flat = " ".join(str(text).split())
    return "".join(c if c.isprintable() else "\ufffd" for c in flat)
