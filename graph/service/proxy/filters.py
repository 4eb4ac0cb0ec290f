"""Applies ``filter_path`` to a reply as clusters do: what a client wants to see of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from fairqr.graph.service.proxy.requests import Part, parts_of, rewritten

Path = tuple[str, ...]
"""The names on the way to a member, with ``*`` for any characters and ``**`` for any names."""

_dot = re.compile(r"(?<!\\)\.")


def filtered(reply: str, filter_path: str) -> str:
    """Return what of a reply its client wants to see.

    Args:
        reply: The reply, a JSON object.
        filter_path: Paths with commas between them; those after ``-`` are left out.
    """
    given = [path.strip() for path in filter_path.split(",")]
    included = [_path(path) for path in given if path and not path.startswith("-")]
    excluded = [_path(path[1:].strip()) for path in given if path.startswith("-")]
    for paths, is_included in (included, True), (excluded, False):
        if paths:
            whole: Part = (0, len(reply), {})
            reply = _kept(reply, whole, paths, is_included) or "{}"
    return reply


def _path(written: str) -> Path:
    return tuple(name.replace("\\.", ".") for name in _dot.split(written))


def _kept(text: str, part: Part, paths: Iterable[Path], is_included: bool) -> str | None:
    """Return what is left of a value to which paths lead; None if that is nothing.

    Args:
        text: The text.
        part: The value in it.
        paths: What is left of the paths.
        is_included: Whether they say what is kept, or what is left out.
    """
    begin, end, value = part
    if not isinstance(value, dict | list):
        return None if is_included else text[begin:end]
    members = dict[str | int, str | None]()
    for name, member in parts_of(text, begin).items():
        below = paths if isinstance(name, int) else {*_below(paths, name)}
        is_whole = () in below
        if below and not is_whole:
            members[name] = _kept(text, member, below, is_included)
        elif is_whole == is_included:
            members[name] = text[member[0] : member[1]]
        else:
            members[name] = None
    is_empty = all(left is None for left in members.values())
    return None if is_empty else rewritten(text, begin, end, members)


def _below(paths: Iterable[Path], name: str) -> Iterator[Path]:
    """Yield what is left of paths below a member, an empty one where a path ends with it."""
    for path in paths:
        first, *rest = path
        if _is_like(name, first):
            yield tuple(rest)
        if first == "**":
            yield path


def _is_like(name: str, written: str) -> bool:
    """Return whether a name is like one with ``*`` for any characters, in one pass over it."""
    first, *others = written.split("*")
    if not others:
        return name == written
    *middle, last = others
    at = len(first)
    end = len(name) - len(last)
    if at > end or not (name.startswith(first) and name.endswith(last)):
        return False
    for part in middle:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True
