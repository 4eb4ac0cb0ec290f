"""The verdict on each group of an audit: what its figures surely say, or why nobody can tell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fairqr.agents.statistics import corrected_by_holm, student_quantile
from fairqr.evaluation import estimates
from fairqr.evaluation.audit.figures import (
    ALPHA,
    LEAST,
    SURE,
    GroupFigures,
    Verdict,
    widened,
    within,
)
from fairqr.evaluation.estimates import Estimate

POWER = 0.8

OF_TARGET = ("exposure_gap", "ranking_gap", "unattainable")
"""The figures that are at most the target."""


def judge(
    figures: Sequence[GroupFigures], most_saturated: float, *, too_many_failed: bool = False
) -> list[GroupFigures]:
    """Correct the p values of an audit for their number, and give each group its verdict.

    The family is declared: one test for each group of each attribute that was asked for, over all
    queries and over each segment.

    Args:
        figures: The figures of all attributes, with uncorrected p values. Where they have an error,
            the intervals of all that rests on the estimate of relevance grow to hold it.
        most_saturated: The largest share of saturated queries with which a gap is known.
        too_many_failed: Whether so many queries failed that no verdict is given.
    """
    ps = corrected_by_holm([group.test.p for group in figures])
    judged = []
    for group, p in zip(figures, ps, strict=True):
        tested: dict[str, Any] = {group.tested: replace(group.test, p=p)}
        by_chance = replace(group, **tested)
        verdict = _judged(by_chance, most_saturated, tests=len(ps))
        if too_many_failed:
            verdict = replace(verdict, verdict="cannot_tell", could_flip=False)
        judged.append(verdict)
    return judged


def _judged(by_chance: GroupFigures, most_saturated: float, tests: int) -> GroupFigures:
    """Return figures with their verdict, and with the errors of the estimate of relevance.

    Args:
        by_chance: The figures, with intervals that hold chance alone.
        most_saturated: See :func:`judge`.
        tests: How many tests the audit has.
    """
    whole = _with_errors(by_chance)
    # What a group lacks to a target without relevance is still known, by every query.
    is_known = by_chance.tested == "exposure_gap" and by_chance.known == 1
    if by_chance.saturated > most_saturated and not is_known:
        return replace(whole, verdict="saturated")
    verdict = _verdict(whole)
    if verdict not in SURE and _verdict(by_chance) in SURE:
        verdict = "within_relevance_error"
    low, high = whole.gap_bounds
    judged = replace(
        whole,
        verdict=verdict,
        could_flip=(verdict == "less" and low <= 0) or (verdict == "more" and high >= 0),
        detectable_gap=_detectable(by_chance.test, whole.test, tests),
    )
    if _may_hide(judged):
        return replace(judged, verdict="unlabelled", detectable_gap=math.nan)
    return judged


def _with_errors(group: GroupFigures) -> GroupFigures:
    """Return figures whose intervals also hold the error of the estimate of relevance."""
    whole = group
    if group.error:
        errors = dict.fromkeys(LEAST, group.error)
        errors["target"] = group.error_of_target
        errors["exposure_gap"] = group.error_of_target
        whole = widened(group, errors, estimates.wider_by_bias)
    # Nobody lacks more than the target share, in the same queries.
    most = float(np.fmin(whole.target.high, 1.0))
    cut: dict[str, Any] = {}
    for name in OF_TARGET:
        figure: Estimate = getattr(whole, name)
        if figure.queries == whole.target.queries:
            cut[name] = within(figure, -1.0, most)
    return replace(whole, **cut)


def _verdict(group: GroupFigures) -> Verdict:
    """Return what the test of a group and the interval of what was tested say."""
    test = group.test
    if test.p is None:
        return "unknown" if math.isnan(test.value) else "too_few"
    # A group gets more only if relevant documents of others could take something over.
    is_more = group.tested == "ranking_gap" and test.value < 0
    decisive = group.excess if is_more else test
    has_no_excess = is_more and group.excess.value <= 0
    if test.p > ALPHA or has_no_excess:
        return "cannot_tell"
    if decisive.low <= 0 <= decisive.high:
        return "undecided"
    return "less" if test.value > 0 else "more"


def _may_hide(group: GroupFigures) -> bool:
    """Return whether missing labels alone could hide a difference that would be found."""
    if group.verdict == "too_few" or math.isnan(group.exposure.value):
        has_no_test = group.verdict in ("too_few", "unknown")
        return has_no_test and group.unknown > 0.5
    low, high = group.gap_bounds
    is_open = group.verdict in ("cannot_tell", "undecided")
    return is_open and low < high and max(-low, high) > group.detectable_gap


def _detectable(by_chance: Estimate, whole: Estimate, tests: int) -> float:
    """Return the gap that as many queries with this spread find in four of five cases.

    That is (t + t.8)·standard error, by Student's quantiles, where t is that of .975 corrected for
    all tests at once; with a bias at least the interval's half width and t.8·standard error.
    """
    if np.isnan(by_chance.low) or by_chance.p is None:
        return math.nan
    freedom = by_chance.queries - 1
    usual = student_quantile(0.95, freedom)
    power = student_quantile(2 * POWER - 1, freedom)
    passed = student_quantile(1 - ALPHA / tests, freedom)
    error = (by_chance.high - by_chance.low) / 2 / usual
    half_of_whole = (whole.high - whole.low) / 2
    return max((passed + power) * error, half_of_whole + power * error)
