"""Conditions: what is read, what is refused, and when they hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fairqr.base.errors import InputError
from fairqr.evaluation.audit.conditions import broken, parse_condition
from fairqr.evaluation.audit.estimates import Estimate
from fairqr.evaluation.audit.measuring import AuditFigures
from tests.unit.evaluation.audit.examples import outcome_of


@pytest.fixture(scope="module")
def figures() -> AuditFigures:
    return outcome_of(30).figures


def with_figure(figures: AuditFigures, name: str, value: Estimate, **more: object) -> AuditFigures:
    """All groups have the same figure, and a sure verdict."""
    said = {name: value, "verdict": "less", "flips": False, **more}
    return replace(figures, groups=[replace(it, **said) for it in figures.groups])


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("impact_ratio < 0.8", "impact_ratio < 0.8"),
        ("ranking_gap>.05", "ranking_gap > 0.05"),
        (" lean >= -1e-2 ", "lean >= -0.01"),
        ("absent<=1", "absent <= 1"),
    ],
)
def test_conditions_are_read(text: str, read: str) -> None:
    assert str(parse_condition(text)) == read


@pytest.mark.parametrize(
    "text",
    ["", "lean", "lean >", "lean = 3", "lean < much", "lean < nan", "lean < inf", "queries > 3"],
)
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"is not a condition|no figure"):
        parse_condition(text)


@pytest.mark.parametrize(
    ("ends", "holds", "surely"),
    [
        ((0.7, 0.6, 0.79), True, True),
        ((0.7, 0.6, 0.8), True, False),
        ((0.8, 0.7, 0.9), False, False),
        ((0.7, np.nan, np.nan), True, False),
        ((np.nan, np.nan, np.nan), False, False),
    ],
)
def test_the_whole_interval_makes_it_sure(
    figures: AuditFigures, ends: tuple[float, float, float], holds: bool, surely: bool
) -> None:
    condition = parse_condition("impact_ratio < 0.8")
    group = with_figure(figures, "impact_ratio", Estimate(*ends, 30)).groups[0]
    assert condition.holds(group, sure=False) is holds
    assert condition.holds(group, sure=True) is surely


@pytest.mark.parametrize(
    ("more", "surely"),
    [
        ({}, True),
        ({"flips": True}, False),
        ({"verdict": "cannot_tell"}, False),
        ({"verdict": "within_error"}, False),
    ],
)
def test_a_gap_is_sure_only_with_a_verdict(
    figures: AuditFigures, more: dict[str, object], surely: bool
) -> None:
    changed = with_figure(figures, "ranking_gap", Estimate(0.2, 0.1, 0.3, 30), **more)
    conditions = [parse_condition("ranking_gap > 0.05")]
    assert bool(broken(conditions, changed, sure=True)) is surely
    (said,) = broken(conditions, changed, sure=False)
    assert said.startswith("'ranking_gap > 0.05' holds for gender=female (0.2, 0.1 to 0.3), ")
    assert f", and {len(changed.groups) - 5} more." in said


@pytest.mark.parametrize(("verdict", "surely"), [("less", True), ("cannot_tell", False)])
def test_a_lean_that_is_the_same_in_every_query_is_as_sure_as_its_verdict(
    figures: AuditFigures, verdict: str, surely: bool
) -> None:
    same = Estimate(0.333, np.nan, np.nan, 30)
    group = with_figure(figures, "lack", same, verdict=verdict).groups[0]
    assert parse_condition("lack > 0.1").holds(group, sure=True) is surely
    assert not parse_condition("lack > 0.4").holds(group, sure=True)


def test_a_group_that_is_never_shown_surely_breaks_a_condition() -> None:
    # Women are demoted so far that none stands among the first ten.
    found = outcome_of(40, lean=2.0).figures
    women = next(it for it in found.groups if it.group == "female")
    assert women.selected == women.impact_ratio.value == women.exposure.value == 0
    for text in ("impact_ratio < 0.8", "exposure < 0.2", "absent > 0.8", "selection_rate < 0.2"):
        assert "gender=female (" in "".join(broken([parse_condition(text)], found, sure=True))


def test_what_cannot_be_checked_is_said(figures: AuditFigures) -> None:
    undefined = with_figure(figures, "lean", Estimate(np.nan, np.nan, np.nan, 0))
    conditions = [parse_condition("lean > 0")]
    assert (
        "was not checked: no group has this figure" in broken(conditions, undefined, sure=False)[0]
    )
    failed = replace(figures, too_many_failed=True)
    assert "No condition was checked" in broken(conditions, failed, sure=False)[0]
    assert broken([], failed, sure=False) == []
