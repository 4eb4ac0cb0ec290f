"""Measures that compare the exposure of groups in a ranking with a target."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fairqr.base.errors import InputError
from fairqr.evaluation.batch import Batch
from fairqr.evaluation.fairness import Unit, awrf_of, ndkl
from fairqr.evaluation.measures.base import Convention, RankingMeasure
from fairqr.evaluation.measures.groups import GroupMeasure, TakesConvention
from fairqr.evaluation.scores import Reason, Scores, Undefined
from fairqr.retrieval.divergence import (
    DEFAULT_SMOOTHING,
    Direction,
    jensen_shannon,
    kullback_leibler,
)
from fairqr.retrieval.exposure import LOG2, TREC, Discount, FloatArray, exposure

__all__ = ["AWRF", "JS", "KL", "NDKL"]


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

    unit: Unit = "nats"
    convention: Convention | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_convention(self, "discount", "unknown", "unit")

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
    choices: ClassVar = {"unit": ("nats", "bits")}

    unit: Unit = "nats"

    def diverge(self, exposures: FloatArray, targets: FloatArray) -> FloatArray:
        """Return JS."""
        return jensen_shannon(targets, exposures, unit=self.unit)


@dataclass(frozen=True, kw_only=True)
class KL(_OfExposure):
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


def _check_convention(measure: AWRF, *set_by_it: str) -> None:
    changed = measure.parameters()
    for name in set_by_it:
        if measure.convention and name in changed:
            raise InputError(
                f"{measure.name}(convention={measure.convention}) sets the {name}; leave it out."
            )
