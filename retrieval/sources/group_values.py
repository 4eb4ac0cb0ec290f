"""The values that a group of an attribute has in a field: a set of them, or a range."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date
from functools import cached_property
from typing import Annotated

from pydantic import (
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    FiniteFloat,
    Tag,
    model_validator,
)

from fairqr.retrieval.sources.label_values import as_text

SWITCHES = (("true", "True", "TRUE", "1"), ("false", "False", "FALSE", "0"))
"""What engines, tables and programs write for true and for false."""

WHOLE_NUMBER = re.compile(r"-?\d+\.0+")


def as_name(value: object) -> str:
    """Return what a value is called as a group: "1" for "1.0", and without spaces around."""
    text = as_text(value).strip()
    if WHOLE_NUMBER.fullmatch(text):
        return text.partition(".")[0]
    return text


def other_forms(value: object) -> list[str]:
    """Return other texts that mean the same value, as engines, tables and programs write it.

    A switch may be ``True``, ``true`` or 1, a whole number ``1.0``; and there may be spaces around.
    """
    text = as_text(value).strip()
    name = as_name(text)
    for forms in SWITCHES:
        if name in forms:
            return [text, name, *forms]
    return [text, name]


Bound = tuple[float, int]
"""A number, and 1 for a value just above it, -1 for one just below, or 0 for the number itself."""


class Range(BaseModel, frozen=True, extra="forbid"):
    """The values of one group, if the field has numbers, or dates, which count by their years."""

    gte: FiniteFloat | None = Field(None, description="The smallest value.")
    gt: FiniteFloat | None = Field(None, description="Values must be above this.")
    lte: FiniteFloat | None = Field(None, description="The largest value.")
    lt: FiniteFloat | None = Field(None, description="Values must be below this.")

    @model_validator(mode="after")
    def _has_one_sensible_bound_a_side(self) -> Range:
        has_two_lower = self.gte is not None and self.gt is not None
        has_two_upper = self.lte is not None and self.lt is not None
        if not self.model_dump(exclude_none=True):
            raise ValueError("a range needs gte, gt, lte or lt")
        if has_two_lower or has_two_upper:
            raise ValueError("a range takes one lower bound and one upper bound")
        return self

    @cached_property
    def _first(self) -> Bound | None:
        """The first value of the range, or None if it has no lower bound."""
        if self.gt is not None:
            return self.gt, 1
        if self.gte is not None:
            return self.gte, 0
        return None

    @cached_property
    def _last(self) -> Bound | None:
        """The last value of the range, or None if it has no upper bound."""
        if self.lt is not None:
            return self.lt, -1
        if self.lte is not None:
            return self.lte, 0
        return None

    def holds(self, number: float) -> bool:
        """Return whether a number is in the range."""
        # NaN is neither above one bound nor below the other.
        is_high_enough = self._first is None or self._first <= (number, 0)
        is_low_enough = self._last is None or (number, 0) <= self._last
        return is_high_enough and is_low_enough

    def overlaps(self, other: Range) -> bool:
        """Return whether a number may be in both ranges."""
        return self._reaches(other) and other._reaches(self)

    def _reaches(self, other: Range) -> bool:
        """Return whether the upper bound reaches the start of another range."""
        if self._last is None or other._first is None:
            return True
        return self._last >= other._first


def _as_list(values: object) -> object:
    """Return the values of a group as a list; a file may write a single one as it is."""
    if values is None:
        return ()
    is_single = isinstance(values, str) or not isinstance(values, Sequence | Mapping)
    return [values] if is_single else values


def _kind(values: object) -> str:
    return "range" if isinstance(values, Range | Mapping) else "values"


def _group_name(name: object) -> object:
    """Return a boolean, number or date that a file has for a group's name as text."""
    return as_text(name) if isinstance(name, bool | int | float | date) else name


GroupName = Annotated[str, BeforeValidator(_group_name)]
Text = Annotated[str, BeforeValidator(as_text)]
Texts = Annotated[tuple[Text, ...], BeforeValidator(_as_list)]
Values = Annotated[
    Annotated[Texts, Field(min_length=1), Tag("values")] | Annotated[Range, Tag("range")],
    Discriminator(_kind),
]
"""The field's values for one group: a set of values, or a range."""
