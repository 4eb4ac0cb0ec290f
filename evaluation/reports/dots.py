"""Shares with their intervals: a row of dots for each system."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from fairqr.evaluation.reports.drawing import bare, new_figure, svg_of
from fairqr.evaluation.reports.style import LINES

__all__ = ["draw_dots"]

TITLE_WIDTH = 40
APART = 0.16
"""How far from the middle of a row its dots stand, the distance of rows being 1."""

Dot = tuple[float, float, float]
"""A share and both ends of its interval; what is missing is NaN."""


def draw_dots(titles: Sequence[str], series: Mapping[str, Sequence[Dot]], x_label: str) -> str:
    """Draw rows of dots from top to bottom.

    Args:
        titles: Of the rows, at least one.
        series: For each name of the legend, its dot in each row.
        x_label: What the shares are.

    Returns:
        An SVG file.
    """
    with new_figure(6.6, 0.45 * len(titles) + 1.1) as figure:
        axes = figure.subplots()
        bare(axes)
        handles = [
            _draw(axes, dots, LINES[place % len(LINES)], APART * (2 * place - len(series) + 1))
            for place, dots in enumerate(series.values())
        ]
        axes.set_yticks(range(len(titles)), ["\n".join(_wrapped(title)) for title in titles])
        # Set afterwards: a tick would read "$" as a formula.
        for tick in axes.get_yticklabels():
            tick.set_parse_math(False)
        axes.set_ylim(len(titles) - 0.5, -0.5)
        axes.set_xlim(left=0)
        axes.set_xlabel(x_label, parse_math=False)
        figure.legend(
            handles, list(series), loc="outside upper left", ncols=len(series), frameon=False,
            fontsize=8.5,
        )  # fmt: skip
        return svg_of(figure)


def _draw(axes: Any, dots: Sequence[Dot], style: tuple[str, str], shift: float) -> Any:
    colour, marker = style
    for row, (_, low, high) in enumerate(dots):
        if low == low and high == high:
            axes.hlines(row + shift, low, high, color=colour, linewidth=1.4)
    (handle,) = axes.plot(
        [share for share, _, _ in dots], [row + shift for row in range(len(dots))],
        color=colour, marker=marker, markersize=5, linewidth=0, zorder=3,
    )  # fmt: skip
    return handle


def _wrapped(title: str) -> list[str]:
    return textwrap.wrap(title, TITLE_WIDTH, max_lines=2, placeholder="…") or [""]
