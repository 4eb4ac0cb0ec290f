"""Small rules of English: articles, ordinals, centuries, lists, pronouns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_SOUNDS_LIKE_YOU_OR_ONE = re.compile(r"(?i)(uni(?!n)|use|usu|ura|uru|uga|ukr|uto|eu|ew|one\b|once)")
_SILENT_H = re.compile(r"(?i)(hour|honest|honou?r|heir)")
_VOWEL_NUMBER = re.compile(r"(8|11(?!\d)|18(?!\d))")

_WORDS = (
    *("zeroth", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth"),
    *("ninth", "tenth", "eleventh", "twelfth", "thirteenth", "fourteenth", "fifteenth"),
    *("sixteenth", "seventeenth", "eighteenth", "nineteenth", "twentieth", "twenty-first"),
)
_COUNTS = (
    *("no", "one", "two", "three", "four", "five", "six"),
    *("seven", "eight", "nine", "ten", "eleven", "twelve"),
)


def article(phrase: str) -> str:
    """Either "a" or "an", as the sound of the phrase's beginning asks."""
    if phrase[:1].isdigit():
        return "an" if _VOWEL_NUMBER.match(phrase) else "a"
    if _SILENT_H.match(phrase):
        return "an"
    if _SOUNDS_LIKE_YOU_OR_ONE.match(phrase):
        return "a"
    return "an" if phrase[:1].lower() in set("aeiou") else "a"


def with_article(phrase: str) -> str:
    """The phrase behind its indefinite article."""
    return f"{article(phrase)} {phrase}"


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 11th, ..."""
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def ordinal_word(number: int) -> str:
    """First, second, ... as far as words are short; digits beyond."""
    return _WORDS[number] if 0 < number < len(_WORDS) else ordinal(number)


def count_word(number: int) -> str:
    """One to twelve in letters, larger numbers in digits with thousands set off."""
    return _COUNTS[number] if 0 < number < len(_COUNTS) else f"{number:,}"


def century(year: int) -> int:
    """The number of a year's century, counted from 1 on either side of the common era."""
    return (abs(year) - 1) // 100 + 1


def century_name(year: int, in_words: bool = False) -> str:
    """The century of a year: "19th century", "fifth century BC"."""
    number = century(year)
    name = ordinal_word(number) if in_words else ordinal(number)
    return f"{name} century" + (" BC" if year < 0 else "")


def year_name(year: int) -> str:
    """1867, 384 BC; early years of the common era are marked as such."""
    if year < 0:
        return f"{-year} BC"
    return f"AD {year}" if year < 1000 else str(year)


def listing(items: Sequence[str]) -> str:
    """The items as in "a", "a and b", "a, b and c"."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"


def sentence(text: str) -> str:
    """The text with a capital first letter and one full stop."""
    text = text.strip()
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "?", "!")) else f"{text}."


@dataclass(frozen=True)
class Voice:
    """How a text refers to its person once the name has been given."""

    subject: str
    objective: str
    possessive: str

    @classmethod
    def pronouns(cls, gender: str) -> Voice:
        """She and her, or he, him and his."""
        return cls("she", "her", "her") if gender == "female" else cls("he", "him", "his")

    @classmethod
    def naming(cls, subject: str, name: str) -> Voice:
        """The name in place of pronouns; as a subject, it may be a phrase like "this painter"."""
        return cls(subject, name, f"{name}'" if name.endswith("s") else f"{name}'s")
