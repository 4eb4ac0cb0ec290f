"""What measures of groups have in common."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from fairqr.base.errors import InputError
from fairqr.evaluation.collections.labels import Groups, UnknownPolicy
from fairqr.evaluation.collections.query_targets import TargetRule
from fairqr.evaluation.measures.base import Convention, Measure, Need
from fairqr.retrieval.dimension import TIMES, Dimension, factors_of
from fairqr.retrieval.target import Target

__all__ = ["GroupMeasure", "TakesConvention"]

UNKNOWN_CHOICES = ("exclude", "group")


@dataclass(frozen=True, kw_only=True)
class GroupMeasure(Measure):
    """A measure of the groups of an attribute.

    Attributes:
        attribute: An attribute of the schema, or a product such as ``gender×continent``.
        unknown: The policy for documents without a label: ``exclude`` gives their exposure to
            nobody, ``group`` makes them a group. Defaults to the schema's policy.
    """

    attribute: str | None = None
    unknown: UnknownPolicy | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unknown not in (None, *UNKNOWN_CHOICES):
            raise InputError(
                f"{self.name} has no unknown '{self.unknown}'; choose exclude or group."
            )
        if self.attribute is not None:
            parts = [part.strip() for part in factors_of(self.attribute)]
            object.__setattr__(self, "attribute", TIMES.join(parts))

    @property
    def needs(self) -> frozenset[Need]:
        """The groups of the documents, and a target."""
        return frozenset({Need.GROUPS, Need.TARGET})

    @property
    def takes_attribute(self) -> bool:
        """Whether it still needs an attribute."""
        return self.attribute is None

    def with_attribute(self, attribute: str) -> Self:
        """Return the measure for this attribute; unchanged if it needs none or has one."""
        return replace(self, attribute=attribute) if self.takes_attribute else self

    def for_target(self, rule: TargetRule) -> Self:
        """Return the measure with the track's policy for the unknown, if the target is the track's.

        In 2022 the unknown is a group; in 2021 only in products. A policy or convention that the
        measure names stays.
        """
        if isinstance(rule, Target) or self.unknown or self.own_target or not self.attribute:
            return self
        if Need.TARGET not in self.needs:
            return self
        grouped = rule == "trec2022" or TIMES in self.attribute
        return replace(self, unknown="group" if grouped else "exclude")

    @property
    def policy(self) -> UnknownPolicy | None:
        """The policy for unknown labels; defaults to the schema's."""
        return self.unknown

    @property
    def own_target(self) -> Convention | None:
        """The target that the measure sets itself; optional."""
        return None

    def check(self, groups: Groups | None) -> None:
        """Raise if groups are missing, or lack the attribute."""
        super().check(groups)
        if groups is not None:
            self.dimension(groups)

    def targeted(self, groups: Groups) -> list[Dimension]:
        """Return the dimension, unless the measure sets its own target or needs none."""
        if self.own_target or Need.TARGET not in self.needs:
            return []
        return [self.dimension(groups)]

    def dimension(self, groups: Groups) -> Dimension:
        """Return the dimension that it measures."""
        if self.attribute is None:
            raise InputError(f"{self} needs an attribute; write {self.name}(attribute=gender).")
        return groups.dimension(self.attribute, self.policy)


class TakesConvention(GroupMeasure):
    """A measure of groups that can follow the conventions of TREC's track.

    Each such measure declares the parameter itself, in its place among the others.
    """

    convention: Convention | None

    @property
    def policy(self) -> UnknownPolicy | None:
        """The policy for unknown labels."""
        return "group" if self.convention else self.unknown

    @property
    def own_target(self) -> Convention | None:
        """The track's, by that convention."""
        return self.convention
