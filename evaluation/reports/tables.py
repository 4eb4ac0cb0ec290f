"""Tables of a report: DataFrames whose cells are texts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from fairqr.base.extras import library
from fairqr.evaluation.reports.text import Markdown, shown

if TYPE_CHECKING:
    from pandas import DataFrame

_NUMBER = re.compile(r"$|–(?:$| \*)|[*\\]*[+−<]?\s*[0-9][0-9.,]*%?(?:\*|$| / | of | \*)")


def frame(columns: Sequence[str], rows: Sequence[Mapping[str, Any]] = ()) -> DataFrame:
    """Return a DataFrame of these rows; one without rows has these columns.

    Raises:
        InputError: pandas is not installed.
    """
    pandas = library("pandas", "A table")
    found = pandas.DataFrame(rows) if rows else pandas.DataFrame(columns=list(columns))
    return cast("DataFrame", found)


def records_of(found: DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a DataFrame for JSON: what has no value is None."""
    rows: list[dict[str, Any]] = (
        found.astype(object).where(found.notna(), None).to_dict(orient="records")
    )
    return rows


def cell(content: object, *notes: object, best: object = False) -> Markdown:
    """Return a cell: what it says, and notes such as an interval in smaller type.

    Args:
        content: Text, or Markdown.
        notes: Empty ones are left out.
        best: Whether it is marked as the best of its column.
    """
    said = f"**{shown(content)}**" if best else shown(content)
    small = " ".join(filter(None, map(shown, notes)))
    return Markdown(f"{said} *{small}*" if small else said)


def table(found: DataFrame) -> Markdown:
    """Return a table; columns that have numbers only stand to the right.

    The first column is the header of each row.
    """
    rows = [[shown(content) for content in row] for row in found.itertuples(index=False)]
    ruler = [
        "---:" if place and all(_NUMBER.match(row[place]) for row in rows) else "---"
        for place in range(found.shape[1])
    ]
    lines = [[shown(name) for name in found.columns], ruler, *rows]
    return Markdown("\n".join(f"| {' | '.join(line)} |" for line in lines))
