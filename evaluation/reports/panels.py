"""Plots by round: a panel for each system, so that lines of several do not hide each other."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairqr.evaluation.reports.drawing import bare, new_figure, svg_of
from fairqr.evaluation.reports.style import GREY, INK, LINES

__all__ = ["Line", "Panel", "draw_panels"]

COLUMNS = 3
TITLE_WIDTH = 32
LETTER, HANDLE = 5.5, 48.0
"""In points, how wide a letter of the legend is, and what stands before its names."""


@dataclass(frozen=True, slots=True)
class Line:
    """A value by round.

    Attributes:
        name: In the legend.
        values: From round 0 on; NaN where there is none.
        counts: Over how many topics each value is.
        target: Where it should be, if something says so.
    """

    name: str
    values: tuple[float, ...]
    counts: tuple[int, ...]
    target: float | None = None


@dataclass(frozen=True, slots=True)
class Panel:
    """A system.

    Attributes:
        title: Its name.
        lines: What is drawn of it; below the rounds stand the counts of the first line.
    """

    title: str
    lines: tuple[Line, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Over how many topics the values of each round are."""
        return self.lines[0].counts


def draw_panels(panels: Sequence[Panel], y_label: str, *, context: bool, zero: bool) -> str:
    """Draw the panels, with one scale for all.

    Args:
        panels: The systems.
        y_label: What the values are.
        context: Whether each panel has the lines of the others behind its own, in grey.
        zero: Whether the scale begins at 0.

    Returns:
        An SVG file.
    """
    columns = 2 if len(panels) == 4 else min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    with new_figure(max(2.7 * columns, 4.2), 2.5 * rows + 0.5) as figure:
        grid = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
        for axes, panel in zip(grid, panels, strict=False):
            bare(axes)
            if context:
                for line in (line for other in panels for line in other.lines):
                    axes.plot(line.values, color=GREY, linewidth=1.2, alpha=0.6, zorder=1)
            _draw(axes, panel)
            axes.set_title(_wrapped(panel.title), fontsize=9, loc="left", parse_math=False)
            # All panels have the same rounds, each with its own number of topics.
            most = max(len(other.counts) for other in panels)
            ticks = [
                f"{number}\n{panel.counts[number] if number < len(panel.counts) else ''}"
                for number in range(most)
            ]
            axes.set_xticks(range(most), ticks)
            axes.set_xlim(-0.3, most - 0.7)
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        if zero:
            grid[0].set_ylim(bottom=0)
        figure.supxlabel("round, and below it the number of topics", fontsize=9)
        figure.supylabel(y_label, fontsize=9, parse_math=False)
        _draw_legend(figure, panels)
        return svg_of(figure)


def _draw(axes: Any, panel: Panel) -> None:
    for line, (colour, marker) in zip(panel.lines, LINES, strict=False):
        axes.plot(line.values, color=colour, marker=marker, markersize=4, linewidth=1.4, zorder=3)
        if line.target is not None:
            axes.axhline(line.target, color=colour, linestyle="--", linewidth=0.9, zorder=2)


def _wrapped(title: str) -> str:
    return "\n".join(textwrap.wrap(title, TITLE_WIDTH, max_lines=3, placeholder="…"))


def _draw_legend(figure: Any, panels: Sequence[Panel]) -> None:
    from matplotlib.lines import Line2D

    longest = max(panels, key=lambda panel: len(panel.lines)).lines
    if len(longest) < 2 and longest[0].target is None:
        return
    handles = [
        Line2D([], [], color=colour, marker=marker, markersize=4, linewidth=1.4)
        for _, (colour, marker) in zip(longest, LINES, strict=False)
    ]
    names = ["" for _ in handles]
    if any(line.target is not None for line in longest):
        handles.append(Line2D([], [], color=INK, linestyle="--", linewidth=0.9))
        names.append("target")
    width = max(len(line.name) for line in longest) * LETTER + HANDLE
    columns = max(1, min(len(handles), int(figure.bbox.width / width)))
    legend = figure.legend(
        handles, names, loc="outside upper left", ncols=columns, frameon=False, fontsize=8.5
    )
    # Set afterwards: a legend would leave out names that begin with "_", and read "$" as a formula.
    for text, line in zip(legend.get_texts(), longest, strict=False):
        text.set_parse_math(False)
        text.set_text(line.name)
