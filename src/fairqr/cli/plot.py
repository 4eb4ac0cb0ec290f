"""Drawing the exposure of the groups by round against the target."""

from __future__ import annotations

import html
import io
from itertools import product
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING

from fairqr.base.errors import InputError
from fairqr.base.extras import library
from fairqr.base.files import write_beside
from fairqr.cli.output import shortened
from fairqr.evaluation.reports.drawing import quiet_fonts

if TYPE_CHECKING:
    from fairqr.graph.search.result import Iteration, SearchResult

# Each marker in twenty colours keeps many groups apart.
MARKERS = "osD^vP*X"
LEGEND = 30
NAME = 24
TITLE = 60


def check_plot(path: Path) -> None:
    """Refuse a plot that cannot be drawn, before the search begins.

    Raises:
        InputError: The file is not ``.png`` or ``.html``, or its folder or matplotlib is missing.
    """
    if path.suffix not in (".png", ".html"):
        raise InputError(f"A plot is a .png or .html file, not {path.name}.")
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(f"The plot {path} cannot be written; name a file in a folder that exists.")
    library("matplotlib", "Drawing", "plot")


def draw(result: SearchResult, path: Path) -> None:
    """Draw a search to a ``.png`` or a self-contained ``.html`` file, after :func:`check_plot`.

    One panel per attribute: the exposure of each group in each round and in the final ranking, with
    its target as a dashed line; and one panel of the divergence.

    Raises:
        InputError: The file cannot be written.
    """
    from matplotlib import color_sequences
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    measured: list[Iteration | SearchResult] = [*result.iterations, result]
    rounds = [str(iteration.index) for iteration in result.iterations] + ["final"]
    # A legend stands beside its panel, in as many columns as keep it within the panel's height.
    columns = -(-max(map(len, result.target.values()), default=0) // LEGEND)
    size = ((3.6 + 2.2 * columns) * len(result.target) + 4.2, 3.6 if columns < 2 else 6.6)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    *panels, last = figure.subplots(1, len(result.target) + 1, squeeze=False)[0]
    styles = [*product(MARKERS, color_sequences["tab20"])]
    for panel, (name, targets) in zip(panels, result.target.items(), strict=True):
        lines = []
        for number, (group, target) in enumerate(targets.items()):
            shares = [it.exposure[name][group] for it in measured]
            marker, colour = styles[number % len(styles)]
            lines += panel.plot(rounds, shares, marker=marker, color=colour)
            panel.axhline(target, linestyle="--", linewidth=1, color=colour)
        title = f"exposure by {shortened(name, NAME)} (dashed: target)"
        panel.set_title(title, fontsize=10, parse_math=False)
        panel.set_ylim(-0.03, 1.03)
        legend = panel.legend(
            lines,
            ["group"] * len(lines),
            fontsize=8,
            loc="upper left",
            bbox_to_anchor=(1.01, 1),
            ncols=columns,
        )
        for text, group in zip(legend.get_texts(), targets, strict=True):
            text.set_parse_math(False)
            text.set_text(shortened(group, NAME))
    found = [it.divergence for it in measured]
    last.plot(rounds, [nan if it is None else it for it in found], marker="o", color="black")
    last.set_title("divergence from the target (nats)", fontsize=10)
    last.set_ylim(bottom=0)
    told = f"{shortened(result.query, TITLE)} in {shortened(result.corpus, TITLE)}, {result.method}"
    figure.suptitle(told, fontsize=11, parse_math=False)
    drawn = io.BytesIO()
    with quiet_fonts():
        figure.savefig(drawn, format="png" if path.suffix == ".png" else "svg", dpi=130)
    content = drawn.getvalue()
    if path.suffix != ".png":
        title = html.escape(f"{result.query} in {result.corpus}")
        picture = content[content.index(b"<svg") :].decode()
        content = (
            f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{title}</title>\n'
            f"<body>\n<h1>{title}</h1>\n{picture}\n</body></html>\n"
        ).encode()
    try:
        write_beside(path, content)
    except OSError as error:
        raise InputError(f"The plot {path} cannot be written: {error.strerror}.") from None
