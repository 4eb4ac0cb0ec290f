"""The values in a label, in whichever form a file, an engine or a program writes it.

One label may be a value, a list of values, which share the document equally, or a mapping from
values to weights; lists may hold lists, mappings and gaps, and values may be NumPy's or pandas'. A
value that a list repeats counts once, since engines keep distinct values only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Any

from fairqr.base.errors import one_line

UNREADABLE = object()
"""Stands for a value that cannot be read."""


def weighted_values(label: object, *, strict: bool = False) -> Iterator[tuple[Any, float]]:
    """Yield each value in a label with its weight.

    Args:
        label: The label.
        strict: Refuse what cannot be read, instead of yielding :data:`UNREADABLE`.

    Raises:
        ValueError: The label, or a part of it, cannot be read.
    """
    value = _plain(label)
    if _is_missing(value):
        return
    is_text = isinstance(value, str | bytes | bytearray)
    if isinstance(value, Mapping):
        yield from _weights(value, strict=strict)
    elif isinstance(value, Sequence | Set) and not is_text:
        yield from _distinct(value, strict=strict)
    elif isinstance(value, str | bool | int | float | date):
        yield value, 1.0
    elif strict:
        quoted = one_line(repr(value), 100)
        raise ValueError(f"a label must be text, a list or a mapping, not {quoted}")
    else:
        yield UNREADABLE, 1.0


def as_text(value: object) -> str:
    """Return a value as text, so that 1 in a file and "1" in a field are the same value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def values_of(label: object) -> list[Any]:
    """Return the values in a label that can be read, without weights."""
    return [value for value, _ in weighted_values(label) if value is not UNREADABLE]


def _distinct(parts: Iterable[object], *, strict: bool) -> Iterator[tuple[Any, float]]:
    """Yield each value in the parts of a list once, with its largest weight."""
    largest: dict[str, tuple[Any, float]] = {}
    for part in parts:
        for value, weight in weighted_values(part, strict=strict):
            text = as_text(value)
            if text not in largest or weight > largest[text][1]:
                largest[text] = (value, weight)
    yield from largest.values()


def _weights(label: Mapping[Any, Any], *, strict: bool) -> Iterator[tuple[Any, float]]:
    """Yield the values of a mapping with their weights; an object with other things has none."""
    weights = {}
    for value, weight in label.items():
        plain_weight = _plain(weight)
        # Tables with nested columns have all values in each row.
        if not _is_missing(plain_weight):
            weights[str(value)] = plain_weight

    for value, weight in weights.items():
        if _is_weight(weight):
            continue
        if strict:
            quoted = one_line(repr(weight), 100)
            raise ValueError(f"the weight of {value!r} must be 0 or more, not {quoted}")
        yield UNREADABLE, 1.0
        return
    for value, weight in weights.items():
        yield value, float(weight)


def _is_weight(value: Any) -> bool:
    """Return whether a value is a finite number of 0 or more."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value < math.inf


def _plain(value: Any) -> Any:
    """Return a value of NumPy or pandas as one of Python's."""
    if getattr(getattr(value, "dtype", None), "kind", "") == "M":
        value = value.astype(str)  # its own value may be a number of nanoseconds
    if type(value).__name__ == "Period":
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Decimal):
        return float(value)
    to_list = getattr(value, "tolist", None)
    return to_list() if callable(to_list) else value


def _is_missing(value: Any) -> bool:
    """Return whether a value says nothing: None, an empty text, NaN, or what pandas has for it."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(value, str):
        return value in ("", "NaT")
    return isinstance(value, float) and math.isnan(value)
