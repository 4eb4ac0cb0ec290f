"""Conditions: what is read, what is refused, and when they hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fairqr.base.errors import InputError
from fairqr.evaluation.audit.conditions import LEANS, check, parse_condition
from fairqr.evaluation.audit.figures import GroupFigures
from fairqr.evaluation.audit.measuring import AuditFigures
from fairqr.evaluation.estimates import Estimate
from tests.unit.evaluation.audit.examples import outcome_of

NAN = np.nan


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


REACHES, FEW = "its interval reaches beyond", "too few queries"
HIDE, TURN = "missing labels could hide", "missing labels could change that"
GAPS = ("ranking_gap", "impact_ratio", "exposure_ratio")
SATURATED = ("excess", "supply_gap", "selection_rate", "target", "impact_ratio")


@pytest.mark.parametrize(
    ("text", "ends", "verdict", "plain", "sure"),
    [
        # The whole interval has to meet it.
        ("impact_ratio < 0.8", (0.7, 0.6, 0.79), "less", "holds", "holds"),
        ("impact_ratio < 0.8", (0.7, 0.6, 0.8), "less", "holds", REACHES),
        ("impact_ratio < 0.8", (0.8, 0.7, 0.9), "less", "", REACHES),
        ("impact_ratio < 0.8", (0.7, NAN, NAN), "less", "holds", FEW),
        ("impact_ratio < 0.8", (NAN, NAN, NAN), "less", "", "there is no figure"),
        ("lack > 0.1", (0.333, 0.2, 0.4), "less", "holds", "holds"),
        ("lack > 0.1", (0.333, NAN, NAN), "less", "holds", FEW),
        ("lack > 0.1", (0.333, 0.2, 0.4), "cannot_tell", "holds", "may be chance"),
        # Gaps and ratios need a verdict, too.
        *((f"{it} > 0.05", (0.2, 0.1, 0.3), "less", "holds", "holds") for it in GAPS),
        *((f"{it} > 0.05", (0.2, 0.1, 0.3), "unlabelled", "holds", HIDE) for it in GAPS),
        *((f"{it} > 0.05", (0.2, 0.1, 0.3), "unknown", "holds", "nothing says") for it in GAPS),
        *((f"{it} > 0.05", (0.2, 0.1, 0.3), "cannot_tell", "holds", "be chance") for it in GAPS),
        *((f"{it} > 0.05", (0.2, 0.1, 0.3), "within_error", "holds", "the est") for it in GAPS),
        *((f"{it} > 0.05", (0.2, 0.1, 0.3), "too_few", "holds", FEW) for it in GAPS),
        *((f"{it} > 0.05", (0.2, 0.1, 0.3), "undecided", "holds", "holds 0") for it in GAPS),
        # What may be on both sides of the line never passes in silence.
        ("impact_ratio < 0.8", (0.82, 0.265, 1.0), "cannot_tell", "", REACHES),
        ("lean > 0.3", (0.197, -0.15, 0.4), "cannot_tell", "", REACHES),
        ("exposure < 0.3", (0.32, 0.2, 0.4), "cannot_tell", "", REACHES),
        ("lean > 0.3", (0.01, -0.02, 0.04), "unlabelled", "", HIDE),
        ("lean > 0.9", (0.01, 0.0, 0.02), "saturated", "", "documents than were looked at"),
        ("impact_ratio < 0.8", (1.0, NAN, NAN), "cannot_tell", "", FEW),
        ("impact_ratio < 0.8", (1.0, 0.0, 1.0), "cannot_tell", "", FEW),
        ("selection_rate < 0.3", (0.9, NAN, NAN), "cannot_tell", "", FEW),
        ("ndcg < 0.3", (0.9, NAN, NAN), "less", "", FEW),
        ("absent > 0.5", (0.2, NAN, NAN), "less", "", FEW),
        ("lean > 0.9", (0.1, NAN, NAN), "cannot_tell", "", FEW),
        *((f"{it} > 1", (0.9, 0.8, 1.0), "saturated", "", "more relevant") for it in SATURATED),
        # These are surely on the other side.
        ("impact_ratio < 0.8", (1.0, 0.9, 1.0), "cannot_tell", "", ""),
        ("impact_ratio < 0.1", (0.27, 0.11, 0.9), "less", "", ""),
        # A low ratio is about whoever gets less.
        ("impact_ratio < 0.8", (0.5, 0.4, 0.6), "more", "", ""),
        ("exposure_ratio <= 0.8", (0.9, 0.7, 1.0), "more", "", ""),
    ],
)
def test_what_may_be_on_both_sides_of_the_line_never_passes_in_silence(
    figures: AuditFigures,
    text: str,
    ends: tuple[float, float, float],
    verdict: str,
    plain: str,
    sure: str,
) -> None:
    """All other groups are surely on the other side."""
    it = parse_condition(text)
    far = (-9.0,) * 3 if ">" in it.comparison else (9.0,) * 3
    groups = [with_figure(group, it.figure, far) for group in figures.groups]
    groups[1] = with_figure(groups[1], it.figure, ends, verdict=verdict)
    for is_sure, wanted in ((False, plain), (True, sure)):
        broken, doubtful = check([it], replace(figures, groups=groups), sure=is_sure)
        assert (len(broken), len(doubtful)) == (wanted == "holds", wanted not in ("", "holds"))
        assert all(f"'{it}' holds for gender=male ({ends[0]:.3g}" in said for said in broken)
        for said in doubtful:
            assert said.startswith(f"'{it}' may hold for gender=male")
            assert wanted in said
            assert "nan" not in said


@pytest.mark.parametrize(
    ("text", "low", "high", "more", "sure"),
    [
        ("exposure < 0.3", 0.35, 0.4, (0.0, 0.0), TURN),
        ("exposure > 0.3", 0.35, 0.4, (0.0, 0.0), TURN),
        ("absent > 0.3", 0.35, 0.4, (0.0, 0.0), TURN),
        ("absent > 0.5", 0.35, 0.4, (0.0, 0.0), TURN),
        ("selection_rate < 0.33", 0.35, 0.4, (0.0, 0.1), TURN),
        ("target > 0.45", 0.35, 0.4, (0.0, 0.1), TURN),
        ("lean > 0.5", 0.35, 0.4, (0.3, 0.6), TURN),
        ("lean > 0.3", 0.35, 0.4, (0.1, 0.4), TURN),
        ("lean > 0.5", 0.35, 0.4, (0.3, 0.4), None),
        *((f"{it} > 0.05", 0.1, 0.3, "flips", TURN) for it in GAPS),
    ],
)
def test_what_missing_labels_could_change_is_not_sure(
    figures: AuditFigures, text: str, low: float, high: float, more: Any, sure: str | None
) -> None:
    """A fifth of what is shown has no label; the verdicts are sure whatever these are."""
    it, ends = parse_condition(text), ((low + high) / 2, low, high)
    said = {"flips": True} if more == "flips" else {"unknown": 0.2, "lean_bounds": more}
    groups = [with_figure(group, it.figure, ends, **said) for group in figures.groups]
    changed = replace(figures, groups=groups)
    assert check([it], changed, sure=False)[1] == []
    broken, doubtful = check([it], changed, sure=True)
    assert not broken
    assert [why.split(": ")[-1] for why in doubtful] == [f"{why}." for why in [sure] if why]


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
        (outcome_of(4).figures, FEW),
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
