"""The figures of each group over all queries, with intervals and corrected tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from fairqr.base.statistics import corrected_by_holm
from fairqr.evaluation.audit.estimates import (
    Estimate,
    jackknifed,
    randomisation_p,
    within,
)
from fairqr.evaluation.audit.exposures import Shown
from fairqr.retrieval.dimension import Dimension
from fairqr.retrieval.exposure import FloatArray

__all__ = ["ESTIMATE_ERROR", "FOUR_FIFTHS", "Gathered", "GroupFigures", "Verdict", "corrected"]

ALPHA = 0.05
FOUR_FIFTHS = 0.8
"""The line of the Uniform Guidelines on Employee Selection Procedures (29 CFR 1607.4 D)."""
FEW_CANDIDATES = 30
"""Rates over fewer candidates are marked, and shown shrunken beside."""
PRIOR_CANDIDATES = 10.0
"""A shrunken rate is that of so many further candidates with the rate of all groups together."""

SHARES = ("exposure", "target", "supply", "absent", "attention", "selection_rate")
"""Figures from 0 to 1, which no end of an interval leaves."""

OF_ANSWERS = ("unknown", "unlabelled")
BY_GROUP = tuple(field.name for field in fields(Shown) if field.name not in OF_ANSWERS)

ESTIMATE_ERROR = 0.04
"""How far the estimate of relevance was found to put the share of a group too low or too high
(docs/audit.md). A lean that is not beyond this may come from it, however many queries there are."""

Verdict = Literal["less", "more", "within_error", "cannot_tell", "too_few"]
"""Whether a group surely gets less, or more, than the reachable part of its target. The lean is
``within_error`` if it is no chance, but the estimate of relevance alone could make it."""


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """What an audit says of one group.

    Shares of exposure are means over queries by their weights; gaps are in the same unit.

    Attributes:
        attribute: The attribute, or a product of several.
        group: The group.
        exposure: Its share of the exposure.
        target: The share that it should get.
        supply: The share that relevant documents could give it at most, on the way to the target.
        lack: Target − exposure.
        lean: The lesser of target and supply, less the exposure, by query: above 0 the ranking
            withholds exposure from the group, below 0 it gives more than is due.
        ranking_gap: What the ranking withholds: the lean, if it is above 0.
        supply_gap: What no ranking of the relevant documents could give.
        exposure_ratio: Exposure / target, as a share of the highest of all groups.
        selection_rate: Its candidates among the first k / all its candidates.
        impact_ratio: Its selection rate / the highest of all groups.
        absent: The share of queries that show something, and nothing of the group.
        attention: Its share of all exposure over all queries, where a query with fewer labelled
            documents counts for less.
        selected: How many of its candidates stood among the first k, over all queries, without
            weights.
        candidates: How many candidates it had.
        is_small: Whether these are few.
        shrunken_rate: The selection rate, drawn to that of all groups as far as it is uncertain.
        lean_low: The lean if missing labels were such that it is least.
        lean_high: The lean if they were such that it is greatest.
        tested: What was tested: the lean, or the lack if no relevance is known.
        verdict: What the test says.
        flips: Whether missing labels alone could make a sure verdict wrong.
    """

    attribute: str
    group: str
    exposure: Estimate
    target: Estimate
    supply: Estimate
    lack: Estimate
    lean: Estimate
    ranking_gap: Estimate
    supply_gap: Estimate
    exposure_ratio: Estimate
    selection_rate: Estimate
    impact_ratio: Estimate
    absent: Estimate
    attention: Estimate
    selected: float
    candidates: float
    is_small: bool
    shrunken_rate: float
    lean_low: float
    lean_high: float
    tested: Literal["lean", "lack"]
    verdict: Verdict = "cannot_tell"
    flips: bool = False


class Gathered:
    """The figures of all answers for one dimension, query by query.

    Args:
        dimension: The groups.
    """

    def __init__(self, dimension: Dimension) -> None:
        self.dimension = dimension
        self._weights: list[float] = []
        # One array a query takes far less memory than one for each of its figures.
        self._rows: list[FloatArray] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, weight: float, shown: Shown) -> None:
        """Take in the answer to a query that was answered, if only with nothing."""
        self._weights.append(weight)
        figures = [getattr(shown, name) for name in BY_GROUP]
        self._rows.append(np.concatenate([*figures, [shown.unknown, shown.unlabelled]]))

    def array(self, name: str) -> FloatArray:
        """Return a figure of :class:`Shown` for all queries, shape (n, G)."""
        groups = len(self.dimension.groups)
        start = BY_GROUP.index(name) * groups
        return self._table()[:, start : start + groups]

    def unknown(self) -> FloatArray:
        """Return the share of the exposure that went to documents without a label, shape (n,)."""
        return self._table()[:, -2]

    def unlabelled(self) -> float:
        """Return how many candidates have no label, over all queries, without weights."""
        return float(np.nansum(self._table()[:, -1]))

    def _table(self) -> FloatArray:
        width = len(BY_GROUP) * len(self.dimension.groups) + len(OF_ANSWERS)
        return np.array(self._rows).reshape(-1, width)

    def leans(self) -> tuple[FloatArray, bool]:
        """Return the signed lean of each query, shape (n, G), and whether supply is known.

        Without any known supply it is the lack. NaN where a query has none.
        """
        supply, lack = self.array("supply"), self.array("target") - self.array("exposure")
        if np.isnan(supply).all():
            return lack, False
        reachable = np.minimum(self.array("target"), supply)
        return reachable - self.array("exposure"), True

    def lean_means(self) -> list[Estimate]:
        """Return the mean lean of each group, or the lack where no supply is known."""
        return self._means(self.leans()[0])

    def unknown_mean(self) -> Estimate:
        """Return the mean share of the exposure that went to documents without a label."""
        return within(self._means(self.unknown()[:, None])[0], 0.0, 1.0)

    def weights(self) -> FloatArray:
        """Return the weight of each query, shape (n,)."""
        return np.array(self._weights)

    def listed(self, random: np.random.Generator) -> list[GroupFigures]:
        """Return the figures of each group, with uncorrected p values.

        Args:
            random: Draws the signs of the randomisation tests.
        """
        groups = len(self.dimension.groups)
        weights = self.weights()
        exposure, target = self.array("exposure"), self.array("target")
        lean, by_supply = self.leans()
        lack = target - exposure
        found = {
            "exposure": self._means(exposure),
            "target": self._means(target),
            "supply": self._means(self.array("supply")),
            "lack": self._means(lack),
            "lean": self._means(lean if by_supply else np.full_like(lean, np.nan)),
            "attention": self._ratios(self.array("attention"), self.array("attention")),
            "absent": self._means(self._absent()),
        }
        rows = ~np.isnan(lean).any(axis=1)
        tests = (
            randomisation_p(lean[rows], weights[rows], random) if rows.any() else [None] * groups
        )
        tested: Literal["lean", "lack"] = "lean" if by_supply else "lack"
        found[tested] = [replace(it, p=p) for it, p in zip(found[tested], tests, strict=True)]
        found["ranking_gap"] = [_not_below_0(it) for it in found["lean"]]
        found["supply_gap"] = self._supply_gaps(lean, lack, by_supply)
        found["exposure_ratio"] = self._relative(exposure, target)
        selected, candidates = self.array("selected"), self.array("candidates")
        found["selection_rate"] = self._rates(selected, candidates)
        for name in SHARES:
            found[name] = [within(it, 0.0, 1.0) for it in found[name]]
        found["impact_ratio"] = self._relative(selected, candidates)
        chosen, all_candidates = _sums(selected, candidates)
        overall = chosen.sum() / all_candidates.sum() if all_candidates.sum() else np.nan
        shrunken = (chosen + PRIOR_CANDIDATES * overall) / (all_candidates + PRIOR_CANDIDATES)
        low, high = self._bounds(by_supply)
        return [
            GroupFigures(
                attribute=self.dimension.name,
                group=group,
                **self._of(place, found),
                selected=float(chosen[place]),
                candidates=float(all_candidates[place]),
                is_small=bool(all_candidates[place] < FEW_CANDIDATES),
                shrunken_rate=float(shrunken[place]),
                lean_low=float(low[place]),
                lean_high=float(high[place]),
                tested=tested,
            )
            for place, group in enumerate(self.dimension.groups)
        ]

    @staticmethod
    def _of(place: int, found: dict[str, list[Estimate]]) -> dict[str, Any]:
        return {name: estimates[place] for name, estimates in found.items()}

    def _absent(self) -> FloatArray:
        count = self.array("count")
        absent = (count <= 0).astype(np.float64)
        absent[count.sum(axis=1) == 0] = np.nan
        return absent

    def _means(self, values: FloatArray) -> list[Estimate]:
        """Return the weighted means over the queries that have values."""
        rows = ~np.isnan(values).any(axis=1)
        parts = np.concatenate([np.ones((int(rows.sum()), 1)), values[rows]], axis=1)
        return jackknifed(parts, self.weights()[rows], lambda t: _divided(t[..., 1:], t[..., :1]))

    def _rates(self, above: FloatArray, below: FloatArray) -> list[Estimate]:
        """Return Σ above / Σ below of each group, by the queries that have both."""
        parts, weights, size = self._parts(above, below)
        return jackknifed(parts, weights, lambda t: _divided(t[..., :size], t[..., size:]))

    def _relative(self, above: FloatArray, below: FloatArray) -> list[Estimate]:
        """Return Σ above / Σ below of each group, as a share of the group that has most."""
        parts, weights, size = self._parts(above, below)
        totals = weights @ parts
        rates = _divided(totals[:size], totals[size:])
        if np.isnan(rates).all() or not np.nanmax(rates):
            return [Estimate(np.nan, np.nan, np.nan, len(parts))] * size
        # The group that leads stays the same without a query, so that its own ratio is 1.
        leader = int(np.nanargmax(rates))

        def ratios(t: FloatArray) -> FloatArray:
            each = _divided(t[..., :size], t[..., size:])
            return _divided(each, each[..., leader : leader + 1])

        return jackknifed(parts, weights, ratios, log=True)

    def _ratios(self, above: FloatArray, below: FloatArray) -> list[Estimate]:
        """Return the share of each group of a total over all groups."""
        parts, weights, size = self._parts(above, below)
        return jackknifed(
            parts,
            weights,
            lambda t: _divided(t[..., :size], t[..., size:].sum(axis=-1, keepdims=True)),
        )

    def _parts(self, above: FloatArray, below: FloatArray) -> tuple[FloatArray, FloatArray, int]:
        both = np.concatenate([above, below], axis=1)
        rows = ~np.isnan(both).any(axis=1)
        return both[rows], self.weights()[rows], above.shape[1]

    def _supply_gaps(self, lean: FloatArray, lack: FloatArray, by_supply: bool) -> list[Estimate]:
        """Return what of the lack the ranking is not to blame for."""
        groups = lack.shape[1]
        if not by_supply:
            return [Estimate(np.nan, np.nan, np.nan, 0)] * groups
        rows = ~np.isnan(lean).any(axis=1)
        parts = np.concatenate([np.ones((int(rows.sum()), 1)), lack[rows], lean[rows]], axis=1)

        def gaps(t: FloatArray) -> FloatArray:
            due, leaning = t[..., 1 : groups + 1], t[..., groups + 1 :]
            return _divided(due - np.maximum(leaning, 0.0), t[..., :1])

        return [_not_below_0(it) for it in jackknifed(parts, self.weights()[rows], gaps)]

    def _bounds(self, by_supply: bool) -> tuple[FloatArray, FloatArray]:
        """Return the least and the greatest lean that missing labels could hide, shape (G,)."""
        # What could be reached without a label is not known, so that the supply only bounds the
        # target as far as it stands.
        target_low, target_high = self.array("target_low"), self.array("target_high")
        if by_supply:
            target_low = np.minimum(target_low, self.array("supply"))
        low = self._means(target_low - self.array("exposure_high"))
        high = self._means(target_high - self.array("exposure_low"))
        return np.array([it.value for it in low]), np.array([it.value for it in high])


def corrected(figures: Sequence[GroupFigures], *, error: float = 0.0) -> list[GroupFigures]:
    """Correct the p values of an audit for their number, and judge by them.

    The family is declared: one test for each group of each attribute that was asked for.

    Args:
        figures: Of all attributes, with uncorrected p values.
        error: How far leans may be off by no chance. A verdict needs an interval beyond it.
    """
    tests = [getattr(it, it.tested) for it in figures]
    judged = []
    ps = corrected_by_holm([test.p for test in tests])
    for group, test, p in zip(figures, tests, ps, strict=True):
        verdict: Verdict = "cannot_tell"
        if p is None:
            verdict = "too_few"
        elif p <= ALPHA and group.tested == "lean" and test.low <= error and test.high >= -error:
            verdict = "within_error"
        elif p <= ALPHA:
            verdict = "less" if test.value > 0 else "more"
        flips = (verdict == "less" and group.lean_low <= 0) or (
            verdict == "more" and group.lean_high >= 0
        )
        changed = {group.tested: replace(test, p=p)}
        judged.append(replace(group, **changed, verdict=verdict, flips=flips))
    return judged


def _divided(above: FloatArray, below: FloatArray) -> FloatArray:
    """Return above / below; NaN where below is 0."""
    wide = np.broadcast_to(below, above.shape)
    return np.asarray(np.divide(above, wide, out=np.full(above.shape, np.nan), where=wide > 0))


def _not_below_0(estimate: Estimate) -> Estimate:
    """Cut a gap and its interval off at 0; it is the lean that is tested."""
    value = estimate.value if np.isnan(estimate.value) else max(0.0, estimate.value)
    return replace(within(estimate, 0.0, np.inf), value=value, p=None)


def _sums(selected: FloatArray, candidates: FloatArray) -> tuple[FloatArray, FloatArray]:
    rows = ~(np.isnan(selected).any(axis=1) | np.isnan(candidates).any(axis=1))
    return selected[rows].sum(axis=0), candidates[rows].sum(axis=0)
