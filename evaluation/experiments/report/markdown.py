"""Writing a report as Markdown, as GitHub reads it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fairqr.evaluation.experiments.report.parts import (
    Block,
    Cell,
    Figure,
    Heading,
    Items,
    Paragraph,
    Report,
    Table,
    plain,
)

__all__ = ["escaped", "to_markdown"]

_SPECIAL = re.compile(r"([\\`*_\[\]<>|~$#!])")
_ENTITY = re.compile(r"&(?=#?\w+;)")
_OPENING = re.compile(r"^([-+=]|[0-9]+(?=[.)]\s))")


def to_markdown(report: Report, figures: str) -> str:
    """Return the report.

    Args:
        report: What to write.
        figures: The folder of the figures' files, relative to the report.
    """
    blocks = [f"# {escaped(report.title)}", *(_block(block, figures) for block in report.blocks)]
    return "\n\n".join(blocks) + "\n"


def escaped(text: str) -> str:
    """Return text that Markdown shows as it stands, on one line."""
    flat = _SPECIAL.sub(r"\\\1", _ENTITY.sub("&amp;", plain(text)))
    # Addresses would become links by themselves.
    return flat.replace("://", "&#58;//").replace("www.", "www&#46;")


def _line(text: str) -> str:
    """Return escaped text that begins a line, but no list."""
    return _OPENING.sub(lambda found: _opened(found[1]), escaped(text))


def _opened(opening: str) -> str:
    return f"{opening[:-1]}&#{ord(opening[-1])};" if opening[-1].isdigit() else f"\\{opening}"


def _block(block: Block, figures: str) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {escaped(text)}"
        case Paragraph(text):
            return _line(text)
        case Items(items):
            return "\n".join(f"- {_line(item)}" for item in items)
        case Table():
            return "\n".join(_table(block))
        case Figure(name, caption, alt, _):
            return f"![{escaped(alt)}]({figures}/{name}.svg)\n\n{_line(caption)}"


def _table(table: Table) -> Iterator[str]:
    yield f"{_line(table.caption)}\n"
    yield _row([escaped(name) for name in table.header])
    columns = range(len(table.header))
    yield _row(["---:" if table.has_numbers(column) else "---" for column in columns])
    for row in table.rows:
        yield _row([_cell(cell) for cell in row])


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell) -> str:
    text = escaped(cell.text)
    text = f"**{text}**" if cell.best else text
    return f"{text} {escaped(cell.note)}" if cell.note else text
