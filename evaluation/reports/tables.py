"""Tables of a report: DataFrames whose cells are texts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from fairqr.base.extras import library
from fairqr.evaluation.reports.text import Markdown, plain, shown

if TYPE_CHECKING:
    from pandas import DataFrame

_NUMBER = re.compile(r"$|–(?:$| \*)|[*\\]*[+−<]?\s*[0-9][0-9.,]*%?(?:\*|$| / | of | \*)")


FORMULA = re.compile(r"^(?=[=+@-])")
"""The place before a text that a spreadsheet would compute."""


def frame(columns: Sequence[str], rows: Sequence[Mapping[str, Any]] = ()) -> DataFrame:
    """Return a DataFrame of these rows; one without rows has these columns.

    Raises:
        InputError: pandas is not installed.
    """
    pandas = library("pandas", "A table")
    found = pandas.DataFrame(rows) if rows else pandas.DataFrame(columns=list(columns))
    return cast("DataFrame", found)


def csv_of(table: DataFrame, digits: int) -> bytes:
    """Return a table as CSV for spreadsheets, which must take no text for a formula.

    Args:
        table: Of numbers and texts.
        digits: Significant ones of a number.
    """

    def safe(found: object) -> object:
        return FORMULA.sub("'", plain(found)) if isinstance(found, str) else found

    cells = {name: held.map(safe) for name, held in table.select_dtypes(object).items()}
    written: str = table.assign(**cells).to_csv(
        index=False, float_format=f"%.{digits}g", lineterminator="\n"
    )
    return written.encode()


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
