"""Measures of how exposure is shared out among groups."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairqr.errors import InputError, UnknownAttributeError
from fairqr.evaluation.collections.labels import UnknownPolicy
from fairqr.evaluation.fairness import INVERSE_LOG, exposure_per_member, ndkl
from fairqr.evaluation.measures.base import Measure, Need, RankingMeasure
from fairqr.evaluation.memberships import Groups
from fairqr.evaluation.query_results import QueryResults
from fairqr.evaluation.scores import Reason, Score, Undefined
from fairqr.evaluation.weights import rank_weights
from fairqr.retrieval.dimension import TIMES, Dimension
from fairqr.retrieval.divergence import DEFAULT_SMOOTHING, jensen_shannon, kullback_leibler
from fairqr.retrieval.exposure import LOG2, Discount, FloatArray, normalise

__all__ = ["AWRF", "JS", "KL", "NDKL", "Exposure", "ExposureRatio", "GroupMeasure"]

UNKNOWN_CHOICES = ("exclude", "group")
TREC = Discount("trec")


@dataclass(frozen=True, kw_only=True)
class GroupMeasure(Measure):
    """A measure of the groups of an attribute.

    Attributes:
        attribute: An attribute of the schema, or a product such as ``gender×continent``.
        unknown: What happens to documents without a label: ``exclude`` gives their exposure to
            nobody, ``group`` makes them a group; the schema's policy where None.
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
            parts = [part.strip() for part in self.attribute.replace("*", TIMES).split(TIMES)]
            object.__setattr__(self, "attribute", TIMES.join(parts))

    @property
    def needs(self) -> frozenset[Need]:
        """The groups of the documents, and a target."""
        return frozenset({Need.GROUPS, Need.TARGET})

    @property
    def takes_attribute(self) -> bool:
        """Whether the attribute is still to be named."""
        return self.attribute is None

    @property
    def policy(self) -> UnknownPolicy | None:
        """The policy for unknown labels; the schema's where None."""
        return self.unknown

    @property
    def own_target(self) -> str | None:
        """The target that the measure brings along, if it does."""
        return None

    def check(self, groups: Groups | None) -> None:
        """Raise where there are no groups, or the attribute is none of theirs."""
        if groups is None:
            raise InputError(
                f"{self} needs the groups of the documents; name them with --documents or --index."
            )
        self.dimension(groups)

    def targeted(self, groups: Groups) -> list[Dimension]:
        """Return the dimension, unless the measure brings a target along or needs none."""
        if self.own_target or Need.TARGET not in self.needs:
            return []
        return [self.dimension(groups)]

    def dimension(self, groups: Groups) -> Dimension:
        """Return the dimension that it measures."""
        assert self.attribute is not None
        return groups.dimension(self.attribute, self.policy)


@dataclass(frozen=True, kw_only=True)
class _AgainstTarget(GroupMeasure, RankingMeasure):
    """Compares the exposure of one ranking with the target.

    Attributes:
        discount: The weight of each rank: ``log2``, 1/log2(r+1), unless said otherwise.
    """

    discount: Discount = LOG2

    @property
    def weighting(self) -> Discount:
        """The discount that is used."""
        return self.discount

    def of_ranking(self, results: QueryResults, ranking: int) -> Score:
        """Return the value of one ranking, or why it has none."""
        dimension = self.dimension(results.groups)
        target = results.target(dimension, self.own_target)  # type: ignore[arg-type]
        if isinstance(target, Undefined):
            return target
        members = results.memberships(ranking, dimension)[: self.k]
        if not members.any():
            return Undefined(Reason.NO_KNOWN_GROUP)
        score = self.compare(members, target)
        return score if math.isfinite(score) else Undefined(Reason.INFINITE)

    def exposure(self, members: FloatArray) -> FloatArray:
        """Return ε of the documents, shape (G,)."""
        return normalise(rank_weights(self.weighting, len(members)) @ members)

    def compare(self, members: FloatArray, target: FloatArray) -> float:
        """Return the value for memberships of shape (n, G), some known, and a target, (G,)."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class AWRF(_AgainstTarget):
    """AWRF@k = 1 − JS(ε, ε*); see :func:`fairqr.evaluation.fairness.awrf`.

    1 is fair: exposure is exactly as the target says.

    Attributes:
        unit: Of the divergence: ``nats``, from 1 − ln 2 ≈ .307 to 1, or ``bits``, from 0 to 1.
        convention: ``trec2022`` takes that track's discount, 1/log2(max(r,2)), nats, the unknown
            as a group, and its target.
    """

    name = "AWRF"
    best = "1 is fair"
    range = "0.307 to 1; 0 to 1 with unit=bits"
    summary = "1 − JS(exposure, target): attention-weighted rank fairness"
    example = "AWRF@20(attribute=gender)"
    choices: ClassVar = {"unit": ("nats", "bits"), "convention": ("trec2022",)}

    unit: str = "nats"
    convention: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_convention(self, "discount", "unknown", "unit")

    @property
    def policy(self) -> UnknownPolicy | None:
        """The policy for unknown labels."""
        return "group" if self.convention else self.unknown

    @property
    def own_target(self) -> str | None:
        """The track's, by that convention."""
        return self.convention

    @property
    def weighting(self) -> Discount:
        """The discount that is used."""
        return TREC if self.convention else self.discount

    def compare(self, members: FloatArray, target: FloatArray) -> float:
        """Return 1 − JS."""
        found = self.exposure(members)
        return 1 - float(jensen_shannon(target, found, unit=self.unit))  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class JS(_AgainstTarget):
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
    choices: ClassVar = {"unit": ("nats", "bits")}

    unit: str = "nats"

    def compare(self, members: FloatArray, target: FloatArray) -> float:
        """Return JS."""
        found = self.exposure(members)
        return float(jensen_shannon(target, found, unit=self.unit))  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class KL(_AgainstTarget):
    """KL(ε*‖ε) of target and exposure, in nats (FAIR-QR, Chen & Fang 2025); at least 0, 0 is fair.

    Attributes:
        smoothing: λ of :func:`fairqr.retrieval.divergence.smooth`, for both distributions. With 0
            the divergence can be infinite; the query then has no value.
        direction: ``target_exposure``, or ``exposure_target`` for KL(ε‖ε*).
    """

    name = "KL"
    higher_is_better = False
    best = "0 is fair"
    range = "0 to about ln(groups/smoothing), nats"
    summary = "Kullback–Leibler divergence of target and exposure, smoothed"
    example = "KL@20(attribute=gender)"
    choices: ClassVar = {"direction": ("target_exposure", "exposure_target")}

    smoothing: float = DEFAULT_SMOOTHING
    direction: str = "target_exposure"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_smoothing(self.smoothing)

    def compare(self, members: FloatArray, target: FloatArray) -> float:
        """Return KL."""
        return float(
            kullback_leibler(
                target,
                self.exposure(members),
                smoothing=self.smoothing,
                direction=self.direction,  # type: ignore[arg-type]
            )
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
    choices: ClassVar = {}

    smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_smoothing(self.smoothing)
        if self.discount != LOG2:
            raise InputError("NDKL is defined with the discount log2; leave the discount out.")

    def compare(self, members: FloatArray, target: FloatArray) -> float:
        """Return NDKL."""
        return float(ndkl(members, target, smoothing=self.smoothing))


@dataclass(frozen=True, kw_only=True)
class Exposure(GroupMeasure, RankingMeasure):
    """The exposure of a group in the first k ranks.

    Attributes:
        group: Whose.
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

    group: str | None = None
    form: str = "share"
    discount: Discount = LOG2

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_group_is_named(self)

    @property
    def needs(self) -> frozenset[Need]:
        """The groups of the documents."""
        return frozenset({Need.GROUPS})

    def check(self, groups: Groups | None) -> None:
        """Raise where the attribute or the group does not fit."""
        super().check(groups)
        assert groups is not None
        _position(self, groups, self.group)

    def of_ranking(self, results: QueryResults, ranking: int) -> Score:
        """Return the exposure in one ranking."""
        dimension = self.dimension(results.groups)
        place = _position(self, results.groups, self.group)
        members = results.memberships(ranking, dimension)[: self.k]
        if self.form == "per_member":
            gained, size = exposure_per_member(members, self.discount)
            return float(gained[place]) if size[place] else Undefined(Reason.EMPTY_GROUP)
        if not members.any():
            return Undefined(Reason.NO_KNOWN_GROUP)
        return float(normalise(rank_weights(self.discount, len(members)) @ members)[place])


@dataclass(frozen=True, kw_only=True)
class ExposureRatio(GroupMeasure):
    """The mean exposure of a group's members over that of another's; 1 is fair.

    Exposure(G1)/Exposure(G0) with Exposure(G) = (1/|G|) Σ_{i∈G} v(rank_i), v(r) = 1/ln(1+r), over
    the whole list (Singh & Joachims 2018; Zehlike & Castillo 2020). Over several rankings of a
    query v is averaged first, and the ratio taken then; the members are those of any ranking.
    Above 1 the group is favoured.

    Attributes:
        group: G1, usually the protected group.
        against: G0; all other known groups together where None.
        discount: v; its base cancels out.
    """

    name = "ExposureRatio"
    higher_is_better = None
    best = "1 is fair"
    range = "0 upwards, a ratio"
    summary = "mean exposure of a group's members, divided by that of the others'"
    example = "ExposureRatio(attribute=gender,group=female)"

    group: str | None = None
    against: str | None = None
    discount: Discount = INVERSE_LOG

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_group_is_named(self)
        if self.group == self.against:
            raise InputError("ExposureRatio compares two groups; name another one in 'against'.")

    @property
    def needs(self) -> frozenset[Need]:
        """The groups of the documents."""
        return frozenset({Need.GROUPS})

    def check(self, groups: Groups | None) -> None:
        """Raise where the attribute or a group does not fit."""
        super().check(groups)
        assert groups is not None
        for group in (self.group, self.against):
            if group is not None:
                _position(self, groups, group)

    def value(self, results: QueryResults) -> Score:
        """Return the ratio for one query, or why it has none."""
        if results.missing:
            return Undefined(Reason.MISSING)
        dimension = self.dimension(results.groups)
        place = _position(self, results.groups, self.group)
        gained = np.zeros(len(dimension.groups))
        members: dict[str, FloatArray] = {}
        for number, ranking in enumerate(results.rankings):
            rows = results.memberships(number, dimension)[: self.k]
            gained += rank_weights(self.discount, len(rows)) @ rows
            members.update(zip(ranking[: self.k], rows, strict=True))
        sizes = np.sum(list(members.values()), axis=0)
        if self.against is None:
            others = np.arange(len(sizes)) != place
        else:
            others = np.arange(len(sizes)) == _position(self, results.groups, self.against)
        size, other_size = sizes[place], sizes[others].sum()
        if not size or not other_size:
            return Undefined(
                Reason.EMPTY_GROUP if sizes.any() else Reason.NO_KNOWN_GROUP,
            )
        other = gained[others].sum() / other_size
        # The discount rbp or top_k can leave a group without any.
        return float(gained[place] / size / other) if other else Undefined(Reason.INFINITE)


def _position(measure: GroupMeasure, groups: Groups, group: str | None) -> int:
    universe = measure.dimension(groups).groups
    if group not in universe:
        raise UnknownAttributeError(
            f"{measure.attribute} has no group '{group}'; it has {', '.join(universe)}."
        )
    return universe.index(group)


def _check_group_is_named(measure: Exposure | ExposureRatio) -> None:
    if measure.group is None:
        raise InputError(f"{measure.name} needs a group; write {measure.name}(group=female).")


def _check_smoothing(smoothing: float) -> None:
    if not 0 <= smoothing < 1:
        raise InputError(f"The smoothing must be at least 0 and below 1, not {smoothing:g}.")


def _check_convention(measure: AWRF, *set_by_it: str) -> None:
    changed = measure.parameters()
    for name in set_by_it:
        if measure.convention and name in changed:
            raise InputError(
                f"{measure.name}(convention={measure.convention}) sets the {name}; leave it out."
            )
