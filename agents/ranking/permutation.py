"""Reading an order of passages from what a model wrote, strictly, with repairs that are counted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Permutation", "PermutationStatus", "parse_permutation"]

PermutationStatus = Literal[
    "ok",
    "empty",  # nothing, or white space only
    "refused",  # an apology, and no identifier in brackets
    "essay",  # a sentence or more without a list
    "parse_error",  # anything else: one identifier, strangers only, signs
]

MAX_REPLY_CHARACTERS = 100_000

LEAST_NAMED = 2
"""Items that a list names at least: one identifier is in no order."""

SENTENCE = 5
"""Words from which a reply without a list is an essay."""

# In brackets as the prompt asks for, or bare; a part of a word or of a decimal is neither.
_MARK = re.compile(r"\[[ \t]{0,3}(-?[0-9]+)[ \t]{0,3}\]|(?<![\w.-])([0-9]+)(?!\w|\.[0-9])")
# What some models put before each line of a list; only where an identifier comes after it.
_BULLET = re.compile(
    r"^[ \t]{0,8}(?:[0-9]{1,4}[.):]|[-*•])(?:[ \t]{0,8}(?=\[)|[ \t]{1,8}(?=[0-9]+[ \t]*$))",
    re.MULTILINE,
)
_HEAD = re.compile(r"(?:^|>)[ \t*]{0,8}\[[ \t]{0,3}(-?[0-9]+)[ \t]{0,3}\]", re.MULTILINE)
_LETTER = re.compile(r"[^\W\d_]")
_WORD = re.compile(r"[^\W\d_]+")
_APOLOGY = re.compile(
    r"\b(?:sorry|apologi[sz]e|apologies|as an ai)\b"
    r"|\b(?:I|we)\b[^.\n]{0,20}\b(?:cannot|can['’]?t|can not|won['’]t|will not|unable|not able"
    r"|decline|refuse)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Permutation:
    """The order that a reply gives.

    Attributes:
        status: ``ok``, or why there is none.
        order: Positions from 0, best first, each exactly once; empty unless ``ok``.
        repairs: What was mended, in items; kinds that did not occur are left out. ``missing`` ones
            stand at the end in the order they had; a ``duplicate`` is dropped where it comes
            again; a ``stranger``, whose number no item has, is dropped.
    """

    status: PermutationStatus
    order: tuple[int, ...] = ()
    repairs: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Run:
    """Identifiers of one kind with nothing but separators between them."""

    begin: int
    end: int
    numbers: list[int]
    bracketed: bool


def parse_permutation(reply: str, n: int) -> Permutation:
    """Read the order of ``n`` passages with the identifiers 1 to n.

    A list is a run of identifiers, all in brackets or all bare, with ``>``, commas or line breaks
    between them (bracketed ones may have spaces only), such as ``[3] > [1] > [2]`` and
    ``3, 1, 2``. Ordinals and bullets at the begin of lines are no identifiers. Of several lists
    the one that names the most items counts, the last one of equals. Any text may stand around a
    list that names half of the items or more. A shorter one has to stand alone, after nothing but a
    lead-in that ends with a colon. Without such a list, bracketed identifiers that begin lines, or
    parts between ``>``, are one, whatever follows them there, if they name half of the items.

    A list names two items at the least. What it lacks or has too much is mended and counted.

    Args:
        reply: What the model wrote; cut to a hundred thousand characters. Apologies are known in
            English only.
        n: At least 2.
    """
    text = _BULLET.sub("", reply[:MAX_REPLY_CHARACTERS].strip())
    if not text:
        return Permutation("empty")
    numbers = _listed(text, n)
    if numbers:
        return _mended(numbers, n)
    if _APOLOGY.search(text) and not any(mark[1] for mark in _MARK.finditer(text)):
        return Permutation("refused")
    if len(_WORD.findall(text)) >= SENTENCE:
        return Permutation("essay")
    return Permutation("parse_error")


def _listed(text: str, n: int) -> Sequence[int]:
    """Return the numbers of the list; none where there is no list."""
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
            # Bare numbers with spaces only between them need not be a list.
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
    # Nobody has so many items; and Python refuses to read thousands of digits.
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
