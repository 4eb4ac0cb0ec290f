"""Tables of results for notebooks, which show what ``_repr_html_`` returns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in HTML; numbers stand on the right.

    Args:
        columns: The heads of the columns.
        rows: The cells of each row. None and NaN are empty cells; other floats are shares, in per
            cent.
    """
    heads = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = ""
    for row in rows:
        cells = "".join(map(_cell, row))
        body += f"<tr>{cells}</tr>"
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def paragraphs(sentences: Iterable[str]) -> str:
    """Return sentences in HTML, each as a paragraph."""
    return "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)


def _cell(value: object) -> str:
    """Return a cell; None and NaN are empty."""
    if isinstance(value, float) and math.isnan(value):
        return "<td></td>"
    if isinstance(value, float):
        return f'<td style="text-align: right">{value:.1%}</td>'
    if isinstance(value, int):
        return f'<td style="text-align: right">{value}</td>'
    text = "" if value is None else str(value)
    return f'<td style="text-align: left">{escape(text)}</td>'
