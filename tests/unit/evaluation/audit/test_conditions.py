"""Conditions: what is read, what is refused, and when they hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fairqr.base.errors import InputError
from fairqr.evaluation.audit.conditions import LEANS, check, parse_condition
from fairqr.evaluation.audit.measuring import AuditFigures
from fairqr.evaluation.estimates import Estimate
from tests.unit.evaluation.audit.examples import outcome_of


@pytest.fixture(scope="module")
def figures() -> AuditFigures:
    return outcome_of(30).figures


def with_figure(figures: AuditFigures, name: str, value: Estimate, **more: object) -> AuditFigures:
    """All groups have the same figure, which no missing label changes, and a sure verdict."""
    said = {name: value, "verdict": "less", "flips": False, **more}
    if name in LEANS:
        said = {"lean": value, "lean_bounds": (value.value, value.value)} | said
    return replace(figures, groups=[replace(it, **said) for it in figures.groups])


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


@pytest.mark.parametrize(
    ("text", "ends", "verdict", "holds", "surely"),
    [
        ("impact_ratio < 0.8", (0.7, 0.6, 0.79), "less", True, True),
        ("impact_ratio < 0.8", (0.7, 0.6, 0.8), "less", True, False),
        ("impact_ratio < 0.8", (0.8, 0.7, 0.9), "less", False, False),
        ("impact_ratio < 0.8", (0.7, np.nan, np.nan), "less", True, False),
        ("impact_ratio < 0.8", (np.nan, np.nan, np.nan), "less", False, False),
        ("lack > 0.1", (0.333, 0.2, 0.4), "less", True, True),
        ("lack > 0.1", (0.333, np.nan, np.nan), "less", True, False),
        ("lack > 0.1", (0.333, 0.2, 0.4), "cannot_tell", True, False),
    ],
)
def test_the_whole_interval_makes_it_sure(
    figures: AuditFigures,
    text: str,
    ends: tuple[float, float, float],
    verdict: str,
    holds: bool,
    surely: bool,
) -> None:
    condition = parse_condition(text)
    changed = with_figure(figures, condition.figure, Estimate(*ends, 30), verdict=verdict)
    assert condition.holds(changed.groups[0], sure=False) is holds
    assert condition.holds(changed.groups[0], sure=True) is surely


@pytest.mark.parametrize("figure", ["ranking_gap", "impact_ratio", "exposure_ratio"])
@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, None),
        ({"verdict": "unlabelled"}, "missing labels could hide"),
        ({"verdict": "unknown"}, "nothing says what is due"),
        ({"flips": True}, "missing labels"),
        ({"verdict": "cannot_tell"}, "may be chance"),
        ({"verdict": "within_error"}, "the estimate of relevance"),
        ({"verdict": "too_few"}, "too few queries"),
        ({"verdict": "undecided"}, "its interval holds 0"),
    ],
)
def test_gaps_and_ratios_are_sure_only_with_a_verdict_and_else_doubtful(
    figures: AuditFigures, figure: str, more: dict[str, object], why: str | None
) -> None:
    changed = with_figure(figures, figure, Estimate(0.2, 0.1, 0.3, 30), **more)
    broken, doubtful = check([parse_condition(f"{figure} > 0.05")], changed, sure=True)
    assert bool(broken) == (why is None)
    assert not why or why in doubtful[0]
    (said,), _ = check([parse_condition(f"{figure} > 0.05")], changed, sure=False)
    assert said.startswith(f"'{figure} > 0.05' holds for gender=female (0.2, 0.1 to 0.3), ")
    assert f", and {len(changed.groups) - 5} more." in said


@pytest.mark.parametrize(
    ("text", "ends", "verdict", "why"),
    [
        ("impact_ratio < 0.8", (0.27, 0.11, 0.9), "less", "its interval reaches beyond"),
        ("impact_ratio < 0.8", (0.82, 0.265, 1.0), "cannot_tell", "its interval reaches beyond"),
        ("lean > 0.3", (0.197, -0.15, 0.4), "cannot_tell", "its interval reaches beyond"),
        ("exposure < 0.3", (0.32, 0.2, 0.4), "cannot_tell", "its interval reaches beyond"),
        ("lean > 0.3", (0.01, -0.02, 0.04), "unlabelled", "missing labels could hide"),
        ("lean > 0.9", (0.01, 0.0, 0.02), "saturated", "documents than were looked at"),
        ("impact_ratio < 0.8", (np.nan, np.nan, np.nan), "less", "there is no figure"),
        ("impact_ratio < 0.8", (0.95, np.nan, np.nan), "cannot_tell", "too few queries"),
        ("impact_ratio < 0.8", (1.0, np.nan, np.nan), "cannot_tell", "too few queries"),
        ("impact_ratio < 0.8", (1.0, 0.0, 1.0), "cannot_tell", "too few queries"),
        ("selection_rate < 0.3", (0.9, np.nan, np.nan), "cannot_tell", "too few queries"),
        ("ndcg < 0.3", (0.9, np.nan, np.nan), "less", "too few queries"),
        ("absent > 0.5", (0.2, np.nan, np.nan), "less", "too few queries"),
        # These are surely on the other side.
        ("impact_ratio < 0.8", (1.0, 0.9, 1.0), "cannot_tell", None),
        ("impact_ratio < 0.1", (0.27, 0.11, 0.9), "less", None),
        # A low ratio is about whoever gets less.
        ("impact_ratio < 0.8", (0.5, 0.4, 0.6), "more", None),
        ("exposure_ratio <= 0.8", (0.9, 0.7, 1.0), "more", None),
    ],
)
def test_one_group_on_both_sides_of_the_line_never_passes_in_silence(
    figures: AuditFigures,
    text: str,
    ends: tuple[float, float, float],
    verdict: str,
    why: str | None,
) -> None:
    """An impact ratio of .27 with a wide interval is a strong lean that is not known well."""
    it = parse_condition(text)
    far = 0.0 if ">" in it.comparison else 1.0
    clear = with_figure(figures, it.figure, Estimate(far, far, far, 30))
    changed = with_figure(clear, it.figure, Estimate(*ends, 30), verdict=verdict)
    one = changed.groups[1]
    broken, doubtful = check(
        [it], replace(clear, groups=[clear.groups[0], one, *clear.groups[2:]]), sure=True
    )
    assert (broken, len(doubtful)) == ([], why is not None)
    if why is not None:
        assert doubtful[0].startswith(f"'{text}' may hold for gender=male")
        assert why in doubtful[0]
        assert "nan" not in doubtful[0]


def test_a_group_that_is_never_shown_surely_breaks_a_condition() -> None:
    # Women are demoted so far that none stands among the first ten.
    found = outcome_of(40, lean=2.0).figures
    women = next(it for it in found.groups if it.group == "female")
    assert women.selected == women.impact_ratio.value == women.exposure.value == 0
    for text in ("impact_ratio < 0.8", "exposure < 0.2", "absent > 0.8", "selection_rate < 0.2"):
        broken, _ = check([parse_condition(text)], found, sure=True)
        assert "gender=female (" in "".join(broken)


@pytest.mark.parametrize(
    ("text", "low", "high", "bounds", "holds"),
    [
        ("exposure < 0.3", 0.35, 0.4, (0.0, 0.0), False),
        ("exposure > 0.3", 0.35, 0.4, (0.0, 0.0), True),
        ("absent > 0.3", 0.35, 0.4, (0.0, 0.0), True),
        ("absent > 0.5", 0.35, 0.4, (0.0, 0.0), False),
        ("selection_rate < 0.33", 0.35, 0.4, (0.0, 0.1), False),
        ("target > 0.45", 0.35, 0.4, (0.0, 0.1), False),
        ("lean > 0.5", 0.35, 0.4, (0.3, 0.6), False),
        ("lean > 0.3", 0.35, 0.4, (0.1, 0.4), True),
        ("lean > 0.5", 0.35, 0.4, (0.3, 0.4), None),
    ],
)
def test_what_missing_labels_could_change_is_not_sure(
    figures: AuditFigures,
    text: str,
    low: float,
    high: float,
    bounds: tuple[float, float],
    holds: bool | None,
) -> None:
    """A fifth of what is shown has no label; the verdicts are sure whatever these are."""
    condition, value = parse_condition(text), Estimate((low + high) / 2, low, high, 30)
    changed = with_figure(figures, condition.figure, value, unknown=0.2, lean_bounds=bounds)
    assert check([condition], changed, sure=False)[1] == []
    broken, doubtful = check([condition], changed, sure=True)
    assert not broken
    assert [it.split(": ")[-1] for it in doubtful] == (
        [] if holds is None else ["missing labels could change that."]
    )
    assert condition.holds(changed.groups[0], sure=False) == bool(holds)


def test_many_queries_that_found_nothing_pass_no_sure_check(figures: AuditFigures) -> None:
    empty = replace(figures, counts=replace(figures.counts, empty_share=0.3))
    for sure in (False, True):
        _, doubtful = check([parse_condition("lean > 0.9")], empty, sure=sure)
        assert any("found nothing" in it for it in doubtful) == sure


@pytest.mark.parametrize("sure", [False, True])
def test_what_cannot_be_checked_is_doubtful(figures: AuditFigures, sure: bool) -> None:
    for changed, why in (
        (with_figure(figures, "lean", NOTHING), "there is no figure"),
        (replace(figures, too_many_failed=True), "too many queries"),
        (replace(figures, counts=replace(figures.counts, empty_share=0.6)), "most queries found"),
        (outcome_of(4).figures, "too few queries"),
    ):
        broken, (doubt,) = check([parse_condition("lean > 0.9")], changed, sure=sure)
        assert not broken
        assert why in doubt
    assert check([], replace(figures, too_many_failed=True), sure=sure) == ([], [])


NOTHING = Estimate(np.nan, np.nan, np.nan, 0)


@pytest.mark.parametrize(
    ("changed", "text", "why"),
    [
        ({"lean": NOTHING}, "lean > 0.9", "there is no figure"),
        ({"lean": Estimate(0.1, np.nan, np.nan, 3)}, "lean > 0.9", "too few queries"),
        *(
            ({"verdict": "saturated"}, f"{name} > 1", "more relevant documents")
            for name in ("excess", "supply_gap", "selection_rate", "target", "impact_ratio")
        ),
    ],
)
def test_one_attribute_does_not_pass_for_another(
    figures: AuditFigures, changed: dict[str, object], text: str, why: str
) -> None:
    changed = {"verdict": "cannot_tell", **changed}
    part = [replace(it, **changed if it.attribute == "origin" else {}) for it in figures.groups]
    broken, (doubt,) = check([parse_condition(text)], replace(figures, groups=part), sure=True)
    assert not broken
    assert doubt.startswith(f"'{text}' may hold for origin=Africa")
    assert "gender" not in doubt
    assert why in doubt


def test_a_sure_lean_in_a_segment_breaks_a_condition(figures: AuditFigures) -> None:
    fair = with_figure(figures, "lean", Estimate(0.01, 0.0, 0.02, 30), verdict="cannot_tell")
    lean = Estimate(0.5, 0.4, 0.6, 30)
    for verdict, said in (("less", 1), ("cannot_tell", 0)):
        changes = {"lean": lean, "lean_bounds": (0.5, 0.5), "verdict": verdict}
        segment = replace(fair.groups[0], segment="actors", **changes)
        changed = replace(fair, segments=[segment])
        broken, doubtful = check([parse_condition("lean > 0.2")], changed, sure=True)
        assert (len(broken), doubtful) == (said, [])
        assert not said or "gender=female in actors (0.5, 0.4 to 0.6)" in broken[0]
