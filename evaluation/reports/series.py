"""Plots of one measure against another: a line for each retriever or generator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fairqr.evaluation.reports.drawing import LONGEST, bare, new_figure, shortened, svg_of
from fairqr.evaluation.reports.style import GREY, INK, LINES

__all__ = ["Point", "Series", "draw_series"]


class Point(NamedTuple):
    """A policy.

    Attributes:
        x, y: Its means.
        label: What stands beside it, such as its α; may be empty.
    """

    x: float
    y: float
    label: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """A line.

    Attributes:
        name: In the legend.
        points: In the order in which they are joined; one alone is a mark.
        own: Whether it stands apart from the others, as the oracle does.
    """

    name: str
    points: tuple[Point, ...]
    own: bool = False


def draw_series(
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    *,
    diagonal: bool = False,
    ticks: Sequence[tuple[float, str]] = (),
) -> str:
    """Draw lines.

    Args:
        series: The lines; beyond twelve, colours begin again.
        x_label: What x is.
        y_label: What y is.
        diagonal: Whether to draw y = x, with one scale for both.
        ticks: Places of the x axis with what stands there, where x is no number of its own.

    Returns:
        An SVG file.
    """
    with new_figure(6.6, 4.4) as figure:
        axes = figure.subplots()
        bare(axes)
        handles = []
        for number, line in enumerate(series):
            colour, marker = (INK, "*") if line.own else LINES[number % len(LINES)]
            x, y = [point.x for point in line.points], [point.y for point in line.points]
            handles += axes.plot(
                x, y, color=colour, marker=marker, markersize=10 if line.own else 5,
                linewidth=0 if line.own else 1.4, zorder=3,
            )  # fmt: skip
            for point in line.points:
                axes.annotate(
                    point.label, (point.x, point.y), (4, 4), textcoords="offset points",
                    fontsize=7, color=colour, parse_math=False,
                )  # fmt: skip
        if ticks:
            axes.set_xticks([place for place, _ in ticks], [text for _, text in ticks])
        axes.margins(0.08)
        if diagonal:
            _draw_diagonal(axes)
        axes.set_xlabel(x_label, parse_math=False)
        axes.set_ylabel(y_label, parse_math=False)
        _draw_legend(figure, handles, series)
        return svg_of(figure)


def _draw_diagonal(axes: Any) -> None:
    most = max(axes.get_xlim()[1], axes.get_ylim()[1])
    least = min(0.0, axes.get_xlim()[0], axes.get_ylim()[0])
    axes.plot([least, most], [least, most], ":", color=GREY, linewidth=1.2, zorder=1)
    axes.set_xlim(least, most)
    axes.set_ylim(least, most)


def _draw_legend(figure: Any, handles: Sequence[Any], series: Sequence[Series]) -> None:
    names = [shortened(line.name) for line in series]
    legend = figure.legend(
        handles, ["" for _ in handles], loc="outside upper left",
        ncols=2 if max(map(len, names)) < LONGEST // 2 else 1, frameon=False, fontsize=8.5,
    )  # fmt: skip
    # Set afterwards: a legend would leave out names that begin with "_", and read "$" as a formula.
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_parse_math(False)
        text.set_text(name)
