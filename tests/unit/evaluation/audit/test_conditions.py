"""Conditions: what is read, what is refused, and when they hold."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from itertools import product
from typing import Any, get_args

import pytest

from fairqr.base.errors import InputError
from fairqr.evaluation.audit.figures import ESTIMATES, GroupFigures, Verdict
from fairqr.evaluation.audit.measuring import (
    LEANS,
    OPERATORS,
    RATIOS,
    AuditFigures,
    check,
    parse_condition,
)
from fairqr.evaluation.estimates import Estimate
from tests.golden.reports import check_text
from tests.unit.evaluation.audit.examples import outcome_of

NAN = math.nan
TEXTS = [f"{name} {sign} 0.5" for name in ESTIMATES for sign in "<>"]
TEXTS += ["exposure_ratio <= 0.5", "lean >= 0.5"]
ENDS = [
    *((0.3, 0.2, 0.4), (0.3, 0.1, 0.5), (0.5, 0.4, 0.6), (0.7, 0.5, 0.9), (0.7, 0.6, 0.8)),
    *((0.7, 0.0, 1.0), (0.3, NAN, NAN), (0.7, NAN, NAN), (NAN, NAN, NAN)),
]
STATES: dict[str, dict[str, Any]] = {it: {"verdict": it} for it in get_args(Verdict)}
STATES |= {"less, unless labels turn it": {"flips": True}}
STATES |= {
    f"less, labels say {low} to {high}": {"unknown": 0.2, "lean_bounds": (low, high)}
    for low, high in ((0.0, 0.0), (0.1, 0.6), (0.3, 0.4))
}


@pytest.fixture(scope="module")
def figures() -> AuditFigures:
    return outcome_of(30).figures


def with_figure(it: GroupFigures, name: str, ends: tuple[float, ...], **more: Any) -> GroupFigures:
    """Return a group with this figure, which no missing label changes, and a sure verdict."""
    value = Estimate(*ends, 30)
    said = {name: value, "verdict": "less", "flips": False, **more}
    bounds = {"lean": value, "lean_bounds": (value.value, value.value)} if name in LEANS else {}
    return replace(it, **(bounds | said))


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("impact_ratio < 0.8", "impact_ratio < 0.8"),
        ("ranking_gap>.05", "ranking_gap > 0.05"),
        (" lean >= -1e-2 ", "lean >= -0.01"),
        ("absent<=1", "absent <= 1"),
        *((text, None) for text in ("", "lean", "lean >", "lean = 3", "lean < nan", "queries > 3")),
    ],
)
def test_conditions_are_read_and_what_is_none_is_refused(text: str, read: str | None) -> None:
    if read:
        assert str(parse_condition(text)) == read
    else:
        with pytest.raises(InputError, match=r"is not a condition|no figure"):
            parse_condition(text)


def test_what_may_be_on_both_sides_of_the_line_never_passes_in_silence(
    figures: AuditFigures,
) -> None:
    """What is said of women by figure, interval, verdict and labels, plainly and surely.

    Men are surely on the other side.
    """
    lines = list[str]()
    for text, ends in product(TEXTS, ENDS):
        it, told = parse_condition(text), defaultdict[str, list[str]](list)
        far = with_figure(figures.groups[1], it.figure, (-9.0 if ">" in text else 9.0,) * 3)
        for name, state in STATES.items():
            women, answers = with_figure(figures.groups[0], it.figure, ends, **state), list[str]()
            for sure in (False, True):
                changed = replace(figures, groups=[women, far])
                broken, doubtful = check([it], changed, sure=sure)
                answers += ["holds" for _ in broken] + [why.split(": ")[-1] for why in doubtful]
                answers += ["passes"] if not broken + doubtful else []
            told[" / ".join(answers)].append(name)
            is_beyond = any(OPERATORS[it.comparison](end, it.line) for end in ends)
            is_about_others = it.figure in RATIOS and "<" in text and name == "more"
            assert (
                answers[1] != "passes" or is_about_others or not (is_beyond or ends[1] != ends[1])
            )
        lines += [f"{text}: %g, %g to %g" % ends, ""]
        lines += [*(f"- {answer}: {'; '.join(names)}" for answer, names in told.items()), ""]
    check_text("audit_conditions.md", "\n".join(lines))


def test_a_group_that_is_never_shown_surely_breaks_a_condition() -> None:
    """Women are demoted so far that none stands among the first ten."""
    found = outcome_of(40, lean=2.0).figures
    women = found.groups[0]
    assert women.selected == women.impact_ratio.value == women.exposure.value == 0
    for text in ("impact_ratio < 0.8", "exposure < 0.2", "absent > 0.8", "selection_rate < 0.2"):
        broken, _ = check([parse_condition(text)], found, sure=True)
        assert "gender=female (" in "".join(broken)
    (said,), _ = check([parse_condition("exposure < 9")], found, sure=False)
    assert f", and {len(found.groups) - 5} more." in said


@pytest.mark.parametrize("sure", [False, True])
def test_what_cannot_be_checked_is_doubtful(figures: AuditFigures, sure: bool) -> None:
    """One attribute does not pass for another."""
    condition = parse_condition("lean > 0.9")

    def missing(*attributes: str) -> AuditFigures:
        groups = [
            with_figure(it, "lean", (NAN,) * 3) if it.attribute in attributes else it
            for it in figures.groups
        ]
        return replace(figures, groups=groups)

    emptied = [replace(figures, counts=replace(figures.counts, empty_share=n)) for n in (0.3, 0.6)]
    for changed, why in (
        (missing("gender", "origin", "gender×origin"), "there is no figure"),
        (missing("origin"), "'lean > 0.9' may hold for origin=Africa, origin=Asia, origin=Europe:"),
        (replace(figures, too_many_failed=True), "too many queries"),
        (emptied[1], "most queries found"),
        (outcome_of(4).figures, "too few queries"),
    ):
        broken, (doubt,) = check([condition], changed, sure=sure)
        assert not broken
        assert why in doubt
    assert any("found nothing" in it for it in check([condition], emptied[0], sure=sure)[1]) == sure
    assert check([], replace(figures, too_many_failed=True), sure=sure) == ([], [])


@pytest.mark.parametrize(("verdict", "is_broken"), [("less", True), ("cannot_tell", False)])
def test_a_sure_lean_in_a_segment_breaks_a_condition(
    figures: AuditFigures, verdict: str, is_broken: bool
) -> None:
    groups = [with_figure(it, "lean", (0.01, 0.0, 0.02)) for it in figures.groups]
    actors = replace(groups[0], segment="actors")
    actors = with_figure(actors, "lean", (0.5, 0.4, 0.6), verdict=verdict)
    changed = replace(figures, groups=groups, segments=[actors])
    broken, doubtful = check([parse_condition("lean > 0.2")], changed, sure=True)
    said = "'lean > 0.2' holds for gender=female in actors (0.5, 0.4 to 0.6)."
    assert (broken, doubtful) == ([said] * is_broken, [])
