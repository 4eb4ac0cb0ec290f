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

# As in 1950-03-01, 1950, 1950-W09 and 1950?; the year comes first.
_ISO = re.compile(r"([+-]?\d{4})(?:[-/.]\d{1,2}|-W\d{1,2}|T|\s|[?~]?$)")
_YEAR_LAST = re.compile(
    r"\d{1,2}[-/.](?:\d{1,2}[-/.])?(?P<numbers>\d{4})(?:[T\s]|$)"
    r"|(?:\d{1,2}\.?\s)?[^\W\d]+\.?\s(?:\d{1,2},?\s)?(?P<words>\d{4})$"
)
"""As in 03/01/1950 and 1 March 1950; the order of day and month does not matter."""
# As in 19500301, 1950060 and 1950W095.
_BASIC = re.compile(r"(\d{4})(?:\d{3,4}|W\d{2,3})(?:T\S*)?$")
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?$")
_PARTS = re.compile(r"(?P<quoted>'(?:[^']|'')*')|(?P<field>(?P<letter>[A-Za-z])(?P=letter)*)|.")
"""What a pattern of Java consists of: texts in quotes, fields such as ``yyyy``, and signs."""

YEARS = "yuxY"
ZONES = "XxZzVO"
DIGITS = "dDMLHhkKmsSnNAewWQqc"
WORDS = "EaGB"
MONTHS = "LM"
"""The letters of fields in a pattern of Java. Months of three letters or more are words."""

OPTIONAL = {"[": "(?:", "]": ")?"}
"""The brackets around what may be left out in a pattern of Java, in a regular expression."""


def year_of(value: object, formats: str = "") -> int | None:
    """Return the year of a date.

    Args:
        value: A date, or its text or number.
        formats: How it is written; by default as a year or a date in full or in part, whose year of
            four digits comes first or last.

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
        year = _reader_of(format_)(text)
        if year is not None:
            return year
    year = _by_pattern(_ISO, text)
    if year is None and not formats:
        year = _year_at_end(text)
    return year


def _year_at_end(text: str) -> int | None:
    """Return the year of a date whose year of four digits comes last."""
    match = _YEAR_LAST.match(text)
    if match is None:
        return None
    return int(match["numbers"] or match["words"])


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
    """Return the year of a time since 1970, in units of which this number makes a second."""
    if not _NUMBER.match(text):
        return None
    try:
        return datetime.fromtimestamp(float(text) / units, UTC).year
    except (OverflowError, ValueError, OSError):  # no year has so many
        return None


def _by_pattern(pattern: re.Pattern[str], text: str) -> int | None:
    """Return the year that a pattern has as its first group, or None if it does not match."""
    match = pattern.match(text)
    if match is None:
        return None
    digits = match[1]
    if len(digits) == 2:
        return CENTURY + int(digits)
    return int(digits)


def _pattern_of(java: str) -> re.Pattern[str] | None:
    """Return a pattern of Java's dates as a regular expression; None if it has no year."""
    parts = []
    has_year = False
    for part in _PARTS.finditer(java):
        field = part["field"]
        if field and field[0] in YEARS and not has_year:
            parts.append(_year_field(field))
            has_year = True
        elif field:
            parts.append(_other_field(field))
        elif part["quoted"]:
            parts.append(_quoted_text(part["quoted"]))
        else:
            parts.append(OPTIONAL.get(part[0], re.escape(part[0])))
    if not has_year:
        return None
    try:
        return re.compile(f"{''.join(parts)}$")
    except re.error:  # a bracket alone, which Java refuses
        return None


def _year_field(field: str) -> str:
    """Return what matches a year, as a group."""
    return r"(\d{2})" if len(field) == 2 else r"(\d{4})"


def _other_field(field: str) -> str:
    """Return what matches a field whose value is not read, such as ``MM`` or ``EEE``."""
    letter = field[0]
    is_name_of_month = letter in MONTHS and len(field) > 2
    if letter in ZONES:
        return r"\S+"
    if letter in WORDS or is_name_of_month:
        return r"[^\W\d](?:[^\W\d]|\.)*"
    if letter in DIGITS:
        longest = max(len(field), 2)
        return rf"\d{{1,{longest}}}"
    return r"\S*"


def _quoted_text(quoted: str) -> str:
    """Return what matches a text in quotes; two quotes are one."""
    text = quoted[1:-1].replace("''", "'")
    return re.escape(text or "'")
