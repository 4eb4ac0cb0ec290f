"""How far exposure follows the target over all groups of an attribute that nobody lists.

Of thousands of sellers the largest have figures of their own; this is about all of them. E(g) and
T(g) are the means over queries, by their weights, of what group g gets of the exposure and should
get of it. With the groups in the order of E/T, those that are served worst first, the *Lorenz
curve* joins the points

    x(i) = Σ_{j ≤ i} T(j),   y(i) = Σ_{j ≤ i} E(j)

(Lorenz 1905, with the target in place of the population, as the segregation curve of Duncan &
Duncan 1955 has it). It is the diagonal if exposure follows the target. The *Gini index*
1 − 2 ∫ y dx (Gini 1912) is twice the area between both, ½ Σ_i Σ_j |E(i) T(j) − E(j) T(i)|.
Do & Usunier (2022, arXiv 2204.06521) use it for the exposure of items in rankings.

The index is above 0 by chance alone where the queries show each group a few times, however fair an
engine is. So it is compared with that of lists drawn by lot: as many documents, one by one, each
with a probability in proportion to what its groups should get (Plackett–Luce, Plackett 1975). Its
interval is the jackknife of all figures of an audit (:mod:`fairqr.evaluation.estimates`): what an
audit of as many other queries would find. A bootstrap would not do: it draws some queries twice and
leaves others out, so nearly all of its indices are above that of the queries themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairqr.evaluation import estimates
from fairqr.evaluation.audit.exposures import Answer, Choices, target_of
from fairqr.evaluation.estimates import Estimate, divided
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import FloatArray, exposure, normalise
from fairqr.retrieval.sampling.plackett_luce import race

DRAWS = 10
"""So many lists are drawn by lot for each query."""

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
"""The quantiles of gaps that are reported, as shares of the groups."""

CURVE_AT = tuple(step / 50 for step in range(51))
"""Where a Lorenz curve is drawn, as shares of the target."""

DIGITS = 10
"""Machines add in different orders, which shows in the last digits; nothing goes by these."""


def served_worst_first(exposures: FloatArray, target: FloatArray) -> NDArray[np.intp]:
    """Return the groups in the order of exposure / target, the lowest first.

    Args:
        exposures: Of each group, at least 0, shape (G,).
        target: The same. Groups without a target come last if they have exposure.
    """
    # The angle has the order of the ratio, and needs no division by 0.
    angles = np.arctan2(exposures, target).round(DIGITS)
    return np.argsort(angles, kind="stable")


def lorenz_curve(exposures: FloatArray, target: FloatArray) -> FloatArray:
    """Return the points (x, y) of the Lorenz curve, from (0, 0) to (1, 1), shape (G + 1, 2).

    Args:
        exposures: Of each group, at least 0, not all 0, shape (G,).
        target: The same.
    """
    order = served_worst_first(exposures, target)
    shares = np.stack([target[order], exposures[order]], axis=1)
    steps = np.cumsum(shares, axis=0)
    return np.vstack([np.zeros(2), steps / steps[-1]])


def gini_index(exposures: FloatArray, target: FloatArray) -> float:
    """Return 1 − 2 × the area below the Lorenz curve, in [0, 1]; NaN if either is all 0.

    It is 0 if exposure is proportional to the target.
    """
    if not exposures.any() or not target.any():
        return math.nan
    x, y = lorenz_curve(exposures, target).T
    twice_the_area = float(np.diff(x) @ (y[1:] + y[:-1]))
    return min(max(1 - twice_the_area, 0.0), 1.0)


def curve_at(exposures: FloatArray, target: FloatArray, parts: Sequence[float]) -> FloatArray:
    """Return the heights of the Lorenz curve above these places on its x axis, in [0, 1]."""
    x, y = lorenz_curve(exposures, target).T
    return np.asarray(np.interp(parts, x, y))


class Shares(NamedTuple):
    """What the groups of one answer get, and should get.

    Attributes:
        exposure: The share of the exposure in the first k ranks, shape (G,).
        target: ε*, shape (G,).
        by_lot: The exposure in lists that were drawn by lot, shape (:data:`DRAWS`, G).
    """

    exposure: FloatArray
    target: FloatArray
    by_lot: FloatArray


def shares_of(
    answer: Answer, dimension: Dimension, choices: Choices, random: np.random.Generator
) -> Shares | None:
    """Return what the groups of an answer get and should get.

    Args:
        answer: With memberships in the groups of the dimension.
        dimension: All groups that the query found.
        choices: What to measure by.
        random: Draws the lots.

    Returns:
        None if the target is not known, or nothing that is shown has a known group.
    """
    target = target_of(answer, dimension, choices)
    shown = exposure(answer.members[: answer.answered], choices.discount, choices.k)
    if target is None or not shown.any():
        return None
    length = min(choices.k, answer.answered)
    drawn = draw_by_lot(chances_of(answer, target), length, random)
    return Shares(shown, target, exposure(answer.members[drawn], choices.discount))


def chances_of(answer: Answer, target: FloatArray) -> FloatArray:
    """Return chances of documents by which groups share the first rank as the target says.

    A group's part goes to its documents in proportion to their relevance, or alike where that is
    not known; shape (P,), and 0 for a document that is not relevant or has no known group.
    """
    worth = np.ones(len(answer.members)) if answer.counted is None else answer.counted
    each = divided(target, worth @ answer.members, otherwise=0.0)
    return np.asarray(worth * (answer.members @ each))


def draw_by_lot(
    chances: FloatArray, length: int, random: np.random.Generator, draws: int = DRAWS
) -> NDArray[np.intp]:
    """Draw rankings whose next document is each time drawn in proportion to the chances.

    That is Plackett–Luce; see :func:`fairqr.retrieval.sampling.plackett_luce.race`.

    Args:
        chances: At least 0, shape (P,).
        length: Of a ranking; it is shorter if fewer documents have a chance.
        random: Draws the noise.
        draws: How many rankings.

    Returns:
        Positions, shape (draws, at most length).
    """
    candidates = np.flatnonzero(chances)
    if not len(candidates):
        return np.zeros((draws, 0), dtype=np.intp)
    log_weights = np.log(chances[candidates])
    return candidates[race(log_weights, draws, min(length, len(candidates)), random)]


@dataclass(frozen=True, slots=True)
class Concentration:
    """How the exposure of all groups follows their target.

    Attributes:
        attribute: The attribute.
        groups: All groups that the queries found, those first that are served worst.
        exposure: E, by group; sums to 1.
        target: T, by group; sums to 1.
        lots: E of lists that were drawn by lot, shape (:data:`DRAWS`, G).
        gini: The Gini index over the queries whose target is known.
    """

    attribute: str
    groups: tuple[str, ...]
    exposure: FloatArray
    target: FloatArray
    lots: FloatArray
    gini: Estimate

    @property
    def unseen(self) -> int:
        """How many groups got no exposure."""
        return int((self.exposure == 0).sum())

    @property
    def unseen_with_target(self) -> int:
        """How many of these should get some."""
        return int(((self.exposure == 0) & (self.target > 0)).sum())

    @property
    def gaps(self) -> FloatArray:
        """Target − exposure by group, as shares."""
        return self.target - self.exposure

    @property
    def gap_quantiles(self) -> dict[float, float]:
        """The gaps of groups by :data:`QUANTILES`: at .95, what 95 % of the groups lack at most."""
        gaps = np.quantile(self.gaps, QUANTILES).round(DIGITS)
        return dict(zip(QUANTILES, gaps.tolist(), strict=True))

    @property
    def gini_by_lot(self) -> float:
        """The mean Gini index of lists drawn by lot; NaN if no document had a chance."""
        indices = [gini_index(lot, self.target) for lot in self.lots]
        return round(float(np.mean(indices)), DIGITS)

    def exposure_of_worst(self, parts: Sequence[float]) -> list[float]:
        """Return the exposure of those served worst who should get these parts of it, in [0, 1]."""
        heights = curve_at(self.exposure, self.target, parts).round(DIGITS)
        as_list: list[float] = heights.tolist()
        return as_list

    def exposure_of_worst_by_lot(self, parts: Sequence[float]) -> list[float]:
        """Return the same of lists drawn by lot, as a mean; empty if no document had a chance."""
        curves = [curve_at(lot, self.target, parts) for lot in self.lots if lot.any()]
        if not curves:
            return []
        means: list[float] = np.mean(curves, axis=0).round(DIGITS).tolist()
        return means

    def as_data(self) -> dict[str, Any]:
        """Return the figures that are not by group, for JSON."""
        by_lot = self.exposure_of_worst_by_lot(CURVE_AT)
        return {
            "attribute": self.attribute,
            "groups": len(self.groups),
            "unseen": self.unseen,
            "unseen_with_target": self.unseen_with_target,
            "gini": self.gini,
            "gini_by_lot": self.gini_by_lot,
            "gap_quantiles": {f"{part:g}": gap for part, gap in self.gap_quantiles.items()},
            "lorenz": [*zip(CURVE_AT, self.exposure_of_worst(CURVE_AT), strict=True)],
            "lorenz_by_lot": [*zip(CURVE_AT, by_lot, strict=False)],
        }


class _Row(NamedTuple):
    """What one query adds to the groups that it found, by their positions among all."""

    weight: float
    positions: NDArray[np.intp]
    shares: FloatArray


class GroupTotals:
    """Gathers exposure and target of all groups, query by query.

    A query is kept as the shares of the groups that it found, and nothing of its documents.

    Args:
        attribute: The attribute.
    """

    def __init__(self, attribute: str) -> None:
        self.attribute = attribute
        self._positions: dict[str, int] = {}
        self._rows: list[_Row] = []
        # Exposure, target, and the exposure by each lot.
        self._totals = np.zeros((2 + DRAWS, 0))

    def add(self, weight: float, groups: Sequence[str], shares: Shares) -> None:
        """Add what the groups of a query get and should get.

        Args:
            weight: The weight of the query.
            groups: The groups that it found.
            shares: What these get and should get.
        """
        for group in groups:
            self._positions.setdefault(group, len(self._positions))
        new_groups = len(self._positions) - self._totals.shape[1]
        self._totals = np.pad(self._totals, ((0, 0), (0, new_groups)))
        positions = np.array([self._positions[group] for group in groups])
        of_query = np.vstack([shares.exposure, shares.target, shares.by_lot])
        self._totals[:, positions] += weight * of_query
        self._rows.append(_Row(weight, positions, of_query[:2]))

    def concentration(self) -> Concentration | None:
        """Return how the exposure of all groups follows their target; None without any query."""
        if not self._rows:
            return None
        exposures, target = normalise(self._totals[:2])
        order = served_worst_first(exposures, target)
        names = [*self._positions]
        return Concentration(
            attribute=self.attribute,
            groups=tuple(names[position] for position in order),
            exposure=exposures[order],
            target=target[order],
            lots=normalise(self._totals[2:])[:, order],
            gini=estimates.from_deletions(
                self.gini, self.gini_without_each(), self.weights, scale="logit"
            ),
        )

    @property
    def gini(self) -> float:
        """The Gini index over the queries."""
        return gini_index(*self._totals[:2])

    @property
    def weights(self) -> FloatArray:
        """The weights of the queries, in the order in which they were added."""
        return np.array([row.weight for row in self._rows])

    def gini_without_each(self) -> list[float]:
        """Return the Gini index over all queries but each, in their order."""
        totals = self._totals[:2]
        without = []
        for row in self._rows:
            rest = totals.copy()
            rest[:, row.positions] -= row.weight * row.shares
            # What only this query has leaves a rest of rounding.
            is_rounding = rest <= estimates.ROUNDING * totals
            exposures, target = np.where(is_rounding, 0.0, rest)
            without.append(gini_index(exposures, target))
        return without


def gini_change(before: GroupTotals, after: GroupTotals) -> Estimate:
    """Return by how much the Gini index changed, with the jackknife interval of the difference.

    Both indices are above 0 by chance, and mostly by the same chance: leaving a query out changes
    both, and their difference less.

    Args:
        before: What the groups got and should have got.
        after: The same later, over the same queries with the same weights, in the same order.
    """
    change = after.gini - before.gini
    without = np.subtract(after.gini_without_each(), before.gini_without_each())
    return estimates.from_deletions(change, without.tolist(), after.weights)
