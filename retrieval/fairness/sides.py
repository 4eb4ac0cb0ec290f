"""One group against the rest: which documents are protected, and what the two sides are called."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairqr.base.errors import InputError, one_line
from fairqr.retrieval.sources.schema import Attribute

SIDES_HELP = "The protected group: female; not Europe; or 'female vs male' to leave others out."

DEFAULT = "female"
TOLERANCE = 1e-9
LONGEST_WORD = 100

_ADJECTIVES = {
    "Africa": "African",
    "Asia": "Asian",
    "Europe": "European",
    "North America": "North American",
    "Oceania": "Oceanian",
    "South America": "South American",
}
_VERSUS = re.compile(r"\s+vs\.?\s+")


@dataclass(frozen=True, slots=True)
class Sides:
    """Two sides of an attribute.

    Attributes:
        attribute: Its name.
        universe: All groups, in the order of memberships.
        protected: The groups that count as protected.
        unprotected: The groups that do not. A group on neither side does not count.
        words: What a sentence calls the protected side and the other: ``female``.
    """

    attribute: str
    universe: tuple[str, ...]
    protected: tuple[str, ...]
    unprotected: tuple[str, ...]
    words: tuple[str, str]

    def of(self, memberships: ArrayLike) -> NDArray[np.int8]:
        """Return the side of each document: 1 protected, 0 not protected, −1 undecided.

        A document is on the side that it belongs to more. It is undecided if both sides are equal,
        or if it belongs to neither.

        Args:
            memberships: Shape (n, G) over ``universe``.

        Returns:
            Shape (n,).
        """
        members = np.asarray(memberships, dtype=np.float64)
        gain = members[:, self._places(self.protected)].sum(axis=1)
        gain = gain - members[:, self._places(self.unprotected)].sum(axis=1)
        sides = np.where(gain > TOLERANCE, 1, np.where(gain < -TOLERANCE, 0, -1))
        return sides.astype(np.int8)

    def _places(self, groups: Sequence[str]) -> list[int]:
        return [self.universe.index(group) for group in groups]


def parse_sides(attribute: Attribute, text: str, words: tuple[str, str] | None = None) -> Sides:
    """Parse which groups are protected.

    Args:
        attribute: The attribute from the schema.
        text: Comma-separated groups that are protected against all others: ``female``; ``not`` and
            groups, which protects all others: ``not Europe``; or both sides: ``female vs male``.
        words: What the sides are called. By default a side is called by its one group; or by
            ``non-`` and the other side's one group; or by its groups, joined with ``or``.

    Raises:
        InputError: A group does not exist or is on both sides, a side is empty, or both sides are
            called the same.
    """
    known = list(attribute.groups)
    # The name of a group may contain these words.
    parts = [text.strip()] if text.strip() in known else _VERSUS.split(text.strip())
    negated = parts[0].startswith("not ") and parts[0] not in known
    if len(parts) > 2 or (negated and len(parts) > 1):
        raise InputError(
            f"'{one_line(text, 100)}' does not give two sides; write one 'vs' or one 'not'."
        )
    if negated:
        parts = [parts[0].removeprefix("not ")]
    named = [_groups(part, known, attribute.name) for part in parts]
    rest = [group for group in known if group not in named[0]]
    one, other = named[0], named[1] if len(named) > 1 else rest
    if set(one) & set(other):
        raise InputError(f"'{one_line(text, 100)}' has a group on both sides; keep it on one.")
    if not other:
        raise InputError(
            f"'{one_line(text, 100)}' leaves no group of {attribute.name} for the other side."
        )
    protected, unprotected = (other, one) if negated else (one, other)
    if words is None:
        words = (_word(protected, unprotected), _word(unprotected, protected))
    else:
        words = _checked(words)
    return Sides(attribute.name, attribute.universe, tuple(protected), tuple(unprotected), words)


def default_protected(attribute: Attribute) -> str:
    """Return the group that is protected by default: ``female``.

    Raises:
        InputError: The attribute has no such group.
    """
    if DEFAULT not in attribute.groups:
        raise InputError(
            f"Say which group of {attribute.name} is protected: one of "
            f"{', '.join(attribute.groups)}, or 'not' and one of them."
        )
    return DEFAULT


def _checked(words: tuple[str, str]) -> tuple[str, str]:
    """Check a user's words for the sides, which appear in prompts and in tables."""
    one, other = (word.strip() for word in words)
    for word in (one, other):
        if not word or not word.isprintable() or len(word) > LONGEST_WORD:
            raise InputError(
                "Each side needs a word, such as female: one line of at most "
                f"{LONGEST_WORD} characters."
            )
    if one.casefold() == other.casefold():
        raise InputError(f"Both sides are called '{one}'; choose two different words.")
    return one, other


def _groups(text: str, known: Sequence[str], attribute: str) -> list[str]:
    # The name of a group may contain a comma.
    names = [text.strip()] if text.strip() in known else [part.strip() for part in text.split(",")]
    for name in names:
        if name not in known:
            raise InputError(
                f"There is no group '{one_line(name, 60)}' of {attribute}; choose among "
                f"{', '.join(known)}."
            )
    return list(dict.fromkeys(names))


def _word(groups: Sequence[str], others: Sequence[str]) -> str:
    if len(groups) == 1:
        return _ADJECTIVES.get(groups[0], groups[0])
    if len(others) == 1:
        return f"non-{_ADJECTIVES.get(others[0], others[0])}"
    return " or ".join(_ADJECTIVES.get(group, group) for group in groups)
