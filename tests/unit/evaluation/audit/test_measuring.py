"""From observations to figures, and the conditions on these: when they hold, and what is said."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from typing import Any, get_args

import numpy as np
import pytest

from fairqr.base.errors import InputError
from fairqr.evaluation.audit import conditions
from fairqr.evaluation.audit.bundle import Observation
from fairqr.evaluation.audit.conditions import Condition, check, parse_condition
from fairqr.evaluation.audit.figures import ESTIMATES, GroupFigures, Verdict
from fairqr.evaluation.audit.gathering import ESTIMATE_ERROR
from fairqr.evaluation.audit.measuring import AuditFigures
from fairqr.evaluation.estimates import Estimate
from fairqr.retrieval.fairness.table import CodedMemberships, coded, decoded
from fairqr.retrieval.sources.schema import Attribute, Schema
from tests.golden.reports import check_text
from tests.unit.evaluation.audit.examples import (
    measured,
    observations_of,
    outcome_of,
    queries_of,
)

GENDER: dict[str, Any] = {"attributes": ("gender",)}
JUDGED: dict[str, Any] = GENDER | {"relevance": "judged"}


def change(observations: list[Observation], positions: Iterable[int], **values: Any) -> None:
    """Give the observations at these positions other values."""
    for position in positions:
        observations[position] = observations[position].model_copy(update=values)


def make_unlikely(observations: list[Observation], positions: Iterable[int]) -> None:
    """Let nothing that these queries find be likely relevant, so that nothing is attainable."""
    for position in positions:
        unlikely = tuple(0.4 * chance for chance in observations[position].relevance or ())
        change(observations, [position], relevance=unlikely)


def assert_in_doubt(figures: AuditFigures, text: str, reason: str, *, sure: bool = True) -> None:
    """Assert that a condition is neither met nor broken, and that this reason is given."""
    broken, (doubt,) = check([parse_condition(text)], figures, sure=sure)
    assert not broken
    assert reason in doubt


def test_only_queries_that_are_in_a_gap_contribute_to_it() -> None:
    queries = queries_of(30)
    observed = observations_of(queries)
    make_unlikely(observed, [29])

    figures = measured(queries, observed)

    gender = figures.by_query[0]
    gaps = dict(zip(gender.queries, gender.tested_gaps()[0][:, 0].tolist(), strict=True))
    against_women = [it for it in figures.contributions if it.group == "female"]
    named = {contribution.query for contribution in against_women}
    assert len(named) == len(against_women) == 10
    assert observed[29].query not in named
    assert {it.query: it.gap for it in against_women} == pytest.approx(
        {query: gaps[query] for query in named}
    )
    assert sum(contribution.share for contribution in against_women) < 1


def test_a_gap_of_some_queries_may_exceed_the_target_of_all() -> None:
    queries = queries_of(30, alike=True)
    observed = observations_of(queries, bias=9.0)
    make_unlikely(observed, range(10))

    figures = measured(queries, observed, **JUDGED)

    mean = float(np.nanmean(figures.by_query[0].tested_gaps()[0][:, 0]))
    assert figures.groups[0].ranking_gap.value == pytest.approx(mean)


@pytest.mark.promise("audit")
def test_a_gap_in_one_segment_is_found_there_alone() -> None:
    """A gap in one segment of queries is found there alone, in one Holm family with all other
    tests.
    """
    queries = queries_of(60, alike=True, segments=("", "fair", "biased"))
    fair, biased = (observations_of(queries, bias=bias) for bias in (0.0, 0.5))
    observed = [biased[n] if n % 3 == 2 else fair[n] for n in range(60)]
    figures = measured(queries, observed)
    by_segment = {group.segment: group for group in figures.segments if group.group == "female"}
    assert sorted(by_segment) == ["biased", "fair"], "queries without a segment are in none"
    assert by_segment["biased"].verdict == "less"
    assert by_segment["fair"].verdict in ("cannot_tell", "within_relevance_error")
    assert {group.attribute for group in figures.segments} == {"gender", "origin"}
    alone = replace(queries, queries=queries.queries[2::3])
    expected = measured(alone, observed).groups[0]
    assert by_segment["biased"].ranking_gap.value == pytest.approx(expected.ranking_gap.value)
    assert figures.tests == len(figures.groups) + len(figures.segments) == 11 + 2 * 5


@pytest.mark.promise("audit")
def test_a_segment_with_more_to_look_at_has_no_verdict() -> None:
    """A segment of queries where there is more than the audit looked at has no verdict of its own.

    The other segment and all queries together have one: a tenth of the weight may be saturated.
    """
    queries = queries_of(60, alike=True, segments=["broad"] * 6 + ["narrow"] * 54)
    observed = observations_of(queries)
    change(observed, range(5), levels={"gender": 0.9})
    figures = measured(queries, observed, **GENDER)
    verdicts = {
        (group.segment, group.group): group.verdict
        for group in [*figures.groups, *figures.segments]
    }

    assert verdicts["", "female"] == verdicts["narrow", "female"] == "less"
    assert verdicts["broad", "female"] == verdicts["broad", "male"] == "saturated"


def test_judgements_of_some_queries_do_not_speak_for_all() -> None:
    """The ten that are judged are fair, and the forty others show no woman."""
    queries = queries_of(50, alike=True)
    observed = observations_of(queries, bias=0.0)[:10] + observations_of(queries, bias=9.0)[10:]
    change(observed, range(10, 50), relevance=None)
    figures = measured(queries, observed, **JUDGED)
    for group in figures.groups:
        assert (group.verdict, group.known) == ("cannot_tell", 0.2)
        assert group.exposure.queries == group.target.queries == 10, (
            "what is compared is of the same"
        )
        assert group.target.value - group.exposure.value == pytest.approx(group.exposure_gap.value)
    reason = "known for less than half of the queries"
    assert_in_doubt(figures, "ranking_gap > 0.4", reason, sure=False)
    assert_in_doubt(figures, "ranking_gap > 0.4", reason, sure=True)


def test_queries_without_any_label_acquit_nobody() -> None:
    """Half of the queries are labelled and fair; the others might show anybody."""
    queries = queries_of(40, alike=True)
    observed = observations_of(queries, bias=0.0)[:20]
    observed += observations_of(queries, unlabelled=1.0)[20:]

    figures = measured(queries, observed, **JUDGED)

    for group in figures.groups:
        assert (group.verdict, group.known, group.unknown) == ("unlabelled", 0.5, 0.5)
        assert group.gap_bounds == pytest.approx(
            ((group.ranking_gap.value - 1) / 2, (group.ranking_gap.value + 1) / 2)
        )
    for text in ("ranking_gap > 0.2", "exposure < 0.2", "exposure_ratio < 0.3", "absent > 0.4"):
        assert_in_doubt(figures, text, "missing labels")


JUDGED_QUERIES = queries_of(60, alike=True)


def partly_judged() -> list[Observation]:
    """Return what fair queries show, of which twenty are judged.

    The estimates give women half of the relevance, and judges a third on average.
    """
    random = np.random.default_rng(3)
    observations = observations_of(JUDGED_QUERIES, bias=0.0)
    for position in range(20):
        women = np.arange(30) < 10 + random.integers(-1, 2)
        judged = coded({"gender": np.stack([women, ~women], axis=1).astype(float)}, {"gender"})
        change(observations, [position], judged=judged)
    return observations


@pytest.mark.promise("audit")
def test_judgements_say_how_far_the_estimate_is_off() -> None:
    """Judgements of some queries say how far the estimate of relevance is off here, and intervals
    hold it.

    The estimates take women for more relevant than judges do, by a sixth of a share.
    """
    without = measured(JUDGED_QUERIES, observations_of(JUDGED_QUERIES, bias=0.0), **GENDER)
    judged = measured(JUDGED_QUERIES, partly_judged(), **GENDER)

    assert (without.counts.error_from, judged.counts.error_from) == (0, 20)
    usual = without.groups[0]
    corrected = judged.groups[0]
    assert usual.error == ESTIMATE_ERROR
    assert 0.16 < corrected.error < 0.26
    assert corrected.target.low < 1 / 3 < usual.target.low, "it holds what judges say"
    # What is the same in all queries is added to the chance.
    by_chance = [
        group.target.value - group.target.low - group.error for group in (usual, corrected)
    ]
    assert by_chance[0] > 0.01
    assert by_chance[0] == pytest.approx(by_chance[1], rel=0.1)


def with_third_group(groups: dict[str, CodedMemberships]) -> dict[str, CodedMemberships]:
    """Return the same memberships with a group more, to which nobody belongs."""
    padded = {
        name: np.pad(decoded(memberships), ((0, 0), (0, 1))) for name, memberships in groups.items()
    }
    return coded(padded, groups)


def test_judgements_say_nothing_of_a_group_that_no_query_has() -> None:
    observations = partly_judged()
    two = measured(JUDGED_QUERIES, observations, **GENDER)
    for position, observation in enumerate(observations):
        groups = with_third_group(observation.groups)
        judged = with_third_group(observation.judged)
        change(observations, [position], groups=groups, judged=judged)
    gender = Attribute(name="gender", field="gender", groups=("female", "male", "diverse"))

    three = measured(
        JUDGED_QUERIES, observations, schema=Schema(attributes={"gender": gender}), **GENDER
    )

    errors = [*(group.error for group in two.groups), ESTIMATE_ERROR]
    assert [group.error for group in three.groups] == pytest.approx(errors)


def test_a_biased_estimate_is_found_by_judgements() -> None:
    """It gives women half of the relevance, and judges a third on average."""
    female, male = measured(JUDGED_QUERIES, partly_judged(), **GENDER).calibration

    assert (female.group, male.group) == ("female", "male")
    assert female.judged.value == pytest.approx(1 / 3, abs=0.02)
    assert female.judged.value + male.judged.value == pytest.approx(1)
    difference = female.estimated.value - female.judged.value
    assert female.bias.value == pytest.approx(difference) == pytest.approx(-male.bias.value)
    assert female.bias.low > 0
    assert female.is_biased
    assert male.is_biased
    assert female.bias.queries == 20


def test_without_judgements_no_estimate_is_called_biased() -> None:
    female, _ = measured(
        JUDGED_QUERIES, observations_of(JUDGED_QUERIES, bias=0.0), **GENDER
    ).calibration

    assert math.isnan(female.bias.value)
    assert not female.is_biased


def test_judgements_alone_calibrate_nothing() -> None:
    assert measured(JUDGED_QUERIES, partly_judged(), **JUDGED).calibration == []


def test_an_estimate_less_certain_for_a_group_is_named() -> None:
    """A man's probability is .9 or .1 and a woman's .5, so c is .82 for men and .5 for women."""
    queries = queries_of(40, alike=True)
    random = np.random.default_rng(4)
    observed = observations_of(queries, bias=0.0)
    for position, observation in enumerate(observed):
        women = decoded(observation.groups["gender"])[:, 0] > 0
        sure = random.choice([0.1, 0.9], len(women))
        change(
            observed, [position], relevance=tuple(np.where(women, 0.5, sure).tolist()), levels={}
        )
    female, male = measured(queries, observed, **GENDER).calibration

    assert female.certainty.value == pytest.approx(0.5)
    assert female.other_certainty.value == pytest.approx(male.certainty.value)
    assert male.certainty.value == pytest.approx((0.81 + 0.01) / (0.9 + 0.1), abs=0.02)
    assert female.is_less_certain
    assert not male.is_less_certain


@pytest.mark.promise("audit")
def test_where_words_and_similarity_differ_the_interval_holds_it() -> None:
    """Where words and similarity differ, intervals hold the difference, and a target without
    relevance stays certain.

    Words that women's texts lack make them look less relevant; similarity does not.
    """
    queries = queries_of(40, alike=True)
    observed = observations_of(queries, bias=0.0)
    for position, observation in enumerate(observed):
        women = decoded(observation.groups["gender"])[:, 0] > 0
        similarity = np.where(
            women, np.minimum(1.0, 2 * np.array(observation.relevance)), observation.relevance
        )
        change(
            observed,
            [position],
            by_words=observation.relevance,
            by_similarity=tuple(similarity.tolist()),
        )

    for observation in measured(queries, observed, **GENDER).groups:
        assert observation.error > 2 * ESTIMATE_ERROR
        assert observation.target.high - observation.target.low > 2 * observation.error
    # A target that needs no relevance is as certain as before.
    for observation in measured(queries, observed, **GENDER, target="uniform:1").groups:
        assert observation.target.high - observation.target.low < 1e-9
        assert observation.attainable.high - observation.attainable.low > observation.error


NAN = math.nan
TEXTS = [f"{name} {sign} 0.5" for name in ESTIMATES for sign in "<>"]
TEXTS += ["exposure_ratio <= 0.5", "ranking_gap >= 0.5"]
ENDS = [
    *((0.3, 0.2, 0.4), (0.3, 0.1, 0.5), (0.5, 0.4, 0.6), (0.7, 0.5, 0.9), (0.7, 0.6, 0.8)),
    *((0.7, 0.0, 1.0), (0.3, NAN, NAN), (0.7, NAN, NAN), (NAN, NAN, NAN)),
]
STATES: dict[str, dict[str, Any]] = {verdict: {"verdict": verdict} for verdict in get_args(Verdict)}
STATES |= {"less, unless labels turn it": {"could_flip": True}}
STATES |= {
    f"less, labels say {low} to {high}": {"unknown": 0.2, "gap_bounds": (low, high)}
    for low, high in ((0.0, 0.0), (0.1, 0.6), (0.3, 0.4))
}


@pytest.fixture(scope="module")
def figures() -> AuditFigures:
    return outcome_of(30).figures


def with_figure(
    group: GroupFigures, /, name: str, ends: tuple[float, ...], **changes_of_case: Any
) -> GroupFigures:
    """Return a group with this figure, which no missing label changes, and a sure verdict."""
    estimate = Estimate(*ends, 30)
    changes: dict[str, Any] = {}
    if name in conditions.GAPS:
        changes |= {"ranking_gap": estimate, "gap_bounds": (estimate.value, estimate.value)}
    changes |= {name: estimate, "verdict": "less", "could_flip": False}
    return replace(group, **(changes | changes_of_case))


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        pytest.param("impact_ratio < 0.8", "impact_ratio < 0.8", id="as printed"),
        pytest.param("ranking_gap>.05", "ranking_gap > 0.05", id="without spaces"),
        pytest.param(" ranking_gap >= -1e-2 ", "ranking_gap >= -0.01", id="an exponent"),
        pytest.param("absent<=1", "absent <= 1", id="a whole number"),
    ],
)
def test_a_condition_is_read(text: str, condition: str) -> None:
    assert str(parse_condition(text)) == condition


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("ranking_gap", id="only a figure"),
        pytest.param("ranking_gap >", id="no line"),
        pytest.param("ranking_gap = 3", id="no comparison"),
        pytest.param("ranking_gap < nan", id="no number"),
        pytest.param("queries > 3", id="no figure"),
    ],
)
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"is not a condition|no figure"):
        parse_condition(text)


def answer_of(condition: Condition, figures: AuditFigures, *, sure: bool) -> str:
    """Return what becomes of a condition: it holds, passes, or is doubtful for a reason."""
    broken, doubtful = check([condition], figures, sure=sure)
    answers = ["holds" for _ in broken]
    answers += [doubt.split(": ")[-1] for doubt in doubtful]
    return " / ".join(answers) or "passes"


@pytest.mark.promise("audit")
def test_nothing_on_both_sides_of_the_line_passes(figures: AuditFigures) -> None:
    """With `--sure` the whole interval meets the condition, gaps and ratios need a verdict, and
    nothing passes in silence.

    What is printed of women by figure, interval, verdict and labels, without and with `--sure`,
    stays as it was read once. Men are surely on the other side.
    """
    lines = list[str]()
    for text, ends in product(TEXTS, ENDS):
        condition = parse_condition(text)
        name = condition.figure
        men = with_figure(figures.groups[1], name, (-9.0 if ">" in text else 9.0,) * 3)
        compared = [conditions.OPERATORS[condition.comparison](end, condition.line) for end in ends]
        is_open = any(compared) or math.isnan(ends[1])
        states_by_answer = defaultdict[str, list[str]](list)
        for state, values in STATES.items():
            women = with_figure(figures.groups[0], name, ends, **values)
            case = replace(figures, groups=[women, men])
            answers = [answer_of(condition, case, sure=sure) for sure in (False, True)]
            states_by_answer[" / ".join(answers)].append(state)
            is_about_others = name in conditions.RATIOS and "<" in text and state == "more"
            assert answers[1] != "passes" or is_about_others or not is_open
        lines += [f"{text}: %g, %g to %g" % ends, ""]
        lines += [f"- {answer}: {'; '.join(states)}" for answer, states in states_by_answer.items()]
        lines.append("")

    check_text("audit_conditions.md", "\n".join(lines))


@pytest.mark.promise("audit")
def test_what_cannot_be_checked_is_doubtful(figures: AuditFigures) -> None:
    """A condition that cannot be checked is named with its reason; a gate speaks for every
    attribute, and for what is sure in a segment.

    One attribute does not pass for another, and in a segment only what is sure counts.

    A group that is never shown surely breaks a condition: women are demoted so far that none stands
    among the first ten. What is printed stays as it was read once.
    """

    def missing(*attributes: str) -> AuditFigures:
        groups = [
            with_figure(group, "ranking_gap", (NAN,) * 3)
            if group.attribute in attributes
            else group
            for group in figures.groups
        ]
        return replace(figures, groups=groups)

    def in_segment(verdict: str) -> AuditFigures:
        groups = [with_figure(group, "ranking_gap", (0.01, 0.0, 0.02)) for group in figures.groups]
        actors = replace(groups[0], segment="actors")
        actors = with_figure(actors, "ranking_gap", (0.95, 0.91, 0.99), verdict=verdict)
        return replace(figures, groups=groups, segments=[actors])

    def emptied(share: float) -> AuditFigures:
        return replace(figures, counts=replace(figures.counts, empty_share=share))

    cases = {
        "no figures": missing("gender", "origin", "gender×origin"),
        "no figures of origin": missing("origin"),
        "too many failed": replace(figures, too_many_failed=True),
        "a third found nothing": emptied(0.3),
        "most found nothing": emptied(0.6),
        "few queries": outcome_of(4).figures,
        "women are never shown": outcome_of(40, bias=2.0).figures,
        "surely less in a segment": in_segment("less"),
        "perhaps less in a segment": in_segment("cannot_tell"),
    }
    assert cases["women are never shown"].groups[0].exposure.value == 0
    assert check([], cases["too many failed"], sure=True) == ([], [])
    texts = (
        "ranking_gap > 0.9",
        "impact_ratio < 0.8",
        "exposure < 0.2",
        "absent > 0.8",
        "exposure < 9",
    )
    lines = list[str]()
    for (name, case), text, sure in product(cases.items(), texts, (False, True)):
        broken, doubtful = check([parse_condition(text)], case, sure=sure)
        lines.append(f"## {name}, {text}, surely" if sure else f"## {name}, {text}")
        lines += [f"broken: {sentence}" for sentence in broken]
        lines += [f"doubtful: {sentence}" for sentence in doubtful]
    # Machines add in different orders, which shows in numbers that are nearly 0.
    text = re.sub(r"[\d.]+e-\d+", "0", "\n\n".join(lines))
    check_text("audit_gates.md", f"{text}\n")
