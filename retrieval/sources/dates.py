"""The years of dates, as files, engines and programs write them.

A format is that of an Elasticsearch mapping: names such as ``epoch_millis`` and ``basic_date``, and
patterns of Java such as ``dd.MM.yyyy``; ``||`` stands between several. Groups of dates are ranges
of years, so nothing but the year is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from functools import cache

DEFAULT_FORMATS = "strict_date_optional_time||epoch_millis"
"""The formats of a field of dates whose mapping states none."""

SECONDS = {"epoch_second": 1, "epoch_millis": 1000}
"""How many units of a number make a second."""

CENTURY = 2000
"""What a year of two digits begins with, as in Java."""

_ISO = re.compile(r"([+-]?\d{4})(?:-\d{1,2}|-W\d{1,2}|T|\s|$)")
_BASIC = re.compile(r"(\d{4})(?:\d{3,4}|W\d{2,3})(?:T\S*)?$")
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?$")
_PARTS = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|.")

_DIGITS = "dDMLHhkKmsSnNAewWQqc"
_WORDS = "EaGBLM"


def year_of(value: object, formats: str = "") -> int | None:
    """Return the year of a date.

    Args:
        value: A date, or its text or number.
        formats: How it is written; by default as a year or a date of ISO 8601, in full or in part.

    Returns:
        None if it is no date: a number is one only if it can be a year, or a format says so.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, date):
        return value.year
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value).strip()
    for format_ in filter(None, map(str.strip, formats.split("||"))):
        if (year := _reader_of(format_)(text)) is not None:
            return year
    return _by_pattern(_ISO, text)


@cache
def _reader_of(format_: str) -> Callable[[str], int | None]:
    """Return what reads the year of a text in one format."""
    name = format_.removeprefix("8").removeprefix("strict_")
    if name in SECONDS:
        return lambda text: _by_seconds(text, SECONDS[name])
    if name.startswith("basic_"):
        return lambda text: _by_pattern(_BASIC, text)
    if re.fullmatch(r"[a-z_]*(date|year|week)[a-z_]*", name):
        return lambda text: _by_pattern(_ISO, text)
    pattern = _pattern_of(format_.removeprefix("8"))
    return lambda text: None if pattern is None else _by_pattern(pattern, text)


def _by_seconds(text: str, units: int) -> int | None:
    if not _NUMBER.match(text):
        return None
    try:
        return datetime.fromtimestamp(float(text) / units, UTC).year
    except (OverflowError, ValueError, OSError):  # no year has so many
        return None


def _by_pattern(pattern: re.Pattern[str], text: str) -> int | None:
    if (found := pattern.match(text)) is None:
        return None
    year = int(found[1])
    return CENTURY + year if len(found[1]) == 2 else year


def _pattern_of(java: str) -> re.Pattern[str] | None:
    """Return a pattern of Java's dates as a regular expression; None if it has no year."""
    parts = []
    has_year = False
    for part in _PARTS.finditer(java):
        whole = part[0]
        letter = part[2]
        if whole in "[]":
            parts.append("(?:" if whole == "[" else ")?")
        elif letter is None:
            quoted = part[1] or "'" if whole.startswith("'") else whole
            parts.append(re.escape(quoted))
        elif letter in "yuxY" and not has_year:
            digits = r"\d{2}" if len(whole) == 2 else r"\d{4}"
            parts.append(f"({digits})")
            has_year = True
        elif letter in "XxZzVO":
            parts.append(r"\S+")
        elif letter in _WORDS and (len(whole) > 2 or letter in "EaGB"):
            parts.append(r"[^\W\d](?:[^\W\d]|\.)*")
        elif letter in _DIGITS:
            parts.append(rf"\d{{1,{max(len(whole), 2)}}}")
        else:
            parts.append(r"\S*")
    if not has_year:
        return None
    try:
        return re.compile(f"{''.join(parts)}$")
    except re.error:  # a bracket alone, which Java refuses
        return None
