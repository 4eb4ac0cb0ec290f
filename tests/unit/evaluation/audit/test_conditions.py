"""Conditions: what is read, what is refused, and when they hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fairqr.base.errors import InputError
from fairqr.evaluation.audit.conditions import check, parse_condition
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


@pytest.mark.parametrize("figure", ["ranking_gap", "impact_ratio", "exposure_ratio"])
@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, None),
        ({"flips": True}, "missing labels"),
        ({"verdict": "cannot_tell"}, "may be chance"),
        ({"verdict": "within_error"}, "the estimate of relevance"),
        ({"verdict": "too_few"}, "too few queries"),
    ],
)
def test_gaps_and_ratios_are_sure_only_with_a_verdict_and_else_doubtful(
    figures: AuditFigures, figure: str, more: dict[str, object], why: str | None
) -> None:
    changed = with_figure(figures, figure, Estimate(0.2, 0.1, 0.3, 30), **more)
    conditions = [parse_condition(f"{figure} > 0.05")]
    gate = check(conditions, changed, sure=True)
    assert bool(gate.broken) == (why is None)
    assert not why or why in gate.doubtful[0]
    (said,) = check(conditions, changed, sure=False).broken
    assert said.startswith(f"'{figure} > 0.05' holds for gender=female (0.2, 0.1 to 0.3), ")
    assert f", and {len(changed.groups) - 5} more." in said


def test_an_interval_on_both_sides_of_the_line_never_passes_in_silence(
    figures: AuditFigures,
) -> None:
    """An impact ratio of .27 with a wide interval is a strong lean that is not known well."""
    wide = with_figure(figures, "impact_ratio", Estimate(0.27, 0.11, 0.9, 30))
    gate = check([parse_condition("impact_ratio < 0.8")], wide, sure=True)
    assert (gate.broken, len(gate.doubtful)) == ([], 1)
    assert "its interval reaches beyond" in gate.doubtful[0]
    assert check([parse_condition("impact_ratio < 0.2")], wide, sure=True) == ([], [])


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
        said = check([parse_condition(text)], found, sure=True).broken
        assert "gender=female (" in "".join(said)


def test_what_cannot_be_checked_is_doubtful(figures: AuditFigures) -> None:
    undefined = with_figure(figures, "lean", Estimate(np.nan, np.nan, np.nan, 0))
    conditions = [parse_condition("lean > 0")]
    for sure in (False, True):
        gate = check(conditions, undefined, sure=sure)
        assert not gate.broken
        assert "was not checked: no group has this figure" in gate.doubtful[0]
        failed = replace(figures, too_many_failed=True)
        assert "No condition was checked" in check(conditions, failed, sure=sure).doubtful[0]
        assert check([], failed, sure=sure) == ([], [])


def test_too_few_queries_pass_no_sure_gate() -> None:
    found = outcome_of(4).figures
    gate = check([parse_condition("ranking_gap > 0.9")], found, sure=True)
    assert not gate.broken
    assert "too few queries" in gate.doubtful[0]
