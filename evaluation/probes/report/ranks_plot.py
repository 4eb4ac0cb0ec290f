"""Where the protected items stand: a histogram of their ranks for each ranker and asker."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairqr.evaluation.reports.drawing import bare, new_figure, svg_of
from fairqr.evaluation.reports.style import INK, LINES

__all__ = ["RankPanel", "RankRow", "draw_ranks"]

TITLE_WIDTH = 96
WIDTH, HEIGHT = 2.3, 1.7


@dataclass(frozen=True, slots=True)
class RankPanel:
    """The ranks of the protected items for one asker.

    Attributes:
        asker: Its title.
        shares: The share of the protected items in each bin of ranks, the first bin at the top of
            the list; empty where no ranking counts.
        count: How many items there are, over all queries.
    """

    asker: str
    shares: tuple[float, ...]
    count: int


@dataclass(frozen=True, slots=True)
class RankRow:
    """A ranker with a panel for each asker; all rows have the same askers."""

    ranker: str
    panels: tuple[RankPanel, ...]


def draw_ranks(rows: Sequence[RankRow]) -> str:
    """Draw a row of histograms for each ranker, all on one scale.

    Args:
        rows: At least one, with at least one panel each.

    Returns:
        An SVG file.
    """
    columns = len(rows[0].panels)
    panels = [panel for row in rows for panel in row.panels]
    highest = max(share for panel in panels for share in (*panel.shares, 0.01))
    with new_figure(max(WIDTH * columns, 4.6), HEIGHT * len(rows) + 0.4) as figure:
        figures = figure.subfigures(len(rows), 1, squeeze=False).ravel()
        for part, row in zip(figures, rows, strict=True):
            title = textwrap.shorten(row.ranker, TITLE_WIDTH, placeholder="…")
            part.suptitle(title, x=0.01, ha="left", fontsize=9, parse_math=False)
            grid = part.subplots(1, columns, squeeze=False, sharey=True).ravel()
            for axes, panel, (colour, _) in zip(grid, row.panels, LINES, strict=False):
                _draw(axes, panel, colour)
                axes.set_ylim(0, 1.1 * highest)
        figure.supxlabel("place in the list, from the first (0) to the last (1)", fontsize=9)
        return svg_of(figure)


def _draw(axes: Any, panel: RankPanel, colour: str) -> None:
    bare(axes)
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes.set_title(f"{panel.asker}, n={panel.count:,}", fontsize=8, loc="left", parse_math=False)
    if not panel.shares:
        axes.text(0.5, 0.5, "no ranking", ha="center", va="center", transform=axes.transAxes)
        return
    bins = len(panel.shares)
    edges = [place / bins for place in range(bins + 1)]
    axes.bar(edges[:-1], panel.shares, 1 / bins, align="edge", color=colour, alpha=0.75, zorder=2)
    axes.axhline(1 / bins, color=INK, linestyle="--", linewidth=1.1, zorder=3)
