"""What comes out of an audit, as numbers."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from fairqr.evaluation.audit.outcomes import AuditOutcome, audit_json, files_of, frames_of
from fairqr.evaluation.audit.pairs import compare_versions
from fairqr.evaluation.audit.queries import AuditQuery
from fairqr.evaluation.audit.records import PairScores, VersionScores
from tests.golden.reports import check_text
from tests.unit.evaluation.audit.examples import observations_of, outcome_of, queries_of, spec_of


def test_mending_says_what_each_group_would_get() -> None:
    figures = outcome_of(12, spec=spec_of(mend=12)).figures
    mending = figures.costs["gender"]
    female = next(it for it in figures.groups if it.group == "female")
    # All queries are mended here, so that today's exposure is that of the audit.
    assert mending.today["female"].value == pytest.approx(female.exposure.value)
    assert female.if_mended == pytest.approx(mending.exposure["female"].value)
    for exposure in (mending.today, mending.exposure):
        assert sum(it.value for it in exposure.values()) == pytest.approx(1)
    gaps = [
        abs(exposure["female"].value - female.target.value)
        for exposure in (mending.today, mending.exposure)
    ]
    assert gaps[1] < 0.3 * gaps[0]


def test_candidates_without_a_label_are_counted() -> None:
    figures = outcome_of(12, unlabelled=0.25).figures
    counted = 0.0
    for it in observations_of(queries_of(12), unlabelled=0.25):
        rows = it.groups["gender"]["rows"]
        labelled = [sum(it.groups["gender"]["patterns"][row]) for row in rows]
        counted += sum(
            r for r, label in zip(it.relevance or (), labelled, strict=True) if not label
        )
    assert figures.unlabelled["gender"] == pytest.approx(counted)
    assert figures.unlabelled["origin"] == 0
    # Without relevance the candidates are what was answered.
    without = {"with_relevance": False, "relevance": "unknown"}
    found = outcome_of(12, unlabelled=0.25, spec=spec_of(target="uniform:1"), **without).figures
    assert 12 * 30 * 0.15 < found.unlabelled["gender"] < 12 * 30 * 0.35


@cache
def _outcome() -> AuditOutcome:
    return outcome_of(unlabelled=0.1, empty=("q3",), failed=("q1",))


def _csv(name: str, outcome: AuditOutcome) -> str:
    return files_of(outcome)[f"{name}.csv"].decode()


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_the_numbers_of_an_audit_stay_as_they_were_read_once() -> None:
    # Machines add in different orders, which shows in the last digits.
    found = json.loads(audit_json(_outcome()), parse_float=lambda text: float(f"{float(text):.6g}"))
    check_text("audit.json", json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def _names(found: object) -> set[str]:
    if isinstance(found, dict):
        return set(found).union(*map(_names, found.values()))
    return set().union(*map(_names, found)) if isinstance(found, list) else set()


def test_every_field_is_documented() -> None:
    scored = (VersionScores(scores={"a": 1.0, "b": 0.0}),)
    pairs = compare_versions("bm25", [PairScores(query=1, status="ok", pairs=scored)], 0)
    outcome = replace(outcome_of(8), pairs=pairs)
    found = json.loads(audit_json(outcome))
    assert found["pairs"]["comparisons"]
    del found["spec"], found["engine"]
    text = (Path(__file__).parents[4] / "docs" / "reference" / "audit-files.md").read_text(
        encoding="utf-8"
    )
    groups = {it["group"] for it in found["groups"]}
    # Names of an estimate stand in its example.
    assert not [
        name for name in _names(found) - {"kind", *groups} if not re.search(f'[`"]{name}[`"]', text)
    ]


def test_what_has_no_value_is_null_and_an_empty_cell() -> None:
    outcome = outcome_of(8, with_relevance=False, relevance="unknown")
    found = json.loads(audit_json(outcome))
    assert found["relevance"] == "unknown"
    female = found["groups"][0]
    assert female["lean"] == {"value": None, "interval": None, "queries": 0, "p": None}
    (row, *_) = _rows(_csv("results", outcome))
    assert row["lean"] == row["target"] == ""
    frames = frames_of(outcome)
    assert math.isnan(frames["results"].lean[0])


def test_frames_of_an_audit_without_answers_have_all_columns() -> None:
    frames = frames_of(outcome_of(4, empty=("q1", "q2", "q3", "q4")))
    assert list(frames["queries"].columns) == list(frames_of(_outcome())["queries"].columns)
    assert list(frames["queries"].status) == ["empty"] * 4
    assert list(frames["results"].group[:2]) == ["female", "male"]


def test_tables_have_a_row_for_each_group_and_for_each_query_and_group() -> None:
    rows = _rows(_csv("results", _outcome()))
    assert len(rows) == 2 + 3 + 6
    female, own = rows[0], _outcome().figures.groups[0]
    assert (female["attribute"], female["group"], female["verdict"]) == ("gender", "female", "less")
    assert float(female["exposure"]) == pytest.approx(own.exposure.value)
    assert float(female["exposure_low"]) == pytest.approx(own.exposure.low)
    assert float(female["p"]) == pytest.approx(own.lean.p)
    rows = _rows(_csv("queries", _outcome()))
    assert len(rows) == 38 * (2 + 3 + 6) + 2
    unanswered = {row["number"]: row["status"] for row in rows if not row["attribute"]}
    assert unanswered == {"1": "failed", "3": "empty"}
    one = [row for row in rows if row["number"] == "9" and row["attribute"] == "gender"]
    assert [row["group"] for row in one] == ["female", "male"]
    assert sum(float(row["exposure"]) for row in one) == pytest.approx(1, abs=1e-5)
    assert {row["weight"] for row in one} == {"9"}


def test_queries_that_were_asked_rarely_are_nowhere() -> None:
    # The spec prints those that were asked at least five times; q1 was asked once, and so on.
    outcome = _outcome()
    by_number = {int(row["number"]): row for row in _rows(_csv("queries", outcome))}
    for number in range(1, 41):
        row = by_number[number]
        assert (row["query"], row["text"]) == (
            (f"q{number}", f"people of town {number - 1}") if number >= 5 else ("", "")
        )
    for text in (audit_json(outcome).decode(), _csv("queries", outcome)):
        assert '"q2"' not in text
        assert "people of town 1\n" not in text.replace('"', "\n").replace(",", "\n")


def test_a_plain_list_of_queries_does_not_say_how_often_they_were_asked() -> None:
    outcome = outcome_of(8)
    queries = tuple(AuditQuery(it.id, it.text) for it in outcome.queries.queries)
    plain = replace(outcome, queries=replace(outcome.queries, queries=queries))
    assert all(row["text"] for row in _rows(_csv("queries", plain)))


def test_no_cell_is_a_formula_or_has_control_characters() -> None:
    hostile = ['=HYPERLINK("http://evil.example")', "+1", "-2", "@SUM(A1)", "a\x00b\x1b[31m"]
    outcome = outcome_of(12, texts=["", "", "", "", *hostile], prefix="=d")
    texts = {row["text"] for row in _rows(_csv("queries", outcome))}
    assert {"'" + text for text in hostile[:4]} <= texts
    assert "a\ufffdb\ufffd[31m" in texts


def test_a_lone_surrogate_is_an_escape_in_the_json() -> None:
    outcome = outcome_of(12, prefix="\ud800")
    found = json.loads(audit_json(outcome))
    assert found["contributions"][0]["shown"][0].startswith("\ud800")
