"""The three kinds of plots: bars, lines and histograms; each function returns an SVG file.

Equal data give equal files. Colours are apart for those who do not see all colours.
"""

from __future__ import annotations

import io
import itertools
import math
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fairqr.base.extras import library

if TYPE_CHECKING:
    from pandas import DataFrame

INK = "#1b1b1f"
PAPER = "#ffffff"
RULE = "#d5d5dc"

GREY = "#a6a6b0"
"""What stands behind."""

BLUE = "#0072b2"
VERMILION = "#d55e00"
PALETTE = (BLUE, VERMILION, "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""The palette of Okabe & Ito, without its yellow."""

Style = tuple[str, str]
"""Colour and marker of a line."""

LINES: tuple[Style, ...] = tuple((colour, marker) for marker in "os" for colour in PALETTE)
"""The styles of lines; beyond twelve, they begin again."""

LONGEST = 48
"""So many letters of a name stand in a legend."""

LETTER = 5.5
"""How wide a letter of the legend is, in points."""

HANDLE = 48.0
"""How wide what stands before the names of a legend is, in points."""

ROW = 0.34
"""How high a row of bars is, in inches."""

TITLE = 0.5
"""How high the title of a panel is, in inches."""

MARKS = (("|", 16), ("d", 6), ("^", 6))
"""Marker and size of the marks in a row of bars."""

BOX = ("whislo", "q1", "med", "q3", "whishi")
"""What matplotlib calls the five values of a box."""

BINS = 20
MANY = 6
"""If a plot has more lines, its legend stands beside it."""

# Text stays text, in a font whose widths browsers come near to; ids do not change from run to run.
_SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fairqr",
    "font.family": ["DejaVu Sans"],
    "font.size": 9.0,
    "axes.titlesize": 9.0,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "grid.color": RULE,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.4,
    "lines.markersize": 5.0,
    "text.parse_math": False,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
}
_FONT = "font-family: 'DejaVu Sans'"


class Bar(NamedTuple):
    """A share, drawn as a bar.

    Attributes:
        dot: The share with both ends of its interval; missing ones are NaN.
        kind: What its colour says, as the legend names it.
        marks: Other shares in the same row, by their names in the legend; NaN is left out.
    """

    title: str
    dot: tuple[float, float, float]
    kind: str
    marks: Mapping[str, float]


@dataclass
class _Drawing:
    """A figure while it is drawn, with the handles of its legend, and the file that it becomes."""

    figure: Any
    handles: dict[str, Any] = field(default_factory=dict)
    svg: str = ""

    def legend(self, place: str = "outside upper left") -> None:
        """Draw the legend outside of the axes."""
        names = [_shortened(name) for name in self.handles]
        widest = max(map(len, names)) * LETTER + HANDLE
        columns = 1 if "right" in place else int(self.figure.bbox.width / widest)
        legend = self.figure.legend(
            list(self.handles.values()),
            ["" for _ in names],
            loc=place,
            frameon=False,
            fontsize=8.5,
            ncols=max(1, min(3, columns)),
        )
        # Set afterwards: a legend would leave out names that begin with "_".
        for text, name in zip(legend.get_texts(), names, strict=True):
            text.set_text(name)


def _shortened(name: str) -> str:
    return f"{name[:LONGEST]}…" if len(name) > LONGEST else name


@contextmanager
def _drawing(width: float, height: float) -> Iterator[_Drawing]:
    """Open a figure, in inches of 72 points; it is an SVG file afterwards.

    Raises:
        InputError: matplotlib is not installed.
    """
    mpl = library("matplotlib", "A plot", extra="plot")
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    buffer = io.StringIO()
    with mpl.rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the fonts do not have all characters
        drawing = _Drawing(Figure(figsize=(width, height), dpi=72, layout="constrained"))
        yield drawing
        canvas: Any = FigureCanvasSVG(drawing.figure)  # savefig would draw everything twice
        canvas.print_svg(buffer, metadata=dict.fromkeys(("Creator", "Date")))
    # Where the font is missing, one of the same widths or the reader's own takes its place.
    svg = buffer.getvalue().replace(_FONT, f"{_FONT}, Verdana, sans-serif")
    # The document type names a file on another host.
    drawing.svg = re.sub(r"<!DOCTYPE[^>]*>\n?|[ \t]+$", "", svg, flags=re.MULTILINE)


def _wrapped(title: str, width: int, lines: int = 2) -> str:
    return "\n".join(textwrap.wrap(title, width, max_lines=lines, placeholder="…"))


def draw_bars(
    panels: Mapping[str, Sequence[Bar]],
    colours: Mapping[str, str],
    x_label: str,
    *,
    in_percent: bool = True,
) -> str:
    """Draw panels of bars below each other, with one scale for all.

    Args:
        panels: The bars of each title, from top to bottom; at least one.
        colours: The colour of each kind of bar, in the order of the legend.
        x_label: The words under the axis.
        in_percent: Whether the axis has shares in percent, or plain numbers.

    Returns:
        An SVG file.
    """
    heights = [ROW * len(bars) + TITLE for bars in panels.values()]
    with _drawing(4.8, sum(heights) + 1.2) as drawing:
        grid = drawing.figure.subplots(
            len(panels), 1, squeeze=False, sharex=True, height_ratios=heights
        ).ravel()
        drawing.handles |= dict.fromkeys(colours)
        for axes, (title, bars) in zip(grid, panels.items(), strict=True):
            axes.grid(visible=False, axis="y")
            for row, bar in enumerate(bars):
                _draw_bar(axes, row, bar, colours[bar.kind], drawing.handles)
            axes.set_yticks(range(len(bars)), [_wrapped(bar.title, 24) for bar in bars])
            axes.set_ylim(len(bars) - 0.5, -0.5)
            axes.set_title(_wrapped(title, 60))
        grid[-1].set_xlim(left=0)
        if in_percent:
            grid[-1].xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        grid[-1].set_xlabel(x_label)
        drawing.handles = {name: handle for name, handle in drawing.handles.items() if handle}
        drawing.legend()
    return drawing.svg


def _draw_bar(axes: Any, row: int, bar: Bar, colour: str, handles: dict[str, Any]) -> None:
    """Draw a row, and keep the handle of each new name of the legend."""
    share, low, high = bar.dot
    length = 0 if np.isnan(share) else share
    handles[bar.kind] = axes.barh(row, length, 0.6, color=colour, zorder=2)
    axes.hlines(row, low, high, color=INK, zorder=3)
    for (name, value), (marker, size) in zip(bar.marks.items(), MARKS, strict=False):
        if np.isnan(value):
            continue
        (handles[name],) = axes.plot(
            [value],
            [row],
            marker,
            markersize=size,
            color=INK,
            markerfacecolor=PAPER,
            markeredgewidth=1.4,
            zorder=4,
        )


def draw_lines(
    panels: Mapping[str, DataFrame],
    x_label: str,
    y_label: str,
    *,
    styles: Mapping[str, Style] | None = None,
    diagonal: bool = False,
    y_up: bool = True,
) -> str:
    """Draw panels of lines, with one scale of values for all.

    Panels that have one line each, of the same name, show those of the others behind it, in grey.

    Args:
        panels: By title the points, at least one: ``line``, the name of the line in the legend,
            ``x`` and ``y``, in the order in which they are joined. There may be more columns:
            ``label``, what stands beside the point; ``tick``, what stands below the axis at x,
            where the axis of values begins at 0; ``target`` of the line; and the ends of
            intervals, ``x_low``, ``x_high``, ``y_low`` and ``y_high``. What is missing is NaN.
        x_label: What x is.
        y_label: What y is.
        styles: The styles of some lines; the others have those of :data:`LINES`.
        diagonal: Whether to draw y = x.
        y_up: Whether more of y is better; the axis is turned round if not.

    Returns:
        An SVG file.
    """
    names: dict[str, None] = {}
    for points in panels.values():
        names |= dict.fromkeys(points.line)
    style_of = dict(zip(names, itertools.cycle(LINES), strict=False)) | dict(styles or {})
    columns = 2 if len(panels) == 4 else min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    width = max(2.7 * columns, 6.6)
    place = "upper left"
    if len(names) > MANY:
        width += 2.0
        place = "right upper"
    with _drawing(width, max(2.5 * rows + 0.5, 4.4)) as drawing:
        grid = drawing.figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
        for axes, (title, points) in zip(grid, panels.items(), strict=False):
            if len(names) == 1 and len(panels) > 1:
                _draw_behind(axes, panels.values())
            for name, line in points.groupby("line", sort=False):
                drawing.handles[name] = _draw_line(axes, line, style_of[name])
            axes.set_title(_wrapped(title, 32, 3))
            _mark_axes(axes, points, diagonal)
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        if not y_up:
            grid[0].invert_yaxis()
        drawing.figure.supxlabel(x_label, fontsize=9)
        drawing.figure.supylabel(y_label, fontsize=9)
        if any("target" in points for points in panels.values()):
            drawing.handles["target"] = axes.plot([], [], color=INK, linestyle="--")[0]
        if len(drawing.handles) > 1 or len(panels) == 1:
            drawing.legend(f"outside {place}")
    return drawing.svg


def _mark_axes(axes: Any, points: DataFrame, diagonal: bool) -> None:
    """Write the ticks that the points name, and draw y = x where it is asked for."""
    if "tick" in points:
        ticks = points.drop_duplicates("x")
        axes.set_xticks(ticks.x, ticks.tick)
        axes.set_ylim(bottom=0)
    if diagonal:
        axes.axline((0, 0), slope=1, color=GREY, linestyle=":", zorder=1)


def _draw_behind(axes: Any, panels: Iterable[DataFrame]) -> None:
    """Draw the lines of all panels in grey."""
    for points in panels:
        axes.plot(points.x, points.y, color=GREY, alpha=0.6, zorder=1)


def _draw_line(axes: Any, line: DataFrame, style: Style) -> Any:
    """Draw a line, and return its handle."""
    colour, marker = style
    (handle,) = axes.plot(line.x, line.y, color=colour, marker=marker, zorder=3)
    if "target" in line:
        axes.axhline(line.target.iloc[0], color=colour, linestyle="--", linewidth=0.9, zorder=2)
    if "x_low" in line:
        axes.hlines(line.y, line.x_low, line.x_high, color=colour, alpha=0.35)
    if "y_low" in line:
        axes.vlines(line.x, line.y_low, line.y_high, color=colour, alpha=0.35)
    if "label" in line:
        for point in line.itertuples():
            axes.annotate(
                point.label,
                (point.x, point.y),
                xytext=(4, 4),
                textcoords="offset points",
                fontsize=7.5,
                color=colour,
            )
    return handle


def draw_boxes(
    rows: Mapping[str, Mapping[str, Sequence[float]]], x_label: str, y_label: str
) -> str:
    """Draw boxes with whiskers side by side, a panel for each row.

    Args:
        rows: By title and name of the box five ascending values: the ends of the whiskers, of the
            box, and its line in the middle, as lower whisker, lower end, line, upper end, whisker.
        x_label: What the boxes are.
        y_label: What their values are.

    Returns:
        An SVG file.
    """
    with _drawing(max(2.7 * len(rows), 6.6), 3.4) as drawing:
        grid = drawing.figure.subplots(1, len(rows), squeeze=False, sharey=True).ravel()
        styles = itertools.cycle(LINES)
        for axes, (title, boxes), (colour, _) in zip(grid, rows.items(), styles, strict=False):
            stats: list[dict[str, Any]] = []
            for box in boxes.values():
                values: dict[str, Any] = dict(zip(BOX, box, strict=True))
                stats.append(values | {"fliers": []})
            look = {"color": colour}
            axes.bxp(stats, showfliers=False, boxprops=look, whiskerprops=look, capprops=look)
            axes.set_xticks(range(1, len(boxes) + 1), [_wrapped(name, 9) for name in boxes])
            axes.set_title(_wrapped(title, 32, 3))
        grid[0].set_ylim(0, 1.02)
        drawing.figure.supxlabel(x_label, fontsize=9)
        drawing.figure.supylabel(y_label, fontsize=9)
    return drawing.svg


def draw_histograms(rows: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Draw a row of histograms for each ranker, all on one scale.

    Args:
        rows: By ranker and persona the places in (0, 1), the beginning of the list first. There is
            at least one ranker, and all have the same personas.

    Returns:
        An SVG file.
    """
    columns = len(next(iter(rows.values())))
    with _drawing(max(2.3 * columns, 4.6), 1.7 * len(rows) + 0.4) as drawing:
        grid = drawing.figure.subplots(len(rows), columns, squeeze=False, sharex=True, sharey=True)
        for row, (ranker, by_persona) in zip(grid, rows.items(), strict=True):
            panels = zip(row, by_persona.items(), LINES, strict=False)
            for axes, (persona, places), (colour, _) in panels:
                title = f"{persona}, n={len(places):,}"
                if axes is row[0]:
                    title = f"{_wrapped(ranker, 96, 1)}\n{title}"
                axes.set_title(title, fontsize=8)
                weights = np.full(len(places), 1 / max(1, len(places)))
                axes.hist(places, BINS, range=(0, 1), weights=weights, color=colour)
                axes.axhline(1 / BINS, color=INK, linestyle="--", linewidth=1.1)
        grid[0, 0].set_xlim(0, 1)
        grid[0, 0].set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
        drawing.figure.supxlabel("place in the list: first (0) to last (1)", fontsize=9)
    return drawing.svg
