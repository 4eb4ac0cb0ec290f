"""Text and numbers as a report shows them.

What a collection, a model or a user named is never markup: everything that a template prints is
escaped, except for :class:`Markdown`, which the functions of this module make.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol

__all__ = [
    "Markdown",
    "amounts",
    "counted",
    "difference",
    "escaped",
    "listed",
    "p_value",
    "percent",
    "percent_span",
    "plain",
    "points",
    "points_span",
    "shown",
    "span",
    "value",
]

MINUS = "−"
NOTHING = "–"

_SPECIAL = re.compile(r"([\\`*_\[\]<>|~$#!])")
_ENTITY = re.compile(r"&(?=#?\w+;)")
_OPENING = re.compile(r"^(?:[-+=]|[0-9]+[.)](?=\s))")


class Markdown(str):
    """Text that is Markdown already."""

    __slots__ = ()


class _Ends(Protocol):
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


def plain(text: object) -> str:
    """Return text on one line, without characters that cannot be printed or that turn it round.

    Such characters show as U+FFFD.
    """
    flat = " ".join(str(text).split())
    if flat.isprintable():
        return flat
    return "".join(c if c.isprintable() else "\ufffd" for c in flat)


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


def value(number: float | None) -> Markdown:
    """Write the value of a measure with four decimals, as the field does."""
    return Markdown(NOTHING if _is_missing(number) else _unsigned_zero(f"{number:.4f}"))


def difference(number: float | None) -> Markdown:
    """Write a difference of two values, with its sign."""
    return Markdown(NOTHING if _is_missing(number) else _signed(f"{number:+.4f}"))


def percent(ratio: float | None, *, signed: bool = False) -> Markdown:
    """Write a ratio in percent with one decimal; a change is signed."""
    if ratio is None or _is_missing(ratio):
        return Markdown(NOTHING)
    text = f"{100 * ratio:+.1f}%" if signed else f"{100 * ratio:.1f}%"
    return Markdown(_signed(text) if signed else _unsigned_zero(text))


def points(difference: float | None) -> Markdown:
    """Write a difference of two shares in percentage points with one decimal and its sign."""
    if difference is None or _is_missing(difference):
        return Markdown(NOTHING)
    return Markdown(_signed(f"{100 * difference:+.1f}"))


def span(interval: _Ends | Sequence[float | None] | None) -> Markdown:
    """Write an interval, or its two ends; nothing without any, or if it is a point."""
    return _interval(interval, 1, 3, "")


def percent_span(interval: _Ends | Sequence[float | None] | None) -> Markdown:
    """Write an interval of shares in percent; nothing if there is none."""
    return _interval(interval, 100, 1, "%")


def points_span(interval: _Ends | Sequence[float | None] | None) -> Markdown:
    """Write an interval of a difference in percentage points; nothing if there is none."""
    return _interval(interval, 100, 1, "")


def _interval(
    interval: _Ends | Sequence[float | None] | None, scale: float, decimals: int, unit: str
) -> Markdown:
    if interval is None:
        return Markdown()
    ends = interval if isinstance(interval, Sequence) else (interval.low, interval.high)
    if any(_is_missing(end) for end in ends) or ends[0] == ends[1]:
        return Markdown()
    low, high = (_unsigned_zero(f"{scale * (end or 0.0):.{decimals}f}{unit}") for end in ends)
    return Markdown(rf"\[{low}, {high}\]")


def p_value(number: float | None, *, name: str = "") -> Markdown:
    """Write a p value, behind a name and its sign if one is given: ``p = 0.0312``."""
    if number is None or _is_missing(number):
        return Markdown(f"{name} none".strip())
    if number < 0.0001:
        return Markdown(f"{name} \\< 0.0001".strip())
    return Markdown(f"{name} = {number:.4f}" if name else f"{number:.4f}")


def amounts(numbers: Sequence[float]) -> Markdown:
    """Write amounts such as tokens or milliseconds, alike and as exactly as the largest needs."""
    if not len(numbers):
        return Markdown(NOTHING)
    largest = max(numbers)
    whole = largest >= 100 or all(amount == int(amount) for amount in numbers)
    decimals = 0 if whole else 1 if largest >= 10 else 2
    return Markdown(" / ".join(f"{amount:,.{decimals}f}" for amount in numbers))


def counted(number: int, one: str, many: str = "") -> Markdown:
    """Write a number of things, such as ``1 topic`` or ``57 topics``."""
    return Markdown(f"{number:,} {escaped(one if number == 1 else many or one + 's')}")


def listed(counts: Mapping[str, int]) -> Markdown:
    """Write how many there are of each kind, such as ``1 × refused; 2 × timeout``."""
    kinds = sorted(counts.items())
    return Markdown("; ".join(f"{count} × {escaped(name)}" for name, count in kinds))


def _is_missing(number: float | None) -> bool:
    return number is None or number != number


def _unsigned_zero(text: str) -> str:
    """Use the minus of mathematics; a rounded zero has none."""
    return text.replace("-", "" if not text.strip("-0.%") else MINUS)


def _signed(text: str) -> str:
    """Use the signs of mathematics; a rounded zero has none."""
    return text.lstrip("+-") if not text.strip("+-0.%") else text.replace("-", MINUS)
