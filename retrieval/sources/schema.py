"""The schema of a source: the attributes of its documents, and the groups of each attribute.

The groups come from the schema, never from what was retrieved, so we notice when a group is absent
from a ranking.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from functools import cached_property
from itertools import combinations, permutations
from operator import ge, gt, le, lt
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

from fairqr.base.errors import (
    InputError,
    SchemaError,
    UnknownAttributeError,
    first_problem,
    one_line,
)
from fairqr.base.yaml_file import load_yaml

UNKNOWN = "unknown"
"""The name of the group for documents without a label, and for the unlabelled part of others."""

NO_LABELS = ("id", "title", "text")
"""Names that belong to the document itself, so no field with one of them can have labels."""

NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_-]*$")
Name = Annotated[str, StringConstraints(pattern=NAME, max_length=64)]


class Range(BaseModel):
    """The values of one group, if the field has numbers or dates.

    Bounds that are numbers accept numbers, and dates by their years. Bounds that are dates accept
    dates by their days, and no numbers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    gte: float | date | None = Field(None, description="The smallest value.")
    gt: float | date | None = Field(None, description="Values must be above this.")
    lte: float | date | None = Field(None, description="The largest value.")
    lt: float | date | None = Field(None, description="Values must be below this.")

    @field_validator("gte", "gt", "lte", "lt", mode="wrap")
    @classmethod
    def _is_a_number_or_a_date(
        cls, bound: object, handler: ValidatorFunctionWrapHandler
    ) -> float | date | None:
        found: float | date | None = math.nan
        if not isinstance(bound, bool):
            with suppress(ValidationError):
                found = handler(bound)
        if isinstance(found, float) and not math.isfinite(found):
            raise ValueError(f"a bound must be a number or a date, not '{one_line(bound, 60)}'")
        return found

    @model_validator(mode="after")
    def _has_one_sensible_bound_a_side(self) -> Range:
        if not self._bounds:
            raise ValueError("a range needs gte, gt, lte or lt")
        if None not in (self.gte, self.gt) or None not in (self.lte, self.lt):
            raise ValueError("a range takes one lower bound and one upper bound")
        if len({isinstance(bound, date) for bound, _ in self._bounds}) > 1:
            raise ValueError("the bounds of a range must be both numbers, or both dates")
        return self

    def holds(self, value: object) -> bool:
        """Return whether a number or a date, or its text, is in the range."""
        found = _as_day(value) if self.is_of_dates else _as_number(value)
        return found is not None and all(fits(found, bound) for bound, fits in self._bounds)

    @property
    def is_of_dates(self) -> bool:
        """Whether the bounds are dates, rather than numbers."""
        return isinstance(self._bounds[0][0], date)

    def overlaps(self, other: Range) -> bool:
        """Return whether two ranges share a value; both must be of numbers, or both of dates."""
        return self._reaches(other) and other._reaches(self)

    @cached_property
    def _bounds(self) -> list[tuple[float | date, Callable[[Any, Any], bool]]]:
        """The given bounds, and how a value is compared with each."""
        compared = (self.gte, ge), (self.gt, gt), (self.lte, le), (self.lt, lt)
        return [(bound, fits) for bound, fits in compared if bound is not None]

    def _reaches(self, other: Range) -> bool:
        """Return whether the upper bound reaches the start of another range."""
        top: Any = self.lte if self.lt is None else self.lt
        bottom: Any = other.gte if other.gt is None else other.gt
        if top is None or bottom is None:
            return True
        return bool(top >= bottom if self.lt is None and other.gt is None else top > bottom)


Values = tuple[str, ...] | Range
"""The field's values for one group: a set of values, or a range."""


class Attribute(BaseModel):
    """One attribute of the documents, such as gender, with its groups.

    A label is a single value, a list of values that share the document equally, or a mapping from
    values to weights. Without ``values``, a value is the name of a group.

    Attributes:
        name: The attribute's name in commands and results.
        groups: The groups, in the order of all vectors over them. In a file this may be a mapping
            from each group to its ``values``: a list of the field's values, or a range.
        values: The field's values for each group; empty if the field has the groups' names.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    field: str = Field("", description="The document field that has its label.")
    labels: str = Field(
        "", description="A file of ids and groups beside the source, instead of a field."
    )
    groups: tuple[str, ...] = Field(
        (), description="The groups, or a mapping from each group to its values or a range."
    )
    values: dict[str, Values] = {}
    population: dict[str, float] | None = Field(
        None, description="Each group's share in the world that the documents describe; sums to 1."
    )
    confusion: dict[str, dict[str, float]] | None = Field(
        None,
        description="For labels that may be wrong: how many documents of each group have each "
        "label in a checked sample, such as {female: {female: 90, male: 10}, male: {male: 80}}, or "
        "shares that sum to 1 and count as exact; audits correct it.",
    )
    unknown: Literal["exclude", "group"] = Field(
        "exclude",
        description="exclude: documents without a label get no share of exposure; group: they form "
        "a group named unknown.",
    )

    @model_validator(mode="before")
    @classmethod
    def _mapped_groups_become_values(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        groups = data.get("groups")
        for named in (groups, data.get("population")):
            if isinstance(named, Mapping | Sequence):
                _refuse_booleans("the name of a group", named)
        if not isinstance(groups, Mapping):
            return data
        given = {str(group): _given_values(str(group), its) for group, its in groups.items()}
        held = [one for its in given.values() for one in (its if isinstance(its, list) else [its])]
        if not all(isinstance(value, bool) for value in held):  # All are booleans in such a field.
            _refuse_booleans("a value of a group", held)
        values = {
            group: list(map(as_text, its)) if isinstance(its, list) else its
            for group, its in given.items()
        }
        return {**data, "groups": list(values), "values": values}

    @field_validator("field")
    @classmethod
    def _field_is_not_of_the_document(cls, field: str) -> str:
        if field in NO_LABELS:
            raise ValueError(f"'{field}' belongs to the document itself and cannot hold a label")
        return field

    @field_validator("groups")
    @classmethod
    def _groups_are_distinct(cls, groups: tuple[str, ...]) -> tuple[str, ...]:
        if len(groups) == 1:
            raise ValueError("an attribute needs at least two groups")
        if len(set(groups)) < len(groups):
            raise ValueError("a group is named twice")
        if UNKNOWN in groups:
            raise ValueError(f"'{UNKNOWN}' is reserved; write 'unknown: group' instead")
        return groups

    @model_validator(mode="after")
    def _has_one_place_of_labels(self) -> Attribute:
        if bool(self.field) == bool(self.labels):
            raise ValueError("an attribute needs either a field or a file of labels")
        if not self.groups and not self.labels:
            raise ValueError("an attribute needs at least two groups")
        return self

    @model_validator(mode="after")
    def _values_belong_to_one_group(self) -> Attribute:
        if self.values and set(self.values) != set(self.groups):
            raise ValueError("each group needs its values")
        owner: dict[str, str] = {}
        for group, values in self.values.items():
            if isinstance(values, Range):
                continue
            if not values:
                raise ValueError(f"the group '{group}' has no values")
            for value in values:
                if owner.setdefault(value, group) != group:
                    raise ValueError(
                        f"the value '{one_line(value, 60)}' is in both '{owner[value]}' and "
                        f"'{group}'"
                    )
        for (group, one), (other_group, other) in combinations(self._ranges, 2):
            if one.is_of_dates != other.is_of_dates:
                raise ValueError(
                    f"the ranges of '{group}' and '{other_group}' mix numbers and dates; write "
                    "all bounds as numbers, or all as dates"
                )
            if one.overlaps(other):
                raise ValueError(f"the ranges of '{group}' and '{other_group}' overlap")
        return self

    @model_validator(mode="after")
    def _population_is_a_distribution(self) -> Attribute:
        if self.population is None:
            return self
        for group, share in self.population.items():
            if self.groups and group not in self.universe:
                raise ValueError(f"population names '{group}', which is not one of the groups")
            if not share >= 0 or math.isinf(share):
                raise ValueError(
                    f"the population share of '{group}' must be 0 or more, not {share}"
                )
        if not math.isclose(total := sum(self.population.values()), 1, abs_tol=1e-6):
            raise ValueError(f"the population shares must sum to 1, not {total:g}")
        return self

    @model_validator(mode="after")
    def _labels_say_something(self) -> Attribute:
        if self.confusion is None:
            return self
        if self.unknown == "group":
            raise ValueError("confusion needs 'unknown: exclude'")
        names = self.groups or tuple(self.confusion)
        if set(self.confusion) != set(names) or not set().union(*self.confusion.values()) <= {
            *names
        }:
            raise ValueError("confusion needs a row for each group, with groups as labels")
        shares = dict[str, dict[str, float]]()
        for group, row in self.confusion.items():
            total = sum(row.values())
            is_counted = total > 1 and all(float(it).is_integer() for it in row.values())
            if min(row.values(), default=-1) < 0 or not (
                is_counted or math.isclose(total, 1, abs_tol=1e-6)
            ):
                raise ValueError(
                    f"the labels of '{group}' must be numbers of documents, or shares that are 0 "
                    "or more and sum to 1"
                )
            shares[group] = {label: it / total for label, it in row.items()}
        for group, other in permutations(names, 2):
            if shares[group].get(other, 0.0) >= shares[other].get(other, 0.0):
                raise ValueError(
                    f"documents of '{group}' have the label '{other}' as often as its own, so "
                    "the labels say nothing"
                )
        import numpy as np  # Few attributes have a matrix, and this module is imported first.

        rows = [[shares[group].get(label, 0.0) for label in names] for group in names]
        if np.linalg.cond(rows) > 1e3:
            raise ValueError("the rows of confusion are too alike, so the labels say too little")
        return self

    @cached_property
    def universe(self) -> tuple[str, ...]:
        """The groups that exposure is measured over: ``groups``, plus ``unknown`` if it is one."""
        return (*self.groups, UNKNOWN) if self.unknown == "group" else self.groups

    def membership(self, label: object, *, strict: bool = True) -> tuple[float, ...]:
        """Return the share of each group of the universe in a document with this label.

        The shares sum to 1 for a fully labelled document. Under ``unknown: exclude`` the unknown
        mass is left out, so the sum is below 1, and 0 for a document without a label. A value that
        belongs to no group in ``values`` is unknown.

        Args:
            label: None, a value, a sequence of values, or a mapping from values to weights.
            strict: If there are no ``values``, refuse a value that is not a group's name instead
                of counting it as unknown.

        Raises:
            ValueError: The label is not a group, or has a weight that is negative or not finite.
        """
        weights = self._by_group(_weights(label), strict=strict)
        total = sum(weights.values())
        if total == 0:
            weights, total = {UNKNOWN: 1.0}, 1.0
        return tuple(weights.get(group, 0.0) / total for group in self.universe)

    def group_of(self, value: object) -> str | None:
        """Return the group of one value of the field, or None if no group has it."""
        text = as_text(value)
        if not self.values:
            return text if text in self.groups else None
        if (group := self._group_by_value.get(text)) is not None:
            return group
        return next((group for group, range_ in self._ranges if range_.holds(value)), None)

    @cached_property
    def _group_by_value(self) -> dict[str, str]:
        return {
            value: group
            for group, values in self.values.items()
            if not isinstance(values, Range)
            for value in values
        }

    @cached_property
    def _ranges(self) -> list[tuple[str, Range]]:
        return [(g, values) for g, values in self.values.items() if isinstance(values, Range)]

    def _by_group(self, weights: Mapping[object, float], *, strict: bool) -> dict[str, float]:
        found: dict[str, float] = {}
        for value, weight in weights.items():
            group = self.group_of(value)
            if group is None:
                if strict and not self.values and value != UNKNOWN:
                    raise ValueError(
                        f"{self.field} is {value!r}, which is not one of {', '.join(self.groups)}"
                    )
                group = UNKNOWN
            found[group] = found.get(group, 0.0) + weight
        return found


def _given_values(group: str, given: object) -> Range | list[object]:
    """Return a group's values as written in a file, or its range."""
    if given is None:
        raise ValueError(f"the group '{group}' has no values")
    if isinstance(given, Range | Mapping):
        try:
            return Range.model_validate(given)
        except ValidationError as error:
            where, reason = first_problem(error)
            place = f" at {where}" if where else ""
            raise ValueError(f"the range of '{group}' is wrong{place}: {reason}") from None
    return list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]


def _refuse_booleans(what: str, found: Iterable[object]) -> None:
    """Refuse what YAML reads as a boolean but means text: ``no`` may stand for Norway."""
    for one in found:
        if isinstance(one, bool):
            words = "'yes' and 'on'" if one else "'no' and 'off'"
            raise ValueError(
                f"{what} is the boolean {as_text(one)}, because YAML reads {words} as that; put "
                "the word in quotes"
            )


def _weights(label: object) -> dict[object, float]:
    """Return any form of a label as weights by value."""
    if label is None:
        return {}
    if isinstance(label, str | bool | int | float | date):
        return {} if label == "" else {label: 1.0}
    weights: dict[object, float] = {}
    if isinstance(label, Mapping):
        for value, weight in label.items():
            if isinstance(weight, bool) or not isinstance(weight, int | float):
                raise ValueError(f"the weight of {value!r} is {weight!r}, not a number")
            if not (weight >= 0 and math.isfinite(weight)):
                raise ValueError(f"the weight of {value!r} must be 0 or more, not {weight}")
            weights[str(value)] = float(weight)
        return weights
    if isinstance(label, Sequence) and not isinstance(label, bytes):
        for value in label:
            if not isinstance(value, str | bool | int | float | date):
                raise ValueError(f"a group must be text, not {value!r}")
            weights[value] = weights.get(value, 0.0) + 1.0
        return weights
    raise ValueError(f"a label must be text, a list or a mapping, not {label!r}")


def as_text(value: object) -> str:
    """Return a value as text, so that 1 in a file and "1" in a field are the same value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _as_number(value: object) -> float | None:
    """Return a number, or the year of a date, from a value or its text."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    try:
        return float(str(value))
    except ValueError:
        day = _as_day(value)
        return None if day is None else float(day.year)


def _as_day(value: object) -> date | None:
    """Return the day of a date or of its ISO text, or None for a number."""
    if isinstance(value, datetime):
        return value.date()
    if isinstance(value, date):
        return value
    if isinstance(value, int | float):
        return None
    try:
        return datetime.fromisoformat(str(value).strip()).date()
    except ValueError:
        return None


class Described(BaseModel):
    """Base of models with ``attributes`` by name: a schema, and a source."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    what: ClassVar[str]

    @model_validator(mode="before")
    @classmethod
    def _attributes_know_their_names(cls, data: Any) -> Any:
        """Copy each attribute's key to its name, so that a file states it once."""
        if not isinstance(data, Mapping):
            return data
        attributes = data.get("attributes")
        if attributes is None:  # A draft may have an empty key.
            return {**data, "attributes": {}}
        if not isinstance(attributes, Mapping):
            return data
        _refuse_booleans("the name of an attribute", attributes)
        named = {
            key: {"name": key, **value} if isinstance(value, Mapping) else value
            for key, value in attributes.items()
        }
        return {**data, "attributes": named}

    @field_validator("attributes", check_fields=False)
    @classmethod
    def _there_is_an_attribute(cls, attributes: dict[str, Attribute]) -> dict[str, Attribute]:
        if not attributes:
            raise ValueError(
                f"a {cls.what} needs at least one attribute, such as "
                "'attributes: {gender: {field: sex, groups: [female, male]}}'"
            )
        return attributes


class Schema(Described):
    """The attributes of the documents of a source, by name."""

    what = "schema"
    attributes: dict[Name, Attribute]

    def attribute(self, name: str) -> Attribute:
        """Return the attribute of that name.

        Raises:
            UnknownAttributeError: The schema has no such attribute.
        """
        try:
            return self.attributes[name]
        except KeyError:
            raise UnknownAttributeError(
                f"The corpus has no attribute '{name}'; it has {', '.join(self.attributes)}."
            ) from None


Model = TypeVar("Model", bound=BaseModel)


def load_schema(path: Path) -> Schema:
    """Read a schema from a YAML file.

    Raises:
        SchemaError: The file is missing, is not YAML, or is not a schema.
    """
    data = load_yaml(path, "schema", SchemaError)
    return validated(Schema, data, f"The schema {path}", SchemaError)


def validated(
    model: type[Model],
    data: Any,
    what: str,
    error_type: type[InputError],
    whole: str = "the file",
) -> Model:
    """Return data as a model.

    Args:
        model: The class of the model.
        data: What a person wrote.
        what: What the data is, for the message: ``The schema people.yaml``.
        error_type: The class of errors to raise.
        whole: What the message says if the data is wrong as a whole.

    Raises:
        InputError: The data does not fit the model.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        where, reason = first_problem(error)
        raise error_type(f"{what} is wrong at {where or whole}: {reason}.") from None
