"""The figures of each group over all queries, with intervals and corrected tests.

Where a source states how often its labels are wrong, figures that are linear in the labels are
corrected, and their intervals grow by as much (:mod:`fairqr.retrieval.fairness.confusion`). What
is not linear in the labels is left out.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fairqr.agents.statistics import corrected_by_holm, student_quantile
from fairqr.evaluation import estimates
from fairqr.evaluation.audit.exposures import AnswerFigures
from fairqr.evaluation.estimates import Estimate, divided, middle_of, wider_by
from fairqr.retrieval.fairness.confusion import by_group, drawn_inverses, slopes
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import FloatArray

ALPHA = 0.05
POWER = 0.8
ROUNDING = 1e-12
FEW_CANDIDATES = 30
"""Rates over fewer candidates are marked."""

LEAST = dict.fromkeys(("target", "attainable", "unattainable"), 0.0)
LEAST |= dict.fromkeys(("exposure_gap", "ranking_gap", "excess"), -1.0)
"""The figures that an error of the estimate of relevance adds to, and what they are at least."""

OF_TARGET = ("exposure_gap", "ranking_gap", "unattainable")
"""The figures that are at most the target."""

Tested = Literal["ranking_gap", "exposure_gap"]
"""What a verdict is about: the second where the attainable exposure is not known."""

Sure = Literal["less", "more"]
SURE = get_args(Sure)
Unsure = Literal[
    "within_relevance_error",
    "saturated",
    "unlabelled",
    "undecided",
    "cannot_tell",
    "too_few",
    "unknown",
]
Verdict = Literal[Sure, Unsure]
"""Whether a group surely gets less, or more, than the reachable part of its target. The gap is
``within_relevance_error`` if it is no chance, but the estimate of relevance alone could make it; it
is ``saturated`` if too many queries have more relevant documents than were looked at,
``unlabelled`` if missing labels alone could hide a difference, ``undecided`` if the test finds one
and the interval holds 0, as where few queries show the group, and ``unknown`` if nothing says what
its target share is."""


REASONS = {
    "within_relevance_error": "the estimate of relevance may be off by as much",
    "saturated": "more relevant documents than were looked at",
    "unlabelled": "missing labels could hide a difference",
    "undecided": "the test finds a difference, but its interval holds 0",
    "cannot_tell": "the difference may be chance",
    "too_few": "the audit has too few queries",
    "unknown": "its target share is not known",
}
"""Why what a group's figures say is not sure, by its verdict."""


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """What an audit says of one group.

    Shares of exposure are means over queries by their weights; gaps are in the same unit.

    Attributes:
        attribute: The attribute, or a product of several.
        group: The group.
        segment: The queries that the figures are over; empty for all.
        exposure: Its share of the exposure, over the queries that have a target, if any has.
        target: The share that it should get.
        attainable: The share that relevant documents could give it at most, on the way to the
            target.
        exposure_gap: Target − exposure.
        ranking_gap: min(target, attainable) − exposure, query by query: above 0 the ranking
            withholds exposure from the group, below 0 it gives more than the lesser of both.
        excess: exposure − max(target, attainable), query by query: above 0 the ranking gives what
            relevant documents of other groups could take over.
        unattainable: What no ranking of the relevant documents could give.
        exposure_ratio: Exposure / target, divided by the same of the reference group; without one,
            by the highest of all groups.
        selection_rate: Its candidates among the first k / all its candidates.
        impact_ratio: Its selection rate, divided by the same group's.
        absent: The share of queries that show something, and nothing of the group.
        precision: By judgements, the share of its documents in the first k ranks that are relevant.
        ndcg: By judgements, the gain of its relevant documents in the first k ranks as a share of
            the most that they could have; the mean over queries where it has any.
        selected: How many of its candidates stood among the first k, over all queries, without
            weights.
        candidates: How many candidates it had.
        share_of_candidates: Its share of the labelled candidates of the attribute.
        saturated: The weight of the queries that have more relevant documents than were looked at,
            as a share. These are in no gap.
        gap_bounds: What was tested, if missing labels were such that it is least, and
            greatest.
        unknown: The share of the exposure that went to documents without a label.
        known: The weight of the queries that what was tested is over, as a share of those answered.
        tested: What was tested: the ranking gap, or the exposure gap if the attainable exposure is
            not known.
        verdict: What the test says.
        could_flip: Whether missing labels alone could make a sure verdict wrong.
        detectable_gap: The gap that an audit of as many queries finds in four of five cases.
        exposure_if_reranked: The exposure that it would get if rankings were fair. Where a sample
            of the queries was re-ranked, it says how much the exposure of all would change.
        error: How far the estimate of relevance may be off; the intervals of what rests on it hold
            that, too.
        error_of_target: By how much that may move the target.
    """

    attribute: str
    group: str
    segment: str
    exposure: Estimate
    target: Estimate
    attainable: Estimate
    exposure_gap: Estimate
    ranking_gap: Estimate
    excess: Estimate
    unattainable: Estimate
    exposure_ratio: Estimate
    selection_rate: Estimate
    impact_ratio: Estimate
    absent: Estimate
    precision: Estimate
    ndcg: Estimate
    selected: float
    candidates: float
    share_of_candidates: float
    saturated: float
    gap_bounds: tuple[float, float]
    unknown: float
    known: float
    tested: Tested
    verdict: Verdict = "cannot_tell"
    could_flip: bool = False
    detectable_gap: float = math.nan
    exposure_if_reranked: float = math.nan
    error: float = 0.0
    error_of_target: float = 0.0

    @property
    def test(self) -> Estimate:
        """The figure that was tested."""
        return self.ranking_gap if self.tested == "ranking_gap" else self.exposure_gap

    @property
    def is_sure(self) -> bool:
        """Whether the group surely gets less, or more."""
        return self.verdict in SURE


ESTIMATES = tuple(it.name for it in fields(GroupFigures) if it.type == "Estimate")
"""The figures of a group that have an interval."""


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
        self.dimension, self._reference = dimension, reference
        self._has_known_target = has_known_target
        self.queries: list[str] = []
        self._weights: list[float] = []
        self._rows: list[FloatArray] = []
        self._stacked = np.zeros((0, len(AnswerFigures._fields), len(dimension.groups)))

    @functools.cached_property
    def _inverses(self) -> FloatArray:
        """Inverse confusion matrices that fit the checked samples, drawn; shape (D, G, G)."""
        return drawn_inverses(self.dimension.counted, np.random.default_rng(0))

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
        for place in [place for place, it in enumerate(self.queries) if it in queries]:
            part.add(self._weights[place], self._table()[place], self.queries[place])
        return part

    def by_label(self, name: str) -> FloatArray:
        """Return a figure of :class:`AnswerFigures` for all queries as labels say, shape (n, G)."""
        return self._table()[:, AnswerFigures._fields.index(name)]

    def array(self, name: str) -> FloatArray:
        """Return the same, corrected for wrong labels."""
        return self._unmixed(self.by_label(name))

    def mix(self) -> FloatArray:
        """Return the mean share of the exposure of each group, above 0, shape (G,)."""
        return np.maximum(_mean(self.array("exposure"), self.weights()), ROUNDING)

    def _unmixed(self, by_label: FloatArray) -> FloatArray:
        return by_group(by_label, self.dimension.confusion)

    def tested_gaps(self) -> tuple[FloatArray, bool]:
        """Return the signed gap of each query, shape (n, G), and whether attainability is known.

        It is the ranking gap; where the attainable exposure is not known for most of the
        queries, the exposure gap. NaN where a query has none.
        """
        held = [self.weights() @ _have(self.by_label(it)) for it in ("attainable", "target")]
        by_attainable = bool(held[0] > held[1] / 2)
        return _less(
            *self._terms(self.array)["ranking_gap" if by_attainable else "exposure_gap"]
        ), by_attainable

    def unknown(self) -> Estimate:
        """Return the mean share of the exposure that went to documents without a label."""
        return self._shares(self.by_label("unknown"))[0]

    def unlabelled(self) -> float:
        """Return how many candidates have no label, over all queries, without weights."""
        return float(np.nansum(self.by_label("unlabelled")[:, 0]))

    def with_few_relevant(self, k: int) -> float:
        """Return the share of the queries that have fewer than k relevant, labelled documents."""
        return float((self.by_label("candidates").sum(axis=1) < k).mean())

    def saturated(self) -> float:
        """Return the weight of the queries that have more relevant documents than were looked at.

        It is a share of those answered.
        """
        return float(np.nan_to_num(_mean(self.by_label("saturated"), self.weights())[0]))

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
        by, names = self.by_label, ("exposure", "target", "selected", "candidates", "ndcg")
        exposure, target, selected, candidates, ndcg = map(by, names)
        absent = np.where(by("shown").sum(axis=1, keepdims=True) > 0, by("shown") <= 0, np.nan)
        judged = np.where(np.isnan(ndcg), np.nan, by("shown"))
        of_known = self._known()
        found: dict[str, Any] = {
            name: self._means(*terms, is_known=name in of_known)
            for name, terms in self._terms(by).items()
        }
        found |= {
            "exposure_ratio": self._relative(exposure, target, np.ones_like(target)),
            "selection_rate": self._rates(selected, candidates),
            "impact_ratio": self._relative(selected, candidates, candidates),
            "absent": self._shares(absent),
            "precision": self._rates(selected, judged),
            "ndcg": self._shares(ndcg, by("has_relevant")),
        }
        if (confusion := self.dimension.confusion) is not None:
            found |= self._corrected_for_labels(found, confusion)
        # What a ranking of relevant documents lacks; where nothing is withheld, all that is lacked.
        found["unattainable"] = [
            _not_below_0(it, lesser=other)
            for it, other in zip(found["unattainable"], found.pop("lacking"), strict=True)
        ]
        gaps, by_attainable = self.tested_gaps()
        tested: Tested = "ranking_gap" if by_attainable else "exposure_gap"
        ps = self._tests(found["excess"], random, tests)
        found[tested] = [replace(it, p=p) for it, p in zip(found[tested], ps, strict=True)]
        rows = _have(selected + candidates)
        chosen, all_ = (
            self._unmixed(it[rows]).sum(axis=0).round(10).clip(0) for it in (selected, candidates)
        )
        part = divided(all_, all_.sum())
        # With labels, queries without any would be in the exposure, too.
        is_in = _have(self.exposures(by))[:, None] | (by("unknown") > 1 - ROUNDING)
        unknown = self._shares(np.where(is_in, by("unknown"), np.nan))[0].value
        bounds = self._bounds(tested, np.array([it.value for it in found[tested]]))
        known = _mean(np.where(_have(gaps), 1.0, 0.0)[:, None], self.weights())
        return [
            GroupFigures(
                attribute=self.dimension.name,
                group=group,
                segment=segment,
                **{name: figures[place] for name, figures in found.items()},
                selected=chosen[place].item(),
                candidates=all_[place].item(),
                share_of_candidates=part[place].item(),
                saturated=self.saturated(),
                gap_bounds=bounds[place],
                unknown=unknown,
                known=round(known.item(), 10),
                tested=tested,
            )
            for place, group in enumerate(self.dimension.groups)
        ]

    @staticmethod
    def exposures(array: Callable[[str], FloatArray]) -> FloatArray:
        """Return the exposure in the queries that have a target, if any has; else in all."""
        exposure, has_target = array("exposure"), _have(array("target"))
        return np.where(has_target[:, None] | ~has_target.any(), exposure, np.nan)

    @staticmethod
    def _terms(
        array: Callable[[str], FloatArray],
    ) -> dict[str, tuple[FloatArray, FloatArray | None]]:
        """Return by query the figures that are means, or the two that they are differences of."""
        exposure, (target, attainable) = (
            QueryFigures.exposures(array),
            map(array, ("target", "attainable")),
        )
        reachable = np.minimum(target, attainable)
        return {
            "exposure": (exposure, None),
            "target": (target, None),
            "attainable": (attainable, None),
            "unattainable": (target - reachable, None),
            "exposure_gap": (target, exposure),
            "ranking_gap": (reachable, exposure),
            "excess": (exposure, np.maximum(target, attainable)),
            "lacking": (np.where(np.isnan(reachable), np.nan, target), exposure),
        }

    def _corrected_for_labels(
        self, found: Mapping[str, Sequence[Estimate]], confusion: FloatArray
    ) -> dict[str, list[Estimate]]:
        """Return the means that are linear in the labels by group, with wider intervals."""
        slope = slopes(confusion, self.mix())
        target, of_known = self.array("target"), self._known()
        none = [Estimate(np.nan, np.nan, np.nan, 0)] * len(slope)
        corrected = {"absent": none, "precision": none, "ndcg": none}
        for name, terms in self._terms(self.array).items():
            rows, weights = _have(_less(*terms)), self.weights()
            values = _mean(_less(*terms), weights)
            known = _mean(target[rows], weights[rows]) if name in of_known else 0.0
            # Chance may put corrected shares beyond 0 and 1; a difference is that of the shares.
            first, *second = (
                _mean(it[rows], weights[rows]).clip(0, 1) for it in terms if it is not None
            )
            moves = first - sum(second) - values
            moved = []
            for it, value, move, by in zip(found[name], values, moves, slope, strict=True):
                low = value + (it.low - it.value) / by + max(move, 0.0)
                high = value + (it.high - it.value) / by + min(move, 0.0)
                value = round(float(value + move), 10)
                moved.append(Estimate(value, min(low, value), max(high, value), it.queries))
            ends = middle_of(moves + known + (values - known) @ confusion @ self._inverses)
            least = -1.0 if name == "lacking" else LEAST.get(name, 0.0)
            corrected[name] = [
                # Wrong labels may make some exposure seem unattainable, because a minimum is not
                # linear.
                _within(replace(it, low=min(it.low, 0.0)) if name == "unattainable" else it, least)
                for it in map(wider_by, moved, ends)
            ]
        return corrected

    def _tests(
        self, means_of_excess: Sequence[Estimate], random: np.random.Generator, tests: int
    ) -> list[float | None]:
        """Test the gap of each group, or its excess where the gap is below 0.

        Where attainable exposure is short, every group may have a gap below 0, and none an excess.
        """
        gap, excess = self.tested_gaps()[0], _less(*self._terms(self.array)["excess"])
        rows = _have(gap)
        values, excess, weights = gap[rows], excess[rows], self.weights()[rows]
        is_more = (weights @ values < 0) & ~np.isnan(excess).any(axis=0)
        found = estimates.p_of_means(np.where(is_more, excess, values), weights, random, tests)
        return [
            1.0 if p is not None and more and mean.value <= 0 else p
            for p, more, mean in zip(found, is_more.tolist(), means_of_excess, strict=True)
        ]

    def _means(
        self, first: FloatArray, second: FloatArray | None, *, is_known: bool
    ) -> list[Estimate]:
        """Return the weighted means of first − second, by the queries that have both."""
        rows, weights = _have(_less(first, second)), self.weights()
        if second is not None:
            first, second = first[rows], second[rows]
            return estimates.differences(first, second, weights[rows], is_known=is_known)
        found = self._shares(first)
        return [replace(it, low=it.value, high=it.value) for it in found] if is_known else found

    def _known(self) -> set[str]:
        """Return the figures whose first term is a target that all queries have."""
        is_short = self.by_label("attainable") < self.by_label("target") - ROUNDING
        found = {"target", "exposure_gap", "lacking"} | (
            set() if is_short.any() else {"ranking_gap"}
        )
        return found if self._has_known_target else set()

    def _shares(self, above: FloatArray, below: FloatArray | None = None) -> list[Estimate]:
        """Return Σ above / Σ below of each group, or means, by the queries that have both."""
        whole = np.ones_like(above) if below is None else below
        rows = _have(above + whole)
        return estimates.shares(above[rows], whole[rows], self.weights()[rows])

    def _rates(self, above: FloatArray, below: FloatArray) -> list[Estimate]:
        """Return the same where both change if labels are corrected."""
        if self.dimension.confusion is None:
            return self._shares(above, below)
        rows = _have(above + below)
        parts, weights = np.concatenate([above[rows], below[rows]], axis=1), self.weights()[rows]
        drawn = divided(*(it @ self._inverses for it in np.split(weights @ parts, 2)))
        shares_of, own = (
            estimates.estimate(parts, weights, self._rate, scale=it) for it in ("logit", "own")
        )
        # Without some query, or with all, corrected rates may be beyond 0 or 1, and have no logit.
        found = [b if math.isnan(a.low) else a for a, b in zip(shares_of, own, strict=True)]
        return [_within(it, 0.0) for it in map(wider_by, found, middle_of(drawn))]

    def _rate(self, totals: FloatArray) -> FloatArray:
        above, below = np.split(totals, 2, axis=-1)
        return divided(self._unmixed(above), self._unmixed(below))

    def _relative(self, above: FloatArray, below: FloatArray, whole: FloatArray) -> list[Estimate]:
        """Return Σ above / Σ below of each group, divided by the reference's or by the highest.

        Args:
            above: Shape (n, G).
            below: Shape (n, G).
            whole: What ``above`` can be at most, shape (n, G).
        """
        rows = _have(above + below)
        above, below, whole, weights = above[rows], below[rows], whole[rows], self.weights()[rows]
        size, by, parts = above.shape[1], weights[:, None], np.concatenate([above, below], axis=1)
        rates = self._rate(weights @ parts)
        # The group that leads stays the same without a query, so that its own ratio is 1.
        chosen, groups = self._reference, list(self.dimension.groups)
        leader = groups.index(chosen) if chosen else int(np.nan_to_num(rates).argmax())
        if not rates[leader] > 0:
            return [Estimate(np.nan, np.nan, np.nan, len(above))] * size

        def relative(t: FloatArray) -> FloatArray:
            each = self._rate(t)
            return divided(each, each[..., leader : leader + 1])

        held = (above, below, (whole - above).round(10))
        seen, missed_in, left = (estimates.effective_queries(by * (it > 0)) for it in held)
        telling = np.minimum(np.minimum(seen, missed_in), min(seen[leader], missed_in[leader]))
        # Which group leads may be chance, so all others are compared with it at the same time
        # (Hsu 1984, multiple comparisons with the best), and no ratio is above 1.
        found = estimates.estimate(
            parts,
            weights,
            relative,
            scale="log",
            telling=np.minimum(telling, left),
            comparisons=1 if chosen else max(1, size - 1),
        )
        if self.dimension.confusion is None:
            first = estimates.ratios(above, below, weights)[leader]
            unseen = estimates.shares(above, whole, weights)
            own, is_constant = unseen[leader], np.isnan(first.low)
            lead = own.low * rates[leader] / own.value if is_constant else first.low
            if is_constant and own.low > 0:  # other queries might show another rate
                moves = (own.value / own.high, own.value / own.low)
                found = [wider_by(it, [it.value * f for f in moves], is_ratio=True) for it in found]
            scale = divided(weights @ whole, weights @ below)
            for place in np.flatnonzero(rates == 0) if lead > 0 else ():
                high = float(unseen[place].high * scale[place] / lead)
                found[place] = replace(found[place], low=unseen[place].low, high=high)
        else:
            drawn = divided(*(it @ self._inverses for it in np.split(weights @ parts, 2)))
            ends = middle_of(divided(drawn, drawn[:, leader : leader + 1]))
            # Corrected rates may be below 0, and then have no logarithm.
            found = [wider_by(it, by, is_ratio=True) for it, by in zip(found, ends, strict=True)]
        # The group that leads may be as far from the best as another group may be above it. By
        # wrong labels a small group may lead by chance alone, and its ratio be anything.
        others = [it.high for it in found if it is not found[leader]]
        least = 1.0 if chosen else float(1 / np.max([1.0, *others]))
        least = 0.0 if least < 1 and self.dimension.confusion is not None else least
        found[leader] = Estimate(1.0, least, np.nan if np.isnan(least) else 1.0, len(above))
        return [_within(it, 0.0, np.inf if chosen else 1.0) for it in found]

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
        values = _less(*self._terms(self.by_label)[tested])
        # With a label, a query that has none of them might have any gap.
        is_bare = ~_have(values) & (self.by_label("unknown")[:, 0] > 0)
        kept, bare = (float(self.weights() @ it) for it in (_have(values), is_bare))
        every = max(kept + bare, ROUNDING)
        ends = (
            (kept * (_mean(it - values, self.weights()) + means) + side * bare) / every
            for it, side in ((low, -1), (high, 1))
        )
        return [*zip(*(it.round(10).tolist() for it in ends), strict=True)]


def corrected(figures: Sequence[GroupFigures]) -> list[GroupFigures]:
    """Correct the p values of an audit for their number, and judge by them.

    The family is declared: one test for each group of each attribute that was asked for, over all
    queries and over each segment.

    Args:
        figures: The figures of all attributes, with uncorrected p values. Where they have an error,
            the intervals of all that rests on the estimate of relevance grow to hold it.
    """
    judged = []
    ps = corrected_by_holm([it.test.p for it in figures])
    for group, p in zip(figures, ps, strict=True):
        changed: dict[str, Any] = {group.tested: replace(group.test, p=p)}
        by_chance = whole = replace(group, **changed)
        if group.error:
            of_target = dict.fromkeys(("target", "exposure_gap"), group.error_of_target)
            errors = dict.fromkeys(LEAST, group.error) | of_target
            whole = widened(by_chance, errors, estimates.wider_by_bias)
        # Nobody lacks more than the target share, in the same queries.
        most = float(np.fmin(whole.target.high, 1.0))
        lacks = ((it, getattr(whole, it)) for it in OF_TARGET)
        changed = {
            n: _within(it, -1.0, most) for n, it in lacks if it.queries == whole.target.queries
        }
        whole = replace(whole, **changed)
        verdict = _verdict(whole)
        if verdict not in SURE and _verdict(by_chance) in SURE:
            verdict = "within_relevance_error"
        low, high = group.gap_bounds
        could_flip = (verdict == "less" and low <= 0) or (verdict == "more" and high >= 0)
        found = _detectable(by_chance.test, whole.test, len(ps))
        judged.append(replace(whole, verdict=verdict, could_flip=could_flip, detectable_gap=found))
    return judged


def _detectable(by_chance: Estimate, whole: Estimate, tests: int) -> float:
    """Return the gap that as many queries with this spread find in four of five cases.

    That is (t + t.8)·standard error, by Student's quantiles, where t is that of .975 corrected for
    all tests at once; with a bias at least the interval's half width and t.8·standard error.
    """
    if np.isnan(by_chance.low) or by_chance.p is None:
        return math.nan
    levels, freedom = (0.95, 2 * POWER - 1, 1 - ALPHA / tests), by_chance.queries - 1
    usual, power, passed = (student_quantile(it, freedom) for it in levels)
    error = (by_chance.high - by_chance.low) / 2 / usual
    return max((passed + power) * error, (whole.high - whole.low) / 2 + power * error)


def widened(
    group: GroupFigures,
    errors: Mapping[str, float],
    wider: Callable[[Estimate, float], Estimate] = estimates.wider_by_spread,
) -> GroupFigures:
    """Return figures with intervals that also hold errors that other queries do not even out."""
    changed: dict[str, Any] = {}
    for name, error in errors.items():
        found: Estimate = getattr(group, name)
        changed[name] = _within(wider(found, error), LEAST.get(name, 0.0))
    return replace(group, **changed)


def _verdict(group: GroupFigures) -> Verdict:
    test = group.test
    if test.p is None:
        return "unknown" if math.isnan(test.value) else "too_few"
    # A group gets more only if relevant documents of others could take something over.
    is_more = group.tested == "ranking_gap" and test.value < 0
    low, high = (group.excess.low, group.excess.high) if is_more else (test.low, test.high)
    if test.p > ALPHA or (is_more and group.excess.value <= 0):
        return "cannot_tell"
    if low <= 0 <= high:
        return "undecided"
    return "less" if test.value > 0 else "more"


def _have(values: FloatArray) -> NDArray[np.bool_]:
    """Return which queries have values, shape (n,)."""
    return np.asarray(~np.isnan(values).any(axis=1))


def _less(first: FloatArray, second: FloatArray | None) -> FloatArray:
    return first if second is None else first - second


def _mean(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the weighted means over the queries that have values, shape (G,)."""
    rows = _have(values)
    return divided(weights[rows] @ values[rows], weights[rows].sum())


def _within(found: Estimate, least: float, most: float = 1.0) -> Estimate:
    """Cut a figure and its interval off at what is possible; NaN stays."""
    value, low, high = (
        min(max(it, least), most) if it == it else it for it in (found.value, found.low, found.high)
    )
    return replace(found, value=value, low=low, high=high)


def _not_below_0(found: Estimate, lesser: Estimate | None = None) -> Estimate:
    """Raise a gap, or the smaller of two, to at least 0. It has no p: only the gap is tested."""
    ends = np.array([(it.value, it.low, it.high) for it in (found, lesser or found)])
    value, low, high = np.maximum(np.fmin(ends[0], ends[1]), 0.0).tolist()
    return replace(found, value=value, low=low, high=high, p=None)
