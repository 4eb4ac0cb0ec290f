"""One group against the rest: which groups are protected, and what both sides are called."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairqr.base.errors import InputError, one_line
from fairqr.retrieval.sources.schema import UNKNOWN, Attribute

TOLERANCE = 1e-9

_ADJECTIVES = {"Europe": "European"} | {
    place: f"{place}n" for place in ("Africa", "Asia", "North America", "Oceania", "South America")
}


_VERSUS = re.compile(r"(?<!\s)\s+vs\.?\s+")


@dataclass(frozen=True, slots=True)
class ProtectedGroup:
    """Protected groups of an attribute, and those that they are compared with.

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

    @classmethod
    def parse(
        cls, attribute: Attribute, text: str, words: tuple[str, str] | None = None
    ) -> ProtectedGroup:
        """Parse which groups are protected.

        Args:
            attribute: The attribute from the schema.
            text: Comma-separated groups that are protected against all others: ``female``; ``not``
                and groups, which protects all others: ``not Europe``; or both sides: ``female vs
                male``.
            words: What the sides are called. By default a side is called by its one group; or by
                ``non-`` and the other side's one group; or by its groups, joined with ``or``.

        Raises:
            InputError: A group does not exist or is on both sides, a side is empty, or both sides
                are called the same.
        """
        known = attribute.groups
        # The name of a group may contain "not" or "vs".
        parts = [text] if text.strip() in known else _VERSUS.split(text, maxsplit=1)
        named = _groups(parts[0], attribute)
        rest = tuple(group for group in known if group not in named)
        other = _groups(parts[1], attribute) if len(parts) > 1 else rest
        if not named or not other or not rest or {*named} & {*other}:
            raise InputError(
                f"'{one_line(text, 100)}' needs groups of {attribute.name} on both sides, each on "
                "one of them; write A, 'not A' or 'A vs B'."
            )
        sides = named, other
        words = _checked(words) if words else (_word(*sides), _word(*reversed(sides)))
        return cls(attribute.name, attribute.universe, *sides, words)

    def sides_of(self, memberships: ArrayLike) -> NDArray[np.int8]:
        """Return the side of each document: 1 protected, 0 not protected, −1 undecided.

        A document is on the side that it belongs to more. It is undecided if both sides are equal,
        or if it belongs to neither.

        Args:
            memberships: Shape (n, G) over ``universe``.

        Returns:
            Shape (n,).
        """
        signs = [(group in self.protected) - (group in self.unprotected) for group in self.universe]
        gain = np.asarray(memberships, dtype=np.float64) @ signs
        return np.select([gain > TOLERANCE, gain < -TOLERANCE], [1, 0], -1).astype(np.int8)


def _checked(words: tuple[str, str]) -> tuple[str, str]:
    """Check a user's words for the sides, which appear in prompts and in tables."""
    one, other = (word.strip() for word in words)
    if not all(0 < len(word) <= 100 and word.isprintable() for word in (one, other)):
        raise InputError(
            "Each side needs a word, such as female: one line of at most 100 characters."
        )
    if one.casefold() == other.casefold():
        raise InputError(f"Both sides are called '{one}'; choose two different words.")
    return one, other


def listed_groups(text: str, known: Sequence[str]) -> tuple[str, ...]:
    """Return the groups that a text names: ``A``, ``A, B``, or ``not A`` for all others.

    The name of a group may itself contain a comma or begin with "not". A name that is none of the
    known ones is returned as it is.
    """
    text = text.strip()
    names = [text] if text in known else [name.strip() for name in text.split(",")]
    if text.startswith("not ") and text not in known:
        without = {*listed_groups(text.removeprefix("not "), known)}
        if without <= {*known}:
            return tuple(group for group in known if group not in {*without, UNKNOWN})
    return tuple(dict.fromkeys(names))


def _groups(text: str, attribute: Attribute) -> tuple[str, ...]:
    found = listed_groups(text, attribute.groups)
    for name in found:
        if name not in attribute.groups:
            raise InputError(
                f"There is no group '{one_line(name, 60)}' of {attribute.name}; choose among "
                f"{', '.join(attribute.groups)}."
            )
    return found


def _word(groups: Sequence[str], others: Sequence[str]) -> str:
    if len(groups) > 1 and len(others) == 1:
        return f"non-{_word(others, groups)}"
    return " or ".join(_ADJECTIVES.get(group, group) for group in groups)
