"""What all plots share: how matplotlib is used, so that equal data give equal files."""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from fairqr.evaluation.reports.style import INK, PAPER, RULE

__all__ = ["bare", "can_draw", "new_figure", "quiet_fonts", "shortened", "svg_of"]

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
