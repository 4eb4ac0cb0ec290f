"""Histograms of places in ranked lists: a row for each ranker, a panel for each asker."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairqr.evaluation.reports.drawing import bare, new_figure, svg_of
from fairqr.evaluation.reports.style import INK, LINES

__all__ = ["BINS", "draw_histograms", "shares_of"]

BINS = 20
TITLE_WIDTH = 96
WIDTH, HEIGHT = 2.3, 1.7


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
            title = textwrap.shorten(ranker, TITLE_WIDTH, placeholder="…")
            part.suptitle(title, x=0.01, ha="left", fontsize=9, parse_math=False)
            grid = part.subplots(1, columns, squeeze=False, sharey=True).ravel()
            for axes, (asker, places), (colour, _) in zip(grid, row.items(), LINES, strict=False):
                _draw(axes, asker, places, colour)
                axes.set_ylim(0, 1.1 * highest)
        figure.supxlabel("place in the list, from the first (0) to the last (1)", fontsize=9)
        return svg_of(figure)


def _draw(axes: Any, asker: str, places: Sequence[float], colour: str) -> None:
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
