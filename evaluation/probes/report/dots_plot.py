"""Shares with their intervals: two dots for each model, one for either group."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairqr.base.statistics import Interval
from fairqr.evaluation.reports.drawing import bare, new_figure, svg_of
from fairqr.evaluation.reports.style import LINES

__all__ = ["Dot", "DotRow", "draw_dots"]

TITLE_WIDTH = 40
APART = 0.16
"""How far from the middle of a row its dots stand, the distance of rows being 1."""


@dataclass(frozen=True, slots=True)
class Dot:
    """A share.

    Attributes:
        value: In [0, 1]; None where there is none.
        interval: None where there is none.
    """

    value: float | None
    interval: Interval | None = None


@dataclass(frozen=True, slots=True)
class DotRow:
    """What stands beside each other: one dot for each name of the legend."""

    title: str
    dots: tuple[Dot, ...]


def draw_dots(rows: Sequence[DotRow], names: Sequence[str], x_label: str) -> str:
    """Draw rows of dots from top to bottom.

    Args:
        rows: At least one.
        names: Of the dots of each row, for the legend.
        x_label: What the shares are.

    Returns:
        An SVG file.
    """
    with new_figure(6.6, 0.45 * len(rows) + 1.1) as figure:
        axes = figure.subplots()
        bare(axes)
        handles = [_draw(axes, rows, place, len(names)) for place in range(len(names))]
        axes.set_yticks(range(len(rows)), ["\n".join(_wrapped(row.title)) for row in rows])
        # Set afterwards: a tick would read "$" as a formula.
        for tick in axes.get_yticklabels():
            tick.set_parse_math(False)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlim(left=0)
        axes.set_xlabel(x_label, parse_math=False)
        legend = figure.legend(
            handles, ["" for _ in names], loc="outside upper left", ncols=len(names),
            frameon=False, fontsize=8.5,
        )  # fmt: skip
        for text, name in zip(legend.get_texts(), names, strict=True):
            text.set_parse_math(False)
            text.set_text(name)
        return svg_of(figure)


def _draw(axes: Any, rows: Sequence[DotRow], place: int, dots: int) -> Any:
    colour, marker = LINES[place % len(LINES)]
    shift = APART * (2 * place - dots + 1)
    for height, row in enumerate(rows):
        interval = row.dots[place].interval
        if interval is not None:
            axes.hlines(height + shift, interval.low, interval.high, color=colour, linewidth=1.4)
    known = [(row.dots[place].value, height + shift) for height, row in enumerate(rows)]
    found = [(value, height) for value, height in known if value is not None]
    (handle,) = axes.plot(
        [value for value, _ in found], [height for _, height in found],
        color=colour, marker=marker, markersize=5, linewidth=0, zorder=3,
    )  # fmt: skip
    return handle


def _wrapped(title: str) -> list[str]:
    return textwrap.wrap(title, TITLE_WIDTH, max_lines=2, placeholder="…") or [""]
