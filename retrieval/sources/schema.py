"""The schema of a source: the attributes of its documents, and the groups of each attribute.

The groups come from the schema, never from what was retrieved, so we notice when a group is absent
from a ranking.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    Field,
    PrivateAttr,
    StringConstraints,
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
from fairqr.retrieval.sources.group_values import (
    GroupName,
    Range,
    Values,
    as_name,
    other_forms,
)
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

NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_-]*$")
Name = Annotated[str, StringConstraints(pattern=NAME, max_length=64)]


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

        values = {as_text(group): group_values for group, group_values in groups.items()}
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
        else:
            self._check_groups()
        if self.population is not None:
            self._check_population(self.population)
        return self

    def _check_groups(self) -> None:
        """Refuse groups that cannot be told apart or have no name."""
        # A file of labels may name the groups.
        may_have_no_groups = bool(self.labels)
        if len(self.groups) == 1 or not (self.groups or may_have_no_groups):
            raise ValueError("an attribute needs at least two groups")
        if len(set(self.groups)) < len(self.groups):
            raise ValueError("a group is named twice")
        if not all(map(str.strip, self.groups)):
            raise ValueError("each group needs a name")
        if UNKNOWN in self.groups:
            raise ValueError(f"'{UNKNOWN}' is reserved; write 'unknown: group' instead")

    def _check_population(self, population: Mapping[str, float]) -> None:
        """Refuse shares that do not sum to 1, and shares of groups that do not exist."""
        check_shares(population, "the population")
        if not self.groups:
            return
        unknown_groups = population.keys() - self.universe
        if unknown_groups:
            raise ValueError(f"population names '{min(unknown_groups)}', which is no group")

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

        for group, value in self._groups_and_values:
            # Of a value that stands twice, the last group counts.
            owner = self._group_by_value[value]
            if owner != group:
                quoted = one_line(value, 60)
                raise ValueError(f"the value '{quoted}' is in both '{group}' and '{owner}'")

        for (group, first), (other_group, second) in combinations(self._ranges, 2):
            if first.overlaps(second):
                raise ValueError(f"the ranges of '{group}' and '{other_group}' overlap")
        return self

    @model_validator(mode="after")
    def _labels_say_something(self) -> Attribute:
        if self.confusion is not None:
            if self.unknown == "group":
                raise ValueError("confusion needs 'unknown: exclude'")
            groups = self.groups or tuple(self.confusion)
            _check_confusion(self.confusion, groups)
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
        if self.unknown == "group":
            return (*self.groups, UNKNOWN)
        return self.groups

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
            if group is None and strict:
                self._check_value_without_group(value)
            weights[group or UNKNOWN] += weight

        total = sum(weights.values())
        if total == 0:
            weights[UNKNOWN] = 1.0
            total = 1.0
        return tuple(weights[group] / total for group in self.universe)

    def _check_value_without_group(self, value: object) -> None:
        """Refuse a value that is no group's, unless the attribute lists values or it is unknown."""
        if self.values or value == UNKNOWN:
            return
        subject = self.field or self.name
        quoted = repr(value) if isinstance(value, str) else as_text(value)
        groups = ", ".join(self.groups)
        raise ValueError(f"{subject} is {quoted}, which is not one of {groups}")

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

    def with_groups(self, names: Sequence[str]) -> Attribute:
        """Return an open attribute with the groups of a search, and ``other`` as the last."""
        named = [name for name in names if name != OTHER]
        # We do not check it again: the checks are for what users write.
        attribute = Attribute.model_construct(
            name=self.name,
            field=self.field,
            labels=self.labels,
            groups=(*named, OTHER),
            unknown="exclude",
        )
        attribute._is_found = True
        return attribute

    def group_of(self, value: object) -> str | None:
        """Return the group of one value of the field, or None if no group has it."""
        if self.open:
            return next(iter(self.named_shares(value)), None)

        for text in (as_text(value), *other_forms(value)):
            group = self._group_by_value.get(text)
            if group is not None:
                return group
        return self._group_by_range(value)

    def _group_by_range(self, value: object) -> str | None:
        """Return the group whose range has a value, or None."""
        if not self._ranges:
            return None
        number = year_of(value, self.dates) if self.dates else _as_number(value)
        if number is None:
            return None
        is_no_year = abs(number) > LAST_YEAR
        if self._are_years and is_no_year:
            return None  # a date in a form that nobody stated
        for group, range_ in self._ranges:
            if range_.holds(number):
                return group
        return None

    def spellings(self, group: str) -> list[str]:
        """Return the values of a group in all the forms that :meth:`group_of` reads.

        Spaces around a value are not among them.
        """
        values = self.values.get(group, (group,))
        if isinstance(values, Range):
            return []

        forms: list[str] = []
        for value in values:
            forms += [value, *other_forms(value)]
        forms += [f"{form}.0" for form in forms]
        distinct = dict.fromkeys(forms)
        return [form for form in distinct if self.group_of(form) == group]

    @property
    def has_ranges(self) -> bool:
        """Whether groups are ranges of numbers or dates."""
        return bool(self._ranges)

    @cached_property
    def _are_years(self) -> bool:
        """Whether the groups are ranges of years, as far as their bounds tell."""
        bounds: list[float] = []
        for _, range_ in self._ranges:
            bounds += range_.model_dump(exclude_none=True).values()
        return bool(bounds) and all(FIRST_BOUND <= bound <= LAST_BOUND for bound in bounds)

    @cached_property
    def _groups_and_values(self) -> list[tuple[str, str]]:
        """Each value that the attribute lists, with its group."""
        pairs = []
        for group, values in self.values.items():
            if isinstance(values, tuple):
                pairs += [(group, value) for value in values]
        return pairs

    @cached_property
    def _group_by_value(self) -> dict[str, str]:
        if not self.values:
            return {group: group for group in self.groups}
        return {value: group for group, value in self._groups_and_values}

    @cached_property
    def _ranges(self) -> list[tuple[str, Range]]:
        """Each range that the attribute lists, with its group."""
        return [
            (group, values) for group, values in self.values.items() if isinstance(values, Range)
        ]


def _check_confusion(confusion: Mapping[str, Mapping[str, float]], groups: Sequence[str]) -> None:
    """Refuse a matrix of labels by groups that is not complete, or from which nothing follows.

    Args:
        confusion: How many documents of each group have each label, as counts or as shares.
        groups: All groups.
    """
    import numpy as np  # Few attributes have a matrix, and this module is imported first.

    labels = set(groups).union(*confusion.values())
    if not {*confusion} == {*groups} == labels:
        raise ValueError("confusion needs a row for each group, with groups as labels")

    rows = np.array([[confusion[group].get(label, 0.0) for label in groups] for group in groups])
    totals = rows.sum(axis=1, keepdims=True)
    are_counts = (totals > 1) & (rows % 1 == 0).all(axis=1, keepdims=True)
    are_shares = np.isclose(totals, 1, rtol=0, atol=1e-6)
    if (rows < 0).any() or not (are_counts | are_shares).all():
        raise ValueError("each row of confusion must be counts, or shares that sum to 1")

    shares = rows / totals
    for group, label in np.argwhere(shares >= shares.diagonal()):
        if group != label:
            problem = f"'{groups[group]}' has the label '{groups[label]}' as often as its own"
            raise ValueError(f"{problem}, so the labels say nothing")
    if np.linalg.cond(shares) > 1e3:
        raise ValueError("the rows of confusion are too alike, so the labels say too little")


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
        if not isinstance(data, Mapping):
            return data
        # A draft may have an empty key.
        attributes = data.get("attributes") or {}
        if not isinstance(attributes, Mapping):
            return data

        with_names = {}
        for name, attribute in attributes.items():
            if isinstance(attribute, Mapping):
                with_names[name] = {"name": name, **attribute}
            else:
                with_names[name] = attribute
        return {**data, "attributes": with_names}


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


def validated(model: type[Model], data: Any, subject: str, error_type: type[FairqrError]) -> Model:
    """Return data as a model.

    Args:
        model: The class of the model.
        data: What a person wrote.
        subject: What the data is, for the message: ``The schema people.yaml``.
        error_type: The class of errors to raise.

    Raises:
        FairqrError: The data does not fit the model; of the class that was named.
    """
    if not isinstance(data, Mapping | model):
        raise error_type(f"{subject} must be a mapping of names to values.")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        location, reason = first_problem(error)
        position = f" at {location}" if location else ""
        raise error_type(f"{subject} is wrong{position}: {reason}.") from None


def check_shares(shares: Mapping[Any, float], subject: str) -> None:
    """Raise ValueError unless shares are 0 or more and sum to 1."""
    for name, share in shares.items():
        if not 0 <= share < math.inf:
            raise ValueError(f"the share of '{name}' in {subject} must be 0 or more, not {share}")

    total = sum(shares.values())
    if not math.isclose(total, 1, abs_tol=1e-6):
        raise ValueError(f"the shares of {subject} must sum to 1, not {total:g}")
