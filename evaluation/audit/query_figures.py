"""The figures of all answers, query by query, and those of each group over all queries.

Where a source states how often its labels are wrong, figures that are linear in the labels are
corrected, and their intervals grow by as much (:mod:`fairqr.evaluation.audit.label_errors`). What
is not linear in the labels is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fairqr.evaluation import estimates
from fairqr.evaluation.audit.exposures import AnswerFigures
from fairqr.evaluation.audit.figures import LEAST, ROUNDING, GroupFigures, Tested, within
from fairqr.evaluation.audit.label_errors import LabelErrors
from fairqr.evaluation.audit.rates import (
    RelativeRates,
    have_values,
    rates_of_queries,
    shares_of_queries,
)
from fairqr.evaluation.estimates import Estimate, divided, middle_of, wider_by
from fairqr.retrieval.fairness.confusion import slopes
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import FloatArray

NO_ESTIMATE = Estimate(np.nan, np.nan, np.nan, 0)


class Terms(NamedTuple):
    """A figure of each query and group, or the two that it is the difference of.

    Attributes:
        first: Shape (n, G).
        second: What is taken off, shape (n, G); None if the figure is the first term.
    """

    first: FloatArray
    second: FloatArray | None = None

    @property
    def values(self) -> FloatArray:
        """The figure, shape (n, G); NaN where a query has none."""
        return self.first if self.second is None else self.first - self.second


class QueryFigures:
    """The figures of all answers for one dimension, query by query.

    Args:
        dimension: The groups.
        reference: The group that ratios are to; by default the one with the highest rate.
        has_known_target: Whether the target does not go by what is relevant, so that no other query
            has another.

    Attributes:
        dimension: The groups.
        queries: The ids of the queries.
    """

    def __init__(
        self, dimension: Dimension, reference: str | None = None, has_known_target: bool = False
    ) -> None:
        self.dimension = dimension
        self.queries: list[str] = []
        self._reference = reference
        self._has_known_target = has_known_target
        self._labels = LabelErrors(dimension)
        self._weights: list[float] = []
        self._rows: list[FloatArray] = []
        self._stacked = np.zeros((0, len(AnswerFigures._fields), len(dimension.groups)))

    def add(self, weight: float, figures: AnswerFigures | FloatArray, query: str = "") -> None:
        """Add the figures of an answer."""
        self.queries.append(query)
        self._weights.append(weight)
        self._rows.append(np.array(figures))

    def _table(self) -> FloatArray:
        """Return all figures, shape (n, figures, G); each row is kept once."""
        if self._rows:
            self._stacked = np.concatenate([self._stacked, self._rows])
            self._rows = []
        return self._stacked

    def of(self, queries: Collection[str]) -> QueryFigures:
        """Return the figures of some of the queries."""
        part = QueryFigures(self.dimension, self._reference, self._has_known_target)
        for row, query in enumerate(self.queries):
            if query in queries:
                part.add(self._weights[row], self._table()[row], query)
        return part

    def by_label(self, name: str) -> FloatArray:
        """Return a figure of :class:`AnswerFigures` for all queries as labels say, shape (n, G)."""
        return self._table()[:, AnswerFigures._fields.index(name)]

    def array(self, name: str) -> FloatArray:
        """Return the same, corrected for wrong labels."""
        return self._labels.corrected(self.by_label(name))

    def mix(self) -> FloatArray:
        """Return the mean share of the exposure of each group, above 0, shape (G,)."""
        return np.maximum(self._mean(self.array("exposure")), ROUNDING)

    def tested_gaps(self) -> tuple[FloatArray, bool]:
        """Return the signed gap of each query, shape (n, G), and whether attainability is known.

        It is the ranking gap; where the attainable exposure is not known for most of the
        queries, the exposure gap. NaN where a query has none.
        """
        weights = self.weights()
        with_attainable = weights @ have_values(self.by_label("attainable"))
        with_target = weights @ have_values(self.by_label("target"))
        by_attainable = bool(with_attainable > with_target / 2)
        tested = "ranking_gap" if by_attainable else "exposure_gap"
        return self._terms(self.array)[tested].values, by_attainable

    def unknown(self) -> Estimate:
        """Return the mean share of the exposure that went to documents without a label."""
        return self._mean_shares(self.by_label("unknown"))[0]

    def unlabelled(self) -> float:
        """Return how many candidates have no label, over all queries, without weights."""
        return float(np.nansum(self.by_label("unlabelled")[:, 0]))

    def with_few_relevant(self, k: int) -> float:
        """Return the share of the queries that have fewer than k relevant, labelled documents."""
        candidates = self.by_label("candidates").sum(axis=1)
        return float((candidates < k).mean())

    def saturated(self) -> float:
        """Return the weight of the queries that have more relevant documents than were looked at.

        It is a share of those answered.
        """
        means = self._mean(self.by_label("saturated"))
        return float(np.nan_to_num(means[0]))

    def weights(self) -> FloatArray:
        """Return the weight of each query, shape (n,)."""
        return np.array(self._weights)

    def figures(
        self, random: np.random.Generator, segment: str = "", tests: int = 1
    ) -> list[GroupFigures]:
        """Return the figures of each group, with uncorrected p values.

        Args:
            random: Draws the signs of the randomisation tests.
            segment: The segment of the queries.
            tests: How many tests the audit has at most.
        """
        by_name = self._estimates()
        gaps, by_attainable = self.tested_gaps()
        tested: Tested = "ranking_gap" if by_attainable else "exposure_gap"
        ps = self._tests(by_name["excess"], random, tests)
        by_name[tested] = [replace(gap, p=p) for gap, p in zip(by_name[tested], ps, strict=True)]
        selected, candidates = self._counts()
        shares_of_candidates = divided(candidates, candidates.sum())
        bounds = self._bounds(tested, np.array([gap.value for gap in by_name[tested]]))
        has_gap = np.where(have_values(gaps), 1.0, 0.0)
        known = self._mean(has_gap[:, None]).item()
        unknown = self._unknown_where_exposure_counts()
        saturated = self.saturated()
        groups = []
        for position, group in enumerate(self.dimension.groups):
            of_group: dict[str, Any] = {
                name: estimates_of[position] for name, estimates_of in by_name.items()
            }
            figures = GroupFigures(
                attribute=self.dimension.name,
                group=group,
                segment=segment,
                **of_group,
                selected=selected[position].item(),
                candidates=candidates[position].item(),
                share_of_candidates=shares_of_candidates[position].item(),
                saturated=saturated,
                gap_bounds=bounds[position],
                unknown=unknown,
                known=round(known, 10),
                tested=tested,
            )
            groups.append(figures)
        return groups

    def _estimates(self) -> dict[str, list[Estimate]]:
        """Return all figures that have an interval, by name and group, without tests."""
        by_name = self._means(self.by_label) | self._rates()
        if self._labels.confusion is not None:
            by_name |= self._corrected_for_labels(by_name, self._labels.confusion)
        # What a ranking of relevant documents lacks; where nothing is withheld, all that is lacked.
        lacking = by_name.pop("lacking")
        by_name["unattainable"] = [
            _smaller_not_below_0(unattainable, lack)
            for unattainable, lack in zip(by_name["unattainable"], lacking, strict=True)
        ]
        return by_name

    def _rates(self) -> dict[str, list[Estimate]]:
        """Return the figures that are quotients of sums over queries."""
        exposure = self.by_label("exposure")
        target = self.by_label("target")
        shown = self.by_label("shown")
        selected = self.by_label("selected")
        candidates = self.by_label("candidates")
        ndcg = self.by_label("ndcg")
        weights = self.weights()
        shows_any = shown.sum(axis=1, keepdims=True) > 0
        absent = np.where(shows_any, shown <= 0, np.nan)
        judged = np.where(np.isnan(ndcg), np.nan, shown)
        return {
            "exposure_ratio": self._relative(exposure, target, np.ones_like(target)),
            "selection_rate": rates_of_queries(selected, candidates, weights, self._labels),
            "impact_ratio": self._relative(selected, candidates, candidates),
            "absent": self._mean_shares(absent),
            "precision": rates_of_queries(selected, judged, weights, self._labels),
            "ndcg": shares_of_queries(ndcg, self.by_label("has_relevant"), weights),
        }

    def _counts(self) -> tuple[FloatArray, FloatArray]:
        """Return how many candidates of each group were selected, and how many there are."""
        selected = self.by_label("selected")
        candidates = self.by_label("candidates")
        rows = have_values(selected + candidates)

        def total(by_label: FloatArray) -> FloatArray:
            by_group = self._labels.corrected(by_label[rows]).sum(axis=0)
            return np.asarray(by_group.round(10).clip(0))

        return total(selected), total(candidates)

    def _unknown_where_exposure_counts(self) -> float:
        """Return the unlabelled share of the exposure, over the queries that exposures are over.

        With labels, queries without any would be among them, too.
        """
        unknown = self.by_label("unknown")
        has_exposure = have_values(self.exposures(self.by_label))
        counts = has_exposure[:, None] | (unknown > 1 - ROUNDING)
        return self._mean_shares(np.where(counts, unknown, np.nan))[0].value

    @staticmethod
    def exposures(array: Callable[[str], FloatArray]) -> FloatArray:
        """Return the exposure in the queries that have a target, if any has; else in all."""
        has_target = have_values(array("target"))
        counts = has_target[:, None] | ~has_target.any()
        return np.where(counts, array("exposure"), np.nan)

    @staticmethod
    def _terms(array: Callable[[str], FloatArray]) -> dict[str, Terms]:
        """Return the figures whose means over queries are reported, by name."""
        exposure = QueryFigures.exposures(array)
        target = array("target")
        attainable = array("attainable")
        reachable = np.minimum(target, attainable)
        return {
            "exposure": Terms(exposure),
            "target": Terms(target),
            "attainable": Terms(attainable),
            "unattainable": Terms(target - reachable),
            "exposure_gap": Terms(target, exposure),
            "ranking_gap": Terms(reachable, exposure),
            "excess": Terms(exposure, np.maximum(target, attainable)),
            "lacking": Terms(np.where(np.isnan(reachable), np.nan, target), exposure),
        }

    def _means(self, array: Callable[[str], FloatArray]) -> dict[str, list[Estimate]]:
        """Return the weighted means of all terms, each by the queries that have both."""
        of_known = self._known()
        return {
            name: self._mean_of(terms, is_known=name in of_known)
            for name, terms in self._terms(array).items()
        }

    def _mean_of(self, terms: Terms, *, is_known: bool) -> list[Estimate]:
        if terms.second is not None:
            rows = have_values(terms.values)
            first = terms.first[rows]
            second = terms.second[rows]
            weights = self.weights()[rows]
            return estimates.differences(first, second, weights, is_known=is_known)
        means = self._mean_shares(terms.first)
        if is_known:
            return [replace(mean, low=mean.value, high=mean.value) for mean in means]
        return means

    def _known(self) -> set[str]:
        """Return the figures whose first term is a target that all queries have."""
        if not self._has_known_target:
            return set()
        names = {"target", "exposure_gap", "lacking"}
        is_short = self.by_label("attainable") < self.by_label("target") - ROUNDING
        if not is_short.any():
            names.add("ranking_gap")
        return names

    def _corrected_for_labels(
        self, by_label: Mapping[str, Sequence[Estimate]], confusion: FloatArray
    ) -> dict[str, list[Estimate]]:
        """Return the means that are linear in the labels by group, with wider intervals."""
        slope = slopes(confusion, self.mix())
        target = self.array("target")
        of_known = self._known()
        none = [NO_ESTIMATE] * len(slope)
        corrected = {"absent": none, "precision": none, "ndcg": none}
        for name, terms in self._terms(self.array).items():
            rows = have_values(terms.values)
            values = self._mean(terms.values)
            known: FloatArray | float = 0.0
            if name in of_known:
                weights = self.weights()[rows]
                known = _mean(target[rows], weights)
            moves = self._clipped(terms) - values
            moved = [
                _moved(*of_group)
                for of_group in zip(by_label[name], values, moves, slope, strict=True)
            ]
            drawn = moves + known + (values - known) @ confusion @ self._labels.inverses
            ends = middle_of(drawn)
            corrected[name] = [
                _with_wrong_labels(name, figure, end)
                for figure, end in zip(moved, ends, strict=True)
            ]
        return corrected

    def _clipped(self, terms: Terms) -> FloatArray:
        """Return the mean of terms that lie in [0, 1] each.

        Chance may put corrected shares beyond 0 and 1; a difference is that of the shares.
        """
        rows = have_values(terms.values)
        weights = self.weights()[rows]
        first = _mean(terms.first[rows], weights).clip(0, 1)
        if terms.second is None:
            return first
        return np.asarray(first - _mean(terms.second[rows], weights).clip(0, 1))

    def _tests(
        self, means_of_excess: Sequence[Estimate], random: np.random.Generator, tests: int
    ) -> list[float | None]:
        """Test the gap of each group, or its excess where the gap is below 0.

        Where attainable exposure is short, every group may have a gap below 0, and none an excess.
        """
        gaps = self.tested_gaps()[0]
        rows = have_values(gaps)
        gaps = gaps[rows]
        excess = self._terms(self.array)["excess"].values[rows]
        weights = self.weights()[rows]
        is_more = (weights @ gaps < 0) & ~np.isnan(excess).any(axis=0)
        tested = np.where(is_more, excess, gaps)
        ps = estimates.p_of_means(tested, weights, random, tests)
        by_group = []
        for p, more, mean in zip(ps, is_more.tolist(), means_of_excess, strict=True):
            has_no_excess = more and mean.value <= 0
            by_group.append(1.0 if p is not None and has_no_excess else p)
        return by_group

    def _mean(self, values: FloatArray) -> FloatArray:
        return _mean(values, self.weights())

    def _mean_shares(self, values: FloatArray) -> list[Estimate]:
        """Return the mean of each group, over the queries that have values."""
        return shares_of_queries(values, np.ones_like(values), self.weights())

    def _relative(self, above: FloatArray, below: FloatArray, whole: FloatArray) -> list[Estimate]:
        """Return Σ above / Σ below of each group, divided by the reference's or by the highest."""
        position: int | None = None
        if self._reference:
            position = self.dimension.groups.index(self._reference)
        ratios = RelativeRates(
            above, below, whole, self.weights(), self._labels, reference=position
        )
        return ratios.estimates()

    def _bounds(self, tested: str, means: FloatArray) -> list[tuple[float, float]]:
        """Return for each group the least and the greatest gap that missing labels could hide.

        Wrong labels are left as they are.

        Args:
            tested: ``ranking_gap``, or ``exposure_gap`` if no attainable exposure is known.
            means: The means of the groups, shape (G,).
        """
        # Labels might show that relevant documents of the group are rarer than the attainable
        # exposure says, or more frequent if one of them has none.
        attainable = self.by_label("attainable")
        most = np.where(self.by_label("unlabelled") > 0, np.nan, attainable)
        least = np.fmin(attainable, self.by_label("attainable_low"))
        low = np.fmin(self.by_label("target_low"), least) - self.by_label("exposure_high")
        high = np.fmin(self.by_label("target_high"), most) - self.by_label("exposure_low")
        values = self._terms(self.by_label)[tested].values
        has_value = have_values(values)
        # With a label, a query that has none of them might have any gap.
        might_have = ~has_value & (self.by_label("unknown")[:, 0] > 0)
        weights = self.weights()
        weight = float(weights @ has_value)
        further = float(weights @ might_have)
        whole = max(weight + further, ROUNDING)
        lows = (weight * (self._mean(low - values) + means) - further) / whole
        highs = (weight * (self._mean(high - values) + means) + further) / whole
        return [*zip(lows.round(10).tolist(), highs.round(10).tolist(), strict=True)]


def _moved(by_label: Estimate, value: float, move: float, slope: float) -> Estimate:
    """Return a figure by group, from that by label.

    Args:
        by_label: The figure by label, with its interval.
        value: The figure by group.
        move: How far clipping moves it.
        slope: How fast the figure by label grows with that by group.
    """
    low = value + (by_label.low - by_label.value) / slope + max(move, 0.0)
    high = value + (by_label.high - by_label.value) / slope + min(move, 0.0)
    clipped = round(float(value + move), 10)
    return Estimate(clipped, min(low, clipped), max(high, clipped), by_label.queries)


def _with_wrong_labels(name: str, figure: Estimate, ends: Sequence[float]) -> Estimate:
    """Widen the interval of a figure by what the checked samples of labels leave open."""
    wide = wider_by(figure, ends)
    if name == "unattainable":
        # Wrong labels may make some exposure seem unattainable, because a minimum is not linear.
        wide = replace(wide, low=min(wide.low, 0.0))
    least = -1.0 if name == "lacking" else LEAST.get(name, 0.0)
    return within(wide, least)


def _mean(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the weighted means over the queries that have values, shape (G,)."""
    rows = have_values(values)
    return divided(weights[rows] @ values[rows], weights[rows].sum())


def _smaller_not_below_0(figure: Estimate, lesser: Estimate) -> Estimate:
    """Return the smaller of two gaps, at least 0. It has no p: only the gap is tested."""
    ends = np.array([(gap.value, gap.low, gap.high) for gap in (figure, lesser)])
    value, low, high = np.maximum(np.fmin(ends[0], ends[1]), 0.0).tolist()
    return replace(figure, value=value, low=low, high=high, p=None)
