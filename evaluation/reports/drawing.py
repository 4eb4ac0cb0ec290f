"""What all plots share: how matplotlib is used, so that equal data give equal files.

Colours are apart for those who do not see all colours, and legible on light and dark.
"""

from __future__ import annotations

import io
import logging
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

INK = "#1b1b1f"
PAPER = "#fffffe"
RULE = "#d5d5dc"
"""These three follow the page where a plot is part of one, so no series has them but by intent."""

GREY = "#a6a6b0"
"""What stands behind: legible on light and on dark."""

_BLUE, _VERMILION, _GREEN = "#0072b2", "#d55e00", "#009e73"
_PURPLE, _ORANGE, _SKY = "#cc79a7", "#e69f00", "#56b4e9"

LINES = tuple(
    (colour, marker)
    for marker, colours in (
        ("o", (_BLUE, _VERMILION, _GREEN, _PURPLE, _ORANGE, _SKY)),
        ("s", (_BLUE, _VERMILION, _GREEN, _PURPLE, _ORANGE, _SKY)),
    )
    for colour in colours
)
"""Colour and marker of each line of a plot (the palette of Okabe & Ito)."""

FAMILIES = {
    "plain": ("plain retrieval", INK, "s"),
    "baseline": ("re-ranking alone", _PURPLE, "D"),
    "fair-qr": ("FAIR-QR's loop", _VERMILION, "^"),
    "fairqr": ("fairqr's loop", _BLUE, "o"),
}
"""The name of each kind of system in a legend, its colour and its marker."""

LONGEST = 48
"""So many letters of a name stand in a legend."""

# Text stays text, in a font whose widths browsers come near to; ids do not change from run to run.
_SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fairqr",
    "font.family": ["DejaVu Sans"],
    "font.size": 9.0,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "savefig.facecolor": PAPER,
}
_NOTHING = dict.fromkeys(("Creator", "Date", "Format", "Type"))
_FONT = "font-family: 'DejaVu Sans'"
_DOCTYPE = re.compile(r"<!DOCTYPE[^>]*>\n?")


def shortened(name: str) -> str:
    """Return a name as a legend has it."""
    return name if len(name) <= LONGEST else f"{name[:LONGEST]}…"


def wrapped(title: str, width: int, lines: int) -> str:
    """Return a title on several lines, with limits on lines and letters."""
    return "\n".join(textwrap.wrap(title, width, max_lines=lines, placeholder="…"))


def can_draw() -> bool:
    """Return whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


@contextmanager
def quiet_fonts() -> Iterator[None]:
    """Keep to itself what matplotlib says of characters that its fonts do not have."""
    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            yield
    finally:
        logger.setLevel(level)


@contextmanager
def new_figure(width: float, height: float) -> Iterator[Any]:
    """Open a figure, in inches of 72 points, with this module's settings while it is drawn."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(_SETTINGS), quiet_fonts():
        figure = Figure(figsize=(width, height), dpi=72, layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


def svg_of(figure: Any) -> str:
    """Return the figure as an SVG file; to be called while :func:`new_figure` is open."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=_NOTHING)
    # Where the font is missing, one of the same widths or the reader's own takes its place.
    svg = buffer.getvalue().replace(_FONT, f"{_FONT}, Verdana, sans-serif")
    # The document type names a file on another host.
    svg = _DOCTYPE.sub("", svg)
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def bare(axes: Any) -> None:
    """Take away what shows no data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, color=RULE, linewidth=0.5)
    axes.set_axisbelow(True)


def draw_legend(
    figure: Any,
    handles: Sequence[Any],
    names: Sequence[str],
    place: str = "outside upper left",
    **options: Any,
) -> None:
    """Draw a legend outside of the axes; names stand as they are, whatever is in them."""
    blank = ["" for _ in handles]
    legend = figure.legend(handles, blank, loc=place, frameon=False, fontsize=8.5, **options)
    # Set afterwards: a legend would leave out names that begin with "_", and read "$" as a formula.
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_parse_math(False)
        text.set_text(name)
