"""What comes out of an audit: its numbers as JSON and tables, and the report of them."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, get_args

import pytest
from markdown_it import MarkdownIt

from fairqr.base.errors import InputError
from fairqr.evaluation.audit.figures import GroupFigures, Verdict
from fairqr.evaluation.audit.outcomes import AuditOutcome, audit_json, files_of, frames_of
from fairqr.evaluation.audit.pairs import compare_versions
from fairqr.evaluation.audit.records import PairScores, VersionScores
from fairqr.evaluation.audit.report import (
    LAYOUTS,
    VERDICTS,
    draw_exposure,
    findings_of,
    load_layout,
    values_of,
    write_audit,
)
from fairqr.evaluation.reports.writer import render
from fairqr.retrieval.sources.schema import Schema
from tests.golden.reports import check_report, check_text
from tests.unit.evaluation.audit.examples import (
    SCHEMA,
    made,
    measured,
    observations_of,
    outcome_of,
    queries_of,
    spec_of,
    words_of,
)
from tests.unit.evaluation.reports.pages import read

HOSTILE = (
    "<script>alert(1)</script>",
    "| a | *b* `c` [d](http://evil.example) ![e](//evil.example/x.png)",
    "# heading\u2028\u202egnp.exe\x1b[31m\x00",
    "$\\frac{1}{2}$ & &lt; ]]> --> <!-- ~~x~~",
    "1. www.evil.example https://evil.example " + "W" * 5_000,
)
EVERYTHING = tuple(f"q{number}" for number in range(1, 9))
UNKNOWN: dict[str, Any] = {"with_relevance": False, "relevance": "unknown"}

LEANING = partial(outcome_of, lean=0.15, unlabelled=0.1, empty=("q3",), failed=("q1", "q9"))
FAIR = partial(outcome_of, lean=0.0)
FEW = partial(outcome_of, 4)
UNLABELLED = partial(outcome_of, lean=0.0, unlabelled=0.5)
TURNED = partial(outcome_of, lean=0.12, unlabelled=0.35)
NOBODY_DUE = partial(outcome_of, spec=spec_of(target="population:1"), **UNKNOWN)


@cache
def mislabelled() -> AuditOutcome:
    """Labels of gender may be wrong."""
    confusion = {"female": {"female": 0.9, "male": 0.1}, "male": {"female": 0.1, "male": 0.9}}
    gender = SCHEMA.attributes["gender"].model_copy(update={"confusion": confusion})
    schema, queries = Schema(attributes={"gender": gender}), queries_of(9)
    found = measured(queries, observations_of(queries), schema=schema, relevance="judged")
    outcome = made(outcome_of(9), attributes=schema.attributes, relevance="judged")
    return replace(outcome, figures=found)


def with_groups(outcome: AuditOutcome, *changed: GroupFigures, **figures: Any) -> AuditOutcome:
    """Replace the first groups of an audit, and other figures."""
    groups = [*changed, *outcome.figures.groups[len(changed) :]]
    return replace(outcome, figures=replace(outcome.figures, groups=groups, **figures))


def changed(it: GroupFigures, **values: Any) -> GroupFigures:
    """Return a group with other figures; numbers are the values of estimates."""
    estimates = {
        name: replace(getattr(it, name), **(value if isinstance(value, dict) else {"value": value}))
        for name, value in values.items()
        if hasattr(getattr(it, name), "queries")
    }
    return replace(it, **(values | estimates))


def cases() -> dict[str, AuditOutcome]:
    """Return audits that say what is not so in most of them."""
    leaning, fair = LEANING(), FAIR()
    (female, male), (her, him) = (it.figures.groups[:2] for it in (leaning, fair))
    groups = leaning.figures.groups
    unseen = changed(
        her, exposure=0.0, lean={"value": 0.05, "low": -0.04}, absent=1.0, verdict="undecided"
    )
    small = changed(her, lean={"value": 0.03, "low": 0.01, "high": 0.05}, verdict="within_error")
    short = changed(female, lean=-0.01, supply_gap=0.3, verdict="cannot_tell", detectable=0.1)
    lost = replace(leaning.figures.counts, relevant=500, absent=154)
    return {
        f"all groups: {it}": with_groups(leaning, *(replace(g, verdict=it) for g in groups))
        for it in get_args(Verdict)
    } | {
        "a group that gets more": with_groups(leaning, changed(female, verdict="cannot_tell")),
        "no lean": fair,
        "a group that is never shown": with_groups(fair, him, unseen),
        "little is due": with_groups(fair, changed(her, target=0.02, detectable=0.1), him),
        "a part is known": with_groups(leaning, *(replace(g, known=0.95) for g in (female, male))),
        "no document of a group": with_groups(fair, changed(her, exposure=0.0, candidates=0.0)),
        "supply is short": with_groups(fair, short),
        "within the error": with_groups(fair, small, him),
        "judged documents are lost": with_groups(leaning, counts=lost),
        "most found nothing": outcome_of(empty=[f"q{n}" for n in range(13, 41)]),
        "few judged documents": outcome_of(relevance="judged", spec=spec_of(k=25)),
        "judged": outcome_of(relevance="judged"),
        "few queries": FEW(),
        "failures": TURNED(failed=("q38", "q39", "q40")),
        "nothing found": outcome_of(8, empty=EVERYTHING),
        "nothing answered": outcome_of(8, failed=EVERYTHING),
        "no relevance": NOBODY_DUE(),
        "nothing is due": outcome_of(**UNKNOWN),
        "missing labels could turn it": TURNED(),
        "missing labels acquit nobody": UNLABELLED(),
        "no candidates": outcome_of(12, spec=spec_of(k=30, depth=40), **UNKNOWN),
    }


def report_of(outcome: AuditOutcome, layout: str = "plain") -> str:
    drawn = [draw_exposure(outcome)] if outcome.figures.counts.answered else []
    return render("audit", values_of(outcome, load_layout(layout)), drawn)


def test_findings_stay_as_they_were_read_once() -> None:
    """All words that lead a report, by what came out; none says that anything is fair."""
    lines, heads = list[str](), set[str]()
    for name, outcome in cases().items():
        found = findings_of(outcome)
        heads.add(found["verdict"][0].split(":")[-1])
        lines += [f"## {name}", *(it for part in found.values() for it in part), ""]
    text = "\n\n".join(lines)
    assert len(heads) >= len(get_args(Verdict))
    assert "nan" not in text
    check_text("audit_findings.md", text)


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("audit", LEANING),
        ("audit_without_relevance", NOBODY_DUE),
        ("audit_mislabelled", mislabelled),
        ("audit_few", lambda: made(FEW(), redacted=True)),
        ("audit_not_mended", partial(outcome_of, 9, spec=spec_of(mend=0, rare=100))),
    ],
)
def test_the_report_stays_as_it_was_read_once(
    name: str, outcome: Callable[[], AuditOutcome]
) -> None:
    check_report(name, report_of(outcome()))


def test_figures_of_too_few_queries_say_so_and_are_counted() -> None:
    text = report_of(FEW())
    few, all_ = map(int, re.findall(r"(\d+) of the (\d+) figures", text)[0])
    assert few == all_ == text.count("too few*") > 0
    assert "A sample" not in report_of(outcome_of(12, spec=spec_of(mend=12)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_has_the_same_figures_and_no_report_says_that_anything_is_fair(
    layout: str,
) -> None:
    text = report_of(made(LEANING(), started="2026-11-21T10:00"), layout)
    # Only the marks of small categories are added.
    assert not {it for it in report_of(LEANING()).splitlines() if it.startswith("| ")} - {
        *text.splitlines()
    }
    articles = {
        "ll144": ("5-301", "5-303"),
        "dsa": [f"Article {it}" for it in (27, 34, 35, 37, 40)],
        "ai-act": [f"Article {it}" for it in (9, 10, 13, 15, 26)],
    }
    held = load_layout(layout)
    sections = [section for part in held["parts"] for section in part["sections"]]
    assert (
        " ".join(sorted(sections))
        == "contributions costs gaps labels method queries rates seen sure"
    )
    headings = " ".join(part["heading"] for part in held["parts"])
    assert all(it in headings for it in articles.get(layout, ()))
    words = ("## What this report does not cover", "is met. Not covered:", "on 2026-11-21.")
    about = (held["title"], "It is no legal advice.", "does not say whether")
    assert layout == "plain" or all(it in text for it in (*words, *about))
    small = [replace(it, share_of_candidates=0.01) for it in LEANING().figures.groups]
    marked = report_of(with_groups(LEANING(), *small), layout)
    assert ("below 2% of the candidates" in marked) == (layout == "ll144")
    for said in (text, report_of(FAIR(), layout), report_of(FEW(), layout)):
        assert not re.search(r"\bfair(?!qr| re-ranking)\b", said, flags=re.IGNORECASE)
        assert not re.search(r"\b(complian|complies|unfair|passed)", said, flags=re.IGNORECASE)


def test_every_verdict_is_told_in_the_table_and_combinations_alone_have_a_picture() -> None:
    for verdict in get_args(Verdict):
        groups = [replace(it, verdict=verdict) for it in LEANING().figures.groups]
        assert VERDICTS[verdict] in report_of(with_groups(LEANING(), *groups))
    crossed = outcome_of(12, spec=spec_of(attributes=("gender×origin",)))
    assert "female × Africa" in draw_exposure(crossed).alt
    assert "What each group gets" in report_of(crossed)


def test_many_groups_are_named_by_the_greatest_differences(tmp_path: Path) -> None:
    female = LEANING().figures.groups[0]
    groups = [
        changed(
            female,
            group=f"group {number} {'long ' * 20}",
            lean=number / 200 - 0.1,
            verdict="less" if number > 20 else "more",
        )
        for number in range(1, 61)
    ]
    outcome = with_groups(LEANING(), *groups, costs={}, contributions=[], by_query=[])
    verdict = findings_of(outcome)["verdict"][0]
    assert verdict.startswith("Against group 60")
    assert (len(re.findall(r"group \d+ ", verdict)), "and 36 others" in verdict) == (4, True)
    write_audit(tmp_path, outcome)
    text = (tmp_path / "report.md").read_text()
    gaps = text.split("## What each group gets")[1].split("##")[0]
    assert sum(line.startswith("| group ") for line in gaps.splitlines()) == 1 + 40
    assert "results.csv has any other groups" in gaps
    drawn = draw_exposure(outcome)
    assert drawn.alt.count("gets less") + drawn.alt.count("gets more") == 12
    assert "the 12 groups of 60 with the greatest leans" in drawn.svg
    assert sum(line.startswith("gender,") for line in (tmp_path / "results.csv").open()) == 60


@pytest.mark.parametrize("layout", LAYOUTS)
def test_hostile_names_are_never_markup(tmp_path: Path, layout: str) -> None:
    """Queries that are asked most often come last; the hostile ones are among them."""
    outcome = outcome_of(
        lean=0.3,
        texts=[*(f"people {number}" for number in range(35)), *HOSTILE],
        prefix=HOSTILE[0] + HOSTILE[1],
        titles={f"{HOSTILE[0]}{HOSTILE[1]}{number}": HOSTILE[number % 5] for number in range(40)},
        failed=("q36",),
    )
    write_audit(tmp_path, outcome, layout)
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


def test_what_a_report_needs_is_named_and_the_figures_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="There is no layout 'gdpr'; choose plain, ll144"):
        write_audit(tmp_path, LEANING(), "gdpr")
    assert not list(tmp_path.iterdir())
    for package in ("jinja2", "markdown_it", "matplotlib"):
        folder = tmp_path / package
        folder.mkdir()
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, package, None)
            with pytest.raises(InputError, match=r"pip install 'fairqr\[(evaluation|plot)\]'"):
                write_audit(folder, LEANING())
        names = {path.name for path in folder.iterdir()}
        assert names == {"audit.json", "results.csv", "queries.csv"}


def rows_of(name: str, outcome: AuditOutcome) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(files_of(outcome)[f"{name}.csv"].decode())))


def test_the_numbers_of_an_audit_stay_as_they_were_read_once() -> None:
    # Machines add in different orders, which shows in the last digits.
    text = audit_json(outcome_of(unlabelled=0.1, empty=("q3",), failed=("q1",)))
    found = json.loads(text, parse_float=lambda text: float(f"{float(text):.6g}"))
    check_text("audit.json", json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def test_tables_have_a_row_for_each_group_and_for_each_query_and_group() -> None:
    outcome = LEANING()
    rows, own = rows_of("results", outcome), outcome.figures.groups[0]
    assert len(rows) == 2 + 3 + 6
    assert (rows[0]["group"], rows[0]["verdict"]) == ("female", "less")
    wanted = {"exposure": own.exposure.value, "exposure_low": own.exposure.low, "p": own.lean.p}
    assert {name: float(rows[0][name]) for name in wanted} == pytest.approx(wanted)
    rows = rows_of("queries", outcome)
    assert len(rows) == 37 * (2 + 3 + 6) + 3
    unanswered = {row["number"]: row["status"] for row in rows if not row["attribute"]}
    assert unanswered == {"1": "failed", "3": "empty", "9": "failed"}
    one = [row for row in rows if row["number"] == "8" and row["attribute"] == "gender"]
    assert [(row["group"], row["weight"]) for row in one] == [("female", "8"), ("male", "8")]
    assert sum(float(row["exposure"]) for row in one) == pytest.approx(1, abs=1e-5)
    # What has no value is null, and an empty cell.
    unknown = outcome_of(8, **UNKNOWN)
    female = json.loads(audit_json(unknown))["groups"][0]
    assert female["lean"] == {"value": None, "interval": None, "queries": 0, "p": None}
    (row, *_) = rows_of("results", unknown)
    assert row["lean"] == row["target"] == ""
    frames = frames_of(outcome_of(8, empty=EVERYTHING))
    assert math.isnan(frames["results"].lean[0])
    assert list(frames["queries"].columns) == list(frames_of(outcome)["queries"].columns)
    assert list(frames["queries"].status) == ["empty"] * 8


def test_mending_says_what_each_group_would_get() -> None:
    figures = outcome_of(12, unlabelled=0.25, spec=spec_of(mend=12)).figures
    mending, female = figures.costs["gender"], figures.groups[0]
    # All queries are mended here, so that today's exposure is that of the audit.
    assert mending.today["female"].value == pytest.approx(female.exposure.value)
    assert female.if_mended == pytest.approx(mending.exposure["female"].value)
    gaps = [
        abs(female.target.value - it["female"].value) for it in (mending.today, mending.exposure)
    ]
    assert gaps[1] < 0.3 * gaps[0]
    assert sum(it.value for it in mending.exposure.values()) == pytest.approx(1)


def names_in(found: object) -> set[str]:
    if isinstance(found, dict):
        return set(found).union(*map(names_in, found.values()))
    return set().union(*map(names_in, found)) if isinstance(found, list) else set()


def test_every_field_is_documented() -> None:
    scored = (VersionScores(scores={"a": 1.0, "b": 0.0}),)
    pairs = compare_versions("bm25", [PairScores(query=1, status="ok", pairs=scored)], 0)
    found = json.loads(audit_json(replace(outcome_of(8), pairs=pairs)))
    assert found["pairs"]["comparisons"]
    del found["spec"], found["engine"]
    page = Path(__file__).parents[4] / "docs/reference/audit-files.md"
    text = page.read_text(encoding="utf-8")
    # Names of an estimate stand in its example.
    names = names_in(found) - {"kind", *(it["group"] for it in found["groups"])}
    assert not [name for name in names if not re.search(f'[`"]{name}[`"]', text)]


def test_rare_and_redacted_queries_are_printed_nowhere() -> None:
    """The spec prints those that were asked at least five times; q1 was asked once, and so on."""
    outcome = outcome_of(12, lean=0.5)
    for row in rows_of("queries", outcome):
        number, printed = int(row["number"]), (row["query"], row["text"])
        wanted = (f"q{number}", f"people of town {number - 1}") if number >= 5 else ("", "")
        assert printed == wanted
    rare = outcome_of(12, lean=0.5, spec=spec_of(rare=100))
    for it in (rare, made(rare, redacted=True), made(outcome, redacted=True)):
        held = [audit_json(it), *files_of(it).values(), report_of(it).encode()]
        assert not any(b"people of town" in text for text in held)
        assert it.spec.rare < 100 or not any(re.search(rb"\bq\d", text) for text in held)
    # A plain list does not say how often its queries were asked.
    plain = replace(outcome_of(8), queries=words_of(EVERYTHING))
    assert all(row["text"] for row in rows_of("queries", plain))


def test_no_cell_is_a_formula_or_has_control_characters() -> None:
    hostile = ['=HYPERLINK("http://evil.example")', "+1", "-2", "@SUM(A1)", "a\x00b\x1b[31m"]
    outcome = outcome_of(12, texts=["", "", "", "", *hostile], prefix="\ud800=d")
    texts = {row["text"] for row in rows_of("queries", outcome)}
    assert {"'" + text for text in hostile[:4]} <= texts
    assert "a\ufffdb\ufffd[31m" in texts
    # A lone surrogate is an escape in the JSON.
    assert json.loads(audit_json(outcome))["contributions"][0]["shown"][0].startswith("\ud800")
