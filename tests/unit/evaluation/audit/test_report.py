"""The report of an audit: words, tables and plots from the same numbers."""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
from markdown_it import MarkdownIt

from fairqr.base.errors import InputError
from fairqr.evaluation.audit.figures import GroupFigures, Verdict
from fairqr.evaluation.audit.outcomes import AuditOutcome, audit_json
from fairqr.evaluation.audit.report import (
    LAYOUTS,
    VERDICTS,
    draw_exposure,
    findings_of,
    least_queries,
    load_layout,
    values_of,
    write_audit,
)
from fairqr.evaluation.estimates import Estimate
from fairqr.evaluation.reports.writer import Figure, render
from fairqr.retrieval.sources.schema import Schema
from tests.golden.reports import check_report
from tests.unit.evaluation.audit.examples import (
    SCHEMA,
    made,
    measured,
    observations_of,
    outcome_of,
    queries_of,
    spec_of,
)
from tests.unit.evaluation.reports.pages import read

HOSTILE = (
    "<script>alert(1)</script>",
    "| a | *b* `c` [d](http://evil.example) ![e](//evil.example/x.png)",
    "# heading\u2028\u202egnp.exe\x1b[31m\x00",
    "$\\frac{1}{2}$ & &lt; ]]> --> <!-- ~~x~~",
    "1. www.evil.example https://evil.example " + "W" * 5_000,
)


@cache
def _outcome() -> AuditOutcome:
    return outcome_of(lean=0.15, unlabelled=0.1, empty=("q3",), failed=("q1", "q9"))


@cache
def _without_lean() -> AuditOutcome:
    return outcome_of(lean=0.0)


@cache
def _small() -> AuditOutcome:
    return outcome_of(4)


@cache
def _hostile() -> AuditOutcome:
    """Queries that are asked most often come last; the hostile ones are among them."""
    plain = [f"people {number}" for number in range(35)]
    return outcome_of(
        lean=0.3,
        texts=[*plain, *HOSTILE],
        prefix=HOSTILE[0] + HOSTILE[1],
        titles={f"{HOSTILE[0]}{HOSTILE[1]}{number}": HOSTILE[number % 5] for number in range(40)},
        failed=("q36",),
    )


def _report(outcome: AuditOutcome, layout: str = "plain") -> str:
    # The same figures stand in all layouts.
    if id(outcome) not in _DRAWN:
        drawn = [draw_exposure(outcome)] if outcome.figures.counts.answered else []
        _DRAWN[id(outcome)] = (outcome, drawn)
    return render("audit", values_of(outcome, load_layout(layout)), _DRAWN[id(outcome)][1])


_DRAWN: dict[int, tuple[AuditOutcome, list[Figure]]] = {}


def _said(outcome: AuditOutcome) -> str:
    return "\n".join(sentence for part in findings_of(outcome).values() for sentence in part)


def _with_groups(outcome: AuditOutcome, *changed: GroupFigures) -> AuditOutcome:
    """Replace the first groups of an audit."""
    groups = [*changed, *outcome.figures.groups[len(changed) :]]
    return replace(outcome, figures=replace(outcome.figures, groups=groups))


def test_the_report_stays_as_it_was_read_once() -> None:
    check_report("audit", _report(_outcome()))


def test_every_verdict_can_lead_a_report() -> None:
    heads = set()
    for verdict in get_args(Verdict):
        groups = [replace(it, verdict=verdict) for it in _outcome().figures.groups]
        changed = _with_groups(_outcome(), *groups)
        heads.add(findings_of(changed)["verdict"][0].split(":")[-1])
        assert VERDICTS[verdict] in _report(changed)
    assert len(heads) == len(get_args(Verdict))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_report_says_that_anything_is_fair(layout: str) -> None:
    for outcome in (_outcome(), _without_lean(), _small()):
        text = _report(outcome, layout)
        assert not re.search(r"\bfair(?!qr| re-ranking)\b", text, flags=re.IGNORECASE)
        assert not re.search(r"\b(complian|complies|unfair|passed)", text, flags=re.IGNORECASE)


def test_a_group_that_gets_more_is_told_by_what_others_could_have() -> None:
    female, male = _outcome().figures.groups[:2]
    changed = _with_groups(_outcome(), replace(female, verdict="cannot_tell"))
    found = findings_of(changed)
    assert found["verdict"][0].startswith(
        f"In favour of male (gender): {100 * male.excess.value:.1f} points more exposure than due"
    )
    assert len(found["sentences"]) == 2


def test_where_nothing_was_found_it_says_what_could_have_been() -> None:
    outcome = _without_lean()
    found = findings_of(outcome)
    assert found["verdict"][0] == "We found no clear difference."
    plain = [it for it in outcome.figures.groups if "×" not in it.attribute]
    most = max(it.detectable for it in plain)
    assert f"finds a difference of {100 * most:.1f} points or more" in found["sentences"][1]


def test_a_group_that_is_never_shown_stands_first_and_needs_more_queries() -> None:
    female, male = _without_lean().figures.groups[:2]
    never = replace(female.exposure, value=0.0)
    lean = replace(female.lean, value=0.05, low=-0.04)
    absent = replace(female.absent, value=1.0)
    unseen = replace(female, exposure=never, lean=lean, absent=absent, verdict="undecided")
    found = findings_of(_with_groups(_without_lean(), male, unseen))
    assert "the test finds a difference" in found["verdict"][0]
    assert "100.0% of the queries show nobody of female" in found["sentences"][1]
    assert "takes 72 queries" in found["sentences"][1]
    rare = replace(female, target=replace(female.target, value=0.02), detectable=0.1)
    (said,) = findings_of(_with_groups(_without_lean(), rare, male))["sentences"][1:]
    assert "10.4 points or more four times out of five" in said
    assert "female (gender) is due less" in said


def test_what_is_not_so_in_most_audits_is_said() -> None:
    female, male = _outcome().figures.groups[:2]
    narrow = [replace(it, known=0.95) for it in (female, male)]
    counts = replace(_outcome().figures.counts, relevant=500, absent=154)
    lost, gap = (
        replace(_outcome().figures, counts=counts),
        replace(female.supply_gap, value=0.3),
    )
    short = replace(female, lean=replace(female.lean, value=-0.01), supply_gap=gap)
    short = replace(short, verdict="cannot_tell", detectable=0.1)
    nobody = replace(female, exposure=replace(female.exposure, value=0.0), candidates=0.0)
    for outcome, told in (
        (_with_groups(_outcome(), *narrow), "For 5.0% of those answered, nothing says what is due"),
        (_with_groups(_without_lean(), nobody), "gender: no document of female was found"),
        (outcome_of(empty=[f"q{n}" for n in range(13, 41)]), "90.5% of the queries by weight foun"),
        (replace(_outcome(), figures=lost), "154 of 500 judged relevant documents are not in"),
        (_with_groups(_without_lean(), short), "could give female (gender) the 30.0 points that"),
        (outcome_of(relevance="judged", spec=spec_of(k=25)), "fewer than 25 documents were judged"),
    ):
        assert told in _said(outcome)


def test_few_queries_and_failures_give_no_verdict() -> None:
    found = findings_of(_small())
    assert found["verdict"][0] == "No verdict: there are too few queries."
    least = least_queries(_small().figures.tests)
    assert f"A verdict needs {least} queries of equal weight" in found["sentences"][1]
    failed = outcome_of(lean=0.12, unlabelled=0.35, failed=("q38", "q39", "q40"))
    assert not any(it.flips for it in failed.figures.groups)
    (verdict,) = findings_of(failed)["verdict"]
    assert verdict.startswith("No verdict: 14.3% of the queries failed")
    assert not re.search("withholds|Chance|finds", _said(failed))


def test_figures_of_too_few_queries_say_so_and_are_counted() -> None:
    text = _report(_small())
    few, all_ = map(int, re.findall(r"(\d+) of the (\d+) figures", text)[0])
    assert few == all_ > 0
    assert few == text.count("too few*")
    assert "Intervals need at least 6 queries" in text


def test_a_sample_is_named_only_where_fewer_queries_were_mended_than_answered() -> None:
    assert "A sample" not in _report(outcome_of(12, spec=spec_of(mend=12)))
    costs = replace(_outcome().figures.costs["gender"], relevance=Estimate(1.0, 0.9, 1.0, 5))
    fewer = replace(outcome_of(9).figures, costs={"gender": costs})
    assert "A sample" not in _report(replace(outcome_of(9), figures=fewer))
    without = _report(outcome_of(9, spec=spec_of(mend=0)))
    assert "What mending would cost is not known, since mend=0 left it out." in without


def test_wrong_labels_that_are_stated_are_spoken_of_on_the_first_screen() -> None:
    confusion = {"female": {"female": 0.9, "male": 0.1}, "male": {"female": 0.1, "male": 0.9}}
    gender = SCHEMA.attributes["gender"].model_copy(update={"confusion": confusion})
    schema = Schema(attributes={"gender": gender})
    queries = queries_of(9)
    found = measured(queries, observations_of(queries), schema=schema, relevance="judged")
    outcome = made(outcome_of(9), attributes=schema.attributes, relevance="judged")
    text = _report(replace(outcome, figures=found))
    assert "Labels of gender may be wrong" in text.split("> **")[0]
    assert "since labels may be wrong" in text
    assert "What cannot be corrected for wrong labels is left out." in text


def test_many_groups_are_named_by_the_greatest_differences(tmp_path: Path) -> None:
    female = _outcome().figures.groups[0]
    groups = [
        replace(
            female,
            group=f"group {number} {'long ' * 20}",
            lean=replace(female.lean, value=number / 200 - 0.1),
            verdict="less" if number > 20 else "more",
        )
        for number in range(1, 61)
    ]
    figures = replace(_outcome().figures, groups=groups, costs={}, contributions=[], by_query=[])
    outcome = replace(_outcome(), figures=figures)
    verdict = findings_of(outcome)["verdict"][0]
    assert verdict.startswith("Against group 60")
    assert "points and 37 others" not in verdict
    assert len(re.findall(r"group \d+ ", verdict)) == 4
    assert "and 36 others" in verdict
    write_audit(tmp_path, outcome)
    text = (tmp_path / "report.md").read_text()
    gaps = text.split("## What each group gets")[1].split("##")[0]
    assert sum(line.startswith("| group ") for line in gaps.splitlines()) == 1 + 40
    assert "results.csv has any other groups" in gaps
    drawn = draw_exposure(outcome)
    assert drawn.alt.count("gets less") + drawn.alt.count("gets more") == 12
    assert "the 12 groups of 60 with the greatest leans" in drawn.svg
    assert sum(line.startswith("gender,") for line in (tmp_path / "results.csv").open()) == 60


def test_without_relevance_no_one_is_to_blame() -> None:
    spec = spec_of(target="population:1")
    outcome = outcome_of(with_relevance=False, relevance="unknown", spec=spec)
    said = _said(outcome)
    assert "cannot say whether the ranking or the documents are to blame" in said
    assert "withholds" not in said
    text = _report(outcome)
    assert "there is no supply and no gap" in text
    assert "What mending would cost is not known" in text
    nothing_due = outcome_of(with_relevance=False, relevance="unknown")
    assert {it.verdict for it in nothing_due.figures.groups} == {"unknown"}
    assert "cannot tell: nothing says what is due" in _report(nothing_due)
    assert "too few queries" not in draw_exposure(nothing_due).alt
    assert "nan" not in text.lower().replace("finan", "")


def test_a_lean_within_the_error_of_the_estimate_is_said_to_be() -> None:
    female, male = _without_lean().figures.groups[:2]
    lean = replace(female.lean, value=0.03, low=0.01, high=0.05)
    small = replace(female, lean=lean, verdict="within_error")
    said = _said(_with_groups(_without_lean(), small, male))
    assert "No verdict: the error of the estimate of relevance could explain" in said
    assert "female (gender) gets 3.0 points less" in said
    judged = outcome_of(relevance="judged")
    assert "estimate" not in " ".join(findings_of(judged)["verdict"])


def test_an_audit_without_any_answer_has_a_report() -> None:
    everything = tuple(f"q{number}" for number in range(1, 9))
    for reason in ("empty", "failed"):
        outcome = outcome_of(8, **{reason: everything})
        assert "No verdict: no query was answered." in _report(outcome)
        assert json.loads(audit_json(outcome))["queries"]["answered"] == 0


def test_a_verdict_that_labels_could_turn_is_said_to() -> None:
    outcome = outcome_of(lean=0.12, unlabelled=0.35)
    turned = [it for it in outcome.figures.groups if it.flips]
    assert {"female", "male"} <= {it.group for it in turned}
    assert "missing labels alone could explain it" in findings_of(outcome)["sentences"][1]
    assert "missing labels could turn it" in _report(outcome)


def test_missing_labels_acquit_nobody() -> None:
    """Where they could hide what would else be found, no detectable difference is printed."""
    outcome = outcome_of(lean=0.0, unlabelled=0.5)
    female = outcome.figures.groups[0]
    assert (female.verdict, math.isnan(female.detectable)) == ("unlabelled", True)
    assert max(map(abs, female.lean_bounds)) > 0.1
    found = findings_of(outcome)
    assert found["verdict"][0] == "No verdict: missing labels could hide a difference."
    assert "of the exposure went to documents without a label" in found["sentences"][0]
    assert not re.search("This audit finds|no clear difference", _said(outcome))
    assert _without_lean().figures.groups[0].verdict == "cannot_tell"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_hostile_names_are_never_markup(tmp_path: Path, layout: str) -> None:
    write_audit(tmp_path, _hostile(), layout)
    page = read((tmp_path / "report.html").read_text())
    assert not {"script", "img", "iframe", "object", "link"} & {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")], tag
        assert attributes.get("href", "#").startswith("#")
    assert "<script>alert(1)</script>" in page.text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", page.text)
    assert "W" * 200 not in page.text
    tokens = MarkdownIt("commonmark").enable("table").parse((tmp_path / "report.md").read_text())
    assert not [t for t in tokens if t.type in ("html_block", "fence", "code_block")]
    inline = {child.type for token in tokens for child in token.children or ()}
    assert not inline & {"html_inline", "link_open", "code_inline"}
    images = [c for t in tokens for c in t.children or () if c.type == "image"]
    assert {str(image.attrs["src"]) for image in images} == {"figures/exposure.svg"}


def test_rare_and_redacted_queries_are_not_printed() -> None:
    outcome = outcome_of(12, lean=0.5, spec=spec_of(rare=100))
    text = _report(outcome)
    assert "people of town" not in text
    assert not re.search(r"\bq\d", text)
    assert "asked fewer than 100 times" in text
    redacted = _report(made(outcome_of(12, lean=0.5), redacted=True))
    assert "people of town" not in redacted
    assert "text withheld" in redacted


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_a_layout_has_the_same_figures_in_another_order(layout: str) -> None:
    plain, other = _report(_outcome()), _report(_outcome(), layout)
    tables = {line for line in plain.splitlines() if line.startswith("| ")}
    missing = [line for line in tables if line not in other]
    # Only the marks of small categories are added.
    assert not missing
    assert "## What this report does not cover" in other
    assert "is met. Not covered:" in other
    assert load_layout(layout)["title"] in other
    begun = made(_outcome(), started="2026-11-21T10:00")
    assert "on 2026-11-21." in _report(begun, layout)
    about = load_layout(layout)["about"]
    assert "It is no legal advice." in about
    assert "does not say whether" in about


def test_layouts_name_their_articles_and_have_each_section_once() -> None:
    wanted = "contributions costs gaps labels method queries rates seen sure"
    articles = {
        "ll144": ("5-301", "5-303"),
        "dsa": [f"Article {it}" for it in (27, 34, 35, 37, 40)],
        "ai-act": [f"Article {it}" for it in (9, 10, 13, 15, 26)],
    }
    for layout in LAYOUTS:
        parts = load_layout(layout)["parts"]
        found = [section for part in parts for section in part["sections"]]
        assert " ".join(sorted(found)) == wanted
        headings = " ".join(part["heading"] for part in parts)
        assert all(it in headings for it in articles.get(layout, ()))


def test_small_categories_are_marked_in_the_layout_that_asks_for_it() -> None:
    outcome = _outcome()
    groups = [
        replace(it, share_of_candidates=0.01) if it.group == "Asia" else it
        for it in outcome.figures.groups
    ]
    small = replace(outcome, figures=replace(outcome.figures, groups=groups))
    assert "below 2% of the candidates" in _report(small, "ll144")
    assert "below 2% of the candidates" not in _report(small)


def test_answers_of_k_results_alone_have_no_rates() -> None:
    outcome = outcome_of(
        12, with_relevance=False, relevance="unknown", spec=spec_of(k=30, depth=40)
    )
    said = _report(outcome)
    assert "gender: there are no candidates with a label, so there are no rates." in said
    assert "No answer has more than 30 results" in said


def test_combinations_alone_have_a_picture() -> None:
    outcome = outcome_of(12, spec=spec_of(attributes=("gender×origin",)))
    assert "female × Africa" in draw_exposure(outcome).alt
    assert "What each group gets" in _report(outcome)


def test_an_unknown_layout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no layout 'gdpr'; choose plain, ll144"):
        write_audit(tmp_path, _outcome(), "gdpr")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("package", ["jinja2", "markdown_it", "matplotlib"])
def test_what_a_report_needs_is_named_and_the_figures_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        InputError, match=r"install it with: pip install 'fairqr\[(evaluation|plot)\]'"
    ):
        write_audit(tmp_path, _outcome())
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"audit.json", "results.csv", "queries.csv"}
