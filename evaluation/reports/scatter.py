"""The plot of relevance against fairness: one numbered point for each system."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairqr.evaluation.reports.drawing import bare, new_figure, shortened, svg_of
from fairqr.evaluation.reports.style import FAMILIES, INK

__all__ = ["Point", "draw_trade_off"]

Ends = tuple[float, float]

NEAR = 0.04
"""Points that differ by at most this share of each axis have one label."""


@dataclass(frozen=True, slots=True)
class Point:
    """A system.

    Attributes:
        name: Its name.
        family: One of :data:`fairqr.evaluation.reports.style.FAMILIES`.
        x: Its mean relevance.
        y: Its mean fairness.
        x_interval, y_interval: The ends of the intervals of these means; missing ends are NaN.
    """

    name: str
    family: str
    x: float
    y: float
    x_interval: Ends
    y_interval: Ends


def draw_trade_off(
    points: Sequence[Point], x_label: str, y_label: str, *, product: bool, y_up: bool
) -> str:
    """Draw the plot.

    Args:
        points: The systems; each has its number beside it, and its name in the legend.
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
        for point in points:
            _, colour, marker = FAMILIES[point.family]
            axes.errorbar(
                point.x, point.y, xerr=_bars(point.x, point.x_interval),
                yerr=_bars(point.y, point.y_interval), color=colour, fmt="none",
                elinewidth=0.8, alpha=0.35, zorder=2,
            )  # fmt: skip
            handles += axes.plot(
                point.x, point.y, marker, color=colour, markersize=6, zorder=3, linestyle="none"
            )
        for numbers, point in _labels(points):
            axes.annotate(
                numbers, (point.x, point.y), (4, 4), textcoords="offset points", fontsize=8.5,
                color=FAMILIES[point.family][1], zorder=4,
            )  # fmt: skip
        axes.margins(0.06)
        axes.set_xlim(axes.get_xlim())
        axes.set_ylim(axes.get_ylim())
        if not y_up:
            axes.invert_yaxis()
        if product:
            _draw_products(axes)
        axes.set_xlabel(x_label, parse_math=False)
        axes.set_ylabel(y_label, parse_math=False)
        legend = figure.legend(
            handles, ["" for _ in handles], loc="outside right upper", frameon=False, fontsize=8.5,
            handletextpad=0.2,
        )  # fmt: skip
        # Set afterwards: a legend would leave out names that begin with "_", and read "$" as a
        # formula.
        for number, (text, point) in enumerate(
            zip(legend.get_texts(), points, strict=True), start=1
        ):
            text.set_parse_math(False)
            text.set_text(f"{number}  {shortened(point.name)}")
        return svg_of(figure)


def _labels(points: Sequence[Point]) -> list[tuple[str, Point]]:
    """Return the numbers beside points; points that lie close together share one label."""
    width, height = (
        NEAR * (max(values) - min(values))
        for values in ([point.x for point in points], [point.y for point in points])
    )
    labels: list[tuple[list[int], Point]] = []
    for number, point in enumerate(points, start=1):
        for numbers, other in labels:
            if abs(point.x - other.x) <= width and abs(point.y - other.y) <= height:
                numbers.append(number)
                break
        else:
            labels.append(([number], point))
    return [(", ".join(map(str, numbers)), point) for numbers, point in labels]


def _bars(mean: float, ends: Ends) -> Any:
    """Return how far the interval goes to either side; None if there is none."""
    low, high = ends
    return None if low != low or high != high else [[mean - low], [high - mean]]


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
