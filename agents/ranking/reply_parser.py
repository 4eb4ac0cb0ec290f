"""Reads orders and preferences from the replies of models, strictly, and counts repairs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

LABELS = ("A", "B")
"""The labels of the first and the second document in the prompt ``pairwise``."""

Position = Literal["first", "second"]

Unreadable = Literal[
    "empty",  # nothing, or only white space
    "refused",  # an apology, and no identifier in brackets
    "parse_error",  # anything else: an essay, one identifier, only unknown identifiers, signs
]

MAX_REPLY_CHARACTERS = 100_000

LEAST_NAMED = 2
"""The fewest items of a list, since a single identifier has no order."""

# Possessive quantifiers keep the time linear, whatever a model writes.
_BRACKETED = r"\[[ \t]{0,3}(-?[0-9]++)[ \t]{0,3}\]"
_BARE = r"(?<![\w.-])[0-9]++(?!\w|\.[0-9])"
# Bare numbers with only spaces between them may not be a list.
_LISTS = (
    re.compile(rf"{_BRACKETED}(?:[ \t\r\n>,]*+{_BRACKETED})*+"),
    re.compile(rf"{_BARE}(?:[ \t]*+[\r\n>,][ \t\r\n>,]*+{_BARE})*+"),
)
_HEAD = re.compile(rf"(?:^|>)[ \t*]{{0,8}}{_BRACKETED}", re.MULTILINE)
# Bullets that some models put before each line of a list, if an identifier follows.
_BULLET = re.compile(
    r"^[ \t]{0,8}(?:[0-9]{1,4}[.):]|[-*•])(?:[ \t]{0,8}(?=\[)|[ \t]{1,8}(?=[0-9]+[ \t]*$))",
    re.MULTILINE,
)
_IDENTIFIER = re.compile(r"\[(\s*-?\d+\s*)\]")
_LETTER = re.compile(r"[^\W\d_]")
_APOLOGY = re.compile(
    r"\b(?:sorry|apologi[sz]e|apologies|as an ai)\b"
    r"|\b(?:I|we)\b[^.\n]{0,20}\b(?:cannot|can['’]?t|can not|won['’]t|will not|unable|not able"
    r"|decline|refuse)\b",
    re.IGNORECASE,
)

_NOUN = r"(?:the )?(?:passage|article|document|text|item|option|choice|label)s?"
_ONE = rf"(?:{_NOUN} )?([ab])"
_MORE = rf"(?:the )?(?:more|most) relevant(?: (?:one|{_NOUN}))?"
_LEAD = rf"(?:(?:(?:(?:my|the|final) )*(?:answer|choice)|{_MORE})(?: is|:) ?)?"
_ANSWER = re.compile(rf"{_LEAD}{_ONE}(?: is {_MORE}(?: to the query)?)?")
# What people and models put around a letter: **A**, (A), [A], "A", `A`.
_MARKS = re.compile(r"[*_`\"\u201c\u201d()\[\]{}<>]")
_AROUND = " .,:;!?'#-"


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

    status: Literal["ok", Unreadable]
    order: tuple[int, ...] = ()
    repairs: Mapping[str, int] = field(default_factory=dict)


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
    numbers = _listed(text, n)
    if not numbers:
        return Permutation(_unreadable(text))
    positions = [number - 1 for number in numbers if 1 <= number <= n]
    order = dict.fromkeys(positions)  # by their first mention
    missing = [position for position in range(n) if position not in order]
    repairs = Counter(
        missing=len(missing),
        duplicate=len(positions) - len(order),
        stranger=len(numbers) - len(positions),
    )
    return Permutation("ok", (*order, *missing), dict(+repairs))


def parse_preference(reply: str) -> Position | Unreadable:
    """Read which of the two documents a reply prefers.

    A reply is an answer if the whole reply, or one of its lines, is a label. The label may have a
    noun before it, marks around it, or the words of the question: ``A``, ``(B)``, ``**A**``,
    ``Passage B.``, ``Answer: A``, ``The more relevant passage is B``, ``A is more relevant``. Other
    lines, such as explanations, are ignored. Two lines that answer differently are no answer.

    Args:
        reply: The text that the model wrote; only the first 100,000 characters are read.
    """
    text = _MARKS.sub("", reply[:MAX_REPLY_CHARACTERS].casefold().replace("\u2019", "'"))
    labels = set()
    for line in text.splitlines():
        answer = _ANSWER.fullmatch(" ".join(line.split()).strip(_AROUND))
        if answer:
            labels.add(answer[1])
    if len(labels) != 1:
        return _unreadable(text)
    return "first" if LABELS[0].casefold() in labels else "second"


def parse_first_of_two(reply: str) -> Position | Unreadable:
    """Read which of two passages a reply ranks first; :func:`parse_permutation` reads the order."""
    permutation = parse_permutation(reply, 2)
    if permutation.status != "ok":
        return permutation.status
    return "first" if permutation.order[0] == 0 else "second"


def without_identifiers(text: str) -> str:
    """Return a text whose ``[3]`` are ``(3)``: a title with an identifier must rank no article."""
    return _IDENTIFIER.sub(r"(\1)", text)


def _unreadable(text: str) -> Unreadable:
    """Return what a reply is that gives no answer."""
    if not text.strip():
        return "empty"
    has_identifier = re.search(_BRACKETED, text) is not None
    if _APOLOGY.search(text) and not has_identifier:
        return "refused"
    return "parse_error"


def _listed(text: str, n: int) -> Sequence[int]:
    """Return the numbers of the list; empty if there is no list."""

    def count_items(numbers: Sequence[int]) -> int:
        """Return how many items the numbers name."""
        return len({number for number in numbers if 1 <= number <= n})

    runs: list[re.Match[str]] = []
    for pattern in _LISTS:
        runs += pattern.finditer(text)
    best = max(runs, key=lambda run: (count_items(_numbers(run[0])), run.start()), default=None)
    numbers_in_best = _numbers(best[0]) if best else []
    heads = _numbers(" ".join(_HEAD.findall(text)))
    for numbers in (numbers_in_best, heads):
        count = count_items(numbers)
        if count >= LEAST_NAMED and 2 * count >= n:
            return numbers
    # A shorter list must stand alone.
    if best and count_items(numbers_in_best) >= LEAST_NAMED and _stands_alone(best, text):
        return numbers_in_best
    return []


def _stands_alone(run: re.Match[str], text: str) -> bool:
    """Return whether a list has no words around it but a lead-in that ends with a colon."""
    before = text[: run.start()].rstrip(" \t\r\n*_`[(")
    after = text[run.end() :]
    may_follow = before.endswith(":") or not _LETTER.search(before)
    return may_follow and not _LETTER.search(after)


def _numbers(text: str) -> list[int]:
    """Return the numbers in a text; those of ten digits and more as 0, which no item has."""
    # Python refuses to parse thousands of digits.
    digits = re.findall(r"-?[0-9]+", text)
    return [int(number) if len(number) < 10 else 0 for number in digits]
