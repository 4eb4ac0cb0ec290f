"""The schema of a source: the attributes of its documents, and the groups of each attribute.

The groups come from the schema, never from what was retrieved, so we notice when a group is absent
from a ranking.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    FiniteFloat,
    PrivateAttr,
    StringConstraints,
    Tag,
    ValidationError,
    field_serializer,
    model_validator,
)

from fairqr.base.errors import (
    FairqrError,
    SchemaError,
    UnknownAttributeError,
    UnsupportedError,
    first_problem,
    one_line,
)
from fairqr.base.yaml_file import load_yaml
from fairqr.retrieval.sources.dates import year_of
from fairqr.retrieval.sources.label_values import UNREADABLE, as_text, weighted_values

UNKNOWN = "unknown"
"""The name of the group for documents without a label, and for the unlabelled part of others."""

ANY = "any"
"""What a source writes in place of groups where each value of the field is one."""

OTHER = "other"
"""The name of the group for values of an open attribute that have no group of their own."""

FIRST_BOUND = 1000
LAST_BOUND = 2999
"""Ranges between these are of years."""

LAST_YEAR = 9999

SWITCHES = (("true", "True", "TRUE", "1"), ("false", "False", "FALSE", "0"))
WHOLE_NUMBER = re.compile(r"-?\d+\.0+")

NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_-]*$")
Name = Annotated[str, StringConstraints(pattern=NAME, max_length=64)]


def as_name(value: object) -> str:
    """Return what a value is called as a group: "1" for "1.0", and without spaces around."""
    text = as_text(value).strip()
    return text.partition(".")[0] if WHOLE_NUMBER.fullmatch(text) else text


def other_forms(value: object) -> list[str]:
    """Return other texts that mean the same value, as engines, tables and programs write it.

    A switch may be ``True``, ``true`` or 1, a whole number ``1.0``; and there may be spaces around.
    """
    text = as_text(value).strip()
    whole = as_name(text)
    for forms in SWITCHES:
        if whole in forms:
            return [text, whole, *forms]
    return [text, whole]


class Range(BaseModel, frozen=True, extra="forbid"):
    """The values of one group, if the field has numbers, or dates, which count by their years."""

    gte: FiniteFloat | None = Field(None, description="The smallest value.")
    gt: FiniteFloat | None = Field(None, description="Values must be above this.")
    lte: FiniteFloat | None = Field(None, description="The largest value.")
    lt: FiniteFloat | None = Field(None, description="Values must be below this.")

    @model_validator(mode="after")
    def _has_one_sensible_bound_a_side(self) -> Range:
        if not self.model_dump(exclude_none=True):
            raise ValueError("a range needs gte, gt, lte or lt")
        if None not in (self.gte, self.gt) or None not in (self.lte, self.lt):
            raise ValueError("a range takes one lower bound and one upper bound")
        return self

    @cached_property
    def _ends(self) -> tuple[tuple[Any, int] | None, tuple[Any, int] | None]:
        """The first and the last value; 1 is just above a bound, and -1 just below."""
        first = (self.gte, 0) if self.gt is None else (self.gt, 1)
        last = (self.lte, 0) if self.lt is None else (self.lt, -1)
        return None if None in first else first, None if None in last else last

    def holds(self, found: float | None) -> bool:
        """Return whether a number is in the range; None is in none."""
        first, last = self._ends
        return found is not None and (
            (first is None or first <= (found, 0)) and (last is None or (found, 0) <= last)
        )

    def reaches(self, other: Range) -> bool:
        """Return whether the upper bound reaches the start of another range."""
        last, first = self._ends[1], other._ends[0]
        return last is None or first is None or last >= first


def _listed(given: object) -> object:
    """Return the values of a group as a list; a file may write a single one as it is."""
    if given is None:
        return ()
    is_one = isinstance(given, str) or not isinstance(given, Sequence | Mapping)
    return [given] if is_one else given


def _kind(given: object) -> str:
    return "range" if isinstance(given, Range | Mapping) else "values"


def _group_name(given: object) -> object:
    """Return a boolean, number or date that a file has for a group's name as text."""
    return as_text(given) if isinstance(given, bool | int | float | date) else given


GroupName = Annotated[str, BeforeValidator(_group_name)]
Text = Annotated[str, BeforeValidator(as_text)]
Texts = Annotated[tuple[Text, ...], BeforeValidator(_listed)]
Values = Annotated[
    Annotated[Texts, Field(min_length=1), Tag("values")] | Annotated[Range, Tag("range")],
    Discriminator(_kind),
]
"""The field's values for one group: a set of values, or a range."""


class Attribute(BaseModel, frozen=True, extra="forbid"):
    """One attribute of the documents, such as gender, with its groups.

    A label is a single value, a list of distinct values that share the document equally, or a
    mapping from values to weights. Without ``values``, a value is the name of a group.

    An attribute is *open* if nobody lists its groups: each value that a search finds is one, such
    as each seller. It has groups once they are found; see :meth:`with_groups`.

    Attributes:
        name: The attribute's name in commands and results.
        groups: The groups, in the order of all vectors over them. In a file this may be a mapping
            from each group to its ``values``: a list of the field's values, or a range; or ``any``,
            which makes the attribute open.
        open: Whether each value is a group. Files and dumps say it by ``groups: any`` alone.
        values: The field's values for each group; empty if the field has the groups' names.
    """

    name: Name
    field: str = Field("", description="The document field that has its label.")
    dates: str = Field(
        "",
        description="How dates in the field are written, as a format of Elasticsearch such as "
        "basic_date or dd.MM.yyyy||epoch_millis; an attached engine states it itself.",
    )
    labels: str = Field("", description="A file of ids and groups, instead of a field.")
    groups: tuple[GroupName, ...] = Field(
        (),
        description="The groups, with their values or ranges; or 'any', if each value is a group.",
    )
    open: bool = Field(False, exclude=True)
    at_least: int = Field(
        1,
        ge=1,
        description="If each value is a group: how many documents of those that a query finds must "
        "have it; smaller groups are 'other' together.",
    )
    values: dict[str, Values] = {}
    population: dict[GroupName, float] | None = Field(
        None, description="Each group's share in the world."
    )
    confusion: dict[GroupName, dict[GroupName, float]] | None = Field(
        None,
        description="For labels that may be wrong: how many documents of each group have each "
        "label in a checked sample, such as {female: {female: 90, male: 10}, male: {male: 80}}, or "
        "shares that sum to 1 and count as exact; audits correct it.",
    )
    unknown: Literal["exclude", "group"] = Field(
        "exclude", description="Whether documents without a label get no exposure, or form a group."
    )
    _is_found: bool = PrivateAttr(False)

    @model_validator(mode="before")
    @classmethod
    def _mapped_groups_become_values(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        if "open" in data:
            raise ValueError(
                "there is no entry 'open'; if each value is a group, write groups: any"
            )
        groups = data.get("groups", ())
        if groups == ANY:
            return {**data, "groups": (), "open": True}
        if isinstance(groups, str) or not isinstance(groups, Iterable):
            raise ValueError(
                f"groups must be a list of names, a mapping from each name to its values or its "
                f"range, or '{ANY}' if each value is a group"
            )
        if not isinstance(groups, Mapping):
            return data
        values = {as_text(group): its for group, its in groups.items()}
        return {**data, "groups": list(values), "values": values}

    @field_serializer("groups")
    def _groups_as_written(self, groups: tuple[str, ...]) -> tuple[str, ...] | str:
        return ANY if self.open else groups

    @model_validator(mode="after")
    def _fits_together(self) -> Attribute:
        if bool(self.field) == bool(self.labels):
            raise ValueError("an attribute needs either a field or a file of labels")
        if self.open:
            self._check_open()
        elif len(self.groups) == 1 or not (self.groups or self.labels):
            raise ValueError("an attribute needs at least two groups")
        if len(set(self.groups)) < len(self.groups):
            raise ValueError("a group is named twice")
        if not all(map(str.strip, self.groups)):
            raise ValueError("each group needs a name")
        if UNKNOWN in self.groups:
            raise ValueError(f"'{UNKNOWN}' is reserved; write 'unknown: group' instead")
        if self.population is not None:
            check_shares(self.population, "the population")
            if self.groups and (others := self.population.keys() - self.universe):
                raise ValueError(f"population names '{min(others)}', which is no group")
        return self

    def _check_open(self) -> None:
        """Refuse what needs listed groups."""
        if self.population is not None or self.confusion is not None:
            raise ValueError("'groups: any' takes neither a population nor a confusion")
        if self.unknown == "group":
            raise ValueError("'groups: any' needs 'unknown: exclude'")

    @model_validator(mode="after")
    def _values_belong_to_one_group(self) -> Attribute:
        if self.values and set(self.values) != set(self.groups):
            raise ValueError("each group needs its values")
        for group, value in self._pairs:
            if (owner := self._group_by_value[value]) != group:
                shown = one_line(value, 60)
                raise ValueError(f"the value '{shown}' is in both '{group}' and '{owner}'")
        for (group, one), (other_group, other) in combinations(self._ranges, 2):
            if one.reaches(other) and other.reaches(one):
                raise ValueError(f"the ranges of '{group}' and '{other_group}' overlap")
        return self

    @model_validator(mode="after")
    def _labels_say_something(self) -> Attribute:
        if self.confusion is None:
            return self
        import numpy as np  # Few attributes have a matrix, and this module is imported first.

        names = self.groups or tuple(self.confusion)
        if self.unknown == "group":
            raise ValueError("confusion needs 'unknown: exclude'")
        labels = set(names).union(*self.confusion.values())
        if not {*self.confusion} == {*names} == labels:
            raise ValueError("confusion needs a row for each group, with groups as labels")
        rows = np.array([[self.confusion[g].get(label, 0.0) for label in names] for g in names])
        totals = rows.sum(axis=1, keepdims=True)
        is_counted = (totals > 1) & (rows % 1 == 0).all(axis=1, keepdims=True)
        if (rows < 0).any() or not (is_counted | np.isclose(totals, 1, rtol=0, atol=1e-6)).all():
            raise ValueError("each row of confusion must be counts, or shares that sum to 1")
        shares = rows / totals
        for group, other in np.argwhere(shares >= shares.diagonal()):
            if group != other:
                problem = f"'{names[group]}' has the label '{names[other]}' as often as its own"
                raise ValueError(f"{problem}, so the labels say nothing")
        if np.linalg.cond(shares) > 1e3:
            raise ValueError("the rows of confusion are too alike, so the labels say too little")
        return self

    @cached_property
    def universe(self) -> tuple[str, ...]:
        """The groups that exposure is measured over: ``groups``, plus ``unknown`` if it is one.

        Raises:
            UnsupportedError: The attribute is open, and no search has found its groups.
        """
        if self.open:
            raise UnsupportedError(
                f"The groups of '{self.name}' are whatever a search finds, and this needs groups "
                "that are listed; name other attributes, or list its groups in the source."
            )
        return (*self.groups, UNKNOWN) if self.unknown == "group" else self.groups

    @property
    def listed(self) -> tuple[str, ...]:
        """The :attr:`universe`, empty if the attribute is open."""
        return () if self.open else self.universe

    def ordered(self, shares: Mapping[str, float]) -> list[float]:
        """Return the shares of groups in the order of the universe; 0 for the others."""
        return [shares.get(group, 0.0) for group in self.universe]

    def membership(self, label: object, *, strict: bool = True) -> tuple[float, ...]:
        """Return the share of each group of the universe in a document with this label.

        The shares sum to 1 for a fully labelled document. Under ``unknown: exclude`` the unknown
        mass is left out, so the sum is below 1, and 0 for a document without a label. A value that
        belongs to no group in ``values`` is unknown.

        Args:
            label: None, a value, a sequence of values, or a mapping from values to weights.
            strict: Refuse what cannot be read and, if there are no ``values``, a value that is
                not a group's name, instead of counting it as unknown.

        Raises:
            ValueError: The label is not a group, or has a weight that is negative or not finite.
        """
        weights = dict.fromkeys((*self.groups, UNKNOWN), 0.0)
        for value, weight in weighted_values(label, strict=strict):
            group = None if value is UNREADABLE else self.group_of(value)
            if group is None and strict and not self.values and value != UNKNOWN:
                what, groups = self.field or self.name, ", ".join(self.groups)
                shown = repr(value) if isinstance(value, str) else as_text(value)
                raise ValueError(f"{what} is {shown}, which is not one of {groups}")
            weights[group or UNKNOWN] += weight
        total = sum(weights.values())
        if total == 0:
            weights[UNKNOWN] = total = 1.0
        return tuple(weights[group] / total for group in self.universe)

    @property
    def is_found(self) -> bool:
        """Whether its groups are those that a search found; see :meth:`with_groups`."""
        return self._is_found

    def check_label(self, label: object) -> None:
        """Refuse a label that does not fit the attribute.

        Raises:
            ValueError: See :meth:`membership`.
        """
        if self.open:
            self.named_shares(label, strict=True)
        else:
            self.membership(label)

    def named_shares(self, label: object, *, strict: bool = False) -> dict[str, float]:
        """Return the share of each value in a document with this label, if each value is a group.

        The shares sum to 1, or to less if a part of the label cannot be read or says ``unknown``.
        They are empty for a document without a label.

        Args:
            label: None, a value, a sequence of values, or a mapping from values to weights.
            strict: Refuse what cannot be read.

        Raises:
            ValueError: The label, or a part of it, cannot be read.
        """
        shares: dict[str, float] = {}
        total = 0.0
        for value, weight in weighted_values(label, strict=strict):
            total += weight
            group = UNKNOWN if value is UNREADABLE else as_name(value)
            if group and group != UNKNOWN and weight > 0:
                shares[group] = shares.get(group, 0.0) + weight
        return {group: weight / total for group, weight in shares.items()}

    def with_groups(self, found: Sequence[str]) -> Attribute:
        """Return an open attribute with the groups that were found, and ``other`` as the last."""
        groups = (*(group for group in found if group != OTHER), OTHER)
        # We do not check it again: the checks are for what users write.
        attribute = Attribute.model_construct(
            name=self.name, field=self.field, labels=self.labels, groups=groups, unknown="exclude"
        )
        attribute._is_found = True
        return attribute

    def group_of(self, value: object) -> str | None:
        """Return the group of one value of the field, or None if no group has it."""
        if self.open:
            return next(iter(self.named_shares(value)), None)
        for text in (as_text(value), *other_forms(value)):
            if (group := self._group_by_value.get(text)) is not None:
                return group
        if not self._ranges:
            return None
        number = year_of(value, self.dates) if self.dates else _as_number(value)
        if number is not None and self._are_years and abs(number) > LAST_YEAR:
            return None  # a date in a form that nobody stated
        return next((group for group, range_ in self._ranges if range_.holds(number)), None)

    def spellings(self, group: str) -> list[str]:
        """Return the values of a group in all the forms that :meth:`group_of` reads.

        Spaces around a value are not among them.
        """
        values = self.values.get(group, (group,))
        if isinstance(values, Range):
            return []
        forms = [form for value in values for form in (value, *other_forms(value))]
        numbers = [f"{form}.0" for form in forms]
        return [form for form in dict.fromkeys(forms + numbers) if self.group_of(form) == group]

    @property
    def has_ranges(self) -> bool:
        """Whether groups are ranges of numbers or dates."""
        return bool(self._ranges)

    @cached_property
    def _are_years(self) -> bool:
        """Whether the groups are ranges of years, as far as their bounds tell."""
        bounds = [bound for _, it in self._ranges for bound in it.model_dump().values()]
        stated = [bound for bound in bounds if bound is not None]
        return bool(stated) and all(FIRST_BOUND <= bound <= LAST_BOUND for bound in stated)

    @cached_property
    def _pairs(self) -> list[tuple[str, str]]:
        by_group = [(group, its) for group, its in self.values.items() if isinstance(its, tuple)]
        return [(group, value) for group, its in by_group for value in its]

    @cached_property
    def _group_by_value(self) -> dict[str, str]:
        if not self.values:
            return {group: group for group in self.groups}
        return {value: group for group, value in self._pairs}

    @cached_property
    def _ranges(self) -> list[tuple[str, Range]]:
        return [(g, values) for g, values in self.values.items() if isinstance(values, Range)]


def _as_number(value: Any) -> float | None:
    """Return a number, or the year of a date, from a value or its text."""
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return year_of(value)


class DescribedModel(BaseModel, frozen=True, extra="forbid"):
    """Base of models with ``attributes`` by name: a schema, and a source."""

    @model_validator(mode="before")
    @classmethod
    def _attributes_know_their_names(cls, data: Any) -> Any:
        """Copy each attribute's key to its name, so that a file states it once."""
        # A draft may have an empty key.
        attributes = (data.get("attributes") or {}) if isinstance(data, Mapping) else None
        if not isinstance(attributes, Mapping):
            return data
        named = {
            key: {"name": key, **value} if isinstance(value, Mapping) else value
            for key, value in attributes.items()
        }
        return {**data, "attributes": named}


class Schema(DescribedModel):
    """The attributes of the documents of a source, by name."""

    attributes: dict[Name, Attribute] = Field(min_length=1)

    def attribute(self, name: str) -> Attribute:
        """Return the attribute of that name.

        Raises:
            UnknownAttributeError: The schema has no such attribute.
        """
        if name not in self.attributes:
            names = ", ".join(self.attributes)
            raise UnknownAttributeError(f"The corpus has no attribute '{name}'; it has {names}.")
        return self.attributes[name]


Model = TypeVar("Model", bound=BaseModel)


def load_schema(path: Path) -> Schema:
    """Read a schema from a YAML file.

    Raises:
        SchemaError: The file is missing, is not YAML, or is not a schema.
    """
    data = load_yaml(path, "schema", SchemaError)
    return validated(Schema, data, f"The schema {path}", SchemaError)


def validated(model: type[Model], data: Any, what: str, error_type: type[FairqrError]) -> Model:
    """Return data as a model.

    Args:
        model: The class of the model.
        data: What a person wrote.
        what: What the data is, for the message: ``The schema people.yaml``.
        error_type: The class of errors to raise.

    Raises:
        FairqrError: The data does not fit the model; of the class that was named.
    """
    if not isinstance(data, Mapping | model):
        raise error_type(f"{what} must be a mapping of names to values.")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        where, reason = first_problem(error)
        place = f" at {where}" if where else ""
        raise error_type(f"{what} is wrong{place}: {reason}.") from None


def check_shares(shares: Mapping[Any, float], what: str) -> None:
    """Raise ValueError unless shares are 0 or more and sum to 1."""
    for name, share in shares.items():
        if not 0 <= share < math.inf:
            raise ValueError(f"the share of '{name}' in {what} must be 0 or more, not {share}")
    if not math.isclose(total := sum(shares.values()), 1, abs_tol=1e-6):
        raise ValueError(f"the shares of {what} must sum to 1, not {total:g}")
