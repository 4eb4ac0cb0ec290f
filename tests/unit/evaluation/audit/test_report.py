"""The files of an audit: its numbers as JSON and tables, and the report of them."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest

from fairqr.evaluation.audit import finishing, report, tables
from fairqr.evaluation.audit.bundle import PairScores, VersionScores
from fairqr.evaluation.audit.figures import GroupFigures, Verdict
from fairqr.evaluation.audit.finishing import Audit
from fairqr.evaluation.audit.pairs import compare_versions
from fairqr.evaluation.audit.report import LAYOUTS
from fairqr.evaluation.audit.wording import VERDICTS
from fairqr.evaluation.estimates import Estimate
from fairqr.evaluation.reports.writer import render
from fairqr.retrieval.sources.schema import Schema
from tests.golden.reports import check_report, check_text
from tests.unit.evaluation.audit import examples
from tests.unit.evaluation.audit.examples import made, outcome_of, spec_of

EVERYTHING = tuple(f"q{number}" for number in range(1, 9))
FAILING: dict[str, Any] = {"unlabelled": 0.1, "empty": ("q3",), "failed": ("q1",)}
UNKNOWN: dict[str, Any] = {"with_relevance": False, "relevance": "unknown"}

CONFUSION = {"female": {"female": 0.9, "male": 0.1}, "male": {"female": 0.1, "male": 0.9}}
GENDER = examples.SCHEMA.attribute("gender").model_copy(update={"confusion": CONFUSION})
MISLABELLED = Schema(attributes={"gender": GENDER})

BIASED = partial(outcome_of, bias=0.15, unlabelled=0.1, empty=("q3",), failed=("q1", "q9"))
FAIR = partial(outcome_of, bias=0.0)
FEW = partial(outcome_of, 4)
UNLABELLED = partial(outcome_of, bias=0.0, unlabelled=0.5)
TURNED = partial(outcome_of, bias=0.12, unlabelled=0.35)
NO_TARGET = partial(outcome_of, spec=spec_of(target="population:1"), **UNKNOWN)


def with_groups(outcome: Audit, *changed: GroupFigures, **figures: Any) -> Audit:
    """Replace the first groups of an audit, and other figures."""
    groups = [*changed, *outcome.figures.groups[len(changed) :]]
    return replace(outcome, figures=replace(outcome.figures, groups=groups, **figures))


def changed(group: GroupFigures, /, **values: Any) -> GroupFigures:
    """Return a group with other figures; numbers are the values of estimates."""
    changes = dict(values)
    for name, value in values.items():
        figure = getattr(group, name)
        if isinstance(figure, Estimate):
            fields = value if isinstance(value, dict) else {"value": value}
            changes[name] = replace(figure, **fields)
    return replace(group, **changes)


def cases() -> dict[str, Audit]:
    """Return audits that say what is not so in most of them."""
    return cases_of_verdicts() | cases_of_groups() | cases_of_queries()


def cases_of_verdicts() -> dict[str, Audit]:
    biased = BIASED()
    groups = biased.figures.groups
    return {
        f"all groups: {verdict}": with_groups(
            biased, *(replace(group, verdict=verdict) for group in groups)
        )
        for verdict in get_args(Verdict)
    }


def cases_of_groups() -> dict[str, Audit]:
    """Return audits in which a group is out of the ordinary."""
    biased = BIASED()
    fair = FAIR()
    female, male = biased.figures.groups[:2]
    fair_female, fair_male = fair.figures.groups[:2]
    unseen = changed(
        fair_female,
        exposure=0.0,
        ranking_gap={"value": 0.05, "low": -0.04},
        absent=1.0,
        verdict="undecided",
    )
    in_doubt = changed(
        fair_female,
        ranking_gap={"value": 0.03, "low": 0.01, "high": 0.05},
        verdict="within_relevance_error",
    )
    short = changed(
        female, ranking_gap=-0.01, unattainable=0.3, verdict="cannot_tell", detectable_gap=0.1
    )
    small = changed(fair_female, target=0.02, detectable_gap=0.1)
    missing = changed(fair_female, exposure=0.0, candidates=0.0)
    partly_known = [replace(group, known=0.95) for group in (female, male)]
    return {
        "a group that gets more": with_groups(biased, changed(female, verdict="cannot_tell")),
        "no gap": fair,
        "a group that is never shown": with_groups(fair, fair_male, unseen),
        "a small target share": with_groups(fair, small, fair_male),
        "a part is known": with_groups(biased, *partly_known),
        "no document of a group": with_groups(fair, missing),
        "attainable exposure is short": with_groups(fair, short),
        "within the error": with_groups(fair, in_doubt, fair_male),
    }


def cases_of_queries() -> dict[str, Audit]:
    """Return audits whose queries, documents or judgements are out of the ordinary."""
    biased = BIASED()
    lost = replace(biased.figures.counts, relevant=500, absent=154, hidden=11)
    return {
        "judged documents are lost": with_groups(biased, counts=lost),
        "most found nothing": outcome_of(empty=[f"q{n}" for n in range(13, 41)]),
        "few judged documents": outcome_of(relevance="judged", spec=spec_of(k=25)),
        "judged": outcome_of(relevance="judged"),
        "few queries": FEW(),
        "failures": TURNED(failed=("q38", "q39", "q40")),
        "nothing found": outcome_of(8, empty=EVERYTHING),
        "nothing answered": outcome_of(8, failed=EVERYTHING),
        "no relevance": NO_TARGET(),
        "no target": outcome_of(**UNKNOWN),
        "missing labels could turn it": TURNED(),
        "missing labels acquit nobody": UNLABELLED(),
        "no candidates": outcome_of(12, spec=spec_of(k=30, depth=40), **UNKNOWN),
    }


def report_of(outcome: Audit, layout: str = "plain") -> str:
    drawn = [report.draw_exposure(outcome)] if outcome.figures.counts.answered else []
    findings = finishing.findings_of(outcome)
    values = report.values_of(outcome, findings, report.load_layout(layout))
    return render("audit", values, drawn)


@pytest.mark.promise("audit")
def test_findings_stay_as_they_were_read_once() -> None:
    """A report says where missing labels could turn a verdict, and which difference four of five
    such audits find.

    All words that lead a report, by what came out, stay as they were read once.
    """
    lines = list[str]()
    heads = set[str]()
    for name, outcome in cases().items():
        findings = finishing.findings_of(outcome)
        heads.add(findings.verdict[0].split(":")[-1])
        lines += [f"## {name}", *itertools.chain.from_iterable(findings), ""]
        if name.startswith("all groups"):
            assert VERDICTS[outcome.figures.groups[0].verdict] in report_of(outcome)
    text = "\n\n".join(lines)
    assert len(heads) >= len(get_args(Verdict))
    assert "nan" not in text
    check_text("audit_findings.md", text)


@pytest.mark.promise("audit")
@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("without_relevance", NO_TARGET),
        ("mislabelled", partial(outcome_of, 9, schema=MISLABELLED, relevance="judged")),
        ("few", lambda: made(FEW(), redacted=True)),
        ("not_reranked", partial(outcome_of, 9, spec=spec_of(rerank=0, rare=100))),
        ("combinations", lambda: outcome_of(12, spec=spec_of(attributes=("gender×origin",)))),
    ],
    ids=["without relevance", "mislabelled", "few", "not re-ranked", "combinations"],
)
def test_the_report_stays_as_it_was_read_once(name: str, outcome: Callable[[], Audit]) -> None:
    """A report begins with its words, the verdict and threshold, one picture and three sentences,
    and names a sample where fewer queries were re-ranked than answered.
    """
    check_report(f"audit_{name}", report_of(outcome()))


@pytest.mark.promise("audit")
def test_figures_of_too_few_queries_say_so() -> None:
    """Figures of too few queries say so and are counted."""
    text = report_of(FEW())
    few, all_ = map(int, re.findall(r"(\d+) of the (\d+) figures", text)[0])
    assert few == all_ == text.count("too few*") > 0
    assert "A sample" not in report_of(outcome_of(12, spec=spec_of(rerank=12)))


@pytest.mark.promise("audit")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_report_says_that_anything_is_fair(
    layout: str,
) -> None:
    """No report says that anything is fair or a law met; a layout has the same figures and names
    its articles.

    A layout also names what it does not cover.
    """
    outcome = made(BIASED(), started="2026-11-21T10:00")
    small = [replace(it, share_of_candidates=0.01) for it in outcome.figures.groups]
    check_report(f"audit_{layout}", report_of(with_groups(outcome, *small), layout))
    text, plain = (report_of(outcome, it).splitlines() for it in (layout, "plain"))
    assert {it for it in plain if it.startswith("| ")} <= {*text}
    for said in ("\n".join(text), report_of(FAIR(), layout), report_of(FEW(), layout)):
        assert not re.search(r"\bfair(?!qr| re-ranking)\b", said, flags=re.IGNORECASE)
        assert not re.search(r"\b(complian|complies|unfair|passed)", said, flags=re.IGNORECASE)


def test_many_groups_are_named_by_the_greatest_differences() -> None:
    female = BIASED().figures.groups[0]
    groups = [
        changed(
            female,
            group=f"group {number} {'long ' * 20}",
            ranking_gap=number / 200 - 0.1,
            verdict="less" if number > 20 else "more",
        )
        for number in range(1, 61)
    ]
    outcome = with_groups(BIASED(), *groups, fair_reranking={}, contributions=[])
    text = report_of(outcome)
    check_report("audit_many", text)
    assert text.split("## How sure")[0].count("| group ") == 1 + 40
    assert "the 12 groups of 60 with the greatest gaps" in report.draw_exposure(outcome).svg
    assert len(rows_of("results", outcome)) == 60


def rounded(number: str) -> float:
    """Machines add in different orders, which shows in the last digits."""
    return float(f"{float(number):.6g}")


def rows_of(name: str, outcome: Audit) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(tables.files_of(outcome)[f"{name}.csv"].decode())))


def test_the_numbers_of_an_audit_stay_as_they_were_read_once() -> None:
    """What has no value is null, and an empty cell; a query without an answer has a row."""
    content = json.loads(tables.audit_json(outcome_of(**FAILING)), parse_float=rounded)
    check_text("audit.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")


@pytest.mark.parametrize("table", ["results", "queries"])
@pytest.mark.parametrize(
    ("name", "options"),
    [("seen", FAILING), ("unknown", UNKNOWN), ("empty", {"empty": EVERYTHING})],
    ids=["failures", "no relevance", "nothing found"],
)
def test_tables_stay_as_they_were_read_once(name: str, options: dict[str, Any], table: str) -> None:
    text = tables.files_of(outcome_of(8, **options))[f"{table}.csv"].decode()

    text = re.sub(r"\d+\.\d+(e-\d+)?", lambda number: str(rounded(number[0])), text)
    check_text(f"audit_{name}_{table}.csv", text)


def test_a_reranking_says_what_each_group_would_get() -> None:
    figures = outcome_of(12, unlabelled=0.25, spec=spec_of(rerank=12)).figures
    reranking, female = figures.fair_reranking["gender"], figures.groups[0]
    # All queries are re-ranked here, so that today's exposure is that of the audit.
    assert reranking.exposure_today["female"].value == pytest.approx(female.exposure.value)
    assert female.exposure_if_reranked == pytest.approx(
        reranking.exposure_if_reranked["female"].value
    )
    gaps = [
        abs(female.target.value - it["female"].value)
        for it in (reranking.exposure_today, reranking.exposure_if_reranked)
    ]
    assert gaps[1] < 0.3 * gaps[0]
    assert 0 <= reranking.below_best.value < 0.05
    assert sum(it.value for it in reranking.exposure_if_reranked.values()) == pytest.approx(1)


@pytest.mark.promise("audit")
def test_every_field_is_documented() -> None:
    """Every field of `audit.json` is documented."""
    scored = (VersionScores(scores={"a": 1.0, "b": 0.0}),)
    pairs = compare_versions("bm25", [PairScores(query=1, status="ok", pairs=scored)], 0)
    found = json.loads(tables.audit_json(replace(outcome_of(8), pairs=pairs)))
    assert found["pairs"]["comparisons"]
    del found["spec"], found["engine"]
    page = Path(__file__).parents[4] / "docs/reference/audit-files.md"
    text = page.read_text(encoding="utf-8")
    # Names of an estimate stand in its example.
    names = {*re.findall(r'"([^"]+)":', json.dumps(found))} - {
        "kind",
        *(it["group"] for it in found["groups"]),
    }
    assert not [name for name in names if not re.search(f'[`"]{name}[`"]', text)]


@pytest.mark.promise("audit")
def test_rare_and_redacted_queries_are_printed_nowhere() -> None:
    """Rarely asked queries are printed nowhere.

    The spec prints those that were asked at least five times; q1 was asked once, and so on.
    """
    outcome = outcome_of(12, bias=0.5)
    rows = {(row["number"], row["query"], row["text"]) for row in rows_of("queries", outcome)}
    withheld = {(f"{number}", "", "") for number in range(1, 5)}
    printed = {(f"{n}", f"q{n}", f"people of town {n - 1}") for n in range(5, 13)}
    assert rows == withheld | printed
    rare = outcome_of(12, bias=0.5, spec=spec_of(rare=100))
    for it in (rare, made(rare, redacted=True), made(outcome, redacted=True)):
        held = [tables.audit_json(it), *tables.files_of(it).values(), report_of(it).encode()]
        assert not any(b"people of town" in text for text in held)
        assert it.spec.rare < 100 or not any(re.search(rb"\bq\d", text) for text in held)
    # A plain list does not say how often its queries were asked.
    plain = replace(outcome_of(8), queries=examples.words_of(EVERYTHING))
    assert all(row["text"] for row in rows_of("queries", plain))


@pytest.mark.promise("audit")
def test_no_cell_is_a_formula() -> None:
    """Names are never formulas in a table."""
    hostile = ['=HYPERLINK("http://evil.example")', "+1", "-2", "@SUM(A1)", "a\x00b\x1b[31m"]
    outcome = outcome_of(12, texts=["", "", "", "", *hostile], prefix="\ud800=d")
    texts = {row["text"] for row in rows_of("queries", outcome)}
    assert {"'" + text for text in hostile[:4]} <= texts
    assert "a\ufffdb\ufffd[31m" in texts
    # A lone surrogate is an escape in the JSON.
    found = json.loads(tables.audit_json(outcome))
    assert found["contributions"][0]["shown"][0].startswith("\ud800")
