"""The report of an audit: words, tables and plots from the same numbers."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from fairqr.base.errors import InputError
from fairqr.evaluation.audit.findings import findings_of
from fairqr.evaluation.audit.layouts import LAYOUTS, load_layout
from fairqr.evaluation.audit.outcomes import AuditOutcome, audit_json
from fairqr.evaluation.audit.report import draw_exposure, figures_of, values_of, write_audit
from fairqr.evaluation.reports.writer import Figure, render
from tests.golden.reports import check_report
from tests.unit.evaluation.audit.examples import outcome_of, spec_of
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
        _DRAWN[id(outcome)] = (outcome, figures_of(outcome))
    return render("audit", values_of(outcome, load_layout(layout)), _DRAWN[id(outcome)][1])


_DRAWN: dict[int, tuple[AuditOutcome, list[Figure]]] = {}


def _numbers(text: str) -> set[str]:
    return set(re.findall(r"\d+\.\d+%?", text))


def test_the_report_stays_as_it_was_read_once() -> None:
    check_report("audit", _report(_outcome()))


def test_the_words_have_the_numbers_of_the_json() -> None:
    female = json.loads(audit_json(_outcome()))["groups"][0]
    (first, *_) = findings_of(_outcome())
    assert first.startswith("gender: female gets")
    for share in (female["exposure"]["value"], female["target"]["value"]):
        assert f"{100 * share:.1f}%" in first
    low, high = female["lean"]["interval"]
    assert f"withholds {100 * female['lean']['value']:.1f} points" in first
    assert f"between {100 * low:.1f} and {100 * high:.1f}" in first
    assert f"p = {female['lean']['p']:.4f}" in first
    cost = next(it for it in findings_of(_outcome()) if "what mending would cost" in it)
    assert f"female would get {100 * female['if_mended']:.1f}%" in cost


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_report_says_that_anything_is_fair(layout: str) -> None:
    for outcome in (_outcome(), _without_lean(), _small()):
        text = _report(outcome, layout)
        assert not re.search(r"\bfair(?!qr| re-ranking)\b", text, flags=re.IGNORECASE)
        assert not re.search(r"\b(complian|complies|unfair|passed)", text, flags=re.IGNORECASE)


def test_mending_says_how_far_it_gets() -> None:
    costs = json.loads(audit_json(_outcome()))["costs"][0]["points"]
    left = next(it for it in costs if it["weight"] == 1)["divergence"]["value"]
    cost = next(it for it in findings_of(_outcome()) if "what mending would cost" in it)
    share = 100 * left / costs[0]["divergence"]["value"]
    assert f"and {share:.1f}% of today's distance from the target would be left." in cost


def test_other_choices_turn_nothing_where_nothing_is_sure() -> None:
    assert "No group has a sure verdict that another choice could turn." in _report(_small())
    assert "another choice could turn" not in _report(_outcome())


def test_what_a_group_gets_beyond_what_others_could_have_is_said_apart() -> None:
    female, male, *others = _outcome().figures.groups
    excess = replace(male.excess, value=male.excess.value - 0.1)
    groups = [female, replace(male, excess=excess), *others]
    figures = replace(_outcome().figures, groups=groups)
    (said,) = (
        it
        for it in findings_of(replace(_outcome(), figures=figures))
        if it.startswith("gender: male gets")
    )
    assert f"The ranking gives it {100 * excess.value:.1f} points that others could have" in said
    rest = male.exposure.value - male.target.value - excess.value
    assert f"Another {100 * rest:.1f} points no ranking could take from it" in said


def test_where_nothing_was_found_it_says_what_could_have_been() -> None:
    outcome = _without_lean()
    said = [it for it in findings_of(outcome) if it.startswith("gender:")]
    assert len(said) == 1
    found = re.fullmatch(
        r"gender: no difference could be told from chance\. A difference of ([\d.]+) points would "
        r"have been found in four of five audits like this one; a smaller one may well be there\.",
        said[0],
    )
    assert found
    most = max(it.detectable for it in outcome.figures.groups if it.attribute == "gender")
    assert found[1] == f"{100 * most:.1f}"


def test_what_relevant_documents_cannot_give_is_said_without_a_verdict() -> None:
    female, male, *others = _without_lean().figures.groups
    figures = replace(
        _without_lean().figures,
        groups=[
            replace(
                female,
                target=replace(female.target, value=0.5),
                supply=replace(female.supply, value=0.2),
                supply_gap=replace(female.supply_gap, value=0.3, low=0.2, high=0.4),
            ),
            male,
            *others,
        ],
    )
    said = findings_of(replace(_without_lean(), figures=figures))[0]
    assert said.startswith("gender: that the ranking withholds anything could not be told from")
    assert "could give female 20.0% of its target of 50.0% at most." in said


def test_queries_that_no_comparison_is_over_are_spoken_of() -> None:
    female, male, *others = _outcome().figures.groups
    narrow = [replace(it, lean=replace(it.lean, queries=12)) for it in (female, male)]
    figures = replace(_outcome().figures, groups=[*narrow, *others])
    said = findings_of(replace(_outcome(), figures=figures))
    answered = figures.counts.answered
    assert any(f"could be compared for 12 of {answered} answered queries." in it for it in said)
    assert not any("could be compared for" in it for it in findings_of(_outcome()))


def test_a_group_of_which_nothing_was_found_is_named() -> None:
    female, male, *others = _without_lean().figures.groups
    nobody = replace(female, exposure=replace(female.exposure, value=0.0), candidates=0.0)
    figures = replace(_without_lean().figures, groups=[nobody, male, *others])
    said = "\n".join(findings_of(replace(_without_lean(), figures=figures)))
    assert "gender: no document of female was found, so nothing can be said" in said
    assert "was found, so nothing" not in "\n".join(findings_of(_without_lean()))


def test_few_queries_and_failures_give_no_verdict() -> None:
    assert any("too few queries to tell" in it for it in findings_of(_small()))
    failed = outcome_of(lean=0.12, unlabelled=0.35, failed=("q38", "q39", "q40"))
    assert not any(it.flips for it in failed.figures.groups)
    first, *others = findings_of(failed)
    assert first.startswith("14.3% of the queries failed")
    assert "gives no verdict" in first
    assert not any("withholds" in it or "chance" in it for it in others)


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
    figures = replace(
        _outcome().figures, groups=groups, costs={}, contributions=[], by_query=[], others=[]
    )
    outcome = replace(_outcome(), figures=figures)
    said = findings_of(outcome)
    assert [it.split()[2] for it in said[:9] if "other groups" not in it] == [
        *("60", "59", "58", "57", "56", "55"), "1", "2",
    ]  # fmt: skip
    assert "gender: 34 other groups surely get less than is due, by smaller differences." in said
    assert "gender: 17 other groups surely get more than is due, by smaller differences." in said
    write_audit(tmp_path, outcome)
    text = (tmp_path / "report.md").read_text()
    gaps = text.split("## What each group gets")[1].split("##")[0]
    assert sum(line.startswith("| group ") for line in gaps.splitlines()) == 1 + 40
    assert "20 other groups with smaller leans stand in results.csv." in gaps
    drawn = draw_exposure(outcome)
    assert drawn.alt.count("gets less") + drawn.alt.count("gets more") == 12
    assert "the 12 groups of 60 with the greatest leans" in drawn.svg
    assert sum(line.startswith("gender,") for line in (tmp_path / "results.csv").open()) == 60


def test_without_relevance_no_one_is_to_blame() -> None:
    spec = spec_of(target="population:1")
    outcome = outcome_of(with_relevance=False, relevance="unknown", spec=spec)
    said = "\n".join(findings_of(outcome))
    assert "Nothing says which documents are relevant" in said
    assert "withholds" not in said
    assert "female gets" in said
    text = _report(outcome)
    assert "there is no supply and no gap" in text
    assert "What mending would cost is not known" in text
    assert "nan" not in text.lower().replace("finan", "")


def test_a_lean_within_the_error_of_the_estimate_is_said_to_be() -> None:
    female, *others = _outcome().figures.groups
    lean = replace(female.lean, value=0.03, low=0.01, high=0.05)
    small = replace(female, lean=lean, verdict="within_error")
    figures = replace(_outcome().figures, groups=[small, *others])
    said = "\n".join(findings_of(replace(_outcome(), figures=figures)))
    assert "female gets 3.0 points less than is due. That is not chance" in said
    assert "The estimate can be off by 4.0 points" in said
    counts = replace(figures.counts, relevance="judged")
    judged = replace(_outcome(), figures=replace(_outcome().figures, counts=counts))
    assert "The estimate can be off" not in "\n".join(findings_of(judged))


def test_a_combination_within_the_error_of_the_estimate_is_not_called_chance() -> None:
    groups = [
        replace(it, verdict="within_error" if it.group == "female × Asia" else "cannot_tell")
        for it in _outcome().figures.groups
    ]
    figures = replace(_outcome().figures, groups=groups)
    said = [it for it in findings_of(replace(_outcome(), figures=figures)) if "combination" in it]
    assert len(said) == 2
    assert re.fullmatch(
        r"1 combination of groups gets less than is due. That is not chance, but the error of the "
        r"estimate of relevance could explain it: female × Asia \([\d.]+ points less\)\.",
        said[0],
    )
    assert said[1].startswith("For none of the other 5 combinations of groups")


def test_an_audit_without_any_answer_has_a_report() -> None:
    everything = tuple(f"q{number}" for number in range(1, 9))
    for reason in ("empty", "failed"):
        outcome = outcome_of(8, **{reason: everything})
        assert "No query was answered, so nothing can be said." in _report(outcome)
        assert json.loads(audit_json(outcome))["queries"]["answered"] == 0


def test_a_verdict_that_labels_could_turn_is_said_to() -> None:
    outcome = outcome_of(lean=0.12, unlabelled=0.35)
    turned = [it for it in outcome.figures.groups if it.flips]
    assert {"female", "male"} <= {it.group for it in turned}
    said = [it for it in findings_of(outcome) if "Missing labels alone could explain this." in it]
    assert [it for it in said if it.startswith("gender: female gets")]
    assert "Missing labels alone could turn the verdict on female, male." in _report(outcome)


def test_a_low_impact_ratio_is_marked_and_no_verdict() -> None:
    text = _report(_outcome())
    ratio = next(it for it in _outcome().figures.groups if it.group == "female").impact_ratio.value
    assert ratio < 0.8
    marked = [line for line in text.splitlines() if "| below four fifths |" in line]
    assert [line for line in marked if line.startswith("| female |") and f" {ratio:.2f} " in line]
    assert not [line for line in marked if line.startswith("| male |")]
    assert "a reason to look closer and no verdict" in text


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
    assert {str(image.attrs["src"]) for image in images} == {
        "figures/exposure.svg",
        "figures/cost.svg",
    }


def test_rare_and_redacted_queries_are_not_printed() -> None:
    outcome = outcome_of(12, lean=0.5, spec=spec_of(rare=100))
    text = _report(outcome)
    assert "people of town" not in text
    assert not re.search(r"\bq\d", text)
    assert "asked fewer than 100 times" in text
    redacted = _report(replace(outcome_of(12, lean=0.5), is_redacted=True))
    assert "people of town" not in redacted
    assert "text withheld" in redacted


def test_a_reason_of_failure_may_quote_a_query() -> None:
    text = _report(_outcome())
    # q1 was asked once, q9 nine times.
    assert "- 1 query: The engine did not answer in time." in text
    assert "- 1 query: withheld, as the reason may quote the query" in text


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_a_layout_has_the_same_figures_in_another_order(layout: str) -> None:
    plain, other = _report(_outcome()), _report(_outcome(), layout)
    tables = {line for line in plain.splitlines() if line.startswith("| ")}
    missing = [line for line in tables if line not in other]
    # Only the marks of small categories are added.
    assert not missing
    assert "## What this report does not cover" in other
    assert "is met. Not covered:" in other
    assert load_layout(layout).title in other
    begun = replace(_outcome(), begun="2026-11-21")
    assert "This audit was begun on 2026-11-21." in _report(begun, layout)
    about = load_layout(layout).about
    assert "It is no legal advice." in about
    assert "does not say whether" in about


def test_layouts_name_their_articles() -> None:
    headings = {
        layout: " ".join(part.heading for part in load_layout(layout).parts) for layout in LAYOUTS
    }
    assert all(it in headings["ll144"] for it in ("5-301", "5-303"))
    assert all(f"Article {it}" in headings["dsa"] for it in (27, 34, 35, 37, 40))
    assert all(f"Article {it}" in headings["ai-act"] for it in (9, 10, 13, 15, 26))


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
    assert "there are no candidates" not in _report(_outcome())


def test_combinations_alone_have_a_picture() -> None:
    outcome = outcome_of(12, spec=spec_of(attributes=("gender×origin",)))
    assert "female × Africa" in draw_exposure(outcome).alt
    assert "What each group gets" in _report(outcome)


def test_an_unknown_layout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no layout 'gdpr'; the layouts are plain, ll144"):
        write_audit(tmp_path, _outcome(), "gdpr")
    assert not list(tmp_path.iterdir())


def test_equal_audits_give_equal_files(tmp_path: Path) -> None:
    one = write_audit(tmp_path / "one", outcome_of(8))
    other = write_audit(tmp_path / "other", outcome_of(8, is_shared=False))
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in other]
    names = ["audit.json", "results.csv", "queries.csv", "report.md", "report.html"]
    assert [path.name for path in one[:5]] == names


@pytest.mark.parametrize("package", ["pandas", "jinja2", "markdown_it"])
def test_what_a_report_needs_is_named_and_the_figures_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "fairqr.evaluation.reports.page", raising=False)
    with pytest.raises(InputError, match=r"install it with: pip install 'fairqr\[evaluation\]'"):
        write_audit(tmp_path, _outcome())
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"audit.json", "results.csv", "queries.csv"}
