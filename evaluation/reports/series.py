"""Plots of one measure against another: a line for each retriever or generator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fairqr.evaluation.reports.drawing import LONGEST, bare, new_figure, shortened, svg_of
from fairqr.evaluation.reports.style import GREY, INK, LINES

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["draw_series"]


def draw_series(
    points: DataFrame,
    x_label: str,
    y_label: str,
    *,
    star: str | None = None,
    diagonal: bool = False,
    ticks: Sequence[tuple[float, str]] = (),
) -> str:
    """Draw lines.

    Args:
        points: With columns ``line``, its name in the legend, ``x``, ``y``, and ``label``, what
            stands beside the point. The points of a line stand in the order in which they are
            joined. Beyond twelve lines, colours begin again.
        x_label: What x is.
        y_label: What y is.
        star: The line that stands apart from the others, as the oracle does.
        diagonal: Whether to draw y = x, with one scale for both.
        ticks: Places of the x axis with what stands there, where x is no number of its own.

    Returns:
        An SVG file.
    """
    with new_figure(6.6, 4.4) as figure:
        axes = figure.subplots()
        bare(axes)
        names, handles = [], []
        for number, (name, line) in enumerate(points.groupby("line", sort=False)):
            own = name == star
            colour, marker = (INK, "*") if own else LINES[number % len(LINES)]
            names.append(shortened(name))
            handles += axes.plot(
                line.x, line.y, color=colour, marker=marker, markersize=10 if own else 5,
                linewidth=0 if own else 1.4, zorder=3,
            )  # fmt: skip
            for point in line.itertuples():
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
        _draw_legend(figure, handles, names)
        return svg_of(figure)


def _draw_diagonal(axes: Any) -> None:
    most = max(axes.get_xlim()[1], axes.get_ylim()[1])
    least = min(0.0, axes.get_xlim()[0], axes.get_ylim()[0])
    axes.plot([least, most], [least, most], ":", color=GREY, linewidth=1.2, zorder=1)
    axes.set_xlim(least, most)
    axes.set_ylim(least, most)


def _draw_legend(figure: Any, handles: Sequence[Any], names: Sequence[str]) -> None:
    legend = figure.legend(
        handles, ["" for _ in handles], loc="outside upper left",
        ncols=2 if max(map(len, names)) < LONGEST // 2 else 1, frameon=False, fontsize=8.5,
    )  # fmt: skip
    # Set afterwards: a legend would leave out names that begin with "_", and read "$" as a formula.
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_parse_math(False)
        text.set_text(name)
