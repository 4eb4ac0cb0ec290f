"""What things are called, and small rules of English: articles, ordinals, centuries, lists."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
NAMES: dict[str, Any] = yaml.safe_load((HERE / "names.yaml").read_text(encoding="utf-8"))

_CONSONANT = re.compile(r"(?i)(uni(?!n)|use|usu|ura|uru|uga|ukr|uto|eu|ew|one\b|once)")
_VOWEL = re.compile(r"(?i)(hour|honest|honou?r|heir|8|11(?!\d)|18(?!\d)|[aeiou])")


def with_article(phrase: str) -> str:
    """Return the phrase behind "a" or "an", as the sound of its beginning asks."""
    return f"{'an' if _VOWEL.match(phrase) and not _CONSONANT.match(phrase) else 'a'} {phrase}"


def ordinal(number: int) -> str:
    """Return 1st, 2nd, 3rd, 11th, ..."""
    is_teen = number % 100 in (11, 12, 13)
    return f"{number}{'th' if is_teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def count_word(number: int) -> str:
    """Return one to twelve in letters, larger numbers in digits with thousands set off."""
    words = NAMES["counts"]
    return str(words[number - 1]) if number <= len(words) else f"{number:,}"


def century_name(year: int, in_words: bool) -> str:
    """Return the century of a year: "19th century", "fifth century BC"."""
    number = (abs(year) - 1) // 100 + 1
    is_short = in_words and number <= len(NAMES["ordinals"])
    name = NAMES["ordinals"][number - 1] if is_short else ordinal(number)
    return f"{name} century" + (" BC" if year < 0 else "")


def year_name(year: int) -> str:
    """Return 1867, 384 BC; early years of the common era are marked as such."""
    return f"{-year} BC" if year < 0 else f"AD {year}" if year < 1000 else str(year)


def listing(items: Sequence[str]) -> str:
    """Return the items as in "a", "a and b", "a, b and c"."""
    return " and ".join(filter(None, (", ".join(items[:-1]), *items[-1:])))


def sentence(text: str) -> str:
    """Return the text with a capital first letter and one full stop."""
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "?", "!")) else f"{text}."
