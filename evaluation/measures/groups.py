"""Measures of groups: exposure against a target, and the exposure of one group without one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self, get_args

import numpy as np
from numpy.typing import NDArray

from fairqr.base.errors import InputError, UnknownAttributeError
from fairqr.evaluation.batch import Batch
from fairqr.evaluation.collections.labels import Groups, UnknownPolicy
from fairqr.evaluation.collections.query_targets import TargetRule
from fairqr.evaluation.fairness import Unit, awrf_of, exposure_per_member, ndkl
from fairqr.evaluation.measures.base import Convention, Measure, Need, QueryMeasure, RankingMeasure
from fairqr.evaluation.scores import Reason, Score, Scores, Undefined
from fairqr.retrieval.fairness.dimension import TIMES, Dimension, factors_of
from fairqr.retrieval.fairness.divergence import (
    DEFAULT_SMOOTHING,
    Direction,
    jensen_shannon,
    kullback_leibler,
)
from fairqr.retrieval.fairness.exposure import (
    INVERSE_LOG,
    LOG2,
    TREC,
    Discount,
    FloatArray,
    exposure,
)
from fairqr.retrieval.fairness.target import Target


@dataclass(frozen=True, kw_only=True)
class GroupMeasure(Measure):
    """A measure of the groups of an attribute.

    Attributes:
        attribute: An attribute of the schema, or a product such as ``gender×continent``.
        unknown: The policy for documents without a label: ``exclude`` gives their exposure to
            nobody, ``group`` makes them a group. Defaults to the schema's policy.
    """

    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"unknown": get_args(UnknownPolicy)}

    attribute: str | None = None
    unknown: UnknownPolicy | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
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
        """Return the position of a group in the attribute."""
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
    choices: ClassVar = {**GroupMeasure.choices, "form": ("share", "per_member")}

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
    summary = "mean exposure of a group's members, divided by the other documents'"
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


@dataclass(frozen=True, kw_only=True)
class _AgainstTarget(GroupMeasure, RankingMeasure):
    """Compares each ranking with the target."""

    def of_rankings(self, batch: Batch) -> Scores:
        """Return the value of each ranking, or the reason why it has none."""
        dimension = self.dimension(batch.groups)
        targets, undefined = batch.targets(dimension, self.own_target)
        members = batch.memberships(dimension, self.k)
        lengths = np.minimum(batch.lengths, members.shape[1])
        values = self.compare(members, targets[batch.owner], lengths)
        infinite = np.flatnonzero(~np.isfinite(values)).tolist()
        why = dict.fromkeys(infinite, Undefined(Reason.INFINITE))
        unknown = np.flatnonzero(~members.any(axis=(1, 2))).tolist()
        why.update(dict.fromkeys(unknown, Undefined(Reason.NO_KNOWN_GROUP)))
        for query, reason in undefined.items():
            why.update(dict.fromkeys(batch.of_query(query), reason))
        return Scores(values).without(why)

    @abstractmethod
    def compare(
        self, members: FloatArray, targets: FloatArray, lengths: NDArray[np.intp]
    ) -> FloatArray:
        """Return the value of each ranking, shape (R,).

        Args:
            members: Shape (R, n, G), padded with zeros.
            targets: Shape (R, G).
            lengths: The length of each ranking, shape (R,).
        """


@dataclass(frozen=True, kw_only=True)
class _OfExposure(_AgainstTarget):
    """Compares the exposure of one ranking with the target.

    Attributes:
        discount: The weight of each rank: ``log2``, 1/log2(r+1), by default.
    """

    discount: Discount = LOG2

    @property
    def weighting(self) -> Discount:
        """The discount in use."""
        return self.discount

    def compare(
        self, members: FloatArray, targets: FloatArray, lengths: NDArray[np.intp]
    ) -> FloatArray:
        """Return the divergence of each ranking."""
        return self.diverge(exposure(members, self.weighting), targets)

    @abstractmethod
    def diverge(self, exposures: FloatArray, targets: FloatArray) -> FloatArray:
        """Return the value for exposures and targets of shape (R, G)."""


@dataclass(frozen=True, kw_only=True)
class AWRF(TakesConvention, _OfExposure):
    """AWRF@k = 1 − JS(ε, ε*); see :func:`fairqr.evaluation.fairness.awrf`.

    1 is fair: exposure is exactly as the target says.

    Attributes:
        unit: The divergence's: ``nats``, from 1 − ln 2 ≈ .307 to 1, or ``bits``, from 0 to 1.
        convention: ``trec2022`` takes that track's discount, 1/log2(max(r,2)), nats, the unknown
            as a group, and its target.
    """

    name = "AWRF"
    best = "1 is fair"
    range = "0.307 to 1; 0 to 1 with unit=bits"
    summary = "1 − JS(exposure, target): attention-weighted rank fairness"
    example = "AWRF@20(attribute=gender)"
    choices: ClassVar = {
        **GroupMeasure.choices,
        "unit": ("nats", "bits"),
        "convention": ("trec2022",),
    }
    set_by_convention = ("discount", "unknown", "unit")

    unit: Unit = "nats"
    convention: Convention | None = None

    @property
    def weighting(self) -> Discount:
        """The discount in use."""
        return TREC if self.convention else self.discount

    def diverge(self, exposures: FloatArray, targets: FloatArray) -> FloatArray:
        """Return 1 − JS."""
        return awrf_of(exposures, targets, unit=self.unit)


@dataclass(frozen=True, kw_only=True)
class JS(_OfExposure):
    """JS(ε, ε*), the Jensen–Shannon divergence of exposure and target (Lin 1991); 0 is fair.

    Attributes:
        unit: ``nats``, from 0 to ln 2 ≈ .693, or ``bits``, from 0 to 1.
    """

    name = "JS"
    higher_is_better = False
    best = "0 is fair"
    range = "0 to 0.693; 0 to 1 with unit=bits"
    summary = "Jensen–Shannon divergence of exposure and target"
    example = "JS@20(attribute=gender,unit=bits)"
    choices: ClassVar = {**GroupMeasure.choices, "unit": ("nats", "bits")}

    unit: Unit = "nats"

    def diverge(self, exposures: FloatArray, targets: FloatArray) -> FloatArray:
        """Return JS."""
        return jensen_shannon(targets, exposures, unit=self.unit)


@dataclass(frozen=True, kw_only=True)
class KL(_OfExposure):
    """KL(ε*‖ε) of target and exposure, in nats (FAIR-QR, Chen & Fang 2025); at least 0, 0 is fair.

    Attributes:
        smoothing: λ of :func:`fairqr.retrieval.fairness.divergence.smooth`, for both
        distributions. With 0
            the divergence can be infinite; the query then has no value.
        direction: ``target_exposure``, or ``exposure_target`` for KL(ε‖ε*).
    """

    name = "KL"
    higher_is_better = False
    best = "0 is fair"
    range = "0 to about ln(groups/smoothing), nats"
    summary = "Kullback–Leibler divergence of target and exposure, smoothed"
    example = "KL@20(attribute=gender)"
    choices: ClassVar = {
        **GroupMeasure.choices,
        "direction": ("target_exposure", "exposure_target"),
    }

    smoothing: float = DEFAULT_SMOOTHING
    direction: Direction = "target_exposure"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_smoothing(self.smoothing)

    def diverge(self, exposures: FloatArray, targets: FloatArray) -> FloatArray:
        """Return KL."""
        return kullback_leibler(
            targets, exposures, smoothing=self.smoothing, direction=self.direction
        )


@dataclass(frozen=True, kw_only=True)
class NDKL(_AgainstTarget):
    """NDKL (Geyik, Ambler & Kenthapadi 2019); see :func:`fairqr.evaluation.fairness.ndkl`.

    In nats, at least 0; 0 is fair. Its discount is always 1/log2(i+1).

    Attributes:
        smoothing: 0 as published; a query whose ranking has a group with a target of 0 then has no
            value.
    """

    name = "NDKL"
    higher_is_better = False
    best = "0 is fair"
    range = "0 upwards, nats"
    summary = "discounted mean over the prefixes of KL(shares of the groups‖target)"
    example = "NDKL(attribute=gender)"
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_smoothing(self.smoothing)

    def compare(
        self, members: FloatArray, targets: FloatArray, lengths: NDArray[np.intp]
    ) -> FloatArray:
        """Return NDKL; rankings of one length are computed together."""
        values = np.zeros(len(members))
        for length in np.unique(lengths):
            rows = lengths == length
            values[rows] = ndkl(members[rows, :length], targets[rows], smoothing=self.smoothing)
        return values


def _check_smoothing(smoothing: float) -> None:
    if not 0 <= smoothing < 1:
        raise InputError(f"The smoothing must be at least 0 and below 1, not {smoothing:g}.")
