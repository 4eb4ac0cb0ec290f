"""Drawing the exposure of the groups by round against the target."""

from __future__ import annotations

import html
import io
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from fairqr.base.errors import InputError
from fairqr.base.extras import library
from fairqr.base.files import write_beside
from fairqr.cli.output import shortened
from fairqr.evaluation.reports.drawing import quiet_fonts

if TYPE_CHECKING:
    from fairqr.graph.search.result import SearchResult

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

    names = list(result.target)
    most = max(map(len, result.target.values()), default=0)
    # A legend stands beside its panel, in as many columns as keep it within the panel's height.
    columns = -(-most // LEGEND)
    figure = Figure(
        figsize=((3.6 + 2.2 * columns) * len(names) + 4.2, 3.6 if most <= 14 else 6.6),
        layout="constrained",
    )
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(names) + 1, squeeze=False)[0]
    rounds = [str(iteration.index) for iteration in result.iterations] + ["final"]
    positions = range(len(rounds))
    colours = color_sequences["tab10" if most <= 10 else "tab20"]
    styles = [(colour, marker) for marker, colour in product(MARKERS, colours)]
    for panel, name in zip(panels, names, strict=False):
        lines = []
        for number, (group, target) in enumerate(result.target[name].items()):
            shares = [iteration.exposure[name][group] for iteration in result.iterations]
            shares.append(result.exposure[name][group])
            colour, marker = styles[number % len(styles)]
            lines += panel.plot(positions, shares, marker=marker, color=colour)
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
            ncols=-(-len(lines) // LEGEND),
        )
        for text, group in zip(legend.get_texts(), result.target[name], strict=True):
            text.set_parse_math(False)
            text.set_text(shortened(group, NAME))
    divergences = [iteration.divergence for iteration in result.iterations] + [result.divergence]
    defined = [(i, d) for i, d in enumerate(divergences) if d is not None]
    panels[-1].plot([i for i, _ in defined], [d for _, d in defined], marker="o", color="black")
    panels[-1].set_title("divergence from the target (nats)", fontsize=10)
    panels[-1].set_ylim(bottom=0)
    for panel in panels:
        panel.set_xticks(list(positions), rounds)
        panel.set_xlabel("round")
    told = f"{shortened(result.query, TITLE)} in {shortened(result.corpus, TITLE)}, {result.method}"
    figure.suptitle(told, fontsize=11, parse_math=False)
    with quiet_fonts():
        if path.suffix == ".png":
            buffer = io.BytesIO()
            figure.savefig(buffer, format="png", dpi=130)
            content = buffer.getvalue()
        else:
            content = _page(result, figure).encode()
    try:
        write_beside(path, content)
    except OSError as error:
        raise InputError(f"The plot {path} cannot be written: {error.strerror}.") from None


def _page(result: SearchResult, figure: object) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg")  # type: ignore[attr-defined]
    picture = buffer.getvalue()[buffer.getvalue().index("<svg") :]
    title = html.escape(f"{result.query} in {result.corpus}")
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{title}</title>\n'
        f"<body>\n<h1>{title}</h1>\n{picture}\n</body></html>\n"
    )
