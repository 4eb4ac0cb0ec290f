"""Requests written in a source, with ``{{query}}`` and ``{{size}}`` as placeholders for values.

A placeholder is a whole JSON value, and what fills it stays a value: whatever a query contains,
be it quotes, braces or ``{{query}}`` itself, it changes nothing else in the request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fairqr.base.errors import one_line

QUERY = "{{query}}"
SIZE = "{{size}}"


def check_template(template: Any, *, needs_query: bool = True) -> None:
    """Refuse a JSON value that lacks ``{{query}}``, or has a placeholder inside a longer text.

    Raises:
        ValueError: The template is wrong.
    """
    texts = list(_texts(template))
    for text in texts:
        for placeholder in (QUERY, SIZE):
            is_whole = text in (QUERY, SIZE)
            if placeholder in text and not is_whole:
                raise ValueError(
                    f"body has {placeholder} inside '{one_line(text, 80)}'; make it a value of its "
                    "own"
                )
    if needs_query and QUERY not in texts:
        raise ValueError(f'body needs the value "{QUERY}" where the words of the query belong')


def fill_template(template: Any, query: str, size: int) -> Any:
    """Return a copy of a template with the values filled in."""
    if isinstance(template, Mapping):
        return {key: fill_template(value, query, size) for key, value in template.items()}
    if isinstance(template, list):
        return [fill_template(value, query, size) for value in template]
    if template == QUERY:
        return query
    if template == SIZE:
        return size
    return template


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts in a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            # Keys are never filled, so a placeholder in a key counts as inside a longer text.
            yield f"{key}:"
            yield from _texts(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from _texts(entry)
