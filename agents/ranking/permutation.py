"""Reads an order of passages from a model's reply, strictly, and counts repairs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fairqr.retrieval.texts.words import words_without_digits

PermutationStatus = Literal[
    "ok",
    "empty",  # nothing, or only white space
    "refused",  # an apology, and no identifier in brackets
    "essay",  # a sentence or more without a list
    "parse_error",  # anything else: one identifier, only unknown identifiers, signs
]

MAX_REPLY_CHARACTERS = 100_000

LEAST_NAMED = 2
"""The fewest items of a list, since a single identifier has no order."""

SENTENCE = 5
"""From this number of words on, a reply without a list is an essay."""

# An identifier in brackets, as the prompt asks, or bare; not a part of a word or of a decimal.
_MARK = re.compile(r"\[[ \t]{0,3}(-?[0-9]+)[ \t]{0,3}\]|(?<![\w.-])([0-9]+)(?!\w|\.[0-9])")
# Bullets that some models put before each line of a list, if an identifier follows.
_BULLET = re.compile(
    r"^[ \t]{0,8}(?:[0-9]{1,4}[.):]|[-*•])(?:[ \t]{0,8}(?=\[)|[ \t]{1,8}(?=[0-9]+[ \t]*$))",
    re.MULTILINE,
)
_HEAD = re.compile(r"(?:^|>)[ \t*]{0,8}\[[ \t]{0,3}(-?[0-9]+)[ \t]{0,3}\]", re.MULTILINE)
_LETTER = re.compile(r"[^\W\d_]")
_APOLOGY = re.compile(
    r"\b(?:sorry|apologi[sz]e|apologies|as an ai)\b"
    r"|\b(?:I|we)\b[^.\n]{0,20}\b(?:cannot|can['’]?t|can not|won['’]t|will not|unable|not able"
    r"|decline|refuse)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Permutation:
    """The order in a reply.

    Attributes:
        status: ``ok``, or why there is no order.
        order: Positions from 0, best first, each exactly once; empty unless ``ok``.
        repairs: How many items were repaired, by kind. ``missing`` items go to the end in their
            earlier order. A ``duplicate`` counts only at its first place. A ``stranger``, a number
            that no item has, is dropped.
    """

    status: PermutationStatus
    order: tuple[int, ...] = ()
    repairs: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Run:
    """Identifiers of one kind with only separators between them."""

    begin: int
    end: int
    numbers: list[int]
    bracketed: bool


def parse_permutation(reply: str, n: int) -> Permutation:
    """Read the order of ``n`` passages with the identifiers 1 to n.

    A list is a run of identifiers, all in brackets or all bare, such as ``[3] > [1] > [2]`` and
    ``3, 1, 2``. Between them are ``>``, commas or line breaks; in brackets, spaces are enough.
    Ordinals and bullets at the beginning of lines are not identifiers. Among several lists, the one
    that names the most items counts; among equals, the last one. If a list names at least half of
    the items, any text may surround it. A shorter list must be alone, except for a lead-in that
    ends with a colon. Otherwise, bracketed identifiers at the beginning of lines, or of parts
    between ``>``, are a list if they name half of the items, whatever follows them.

    A list names at least two items. Missing and surplus items are repaired and counted.

    Args:
        reply: The text that the model wrote; only the first 100,000 characters are read. Only
            English apologies are recognised.
        n: The number of passages, at least 2.
    """
    text = _BULLET.sub("", reply[:MAX_REPLY_CHARACTERS].strip())
    if not text:
        return Permutation("empty")
    numbers = _listed(text, n)
    if numbers:
        return _mended(numbers, n)
    if _APOLOGY.search(text) and not any(mark[1] for mark in _MARK.finditer(text)):
        return Permutation("refused")
    if len(words_without_digits(text)) >= SENTENCE:
        return Permutation("essay")
    return Permutation("parse_error")


def _listed(text: str, n: int) -> Sequence[int]:
    """Return the numbers of the list; empty if there is no list."""
    runs = _runs(text)
    best = max(runs, key=lambda run: (_named(run.numbers, n), run.begin), default=None)
    named = _named(best.numbers, n) if best else 0
    if best and named >= LEAST_NAMED and 2 * named >= n:
        return best.numbers
    heads = [_number(digits) for digits in _HEAD.findall(text)]
    if (found := _named(heads, n)) >= LEAST_NAMED and 2 * found >= n:
        return heads
    if best and named >= LEAST_NAMED and _stands_alone(text, best):
        return best.numbers
    return ()


def _runs(text: str) -> list[_Run]:
    runs: list[_Run] = []
    for mark in _MARK.finditer(text):
        bracketed, number = mark[1] is not None, _number(mark[1] or mark[2])
        last = runs[-1] if runs else None
        if last and last.bracketed == bracketed:
            between = text[last.end : mark.start()]
            # Bare numbers with only spaces between them may not be a list.
            if not between.strip(" \t\r\n>,") and (bracketed or between.strip(" \t")):
                last.numbers.append(number)
                last.end = mark.end()
                continue
        runs.append(_Run(mark.start(), mark.end(), [number], bracketed))
    return runs


def _stands_alone(text: str, run: _Run) -> bool:
    before = text[: run.begin].rstrip(" \t\r\n*_`[(")
    after = text[run.end :]
    return not _LETTER.search(after) and (before.endswith(":") or not _LETTER.search(before))


def _number(digits: str) -> int:
    # No list has this many items, and Python refuses to parse thousands of digits.
    return int(digits) if len(digits) < 10 else 0


def _named(numbers: Sequence[int], n: int) -> int:
    return len({number for number in numbers if 1 <= number <= n})


def _mended(numbers: Sequence[int], n: int) -> Permutation:
    known = [number - 1 for number in numbers if 1 <= number <= n]
    given = dict.fromkeys(known)  # in the order of their first mention
    missing = [place for place in range(n) if place not in given]
    repairs = Counter(
        missing=len(missing),
        duplicate=len(known) - len(given),
        stranger=len(numbers) - len(known),
    )
    return Permutation("ok", (*given, *missing), {kind: it for kind, it in repairs.items() if it})
