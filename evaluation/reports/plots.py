"""The plots of reports; each function returns an SVG file.

``draw_bars`` has shares as bars with marks beside, a panel for each attribute; ``draw_dots`` shares
with their intervals, a row for each system; ``draw_histograms`` the places in ranked lists, a row
for each ranker and a panel for each asker; ``draw_panels`` values by round, a panel for each
system, so that lines of several do not hide each other; ``draw_trade_off`` relevance against
fairness, a numbered point for each system; ``draw_series`` one measure against another, a line for
each retriever or generator.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fairqr.evaluation.reports.drawing import (
    FAMILIES,
    GREY,
    INK,
    LINES,
    LONGEST,
    PAPER,
    bare,
    draw_legend,
    new_figure,
    shortened,
    svg_of,
    wrapped,
)

if TYPE_CHECKING:
    from pandas import DataFrame

APART = 0.16
"""How far from the middle of a row its dots stand, the distance of rows being 1."""

Dot = tuple[float, float, float]
"""A share and both ends of its interval; missing ones are NaN."""

ROW, TITLE = 0.34, 0.5
"""How high a row of bars is, and the title of a panel, in inches."""

MARKS = (("|", 16), ("d", 6), ("^", 6))
"""Marker and size of the marks in a row of bars."""

BINS = 20
WIDTH, HEIGHT = 2.3, 1.7
"""Of a histogram, in inches."""

COLUMNS = 3
"""The most panels by round side by side."""

LETTER, HANDLE = 5.5, 48.0
"""In points, how wide a letter of the legend is, and what stands before its names."""

NEAR = 0.04
"""Points that differ by at most this share of each axis have one label."""


class Bar(NamedTuple):
    """A share, drawn as a bar.

    Attributes:
        dot: The share with both ends of its interval.
        kind: What its colour says, as the legend names it.
        marks: Other shares in the same row, by their names in the legend; NaN is left out.
    """

    title: str
    dot: Dot
    kind: str
    marks: Mapping[str, float]


def draw_bars(panels: Mapping[str, Sequence[Bar]], colours: Mapping[str, str], x_label: str) -> str:
    """Draw panels of bars below each other, with one scale for all.

    Args:
        panels: The bars of each title, from top to bottom; at least one.
        colours: The colour of each kind of bar, in the order of the legend.
        x_label: The words under the axis of shares.

    Returns:
        An SVG file.
    """
    from matplotlib.ticker import PercentFormatter

    heights = [ROW * len(bars) + TITLE for bars in panels.values()]
    with new_figure(4.8, sum(heights) + 1.2) as figure:
        grid = figure.subplots(
            len(panels), 1, squeeze=False, sharex=True, height_ratios=heights
        ).ravel()
        handles: dict[str, Any] = {}
        for axes, (title, bars) in zip(grid, panels.items(), strict=True):
            bare(axes)
            axes.grid(visible=False, axis="y")
            for row, bar in enumerate(bars):
                handles |= _draw_bar(axes, row, bar, colours[bar.kind], handles)
            _name_rows(axes, [bar.title for bar in bars], 24)
            axes.set_title(wrapped(title, 60, 2), fontsize=9, loc="left", parse_math=False)
        grid[-1].set_xlim(left=0)
        grid[-1].xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        grid[-1].set_xlabel(x_label, parse_math=False)
        names = [*(kind for kind in colours if kind in handles)]
        names += [name for name in handles if name not in colours]
        columns = int(figure.bbox.width / (max(map(len, names)) * LETTER + HANDLE))
        draw_legend(figure, [handles[name] for name in names], names, ncols=max(1, min(3, columns)))
        return svg_of(figure)


def _draw_bar(axes: Any, row: int, bar: Bar, colour: str, known: Mapping[str, Any]) -> Any:
    """Draw a row; return the handle of each new name of the legend."""
    share, low, high = bar.dot
    (drawn,) = axes.barh(row, 0 if share != share else share, 0.6, color=colour, zorder=2)
    if low == low and high == high:
        axes.hlines(row, low, high, color=INK, linewidth=1.4, zorder=3)
    handles = {bar.kind: drawn}
    for (name, at), (marker, size) in zip(bar.marks.items(), MARKS, strict=False):
        if at != at:
            continue
        (handle,) = axes.plot(
            [at],
            [row],
            color=INK,
            marker=marker,
            markersize=size,
            linewidth=0,
            markerfacecolor=PAPER,
            markeredgewidth=1.4,
            zorder=4,
        )
        handles[name] = handle
    return {name: handle for name, handle in handles.items() if name not in known}


def _name_rows(axes: Any, titles: Sequence[str], width: int = 40) -> None:
    axes.set_yticks(range(len(titles)), [wrapped(title, width, 2) for title in titles])
    # Set afterwards: a tick would read "$" as a formula.
    for tick in axes.get_yticklabels():
        tick.set_parse_math(False)
    axes.set_ylim(len(titles) - 0.5, -0.5)


def draw_dots(titles: Sequence[str], series: Mapping[str, Sequence[Dot]], x_label: str) -> str:
    """Draw rows of dots from top to bottom.

    Args:
        titles: The titles of the rows, at least one.
        series: For each name of the legend, its dot in each row.
        x_label: The words under the axis of shares.

    Returns:
        An SVG file.
    """
    with new_figure(6.6, 0.45 * len(titles) + 1.1) as figure:
        axes = figure.subplots()
        bare(axes)
        handles = [
            _draw_dots(axes, dots, LINES[place % len(LINES)], APART * (2 * place - len(series) + 1))
            for place, dots in enumerate(series.values())
        ]
        _name_rows(axes, titles)
        axes.set_xlim(left=0)
        axes.set_xlabel(x_label, parse_math=False)
        draw_legend(figure, handles, list(series), ncols=len(series))
        return svg_of(figure)


def _draw_dots(axes: Any, dots: Sequence[Dot], style: tuple[str, str], shift: float) -> Any:
    colour, marker = style
    for row, (_, low, high) in enumerate(dots):
        if low == low and high == high:
            axes.hlines(row + shift, low, high, color=colour, linewidth=1.4)
    (handle,) = axes.plot(
        [share for share, _, _ in dots],
        [row + shift for row in range(len(dots))],
        color=colour,
        marker=marker,
        markersize=5,
        linewidth=0,
        zorder=3,
    )
    return handle


def shares_of(places: Sequence[float]) -> Any:
    """Return which share of the places in (0, 1) is in each bin; 0 without places."""
    counts, _ = np.histogram(places, bins=BINS, range=(0, 1))
    return counts / max(1, len(places))


def draw_histograms(rows: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Draw a row of histograms for each ranker, all on one scale.

    Args:
        rows: By ranker and asker the places in (0, 1), the beginning of the list first. There is
            at least one ranker, and all have the same askers.

    Returns:
        An SVG file.
    """
    columns = len(next(iter(rows.values())))
    panels = [places for row in rows.values() for places in row.values()]
    highest = max(0.01, *(float(shares_of(places).max()) for places in panels))
    with new_figure(max(WIDTH * columns, 4.6), HEIGHT * len(rows) + 0.4) as figure:
        figures = figure.subfigures(len(rows), 1, squeeze=False).ravel()
        for part, (ranker, row) in zip(figures, rows.items(), strict=True):
            title = textwrap.shorten(ranker, 96, placeholder="…")
            part.suptitle(title, x=0.01, ha="left", fontsize=9, parse_math=False)
            grid = part.subplots(1, columns, squeeze=False, sharey=True).ravel()
            for axes, (asker, places), (colour, _) in zip(grid, row.items(), LINES, strict=False):
                _draw_histogram(axes, asker, places, colour)
                axes.set_ylim(0, 1.1 * highest)
        figure.supxlabel("place in the list, from the first (0) to the last (1)", fontsize=9)
        return svg_of(figure)


def _draw_histogram(axes: Any, asker: str, places: Sequence[float], colour: str) -> None:
    bare(axes)
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes.set_title(f"{asker}, n={len(places):,}", fontsize=8, loc="left", parse_math=False)
    if not len(places):
        axes.text(0.5, 0.5, "no ranking", ha="center", va="center", transform=axes.transAxes)
        return
    edges = np.linspace(0, 1, BINS + 1)
    axes.bar(
        edges[:-1], shares_of(places), 1 / BINS, align="edge", color=colour, alpha=0.75, zorder=2
    )
    axes.axhline(1 / BINS, color=INK, linestyle="--", linewidth=1.1, zorder=3)


def draw_panels(
    panels: Mapping[str, Mapping[str, DataFrame]], y_label: str, *, context: bool
) -> str:
    """Draw a panel for each system, with one scale for all, which begins at 0.

    Args:
        panels: By system and name in the legend a line: the ``mean`` of each round, from 0 on; over
            how many topics it is (``count``), which stands below the rounds for the first line; and
            if it has one its ``target``, the same in each row.
        y_label: The words beside the axis of values.
        context: Whether each panel has the lines of the others behind its own, in grey.

    Returns:
        An SVG file.
    """
    columns = 2 if len(panels) == 4 else min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    with new_figure(max(2.7 * columns, 4.2), 2.5 * rows + 0.5) as figure:
        grid = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
        # All panels have the same rounds, each with its own number of topics.
        most = max(len(line) for lines in panels.values() for line in lines.values())
        for axes, (title, lines) in zip(grid, panels.items(), strict=False):
            bare(axes)
            if context:
                for line in (line for other in panels.values() for line in other.values()):
                    axes.plot(list(line["mean"]), color=GREY, linewidth=1.2, alpha=0.6, zorder=1)
            _draw_lines(axes, lines)
            axes.set_title(wrapped(title, 32, 3), fontsize=9, loc="left", parse_math=False)
            counts = list(next(iter(lines.values()))["count"])
            below = [*counts, *[""] * (most - len(counts))]
            axes.set_xticks(range(most), [f"{number}\n{it}" for number, it in enumerate(below)])
            axes.set_xlim(-0.3, most - 0.7)
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        grid[0].set_ylim(bottom=0)
        figure.supxlabel("round, and below it the number of topics", fontsize=9)
        figure.supylabel(y_label, fontsize=9, parse_math=False)
        _draw_lines_legend(figure, panels)
        return svg_of(figure)


def _draw_lines(axes: Any, lines: Mapping[str, DataFrame]) -> None:
    for line, (colour, marker) in zip(lines.values(), LINES, strict=False):
        means = list(line["mean"])
        axes.plot(means, color=colour, marker=marker, markersize=4, linewidth=1.4, zorder=3)
        if "target" in line:
            axes.axhline(line.target[0], color=colour, linestyle="--", linewidth=0.9, zorder=2)


def _draw_lines_legend(figure: Any, panels: Mapping[str, Mapping[str, DataFrame]]) -> None:
    from matplotlib.lines import Line2D

    longest = max(panels.values(), key=len)
    has_target = any("target" in line for line in longest.values())
    if len(longest) < 2 and not has_target:
        return
    handles = [
        Line2D([], [], color=colour, marker=marker, markersize=4, linewidth=1.4)
        for _, (colour, marker) in zip(longest, LINES, strict=False)
    ]
    names = list(longest)
    width = max(map(len, names)) * LETTER + HANDLE
    if has_target:
        handles.append(Line2D([], [], color=INK, linestyle="--", linewidth=0.9))
        names.append("target")
    draw_legend(
        figure, handles, names, ncols=max(1, min(len(handles), int(figure.bbox.width / width)))
    )


def draw_trade_off(
    points: DataFrame, x_label: str, y_label: str, *, product: bool, y_up: bool
) -> str:
    """Draw the plot.

    Args:
        points: By system, which has its number beside its point and its name in the legend, the
            ``family`` (one of :data:`fairqr.evaluation.reports.drawing.FAMILIES`), the means ``x``
            and ``y``, and the ends of their intervals, ``x_low`` and so on; missing ends are NaN.
        x_label: What x is.
        y_label: What y is.
        product: Whether to draw curves on which the product of x and y is the same.
        y_up: Whether more of y is better; the axis is turned round if not.

    Returns:
        An SVG file.
    """
    with new_figure(8.6, 4.8) as figure:
        axes = figure.subplots()
        bare(axes)
        handles = []
        for point in points.itertuples():
            _, colour, marker = FAMILIES[point.family]
            axes.errorbar(
                point.x,
                point.y,
                xerr=_bars(point.x, point.x_low, point.x_high),
                yerr=_bars(point.y, point.y_low, point.y_high),
                color=colour,
                fmt="none",
                elinewidth=0.8,
                alpha=0.35,
                zorder=2,
            )
            handles += axes.plot(
                point.x, point.y, marker, color=colour, markersize=6, zorder=3, linestyle="none"
            )
        for numbers, point in _labels(points):
            axes.annotate(
                numbers,
                (point.x, point.y),
                (4, 4),
                textcoords="offset points",
                fontsize=8.5,
                color=FAMILIES[point.family][1],
                zorder=4,
            )
        axes.margins(0.06)
        axes.set_xlim(axes.get_xlim())
        axes.set_ylim(axes.get_ylim())
        if not y_up:
            axes.invert_yaxis()
        if product:
            _draw_products(axes)
        axes.set_xlabel(x_label, parse_math=False)
        axes.set_ylabel(y_label, parse_math=False)
        names = [
            f"{number}  {shortened(name)}" for number, name in enumerate(points.index, start=1)
        ]
        draw_legend(figure, handles, names, "outside right upper", handletextpad=0.2)
        return svg_of(figure)


def _labels(points: DataFrame) -> list[tuple[str, Any]]:
    """Return the numbers beside points; points that lie close together share one label."""
    width, height = (NEAR * (points[axis].max() - points[axis].min()) for axis in ("x", "y"))
    labels: list[tuple[list[int], Any]] = []
    for number, point in enumerate(points.itertuples(), start=1):
        for numbers, other in labels:
            if abs(point.x - other.x) <= width and abs(point.y - other.y) <= height:
                numbers.append(number)
                break
        else:
            labels.append(([number], point))
    return [(", ".join(map(str, numbers)), point) for numbers, point in labels]


def _bars(mean: float, low: float, high: float) -> Any:
    """Return how far the interval goes to either side; None if there is none."""
    return None if low != low or high != high else [[mean - low], [high - mean]]


def _draw_products(axes: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    (left, right), (bottom, top) = sorted(axes.get_xlim()), sorted(axes.get_ylim())
    left, bottom = max(left, 1e-3), max(bottom, 1e-3)
    x = np.linspace(left, right, 100)
    for level in MaxNLocator(6).tick_values(left * bottom, right * top):
        inside = (level / x >= bottom) & (level / x <= top)
        if level <= 0 or inside.sum() < 10:
            continue
        axes.plot(x[inside], level / x[inside], ":", color=INK, linewidth=0.7, alpha=0.6, zorder=1)
        end = (x[inside][-1], level / x[inside][-1])
        axes.annotate(
            f"{level:.2f}",
            end,
            (-2, 3),
            textcoords="offset points",
            ha="right",
            fontsize=7,
            alpha=0.8,
        )


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
                line.x,
                line.y,
                color=colour,
                marker=marker,
                markersize=10 if own else 5,
                linewidth=0 if own else 1.4,
                zorder=3,
            )
            for point in line.itertuples():
                axes.annotate(
                    point.label,
                    (point.x, point.y),
                    (4, 4),
                    textcoords="offset points",
                    fontsize=7,
                    color=colour,
                    parse_math=False,
                )
        if ticks:
            axes.set_xticks([place for place, _ in ticks], [text for _, text in ticks])
        axes.margins(0.08)
        if diagonal:
            _draw_diagonal(axes)
        axes.set_xlabel(x_label, parse_math=False)
        axes.set_ylabel(y_label, parse_math=False)
        columns = 2 if max(map(len, names)) < LONGEST // 2 else 1
        draw_legend(figure, handles, names, ncols=columns)
        return svg_of(figure)


def _draw_diagonal(axes: Any) -> None:
    most = max(axes.get_xlim()[1], axes.get_ylim()[1])
    least = min(0.0, axes.get_xlim()[0], axes.get_ylim()[0])
    axes.plot([least, most], [least, most], ":", color=GREY, linewidth=1.2, zorder=1)
    axes.set_xlim(least, most)
    axes.set_ylim(least, most)
