"""Finds members of JSON in its text, and changes them so that all else stays as it is written."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

SEPARATORS = re.compile(r"[\s,:]*")

_decoded = json.JSONDecoder().raw_decode


class Part(NamedTuple):
    """A value in a text.

    Attributes:
        start: Where it begins.
        end: Where it ends.
        value: The value.
    """

    start: int
    end: int
    value: Any


def parse_strictly(text: bytes | str) -> Any:
    """Return what is written as JSON.

    Raises:
        ValueError: It is no JSON, or an object has a member twice, which clusters refuse.
    """
    return json.loads(text, object_pairs_hook=_without_duplicates)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("twice")
    return members


def parts_of(text: str, start: int) -> dict[Any, Part]:
    """Return the members of the object, or the elements of the array, that starts there.

    Returns:
        The members by name, or the elements by number.
    """
    parts: dict[Any, Part] = {}
    is_object = text[start] == "{"
    position = _next_token(text, start + 1)
    while text[position] not in "]}":
        key: Any = len(parts)
        if is_object:
            key, name_end = _decoded(text, position)
            position = _next_token(text, name_end)
        value, end = _decoded(text, position)
        parts[key] = Part(position, end, value)
        position = _next_token(text, end)
    return parts


def first_member(text: str, start: int, names: Sequence[str]) -> tuple[str, int]:
    """Return which of these members an object has first, and where its value begins.

    What comes after it is not read.

    Raises:
        LookupError: The object has no such member.
    """
    position = _next_token(text, start + 1)
    while text[position] not in "]}":
        name, name_end = _decoded(text, position)
        position = _next_token(text, name_end)
        if name in names:
            return name, position
        _, end = _decoded(text, position)
        position = _next_token(text, end)
    raise LookupError(names)


def rewritten(text: str, start: int, end: int, members: Mapping[Any, str | None]) -> str:
    """Return an object or array in a text with new members.

    Args:
        text: The text.
        start: Where the object begins.
        end: Where it ends.
        members: The new text of members, or None to leave one out.
    """
    pieces: list[str] = []
    first_start = _next_token(text, start + 1)
    position = start + 1
    for key, part in parts_of(text, start).items():
        new_text = members.get(key, text[part.start : part.end])
        if new_text is not None:
            member_start = _next_token(text, position)
            # The first one that stays follows the bracket, and has no comma before it.
            separator = text[position:member_start] if pieces else text[start:first_start]
            name = text[member_start : part.start]
            pieces.append(separator + name + new_text)
        position = part.end
    return "".join(pieces) + text[position:end]


def _next_token(text: str, position: int) -> int:
    """Return where the next name, value or bracket begins."""
    separators = SEPARATORS.match(text, position)
    return separators.end() if separators else position
