"""What the sentences of an audit's report say, and of whom; no template is rendered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from fairqr.evaluation.audit.figures import GroupFigures
from fairqr.evaluation.audit.findings import (
    HEADLINES,
    Summary,
    least_queries,
    queries_that_show,
    sentences_of,
    verdict_of,
)
from fairqr.evaluation.audit.finishing import Audit
from fairqr.evaluation.audit.notes import notes_of
from fairqr.evaluation.audit.verdicts import judge
from fairqr.evaluation.audit.wording import difference_of, ends_of, in_points, listing, name_of
from fairqr.evaluation.estimates import Estimate
from tests.unit.evaluation.audit.examples import outcome_of


@pytest.fixture(scope="module")
def biased() -> Audit:
    return outcome_of(bias=0.15)


def with_groups(outcome: Audit, *groups: GroupFigures, **figures: Any) -> Audit:
    changed = replace(outcome.figures, groups=list(groups), **figures)
    return replace(outcome, figures=changed)


def figure(value: float, low: float, high: float) -> Estimate:
    return Estimate(value, low, high, queries=40, p=0.01)


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        pytest.param(["a"], "a", id="one"),
        pytest.param(["a", "b"], "a and b", id="two"),
        pytest.param(list("abc"), "a, b and c", id="three"),
        pytest.param(list("abcdef"), "a, b, c, d, e and 1 other", id="one too many"),
        pytest.param(list("abcdefgh"), "a, b, c, d, e and 3 others", id="many"),
    ],
)
def test_a_list_names_five_and_counts_the_others(texts: Sequence[str], sentence: str) -> None:
    assert listing(texts) == sentence


@pytest.mark.parametrize(
    ("gap", "excess", "tested", "expected"),
    [
        pytest.param(0.2, -0.3, "ranking_gap", (0.2, "less"), id="less"),
        pytest.param(-0.2, 0.1, "ranking_gap", (0.1, "more"), id="more"),
        pytest.param(-0.2, -0.1, "ranking_gap", (-0.1, "more"), id="between"),
        pytest.param(-0.2, 0.1, "exposure_gap", (0.2, "more"), id="more than its target"),
    ],
)
def test_a_difference_is_what_was_tested(
    biased: Audit, gap: float, excess: float, tested: Any, expected: tuple[float, str]
) -> None:
    group = replace(
        biased.figures.groups[0],
        **{tested: figure(gap, gap - 0.1, gap + 0.1)},
        excess=figure(excess, excess - 0.1, excess + 0.1),
        tested=tested,
    )
    difference, side = difference_of(group)

    assert (pytest.approx(difference.value), side) == expected
    assert difference.low <= difference.value <= difference.high


def test_ends_are_written_in_the_unit_of_their_figure() -> None:
    estimate = figure(0.5, 0.25, 0.75)
    assert ends_of(estimate, "points") == " (25.0 to 75.0)"
    assert ends_of(estimate, "percent") == " (25.0% to 75.0%)"
    assert ends_of(estimate, ".2f") == " (0.25 to 0.75)"
    assert not ends_of(replace(estimate, low=float("nan")), "points")


def test_points_of_nothing_are_a_dash() -> None:
    assert in_points(0.123, "less") == "12.3 less"
    assert in_points(0.0, "less") == "–"
    assert in_points(0.0) == "0.0"


def test_a_combination_is_named_without_its_attributes(biased: Audit) -> None:
    group = biased.figures.groups[0]
    assert name_of(group) == "female (gender)"
    assert name_of(replace(group, attribute="gender×origin", group="female × north")) == (
        "female × north"
    )


def test_more_tests_need_more_queries() -> None:
    assert least_queries() == 6
    assert least_queries(10) == 9


def test_a_rare_group_takes_many_queries_to_be_ruled_out() -> None:
    assert queries_that_show(0.5) == 6
    assert queries_that_show(0.05) == 72


def test_a_sure_verdict_leads_the_report(biased: Audit) -> None:
    summary = Summary.of(biased)
    assert (summary.foremost, summary.first.group) == ("less", "female")
    assert verdict_of(summary)[0].startswith("Against female (gender): the ranking withholds")


@pytest.mark.parametrize("verdict", [name for name in HEADLINES if name not in ("less", "more")])
def test_an_unsure_verdict_says_why_and_accuses_nobody(biased: Audit, verdict: Any) -> None:
    groups = [replace(group, verdict=verdict) for group in biased.figures.groups]
    outcome = with_groups(biased, *groups, segments=[])

    sentences = verdict_of(Summary.of(outcome))

    assert sentences[0].startswith(HEADLINES[verdict])
    assert "Against" not in " ".join(sentences)


def test_an_audit_without_answers_says_nothing_else() -> None:
    outcome = outcome_of(8, failed=tuple(f"q{number}" for number in range(1, 9)))
    summary = Summary.of(outcome)

    assert verdict_of(summary) == ["No verdict: no query was answered."]
    assert not sentences_of(summary)
    assert not notes_of(summary)


def test_too_many_failures_leave_no_verdict_on_any_group(biased: Audit) -> None:
    groups = judge(biased.figures.groups, most_saturated=0.1, too_many_failed=True)
    assert {group.verdict for group in groups} == {"cannot_tell"}
    assert not any(group.could_flip for group in groups)
