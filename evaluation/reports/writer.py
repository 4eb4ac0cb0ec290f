"""Writing a report into a folder: ``report.md``, its figures, and ``report.html`` in one file.

A kind of experiment has one template, in Markdown. It extends ``base.md.j2`` and fills the blocks
of it. In a template

- ``{{ … }}`` prints text, which is escaped: a name is never markup. Functions of
  :mod:`fairqr.evaluation.reports.text` are filters that write numbers;
- ``{% call figure(NAME) %}CAPTION{% endcall %}`` puts a figure where it belongs, if it was drawn;
  the caption says what it shows and how to read it;
- ``{{ table(frame) }}`` writes a DataFrame whose cells are texts;
- the paragraph before a table is its caption, and the one behind a figure is the figure's.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, SubElement, fromstring, tostring

from fairqr.base.extras import library
from fairqr.base.files import write_beside
from fairqr.evaluation.reports import text

FOLDER = "figures"
TEMPLATES = Path(__file__).parent / "templates"
SCALE = 1.5
"""How large a figure may be, in pixels of the page for each of its points."""

LEAST = 0.6
"""How small a figure may become, as a share of that; where there is less room, it is scrolled."""


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

    @property
    def path(self) -> str:
        """Where a report has its file."""
        return f"{FOLDER}/{self.name}.svg"

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
        figures: The figures that the template names.
        folded: The headings of the parts that the page folds at first.

    Returns:
        The files that were written.

    Raises:
        InputError: Jinja or markdown-it-py is not installed, and nothing is written.
    """
    markdown = render(template, values, figures)
    page = to_html(markdown, figures, folded)
    # Figures first, so that the report never names one that is not there.
    drawings = {folder / figure.path: figure.svg for figure in figures}
    texts = {folder / "report.md": markdown, folder / "report.html": page}
    for path, content in (drawings | texts).items():
        write_beside(path, content)
    return [*texts, *drawings]


def render(template: str, values: Mapping[str, Any], figures: Sequence[Figure] = ()) -> str:
    """Return a report as Markdown.

    Raises:
        InputError: Jinja is not installed.
    """
    by_name = {figure.name: figure for figure in figures}

    def placed(name: str, caller: Callable[[], str]) -> text.Markdown:
        """Return a figure with the caption of the template; nothing if it was not drawn."""
        figure = by_name.get(name)
        if figure is None:
            return text.Markdown()
        image = f"![{text.escaped(figure.alt)}]({figure.path})"
        return text.Markdown(f"{image}\n\n{caller().strip()}\n\n")

    compiled = _template(f"{template}.md.j2", finalize=text.shown)
    markdown: str = compiled.render(values, figure=placed)
    return re.sub(r"\n{3,}", "\n\n", markdown).strip() + "\n"


@functools.cache
def _template(name: str, **options: Any) -> Any:
    """Return a template, which is compiled once."""
    jinja2 = library("jinja2", "A report")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **options,
    )
    environment.filters.update({function.__name__: function for function in text.FILTERS})
    environment.globals.update(table=text.table, cell=text.cell)
    return environment.get_template(name)


def to_html(markdown: str, figures: Sequence[Figure], folded: Collection[str] = ()) -> str:
    """Return a report as one HTML file that needs no other: styles and figures stand in it.

    Args:
        markdown: The report, as :func:`render` gives it.
        figures: The figures that it names.
        folded: The headings of the parts that open only when somebody asks for them.

    Raises:
        InputError: markdown-it-py or Jinja is not installed.
    """
    reader = library("markdown_it", "A report").MarkdownIt("commonmark", {"html": False})
    rendered = f"<body>{reader.enable('table').render(markdown)}</body>"
    body = fromstring(rendered)  # noqa: S314 - what a report quotes is escaped in it
    for row in body.iter("tr"):
        _arrange_row(row)
    blocks: list[Element] = []
    for child in body:
        blocks += _block(child, blocks)
    html = "".join(tostring(block, "unicode", method="html") for block in blocks)
    drawings = {figure.path: _inline(figure) for figure in figures}
    html = re.sub(r'<img src="([^"]*)".*?>', lambda image: drawings[unescape(image[1])], html)
    _, *split = re.split(r"<h[12]>(.*?)</h[12]>\n", html)
    headings = map(unescape, split[::2])
    contents = split[1::2]
    (title, rest), *parts = zip(headings, contents, strict=True)
    page = _template("page.html.j2", autoescape=True)
    return str(page.render(title=title, rest=rest, parts=parts, folded=folded))


def _block(child: Element, before: list[Element]) -> list[Element]:
    """Add what follows, with captions inside their tables and figures, which can be scrolled."""
    # What scrolls has to be reachable by the keyboard, and named.
    box = Element("div", {"class": "scroll", "role": "region", "tabindex": "0"})
    if child.tag == "table" and before and before[-1].tag == "p":
        caption = Element("caption", {"id": f"t{len(before)}"})
        caption.append(before.pop())
        caption[0].tag = "span"
        child.insert(0, caption)
        box.set("aria-labelledby", caption.attrib["id"])
        box.append(child)
        return [box]
    if child.find("img") is not None:
        child.tag = "div"
        child.attrib |= box.attrib | {"aria-label": "Plot"}
        figure = Element("figure")
        figure.append(child)
        return [figure]
    if before and before[-1].tag == "figure" and len(before[-1]) == 1:
        child.tag = "figcaption"
        before[-1].append(child)
        return []
    return [child]


def _arrange_row(row: Element) -> None:
    """Make the first cell of a row its header, and mark numbers and the best."""
    for position, cell in enumerate(row):
        classes = []
        if "right" in cell.attrib.pop("style", ""):
            classes.append("number")
        best = cell.find("strong")
        if cell.tag == "th":
            cell.set("scope", "col")
        elif position == 0:
            cell.tag = "th"
            cell.set("scope", "row")
        elif best is not None:
            classes.append("best")
            # For readers who do not see the mark.
            hidden = SubElement(best, "span", {"class": "hidden"})
            hidden.text = " (best)"
        if classes:
            cell.set("class", " ".join(classes))


def _inline(figure: Figure) -> str:
    """Return a drawing as a part of the page, with names of its own."""
    opening, rest = figure._repr_svg_().strip().split(">", 1)
    box = opening.split('viewBox="')[1].split('"')[0]
    widest = SCALE * float(box.split()[2])
    size = f"min-width: {LEAST * widest:.0f}px; max-width: {widest:.0f}px"
    name = re.sub(r"\W", "_", figure.path)
    rest = re.sub(r'(<[^>]*\sid=")', rf"\1{name}-", rest.replace("xlink:href=", "href="))
    rest = re.sub(r'(url\(#|href="#)', rf"\1{name}-", rest)
    return (
        f'<svg viewBox="{box}" style="{size}" role="img" aria-label="{escape(figure.alt)}">{rest}'
    )
