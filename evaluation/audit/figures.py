"""The figures of one group over all queries, and what they may say of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from fairqr.evaluation import estimates
from fairqr.evaluation.estimates import Estimate

ALPHA = 0.05
ROUNDING = 1e-12
FEW_CANDIDATES = 30
"""Rates over fewer candidates are marked."""

LEAST: Mapping[str, float] = {
    "target": 0.0,
    "attainable": 0.0,
    "unattainable": 0.0,
    "exposure_gap": -1.0,
    "ranking_gap": -1.0,
    "excess": -1.0,
}
"""The figures that an error of the estimate of relevance adds to, and what they are at least."""

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
        gap_bounds: What was tested, if missing labels were such that it is least and greatest.
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


ESTIMATES = tuple(field.name for field in fields(GroupFigures) if field.type == "Estimate")
"""The figures of a group that have an interval."""


def widened(
    group: GroupFigures,
    errors: Mapping[str, float],
    wider: Callable[[Estimate, float], Estimate] = estimates.wider_by_spread,
) -> GroupFigures:
    """Return figures whose intervals also hold errors that other queries do not even out."""
    changed: dict[str, Any] = {}
    for name, error in errors.items():
        figure: Estimate = getattr(group, name)
        least = LEAST.get(name, 0.0)
        changed[name] = within(wider(figure, error), least)
    return replace(group, **changed)


def within(figure: Estimate, least: float, most: float = 1.0) -> Estimate:
    """Cut a figure and its interval off at what is possible; NaN stays."""

    def cut(number: float) -> float:
        return number if math.isnan(number) else min(max(number, least), most)

    return replace(
        figure,
        value=cut(figure.value),
        low=cut(figure.low),
        high=cut(figure.high),
    )
