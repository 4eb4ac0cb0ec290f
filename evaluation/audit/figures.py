"""The figures of each group over all queries, with intervals and corrected tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fairqr.base.statistics import corrected_by_holm
from fairqr.evaluation.audit.estimates import (
    Estimate,
    differences,
    divided,
    effective_queries,
    estimate,
    means,
    p_of_means,
    ratios,
    shares,
)
from fairqr.evaluation.audit.exposures import Shown
from fairqr.retrieval.dimension import Dimension
from fairqr.retrieval.exposure import FloatArray

ALPHA = 0.05
FOUR_FIFTHS = 0.8
"""The line of the Uniform Guidelines on Employee Selection Procedures (29 CFR 1607.4 D)."""
FEW_CANDIDATES = 30
"""Rates over fewer candidates are marked."""

OF_ANSWERS = ("unknown", "unlabelled")
BY_GROUP = tuple(field.name for field in fields(Shown) if field.name not in OF_ANSWERS)

ESTIMATE_ERROR = 0.04
"""How far the estimate of relevance was found to put the share of a group too low or too high
(docs/results/audits.md). More queries do not make it smaller, so it widens intervals."""

LEAST = dict.fromkeys(("target", "supply", "ranking_gap", "supply_gap"), 0.0)
LEAST |= dict.fromkeys(("lack", "lean", "excess"), -1.0)
"""The figures that such an error adds to, in the same unit, and what they are at least."""

Verdict = Literal["less", "more", "within_error", "cannot_tell", "saturated", "too_few"]
"""Whether a group surely gets less, or more, than the reachable part of its target. The lean is
``within_error`` if it is no chance, but the estimate of relevance alone could make it; and it is
``saturated`` if too many queries have more relevant documents than were looked at."""


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
        excess: The exposure less the greater of target and supply, by query: above 0 the ranking
            gives what relevant documents of other groups could take over.
        ranking_gap: What the ranking withholds: the lean, if it is above 0.
        supply_gap: What no ranking of the relevant documents could give.
        exposure_ratio: Exposure / target, by that of the reference group; without one, by the
            highest of all groups.
        selection_rate: Its candidates among the first k / all its candidates.
        impact_ratio: Its selection rate by that of the same group.
        absent: The share of queries that show something, and nothing of the group.
        attention: Its share of all exposure over all queries, where a query with fewer labelled
            documents counts for less.
        selected: How many of its candidates stood among the first k, over all queries, without
            weights.
        candidates: How many candidates it had.
        share_of_candidates: Its share of the labelled candidates of the attribute.
        is_small: Whether these are few.
        below_four_fifths: Whether the impact ratio is below that line; None without a ratio.
        lean_bounds: The lean if missing labels were such that it is least, and greatest.
        tested: What was tested: the lean, or the lack if no relevance is known.
        verdict: What the test says.
        flips: Whether missing labels alone could make a sure verdict wrong.
        detectable: The lean that an audit of as many queries finds in four of five cases.
        if_mended: The exposure that it would get if rankings were mended. Where a sample of the
            queries was mended, it says how much the exposure of all would change.
    """

    attribute: str
    group: str
    exposure: Estimate
    target: Estimate
    supply: Estimate
    lack: Estimate
    lean: Estimate
    excess: Estimate
    ranking_gap: Estimate
    supply_gap: Estimate
    exposure_ratio: Estimate
    selection_rate: Estimate
    impact_ratio: Estimate
    absent: Estimate
    attention: Estimate
    selected: float
    candidates: float
    share_of_candidates: float
    is_small: bool
    below_four_fifths: bool | None
    lean_bounds: tuple[float, float]
    tested: Literal["lean", "lack"]
    verdict: Verdict = "cannot_tell"
    flips: bool = False
    detectable: float = math.nan
    if_mended: float = math.nan

    @property
    def test(self) -> Estimate:
        """The figure that was tested."""
        return self.lean if self.tested == "lean" else self.lack

    @property
    def is_sure(self) -> bool:
        """Whether the group surely gets less, or more."""
        return self.verdict in ("less", "more")


ESTIMATES = tuple(field.name for field in fields(GroupFigures) if field.type == "Estimate")
"""The figures of a group that have an interval."""


class Gathered:
    """The figures of all answers for one dimension, query by query.

    Args:
        dimension: The groups.
        reference: The group that ratios are to; by default the one with the highest rate.

    Attributes:
        dimension: The groups.
        queries: The ids of the queries.
    """

    def __init__(self, dimension: Dimension, reference: str | None = None) -> None:
        self.dimension, self._reference = dimension, reference
        self.queries: list[str] = []
        self._weights: list[float] = []
        # One array a query takes far less memory than one for each of its figures.
        self._rows: list[FloatArray] = []
        self._stacked = np.zeros((0, 0))

    def add(self, weight: float, shown: Shown, query: str = "") -> None:
        """Take in the answer to a query that was answered, if only with nothing."""
        self.queries.append(query)
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
        if len(self._stacked) < len(self._rows):
            self._stacked = np.array(self._rows)
        return self._stacked.reshape(-1, width)

    def leans(self) -> tuple[FloatArray, bool]:
        """Return the signed lean of each query, shape (n, G), and whether supply is known.

        Without any known supply it is the lack. NaN where a query has none.
        """
        supply, lack = self.array("supply"), self.array("target") - self.array("exposure")
        if np.isnan(supply).all():
            return lack, False
        reachable = np.minimum(self.array("target"), supply)
        return reachable - self.array("exposure"), True

    def unknown_mean(self) -> Estimate:
        """Return the mean share of the exposure that went to documents without a label."""
        unknown = self.unknown()[:, None]
        return self._shares(unknown, np.ones_like(unknown))[0]

    def weights(self) -> FloatArray:
        """Return the weight of each query, shape (n,)."""
        return np.array(self._weights)

    def listed(self, random: np.random.Generator) -> list[GroupFigures]:
        """Return the figures of each group, with uncorrected p values.

        Args:
            random: Draws the signs of the randomisation tests.
        """
        exposure, target, supply = map(self.array, ("exposure", "target", "supply"))
        lean, by_supply = self.leans()
        excess = exposure - np.maximum(target, supply)
        selected, candidates = self.array("selected"), self.array("candidates")
        attention, once = self.array("attention"), np.ones_like(exposure)
        in_all = np.broadcast_to(attention.sum(axis=1, keepdims=True), attention.shape)
        reachable = np.minimum(target, supply)
        found: dict[str, Any] = {
            "exposure": self._shares(exposure, once),
            "target": self._shares(target, once),
            "supply": self._shares(supply, once),
            "lack": self._differences(target, exposure),
            "lean": self._differences(reachable, exposure),
            "excess": self._differences(exposure, np.maximum(target, supply)),
            "exposure_ratio": self._relative(exposure, target, once),
            "selection_rate": self._shares(selected, candidates),
            "impact_ratio": self._relative(selected, candidates, candidates),
            "absent": self._shares(self._absent(), once),
            "attention": self._shares(attention, in_all),
        }
        found["ranking_gap"] = [_not_below_0(it) for it in found["lean"]]
        # What a ranking of relevant documents lacks; where nothing is withheld, all that is lacked.
        missing = self._shares(target - reachable, once)
        lacking = self._differences(np.where(np.isnan(reachable), np.nan, target), exposure)
        found["supply_gap"] = [
            _not_below_0(it, lesser=other) for it, other in zip(missing, lacking, strict=True)
        ]
        tested: Literal["lean", "lack"] = "lean" if by_supply else "lack"
        tests = self._tests(lean, found["excess"], excess, random)
        found[tested] = [replace(it, p=p) for it, p in zip(found[tested], tests, strict=True)]
        rows = ~np.isnan(selected + candidates).any(axis=1)
        chosen, all_ = (it[rows].sum(axis=0).round(10) for it in (selected, candidates))
        total = all_.sum()
        columns = {
            "selected": chosen,
            "candidates": all_,
            "share_of_candidates": all_ / total if total else np.full(len(all_), np.nan),
            "is_small": all_ < FEW_CANDIDATES,
        }
        bounds = self._bounds(by_supply)
        return [
            GroupFigures(
                attribute=self.dimension.name,
                group=group,
                **{name: estimates[place] for name, estimates in found.items()},
                **{name: column[place].item() for name, column in columns.items()},
                below_four_fifths=_is_below(found["impact_ratio"][place].value, FOUR_FIFTHS),
                lean_bounds=bounds[place],
                tested=tested,
            )
            for place, group in enumerate(self.dimension.groups)
        ]

    def _tests(
        self,
        lean: FloatArray,
        means: Sequence[Estimate],
        excess: FloatArray,
        random: np.random.Generator,
    ) -> list[float | None]:
        """Test the lean of each group, or its excess where the lean is below 0.

        Where supply is short, every group may have a lean below 0, and none an excess.
        """
        rows = ~np.isnan(lean).any(axis=1)
        if not rows.any():
            return [None] * lean.shape[1]
        values, weights = lean[rows], self.weights()[rows]
        is_more = (weights @ values < 0) & ~np.isnan(excess[rows]).any(axis=0)
        found = p_of_means(np.where(is_more, excess[rows], values), weights, random)
        return [
            1.0 if p is not None and more and mean.value <= 0 else p
            for p, more, mean in zip(found, is_more.tolist(), means, strict=True)
        ]

    def _absent(self) -> FloatArray:
        count = self.array("count")
        absent = (count <= 0).astype(np.float64)
        absent[count.sum(axis=1) == 0] = np.nan
        return absent

    def _means(self, values: FloatArray) -> list[Estimate]:
        """Return the weighted means over the queries that have values."""
        rows = ~np.isnan(values).any(axis=1)
        return means(values[rows], self.weights()[rows])

    def _differences(self, first: FloatArray, second: FloatArray) -> list[Estimate]:
        """Return the weighted means of first − second, by the queries that have both."""
        rows = self._with_both(first, second)
        return differences(first[rows], second[rows], self.weights()[rows])

    def _shares(self, above: FloatArray, below: FloatArray) -> list[Estimate]:
        """Return Σ above / Σ below of each group, by the queries that have both."""
        rows = self._with_both(above, below)
        return shares(above[rows], below[rows], self.weights()[rows])

    def _relative(self, above: FloatArray, below: FloatArray, whole: FloatArray) -> list[Estimate]:
        """Return Σ above / Σ below of each group by that of the reference, or of the highest.

        Args:
            above: Shape (n, G).
            below: Shape (n, G).
            whole: What ``above`` can be at most, shape (n, G).
        """
        rows = self._with_both(above, below)
        above, below, whole, weights = above[rows], below[rows], whole[rows], self.weights()[rows]
        size, due, by = above.shape[1], weights @ below, weights[:, None]
        rates = divided(weights @ above, due)
        none = [Estimate(np.nan, np.nan, np.nan, len(above))] * size
        if np.isnan(rates).all():
            return none
        # The group that leads stays the same without a query, so that its own ratio is 1.
        chosen, groups = self._reference, list(self.dimension.groups)
        leader = groups.index(chosen) if chosen else int(np.nanargmax(rates))
        if not rates[leader] > 0:
            return none

        def relative(t: FloatArray) -> FloatArray:
            each = divided(t[..., :size], t[..., size:])
            return divided(each, each[..., leader : leader + 1])

        seen, due_in = (effective_queries(by * (held > 0)) for held in (above, below))
        # Which group leads may be chance, so all others are compared with it at the same time
        # (Hsu 1984, multiple comparisons with the best), and no ratio is above 1.
        found = estimate(
            np.concatenate([above, below], axis=1),
            weights,
            relative,
            scale="log",
            telling=np.minimum(seen, due_in),
            comparisons=1 if chosen else max(1, size - 1),
        )
        most = np.inf if chosen else 1.0
        found = [replace(it, high=np.fmin(it.high, most)) if it.low >= 0 else it for it in found]
        first = ratios(above, below, weights)[leader]
        lead = first.value if np.isnan(first.low) else first.low
        unseen, all_ = shares(above, whole, weights), weights @ whole
        for place in np.flatnonzero(rates == 0) if lead > 0 else ():
            high = np.minimum(unseen[place].high * all_[place] / due[place] / lead, most)
            found[place] = replace(found[place], low=unseen[place].low, high=float(high))
        return found

    @staticmethod
    def _with_both(above: FloatArray, below: FloatArray) -> NDArray[np.bool_]:
        return np.asarray(~np.isnan(above + below).any(axis=1))

    def _bounds(self, by_supply: bool) -> list[tuple[float, float]]:
        """Return for each group the least and the greatest lean that missing labels could hide."""
        target_low, target_high = self.array("target_low"), self.array("target_high")
        if by_supply:
            # Labels might show that relevant documents of the group are rarer than the supply says.
            least = np.minimum(self.array("supply"), self.array("supply_low"))
            target_low = np.minimum(target_low, least)
        low = self._means(target_low - self.array("exposure_high"))
        high = self._means(target_high - self.array("exposure_low"))
        return [(one.value, other.value) for one, other in zip(low, high, strict=True)]


def corrected(figures: Sequence[GroupFigures], *, error: float = 0.0) -> list[GroupFigures]:
    """Correct the p values of an audit for their number, and judge by them.

    The family is declared: one test for each group of each attribute that was asked for.

    Args:
        figures: Of all attributes, with uncorrected p values.
        error: How far the shares of groups among relevant documents may be off by no chance; it
            widens the intervals of all that rests on them.
    """
    judged = []
    ps = corrected_by_holm([it.test.p for it in figures])
    for group, p in zip(figures, ps, strict=True):
        test = replace(group.test, p=p)
        changed: dict[str, Any] = {group.tested: test}
        by_chance = replace(group, **changed)
        widened: dict[str, Any] = {
            name: _widened(getattr(by_chance, name), error, least) for name, least in LEAST.items()
        }
        whole = replace(by_chance, **widened) if error and group.tested == "lean" else by_chance
        verdict = _verdict(whole)
        if verdict == "cannot_tell" != _verdict(by_chance):
            verdict = "within_error"
        low, high = group.lean_bounds
        flips = (verdict == "less" and low <= 0) or (verdict == "more" and high >= 0)
        judged.append(replace(whole, verdict=verdict, flips=flips))
    return judged


def _widened(found: Estimate, error: float, least: float) -> Estimate:
    """Return a figure with an interval that also holds an error that does not come by chance."""
    low = found.value - math.hypot(found.value - found.low, error)
    high = found.value + math.hypot(found.high - found.value, error)
    return replace(found, low=max(low, least), high=min(high, 1.0))


def _verdict(group: GroupFigures) -> Verdict:
    test = group.test
    if test.p is None:
        return "too_few"
    # A group gets more only if relevant documents of others could take something over.
    is_more = group.tested == "lean" and test.value < 0
    low, high = (group.excess.low, group.excess.high) if is_more else (test.low, test.high)
    if test.p > ALPHA or low <= 0 <= high or (is_more and group.excess.value <= 0):
        return "cannot_tell"
    return "less" if test.value > 0 else "more"


def _is_below(number: float, line: float) -> bool | None:
    return None if math.isnan(number) else number < line


def _not_below_0(found: Estimate, lesser: Estimate | None = None) -> Estimate:
    """Cut a gap, or the lesser of two, off at 0; it is the lean that is tested."""
    ends = np.array([(it.value, it.low, it.high) for it in (found, lesser or found)])
    value, low, high = np.maximum(np.fmin(ends[0], ends[1]), 0.0).tolist()
    return replace(found, value=value, low=low, high=high, p=None)
