"""The schema of a corpus: the attributes of its documents, and the groups of each attribute.

The universe of groups comes from here, never from what was retrieved, so that a group that is
absent from a ranking is seen to be absent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from fairqr.errors import SchemaError, UnknownAttributeError, first_problem, one_line

__all__ = ["UNKNOWN", "Attribute", "CorpusSchema", "load_schema"]

UNKNOWN = "unknown"
"""The name of the group of documents without a label, and of that mass in fractional labels."""

NO_LABELS = ("id", "title", "text")
"""What a document has of its own; no field of it holds labels under these names."""

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$", max_length=64)]


class Attribute(BaseModel):
    """One attribute of the documents, such as gender, with its groups.

    Attributes:
        name: How the attribute is called in commands and results.
        field: The field of a document that holds its label: one group, a list of groups (equal
            shares), or a mapping from groups to weights.
        groups: The groups, in the order of all vectors over them.
        population: The share of each group in the world the documents speak of; sums to 1.
        unknown: What happens to documents without a label: ``exclude`` keeps them out of exposure,
            ``group`` makes them a group of their own, named ``unknown``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    field: str = Field(min_length=1)
    groups: tuple[str, ...]
    population: dict[str, float] | None = None
    unknown: Literal["exclude", "group"] = "exclude"

    @field_validator("field")
    @classmethod
    def _field_is_not_of_the_document(cls, field: str) -> str:
        if field in NO_LABELS:
            raise ValueError(f"'{field}' belongs to the document itself and cannot hold a label")
        return field

    @field_validator("groups")
    @classmethod
    def _groups_are_distinct(cls, groups: tuple[str, ...]) -> tuple[str, ...]:
        if len(groups) < 2:
            raise ValueError("an attribute needs at least two groups")
        if len(set(groups)) < len(groups):
            raise ValueError("a group is named twice")
        if UNKNOWN in groups:
            raise ValueError(f"'{UNKNOWN}' is reserved; write 'unknown: group' instead")
        return groups

    @model_validator(mode="after")
    def _population_is_a_distribution(self) -> Attribute:
        if self.population is None:
            return self
        for group, share in self.population.items():
            if group not in self.universe:
                raise ValueError(f"population names '{group}', which is not among the groups")
            if not share >= 0 or math.isinf(share):
                raise ValueError(
                    f"the population share of '{group}' must be 0 or more, not {share}"
                )
        if not math.isclose(total := sum(self.population.values()), 1, abs_tol=1e-6):
            raise ValueError(f"the population shares must sum to 1, not {total:g}")
        return self

    @cached_property
    def universe(self) -> tuple[str, ...]:
        """The groups that exposure is measured over: ``groups``, and ``unknown`` if it is one."""
        return (*self.groups, UNKNOWN) if self.unknown == "group" else self.groups

    def membership(self, label: object) -> tuple[float, ...]:
        """Return the share of each group of the universe in a document with this label.

        The shares sum to 1 for a fully labelled document. Under ``unknown: exclude`` the unknown
        mass is left out, so the sum is below 1, and 0 for a document without a label.

        Args:
            label: None, a group's name, a sequence of names, or a mapping from names to weights.

        Raises:
            ValueError: The label names no group, or has a weight that is negative or not finite.
        """
        weights = _weights(label)
        for group in weights:
            if group != UNKNOWN and group not in self.groups:
                raise ValueError(
                    f"{self.field} is {group!r}, which is not one of {', '.join(self.groups)}"
                )
        total = sum(weights.values())
        if total == 0:
            weights, total = {UNKNOWN: 1.0}, 1.0
        return tuple(weights.get(group, 0.0) / total for group in self.universe)


def _weights(label: object) -> dict[str, float]:
    """Turn each of the three ways to write a label into weights by group."""
    if label is None or label == "":
        return {}
    if isinstance(label, str):
        return {label: 1.0}
    weights: dict[str, float] = {}
    if isinstance(label, Mapping):
        for group, weight in label.items():
            if isinstance(weight, bool) or not isinstance(weight, int | float):
                raise ValueError(f"the weight of {group!r} is {weight!r}, not a number")
            if not (weight >= 0 and math.isfinite(weight)):
                raise ValueError(f"the weight of {group!r} must be 0 or more, not {weight}")
            weights[str(group)] = float(weight)
        return weights
    if isinstance(label, Sequence):
        for group in label:
            if not isinstance(group, str):
                raise ValueError(f"a group must be text, not {group!r}")
            weights[group] = weights.get(group, 0.0) + 1.0
        return weights
    raise ValueError(f"a label must be text, a list or a mapping, not {label!r}")


class CorpusSchema(BaseModel):
    """The attributes of a corpus, by name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    attributes: dict[Name, Attribute]

    @model_validator(mode="before")
    @classmethod
    def _attributes_know_their_names(cls, data: Any) -> Any:
        """Let the file say each attribute's name once, as the key."""
        if isinstance(data, Mapping) and isinstance(data.get("attributes"), Mapping):
            named = {
                key: {"name": key, **value} if isinstance(value, Mapping) else value
                for key, value in data["attributes"].items()
            }
            return {**data, "attributes": named}
        return data

    @field_validator("attributes")
    @classmethod
    def _there_is_an_attribute(cls, attributes: dict[str, Attribute]) -> dict[str, Attribute]:
        if not attributes:
            raise ValueError("a schema needs at least one attribute")
        return attributes

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


class _TwiceError(Exception):
    """A mapping has a key twice; the arguments are the key and its line."""


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice, of which YAML would silently take the last."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        known = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in known:
                    raise _TwiceError(key.value, key.start_mark.line + 1)
                known.add((key.tag, key.value))
        return node


def load_schema(path: Path) -> CorpusSchema:
    """Read a schema from a YAML file.

    Raises:
        SchemaError: The file is missing, is not YAML, or is not a schema.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SchemaError(f"The schema {path} cannot be read ({error}).") from None
    try:
        data = yaml.load(text, _Loader)  # noqa: S506 - it is a SafeLoader
    except _TwiceError as error:
        key, line = error.args
        raise SchemaError(
            f"The schema {path}, line {line}, has '{one_line(key)}' twice; keep one."
        ) from None
    except RecursionError:
        raise SchemaError(f"The schema {path} is nested too deeply; mend it.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise SchemaError(f"The schema {path}{where} is not valid YAML; mend it.") from None
    except Exception as error:
        # A value such as the date 2001-99-99, on which the parser fails with whatever it meets.
        raise SchemaError(
            f"The schema {path} has a value that cannot be read ({one_line(error)}); mend it."
        ) from None
    try:
        return CorpusSchema.model_validate(data)
    except ValidationError as error:
        where, reason = first_problem(error)
        at = where or "the file"
        raise SchemaError(f"The schema {path} is wrong at {at}: {reason}.") from None
