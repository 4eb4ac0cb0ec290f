"""Text, numbers and tables as a report shows them.

What a collection, a model or a user named is never markup: everything that a template prints is
escaped, except for :class:`Markdown`, which the functions of this module make.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from fairqr.base.extras import library

if TYPE_CHECKING:
    from pandas import DataFrame

    from fairqr.evaluation.estimates import Estimate

    Interval = Estimate | Sequence[float | None]

MINUS = "−"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
NOTHING = "–"

_SPECIAL = re.compile(r"([\\`*_\[\]<>|~$#!])")
_ENTITY = re.compile(r"&(?=#?\w+;)")
_OPENING = re.compile(r"^(?:[-+=]|[0-9]+[.)](?=\s|$))")
_NUMBER = re.compile(r"$|–(?:$| \*)|[*\\]*[+−<]?\s*[0-9][0-9.,]*%?(?:\*|$| / | of | \*)")

FORMULA = re.compile(r"^(?=[=+@-])")
"""The place before a text that a spreadsheet would compute."""


class Markdown(str):
    """Text that is Markdown already."""

    __slots__ = ()


def plain(text: object) -> str:
    """Return text on one line, without characters that cannot be printed or that turn it round.

    Such characters show as U+FFFD.
    """
    flat = " ".join(str(text).split())
    printable = [character if character.isprintable() else REPLACEMENT for character in flat]
    return "".join(printable)


def escaped(text: object) -> Markdown:
    """Return text that Markdown shows as it stands, on one line, wherever it is put."""
    flat = _SPECIAL.sub(r"\\\1", _ENTITY.sub("&amp;", plain(text)))
    # Addresses would become links without any markup.
    flat = flat.replace("://", "&#58;//").replace("www.", "www&#46;")
    return Markdown(_OPENING.sub(_without_meaning, flat))


def _without_meaning(opening: re.Match[str]) -> str:
    """Return what would begin a list or underline a heading as characters that do not."""
    text = opening[0]
    return f"\\{text}" if len(text) == 1 else f"{text[:-1]}&#{ord(text[-1])};"


def shown(value: object) -> str:
    """Return a value as a template prints it: escaped, unless it is Markdown already."""
    return value if isinstance(value, Markdown) else escaped(value)


def _number(number: float | None, form: str) -> Markdown:
    """Write a number with the minus of mathematics; a rounded zero has no sign."""
    if number is None or math.isnan(number):
        return Markdown(NOTHING)
    text = format(number, form)
    is_zero = not text.strip("+-0.%")
    return Markdown(text.lstrip("+-") if is_zero else text.replace("-", MINUS))


def value(number: float | None) -> Markdown:
    """Write the value of a measure with four decimals, as the field does."""
    return _number(number, ".4f")


def difference(number: float | None) -> Markdown:
    """Write a difference of two values, with its sign."""
    return _number(number, "+.4f")


def percent(ratio: float | None, *, signed: bool = False) -> Markdown:
    """Write a ratio in percent with one decimal; a change is signed."""
    return _number(ratio, "+.1%" if signed else ".1%")


def span(interval: Interval, form: str = ".3f") -> Markdown:
    """Write an interval, or its two ends; nothing if an end is missing, or if it is a point."""
    ends = interval if isinstance(interval, Sequence) else (interval.low, interval.high)
    low, high = ends
    texts = [_number(low, form), _number(high, form)]
    if low is None or high is None or NOTHING in texts:
        return Markdown("")
    # Rounded, since a deviation of 0 is 1e-17 on some processors.
    is_point = abs(low - high) < 1e-9
    return Markdown("" if is_point else rf"\[{texts[0]}, {texts[1]}\]")


def percent_span(interval: Interval) -> Markdown:
    """Write an interval of shares in percent; nothing if there is none."""
    return span(interval, ".1%")


def points_span(interval: Interval) -> Markdown:
    """Write an interval of a difference in percentage points; nothing if there is none."""
    return Markdown(percent_span(interval).replace("%", ""))


def p_value(number: float | None, *, name: str = "") -> Markdown:
    """Write a p value, behind a name and its sign if one is given: ``p = 0.0312``."""
    if number is None or math.isnan(number):
        return Markdown(f"{name} none".strip())
    if number < 0.0001:
        return Markdown(f"{name} \\< 0.0001".strip())
    return Markdown(f"{name} = {number:.4f}" if name else f"{number:.4f}")


def amounts(numbers: Sequence[float]) -> Markdown:
    """Write amounts such as tokens or milliseconds, alike and as exactly as the largest needs."""
    largest = max(numbers, default=0.0)
    are_whole = all(amount == int(amount) for amount in numbers)
    decimals = 2
    if largest >= 10:
        decimals = 1
    if largest >= 100 or are_whole:
        decimals = 0
    texts = [f"{amount:,.{decimals}f}" for amount in numbers]
    return Markdown(" / ".join(texts) or NOTHING)


def counted(number: int, singular: str, plural: str = "") -> Markdown:
    """Write a number of things, such as ``1 topic`` or ``57 topics``."""
    noun = singular if number == 1 else plural or f"{singular}s"
    return Markdown(f"{number:,} {escaped(noun)}")


def listed(counts: Mapping[str, int]) -> Markdown:
    """Write how many there are of each kind, such as ``1 × refused; 2 × timeout``."""
    kinds = sorted(counts.items())
    return Markdown("; ".join(f"{count} × {escaped(name)}" for name, count in kinds))


FILTERS = (
    Markdown,
    amounts,
    counted,
    difference,
    listed,
    p_value,
    percent,
    percent_span,
    span,
    value,
)
"""What a template may write numbers by."""


def frame(rows: Iterable[Any], columns: Sequence[str] | None = None) -> DataFrame:
    """Return a DataFrame of these rows, which have the columns as keys, or in their order.

    Raises:
        InputError: pandas is not installed.
    """
    return cast("DataFrame", library("pandas", "A table").DataFrame([*rows], columns=columns))


def csv_of(table: DataFrame, digits: int | None = None) -> bytes:
    """Return a table as CSV for spreadsheets, which must take no text for a formula.

    Args:
        table: A table of numbers and texts.
        digits: How many significant digits a number keeps; defaults to all.
    """

    def safe(content: object) -> object:
        return FORMULA.sub("'", plain(content)) if isinstance(content, str) else content

    cells = {name: column.map(safe) for name, column in table.select_dtypes(object).items()}
    written: str = table.assign(**cells).to_csv(
        index=False, float_format=digits and f"%.{digits}g", lineterminator="\n"
    )
    return written.encode()


def records_of(table: DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a DataFrame for JSON: what has no value is None."""
    with_none = table.astype(object).where(table.notna(), None)
    rows: list[dict[str, Any]] = with_none.to_dict(orient="records")
    return rows


def cell(content: object, *notes: object, best: object = False) -> Markdown:
    """Return a cell: what it says, and notes such as an interval in smaller type.

    Args:
        content: Text, or Markdown.
        notes: Empty ones are left out.
        best: Whether it is marked as the best of its column.
    """
    text = f"**{shown(content)}**" if best else shown(content)
    small = " ".join(filter(None, map(shown, notes)))
    return Markdown(f"{text} *{small}*" if small else text)


def table(frame: DataFrame) -> Markdown:
    """Return a table; columns that have numbers only stand to the right.

    The first column is the header of each row.
    """
    rows = [[shown(content) for content in row] for row in frame.itertuples(index=False)]
    ruler = []
    for column in range(frame.shape[1]):
        are_numbers = all(_NUMBER.match(row[column]) for row in rows)
        ruler.append("---:" if are_numbers and column > 0 else "---")
    heads = [shown(name) for name in frame.columns]
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, ruler, *rows)]
    return Markdown("\n".join(lines))
