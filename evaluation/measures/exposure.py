"""Measures of the exposure of a group, without a target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairqr.base.errors import InputError, UnknownAttributeError
from fairqr.evaluation.batch import Batch
from fairqr.evaluation.collections.labels import Groups
from fairqr.evaluation.fairness import exposure_per_member
from fairqr.evaluation.measures.base import Need, QueryMeasure, RankingMeasure
from fairqr.evaluation.measures.groups import GroupMeasure
from fairqr.evaluation.scores import Reason, Score, Scores, Undefined
from fairqr.retrieval.exposure import INVERSE_LOG, LOG2, Discount, FloatArray, exposure

__all__ = ["Exposure", "ExposureRatio"]


@dataclass(frozen=True, kw_only=True)
class _OfOneGroup(GroupMeasure):
    group: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group is None:
            raise InputError(f"{self.name} needs a group; write {self.name}(group=female).")

    @property
    def needs(self) -> frozenset[Need]:
        """The groups of the documents."""
        return frozenset({Need.GROUPS})

    @property
    def named(self) -> tuple[str | None, ...]:
        """The groups that it names."""
        return (self.group,)

    def check(self, groups: Groups | None) -> None:
        """Raise if the groups lack the attribute or a group."""
        super().check(groups)
        for group in self.named:
            if groups is not None and group is not None:
                self.position(groups, group)

    def position(self, groups: Groups, group: str | None) -> int:
        """Return the position of a group among those of the attribute."""
        universe = self.dimension(groups).groups
        if group not in universe:
            raise UnknownAttributeError(
                f"{self.attribute} has no group '{group}'; it has {', '.join(universe)}."
            )
        return universe.index(group)


@dataclass(frozen=True, kw_only=True)
class Exposure(_OfOneGroup, RankingMeasure):
    """The exposure of a group in the first k ranks.

    Attributes:
        group: The group.
        form: ``share``: its part of the exposure of all known groups, in [0, 1]; fair is what the
            target says. ``per_member``: the mean exposure of its members in the ranking, in units
            of the discount (Singh & Joachims 2018); fair is what other groups have.
        discount: The weight of each rank.
    """

    name = "Exposure"
    higher_is_better = None
    best = "the group's target is fair"
    range = "0 to 1, a share"
    summary = "the share of exposure that a group gets"
    example = "Exposure@20(attribute=gender,group=female)"
    choices: ClassVar = {"form": ("share", "per_member")}

    form: str = "share"
    discount: Discount = LOG2

    def of_rankings(self, batch: Batch) -> Scores:
        """Return the exposure in each ranking."""
        dimension = self.dimension(batch.groups)
        place = self.position(batch.groups, self.group)
        members = batch.memberships(dimension, self.k)
        if self.form == "per_member":
            gained, size = exposure_per_member(members, self.discount)
            without = np.flatnonzero(size[:, place] == 0).tolist()
            why = dict.fromkeys(without, Undefined(Reason.EMPTY_GROUP))
            return Scores(gained[:, place]).without(why)
        unknown = np.flatnonzero(~members.any(axis=(1, 2))).tolist()
        shares = exposure(members, self.discount)
        why = dict.fromkeys(unknown, Undefined(Reason.NO_KNOWN_GROUP))
        return Scores(shares[:, place]).without(why)


@dataclass(frozen=True, kw_only=True)
class ExposureRatio(_OfOneGroup, QueryMeasure):
    """The mean exposure of a group's members, divided by the mean of another group's; 1 is fair.

    Exposure(G1)/Exposure(G0) with Exposure(G) = (1/|G|) Σ_{i∈G} v(rank_i), v(r) = 1/ln(1+r), over
    the whole list (Singh & Joachims 2018; Zehlike & Castillo 2020). Over several rankings of a
    query v is averaged first, and the ratio taken then; the members are those of any ranking.
    Above 1 the group is favoured.

    Attributes:
        group: G1, usually the protected group.
        against: G0; defaults to all other known groups together.
        discount: v; its base cancels out.
    """

    name = "ExposureRatio"
    higher_is_better = None
    best = "1 is fair"
    range = "0 upwards, a ratio"
    summary = "mean exposure of a group's members, divided by that of the others'"
    example = "ExposureRatio(attribute=gender,group=female)"

    against: str | None = None
    discount: Discount = INVERSE_LOG

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group == self.against:
            raise InputError("ExposureRatio compares two groups; name another one in 'against'.")

    @property
    def named(self) -> tuple[str | None, ...]:
        """The groups that it names."""
        return (self.group, self.against)

    def of_query(self, batch: Batch, query: int) -> Score:
        """Return the ratio for one query, or the reason why it has none."""
        dimension = self.dimension(batch.groups)
        place = self.position(batch.groups, self.group)
        gained = np.zeros(len(dimension.groups))
        members: dict[str, FloatArray] = {}
        shown = batch.memberships(dimension, self.k)
        weights = self.discount.weights(shown.shape[1])
        for ranking in batch.of_query(query):
            gained += weights @ shown[ranking]
            members.update(zip(batch.rankings[ranking][: self.k], shown[ranking], strict=False))
        sizes = np.sum(list(members.values()), axis=0)
        if self.against is None:
            others = np.arange(len(sizes)) != place
        else:
            others = np.arange(len(sizes)) == self.position(batch.groups, self.against)
        size, other_size = sizes[place], sizes[others].sum()
        if not size or not other_size:
            return Undefined(Reason.EMPTY_GROUP if sizes.any() else Reason.NO_KNOWN_GROUP)
        other = gained[others].sum() / other_size
        # The discount rbp or top_k can leave a group without any.
        return float(gained[place] / size / other) if other else Undefined(Reason.INFINITE)
