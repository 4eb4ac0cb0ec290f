"""A report as one HTML file that needs no other: styles and figures stand in it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from html import escape, unescape
from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from markdown_it import MarkdownIt
from markdown_it.token import Token

from fairqr.evaluation.reports.drawing import INK, PAPER, RULE

TEMPLATES = Path(__file__).parent / "templates"
SCALE = 1.5
"""How large a figure may be, in pixels of the page for each of its points."""

LEAST = 0.6
"""How small a figure may become, as a share of that; where there is less room, it is scrolled."""


def to_html(markdown: str, figures: Mapping[str, str], folded: Collection[str] = ()) -> str:
    """Return a report as a page.

    Args:
        markdown: The report, as :func:`fairqr.evaluation.reports.writer.render` gives it.
        figures: The SVG files that it names, by their paths in it.
        folded: The headings of the parts that open only when somebody asks for them.
    """
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = reader.parse(markdown)
    body = reader.renderer.render(list(_arranged(tokens, figures)), reader.options, {})
    # What a report quotes is escaped, so every tag is one of ours.
    first, *parts = (part.split("</h2>\n", 1) for part in body.split("<h2>"))
    heading, rest = first[0].split("</h1>\n", 1)
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, keep_trailing_newline=True
    )
    return environment.get_template("page.html.j2").render(
        title=unescape(heading.removeprefix("<h1>")),
        heading=heading,
        rest=rest,
        parts=[(unescape(title) in folded, title, content) for title, content in parts],
    )


def _arranged(tokens: list[Token], figures: Mapping[str, str]) -> Iterator[Token]:
    """Yield the tokens, with captions inside their tables and figures, which can be scrolled."""
    place = tables = 0
    while place < len(tokens):
        token = tokens[place]
        if token.type == "paragraph_open" and _is(tokens, place + 3, "table_open"):
            tables += 1
            yield from _table_head(tokens[place + 1], f"t{tables}")
            place += 4
        elif token.type == "table_close":
            yield token
            yield _markup("</div>\n")
            place += 1
        elif token.type == "paragraph_open" and _only_image(tokens[place + 1]):
            yield from _figure(tokens[place + 1], tokens[place + 4], figures)
            place += 6
        else:
            if token.type == "tr_open":
                _arrange_row(tokens, place, in_body=_is_in_body(tokens, place))
            yield token
            place += 1


def _is(tokens: list[Token], place: int, kind: str) -> bool:
    return place < len(tokens) and tokens[place].type == kind


def _markup(content: str) -> Token:
    return Token("html_block", "", 0, content=content)


def _table_head(caption: Token, name: str) -> Iterator[Token]:
    # What scrolls has to be reachable by the keyboard, and named.
    yield _markup(
        f'<div class="scroll" role="region" tabindex="0" aria-labelledby="{name}">\n'
        f'<table>\n<caption id="{name}"><span>'
    )
    yield caption
    yield _markup("</span></caption>\n")


def _is_in_body(tokens: list[Token], place: int) -> bool:
    kinds = (token.type for token in reversed(tokens[:place]))
    return next(kind for kind in kinds if kind in ("tbody_open", "thead_open")) == "tbody_open"


def _arrange_row(tokens: list[Token], place: int, *, in_body: bool) -> None:
    """Make the first cell of a row its header, and mark numbers and the best."""
    is_first = True
    for number in range(place + 1, len(tokens)):
        token = tokens[number]
        if token.type == "tr_close":
            return
        if token.type not in ("th_open", "td_open"):
            continue
        style = token.attrs.pop("style", "")
        names = ["number"] if "right" in str(style) else []
        if not in_body:
            token.attrSet("scope", "col")
        elif is_first:
            token.tag = tokens[number + 2].tag = "th"
            token.attrSet("scope", "row")
        elif _mark_best(tokens[number + 1]):
            names.append("best")
        if names:
            token.attrSet("class", " ".join(names))
        is_first = False


def _mark_best(inline: Token) -> bool:
    """Add the words "the best" to a marked cell, for readers who do not see the mark."""
    children = inline.children or []
    for place, child in enumerate(children):
        if child.type == "strong_close":
            hidden = Token("html_inline", "", 0, content='<span class="hidden"> (best)</span>')
            children.insert(place + 1, hidden)
            return True
    return False


def _only_image(inline: Token) -> bool:
    return [child.type for child in inline.children or ()] == ["image"]


def _figure(inline: Token, caption: Token, figures: Mapping[str, str]) -> Iterator[Token]:
    image = (inline.children or [])[0]
    path = str(image.attrs["src"])
    svg = _inline(figures[path], re.sub(r"\W", "_", path), image.content)
    yield _markup(
        '<figure>\n<div class="scroll" role="region" tabindex="0" aria-label="Plot">\n'
        f"{svg}\n</div>\n<figcaption>"
    )
    yield caption
    yield _markup("</figcaption>\n</figure>\n")


def _inline(svg: str, name: str, alt: str) -> str:
    """Return a drawing as a part of the page: with names of its own, in the page's colours."""
    opening, rest = svg[svg.index("<svg") :].strip().split(">", 1)
    box = re.search(r'viewBox="([0-9. ]+)"', opening)
    shape = ""
    if box:
        widest = round(SCALE * float(box[1].split()[2]))
        size = f"min-width: {round(widest * LEAST)}px; max-width: {widest}px"
        shape = f' viewBox="{box[1]}" style="{size}"'
    rest = re.sub(r'(<[^>]*\sid=")', rf"\1{name}-", rest)
    rest = re.sub(r"url\(#", f"url(#{name}-", rest)
    rest = re.sub(r'xlink:href="#', f'href="#{name}-', rest)
    for colour, variable in ((INK, "--ink"), (PAPER, "--paper"), (RULE, "--rule")):
        rest = re.sub(rf"(?<=[ :]){colour}(?=[;\"])", f"var({variable})", rest)
    return f'<svg{shape} role="img" aria-label="{escape(alt)}">{rest}'
