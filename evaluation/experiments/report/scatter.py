"""The plot of relevance against fairness: one point for each system."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairqr.base.statistics import Interval
from fairqr.evaluation.experiments.report.drawing import bare, new_figure, svg_of
from fairqr.evaluation.experiments.report.labels import Box, place_labels
from fairqr.evaluation.experiments.report.style import FAMILIES, INK

__all__ = ["Point", "draw_trade_off"]

_SIZE = 8.5


@dataclass(frozen=True, slots=True)
class Point:
    """A system.

    Attributes:
        name: Its name.
        family: One of :data:`fairqr.evaluation.experiments.report.style.FAMILIES`.
        x: Its mean relevance, with the interval.
        y: Its mean fairness, with the interval.
    """

    name: str
    family: str
    x: tuple[float, Interval | None]
    y: tuple[float, Interval | None]


def draw_trade_off(
    points: Sequence[Point], x_label: str, y_label: str, *, product: bool, y_up: bool
) -> str:
    """Draw the plot.

    Args:
        points: The systems.
        x_label: What x is.
        y_label: What y is.
        product: Whether to draw curves on which the product of x and y is the same.
        y_up: Whether a higher y is better; the axis is turned round where not.

    Returns:
        An SVG file.
    """
    with new_figure(7.6, 5.6) as figure:
        axes = figure.subplots()
        bare(axes)
        for point in points:
            _, colour, marker = FAMILIES[point.family]
            x, y = point.x[0], point.y[0]
            axes.errorbar(
                x, y, yerr=_bars(*point.y), xerr=_bars(*point.x), color=colour, fmt="none",
                elinewidth=0.8, alpha=0.35, zorder=2,
            )  # fmt: skip
            axes.plot(x, y, marker, color=colour, markersize=6, zorder=3, linestyle="none")
        axes.margins(0.06)
        axes.set_xlim(axes.get_xlim())
        axes.set_ylim(axes.get_ylim())
        if not y_up:
            axes.invert_yaxis()
        if product:
            _draw_products(axes)
        axes.set_xlabel(x_label, parse_math=False)
        axes.set_ylabel(y_label, parse_math=False)
        _draw_legend(figure, axes, points)
        # Labels are placed on the page, so the axes must have found their place before.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        _draw_labels(figure, axes, points)
        return svg_of(figure)


def _bars(mean: float, interval: Interval | None) -> Any:
    if interval is None:
        return None
    # A percentile interval need not hold the mean itself.
    return [[max(0.0, mean - interval.low)], [max(0.0, interval.high - mean)]]


def _draw_products(axes: Any) -> None:
    import numpy as np
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
            f"{level:.2f}", end, (-2, 3), textcoords="offset points", ha="right", fontsize=7,
            alpha=0.8,
        )  # fmt: skip


def _draw_legend(figure: Any, axes: Any, points: Sequence[Point]) -> None:
    present = {point.family for point in points}
    for family, (name, colour, marker) in FAMILIES.items():
        if family in present:
            axes.plot([], [], marker, color=colour, label=name, linestyle="none")
    figure.legend(loc="outside upper left", ncols=4, frameon=False, handletextpad=0.2)


def _draw_labels(figure: Any, axes: Any, points: Sequence[Point]) -> None:
    renderer = figure.canvas.get_renderer()
    texts = [
        figure.text(
            0, 0, point.name, fontsize=_SIZE, color=FAMILIES[point.family][1], parse_math=False,
            ha="left", va="bottom", zorder=4,
        )
        for point in points
    ]  # fmt: skip
    at = [tuple(axes.transData.transform((point.x[0], point.y[0]))) for point in points]
    extents = [text.get_window_extent(renderer) for text in texts]
    whole = axes.get_window_extent(renderer)
    room = Box(whole.x0, whole.y0, figure.bbox.x1 - 2, whole.y1)
    boxes = place_labels(at, [(e.width + 3, e.height) for e in extents], room)
    to_figure = figure.transFigure.inverted()
    for point, text, (x, y), box in zip(points, texts, at, boxes, strict=True):
        text.set_position(to_figure.transform((box.left + 1.5, box.bottom)))
        near = (min(max(x, box.left), box.right), min(max(y, box.bottom), box.top))
        if (near[0] - x) ** 2 + (near[1] - y) ** 2 > 14**2:
            axes.annotate(
                "", near, (x, y), xycoords="figure pixels", textcoords="figure pixels",
                arrowprops={
                    "arrowstyle": "-", "linewidth": 0.6, "color": FAMILIES[point.family][1],
                    "alpha": 0.6, "shrinkA": 4, "shrinkB": 0,
                },
            )  # fmt: skip
