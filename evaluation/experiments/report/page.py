"""Writing a report as one HTML file that needs no other: styles and plots stand in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape

from fairqr.evaluation.experiments.report.parts import (
    Block,
    Cell,
    Figure,
    Heading,
    Items,
    Paragraph,
    Report,
    Table,
    plain,
)
from fairqr.evaluation.reports.style import INK, PAPER, RULE

__all__ = ["to_html"]

# Even if something slipped through the escaping, a browser would fetch and run nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

SCALE = 1.5
"""How large a plot may be, in pixels of the page for each of its points."""

_CSS = """
:root { color-scheme: light dark; --ink: #1b1b1f; --paper: #fff; --soft: #5a5a64; --rule: #d5d5dc;
  --best: #eef4fb; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e9e9ee; --paper: #17181c; --soft: #a6a6b0; --rule: #3a3b42; --best: #1d2b3a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
p, li, figcaption, h1, h2, h3 { max-width: 48rem; }
h1 { line-height: 1.2; } h2 { margin-top: 2.5rem; border-top: 1px solid var(--rule);
  padding-top: 1rem; }
nav ul { columns: 16rem; padding-left: 1.2rem; } a { color: inherit; }
.scroll { overflow-x: auto; margin: 1rem 0; position: relative; }
.scroll:focus-visible { outline: 2px solid currentColor; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding-bottom: .4rem; }
caption span { display: block; max-width: min(48rem, calc(100vw - 2rem)); }
th, td { padding: .35rem .8rem .35rem 0; border-bottom: 1px solid var(--rule); vertical-align: top;
  text-align: left; max-width: 28rem; } th { font-weight: 600; }
thead th { vertical-align: bottom; } tbody th { min-width: 9rem; } .number { text-align: right; }
td.best { background: var(--best); }
small { display: block; color: var(--soft); min-width: 9rem; }
.number small { margin-left: auto; max-width: 13rem; }
figure { margin: 1.5rem 0; } figure svg { width: 100%; min-width: 30rem;
  height: auto; } figcaption { color: var(--soft); }
.hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
@media print { .scroll { overflow: visible; } }
"""


def to_html(report: Report) -> str:
    """Return the report."""
    title = _text(report.title)
    sections = [block for block in report.blocks if _is_section(block)]
    listed = "".join(
        f'<li><a href="#s{number}">{_text(block.text)}</a></li>\n'
        for number, block in enumerate(sections, start=1)
        if isinstance(block, Heading)
    )
    body = "\n".join(_blocks(report.blocks))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n<main>\n"
        f'<h1>{title}</h1>\n<nav aria-label="Contents">\n<ul>\n{listed}</ul>\n</nav>\n'
        f"{body}\n</main>\n</body>\n</html>\n"
    )


def _is_section(block: Block) -> bool:
    return isinstance(block, Heading) and block.level == 2


def _text(text: str) -> str:
    return escape(plain(text))


def _blocks(blocks: tuple[Block, ...]) -> Iterator[str]:
    section = table = 0
    for block in blocks:
        match block:
            case Heading(text, level):
                section += level == 2
                name = f' id="s{section}"' if level == 2 else ""
                yield f"<h{level}{name}>{_text(text)}</h{level}>"
            case Paragraph(text):
                yield f"<p>{_text(text)}</p>"
            case Items(items):
                yield "<ul>\n" + "".join(f"<li>{_text(item)}</li>\n" for item in items) + "</ul>"
            case Table():
                table += 1
                yield _table(block, f"t{table}")
            case Figure():
                yield _figure(block)


def _table(table: Table, name: str) -> str:
    head = "".join(
        f'<th scope="col"{_kind(table.has_numbers(number))}>{_text(column)}</th>'
        for number, column in enumerate(table.header)
    )
    columns = [table.has_numbers(column) for column in range(len(table.header))]
    rows = "".join(f"<tr>{''.join(_cells(row, columns))}</tr>\n" for row in table.rows)
    # What scrolls has to be reachable by the keyboard, and named.
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-labelledby="{name}">\n<table>\n'
        f'<caption id="{name}"><span>{_text(table.caption)}</span></caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n</div>"
    )


def _kind(is_number: bool, best: bool = False) -> str:
    names = [name for name, it_is in (("number", is_number), ("best", best)) if it_is]
    return f' class="{" ".join(names)}"' if names else ""


def _cells(row: tuple[Cell, ...], numbers: Sequence[bool]) -> Iterator[str]:
    for place, (cell, is_number) in enumerate(zip(row, numbers, strict=True)):
        text = _text(cell.text)
        if cell.best:
            text = f'<strong>{text}</strong><span class="hidden"> (best)</span>'
        if cell.note:
            text += f" <small>{_text(cell.note)}</small>"
        kind = _kind(is_number, cell.best)
        yield f'<th scope="row">{text}</th>' if place == 0 else f"<td{kind}>{text}</td>"


def _figure(figure: Figure) -> str:
    return (
        f'<figure>\n<div class="scroll" role="region" tabindex="0" aria-label="Plot">\n'
        f"{_inline(figure)}\n</div>\n<figcaption>{_text(figure.caption)}</figcaption>\n</figure>"
    )


def _inline(figure: Figure) -> str:
    """Return the drawing as a part of the page: with names of its own, in the page's colours."""
    svg = figure.svg[figure.svg.index("<svg") :].strip()
    opening, rest = svg.split(">", 1)
    box = re.search(r'viewBox="([0-9. ]+)"', opening)
    shape = ""
    if box:
        widest = round(SCALE * float(box[1].split()[2]))
        shape = f' viewBox="{box[1]}" style="max-width: {widest}px"'
    name = escape(figure.name)
    rest = re.sub(r'(<[^>]*\sid=")', rf"\1{name}-", rest)
    rest = re.sub(r"url\(#", f"url(#{name}-", rest)
    rest = re.sub(r'xlink:href="#', f'href="#{name}-', rest)
    for colour, variable in ((INK, "--ink"), (PAPER, "--paper"), (RULE, "--rule")):
        rest = re.sub(rf"(?<=[ :]){colour}(?=[;\"])", f"var({variable})", rest)
    return f'<svg{shape} role="img" aria-label="{_text(figure.alt)}">{rest}'
