"""Writing a report into a folder: ``report.md``, its figures, and ``report.html`` in one file.

A kind of experiment has one template, in Markdown. It extends ``base.md.j2`` and fills the blocks
of it. In a template

- ``{{ … }}`` prints text, which is escaped: a name is never markup. The functions of
  :mod:`fairqr.evaluation.reports.text` are filters that write numbers;
- ``{% call figure(NAME) %}CAPTION{% endcall %}`` puts a figure where it belongs, if it was drawn;
  the caption says what it shows and how to read it;
- ``{{ table(frame) }}`` writes a DataFrame whose cells are texts, see
  :mod:`fairqr.evaluation.reports.tables`;
- the paragraph before a table is its caption, and the one behind a figure is the figure's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairqr.base.errors import InputError
from fairqr.base.extras import library
from fairqr.base.files import write_beside
from fairqr.evaluation.reports import tables, text
from fairqr.evaluation.reports.drawing import can_draw

if TYPE_CHECKING:
    from jinja2 import Environment

FOLDER = "figures"
TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot.

    Attributes:
        name: The name of its file without the ending, unique in a report.
        alt: What can be seen in it, for those who do not see it.
        svg: The drawing, as a whole SVG file.
    """

    name: str
    alt: str
    svg: str

    def _repr_svg_(self) -> str:
        """Show the plot in a notebook."""
        return self.svg[self.svg.index("<svg") :]


def write_report(
    folder: Path,
    template: str,
    values: Mapping[str, Any],
    figures: Sequence[Figure],
    folded: Collection[str] = (),
) -> list[Path]:
    """Write the report of a run; equal values give equal files.

    Args:
        folder: The folder of the run.
        template: The name of the template, such as ``search`` for ``search.md.j2``.
        values: The values that the template shows.
        figures: Those that the template names.
        folded: The headings of the parts of which the page shows the heading alone at first.

    Returns:
        The files that were written.

    Raises:
        InputError: matplotlib is not installed; the reports are then written without plots. Or
            Jinja or markdown-it-py is not, and nothing is written.
    """
    markdown = render(template, values, figures)
    library("markdown_it", "A report")
    from fairqr.evaluation.reports.page import to_html

    drawings = {f"{FOLDER}/{figure.name}.svg": figure.svg for figure in figures}
    page = to_html(markdown, drawings, folded)
    # Figures first, so that the report never names one that is not there.
    written = [_write(folder / FOLDER / f"{figure.name}.svg", figure.svg) for figure in figures]
    reports = [_write(folder / "report.md", markdown), _write(folder / "report.html", page)]
    if not can_draw():
        raise InputError(
            f"{reports[0]} and {reports[1].name} were written without plots, which need "
            "matplotlib; install it with: pip install 'fairqr[evaluation]'"
        )
    return [*reports, *written]


def _write(path: Path, content: str) -> Path:
    write_beside(path, content)
    return path


def render(template: str, values: Mapping[str, Any], figures: Sequence[Figure] = ()) -> str:
    """Return a report as Markdown.

    Raises:
        InputError: Jinja is not installed.
    """
    environment = _environment(text.shown)
    environment.globals.update(
        figure=_placer(figures), table=tables.table, cell=tables.cell, can_draw=can_draw()
    )
    found = environment.get_template(f"{template}.md.j2").render(values)
    return re.sub(r"\n{3,}", "\n\n", found).strip() + "\n"


def paragraphs(template: str, values: Mapping[str, Any]) -> list[str]:
    """Return the paragraphs of a template of plain text, each on one line.

    Args:
        template: Its name, such as ``audit_findings`` for ``audit_findings.txt.j2``.
        values: What it shows.

    Raises:
        InputError: Jinja is not installed.
    """
    found = _environment(text.plain).get_template(f"{template}.txt.j2").render(values)
    return [" ".join(it.split()) for it in re.split(r"\n\s*\n", found) if it.strip()]


def _environment(finalize: Callable[[Any], str]) -> Environment:
    library("jinja2", "A report")
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - HTML is made later, from Markdown that shown() escapes
    )
    environment.filters.update({name: getattr(text, name) for name in text.__all__})
    return environment


def _placer(figures: Sequence[Figure]) -> Callable[[str, Callable[[], str]], text.Markdown]:
    named = {figure.name: figure for figure in figures}

    def placed(name: str, caller: Callable[[], str]) -> text.Markdown:
        """Return a figure with the caption of the template; nothing if it was not drawn."""
        figure = named.get(name)
        if figure is None:
            return text.Markdown()
        image = f"![{text.escaped(figure.alt)}]({FOLDER}/{figure.name}.svg)"
        return text.Markdown(f"{image}\n\n{caller().strip()}\n\n")

    return placed
