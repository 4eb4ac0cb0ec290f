"""Applies ``filter_path`` to a reply as clusters do: what a client wants to see of it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fairqr.graph.service.proxy.json_text import Part, parts_of, rewritten

Path = tuple[str, ...]
"""The names on the way to a member, with ``*`` for any characters and ``**`` for any names."""

DOT = re.compile(r"(?<!\\)\.")
"""What separates the names of a path; a name has its dots behind backslashes."""


def filtered(reply: str, filter_path: str) -> str:
    """Return what of a reply its client wants to see.

    Args:
        reply: The reply, a JSON object.
        filter_path: Paths with commas between them; those after ``-`` are left out.
    """
    included: list[Path] = []
    excluded: list[Path] = []
    for entry in filter_path.split(","):
        text = entry.strip()
        if text.startswith("-"):
            excluded.append(_path(text[1:].strip()))
        elif text:
            included.append(_path(text))

    if included:
        reply = _kept(reply, _whole(reply), included, is_included=True) or "{}"
    if excluded:
        reply = _kept(reply, _whole(reply), excluded, is_included=False) or "{}"
    return reply


def _path(text: str) -> Path:
    """Return the names in the text of a path."""
    names = DOT.split(text)
    return tuple(name.replace("\\.", ".") for name in names)


def _whole(reply: str) -> Part:
    """Return a reply as a part of itself; that its value is an object is all that counts."""
    return Part(0, len(reply), {})


def _kept(text: str, part: Part, paths: Iterable[Path], *, is_included: bool) -> str | None:
    """Return what stays of a value to which paths lead; None if nothing does.

    Args:
        text: The text.
        part: The value in it.
        paths: The paths from this value on.
        is_included: Whether they say what is kept, or what is left out.
    """
    if not isinstance(part.value, dict | list):
        return None if is_included else text[part.start : part.end]

    members: dict[str | int, str | None] = {}
    for key, member in parts_of(text, part.start).items():
        is_element = isinstance(key, int)
        paths_below = paths if is_element else _below(paths, key)
        ends_here = () in paths_below
        if paths_below and not ends_here:
            members[key] = _kept(text, member, paths_below, is_included=is_included)
        elif ends_here == is_included:
            members[key] = text[member.start : member.end]
        else:
            members[key] = None

    is_empty = all(member_text is None for member_text in members.values())
    if is_empty:
        return None
    return rewritten(text, part.start, part.end, members)


def _below(paths: Iterable[Path], name: str) -> set[Path]:
    """Return what follows a member in paths that lead to it, the empty path where one ends."""
    below: set[Path] = set()
    for path in paths:
        first, *following = path
        if _matches(name, first):
            below.add(tuple(following))
        if first == "**":
            below.add(path)
    return below


def _matches(name: str, pattern: str) -> bool:
    """Return whether a name has a pattern with ``*`` for any characters, in one pass over it."""
    prefix, *pieces = pattern.split("*")
    if not pieces:
        return name == pattern
    *middle, suffix = pieces
    position = len(prefix)
    end = len(name) - len(suffix)
    has_both_ends = name.startswith(prefix) and name.endswith(suffix)
    if position > end or not has_both_ends:
        return False

    for piece in middle:
        piece_start = name.find(piece, position, end)
        if piece_start < 0:
            return False
        position = piece_start + len(piece)
    return True
