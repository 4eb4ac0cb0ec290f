"""The report of Fair RAG: its numbers are the measures' own, and it is whole for any run."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from fairqr.evaluation.rag.measures import KEYS, POLICY, Name, curves_of
from fairqr.evaluation.rag.report import figures_of, values_of
from fairqr.evaluation.rag.store import AnswerRecord
from fairqr.evaluation.reports.writer import render
from tests.golden.reports import check_report
from tests.unit.evaluation.rag.small_rag import Made, made
from tests.unit.evaluation.reports.pages import read_report

HOSTILE = "<script>alert(1)</script> | `x` *y* $\\frac{ & &lt; ]]> [a](http://evil.example)"


def _text(run: Made) -> str:
    """The report without its figures, which take long to draw."""
    return render("fair_rag", values_of(run.measured()), [])


def test_the_report_as_a_whole(tmp_path: Path) -> None:
    """Its means are those of measures.csv, which another reader would use."""
    of = {"note": "A note.", "left_out": {"the profile is empty": 2}}
    measured = made(alphas=[1, 2, 4, 8], of=of).measured()
    measured.write_report(tmp_path)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    check_report("fair_rag", text)
    explained = text.split("| measure | what it is |")[1].replace("\\", "")
    assert [line.split("|")[1].strip() for line in explained.splitlines()[2:]] == list(Name)
    assert len(read_report(tmp_path).named("svg")) == 8
    table = pd.read_csv(tmp_path / "measures.csv", keep_default_na=False, na_values={"value": ""})
    is_of_groups = table.measure.str.contains(",.*: ")
    by_group = table[is_of_groups & table.measure.str.startswith("exposure")]
    assert by_group.groupby(KEYS).value.sum().to_numpy() == pytest.approx(1)
    is_of_all = table["query"] == ""
    curves = table[is_of_all & (table.measure == "area")].set_index(["retriever", "policy"]).value
    wanted = curves_of(measured.values).set_index(["retriever", "normalisation"]).area
    assert curves.to_dict() == pytest.approx(wanted.to_dict())
    assert len(table[is_of_all & table.measure.str.startswith("EU/u_max")]) > 0
    table = table[~is_of_groups & ~is_of_all]
    assert len(table) == len(measured.values) * len(Name)
    by_query = table.groupby([*POLICY, "measure", "query"]).value.mean()
    by_policy = by_query.groupby([*POLICY, "measure"]).agg(["mean", "count"])
    means = measured.means.set_index([*POLICY, "measure"])[["mean", "queries"]]
    assert len(means) == 2 * (2 * 5 + 1) * len(Name)
    for key, own in means.iterrows():
        assert [*by_policy.loc[key]] == pytest.approx([*own], nan_ok=True)


def test_what_a_run_lacks_is_said() -> None:
    """Why nothing was drawn, and what is still to do."""
    run = made(generators=["small"], retrievers=["bm25"], of={"schema": None}, judge="")
    assert "not finished" not in _text(run)
    label, first, *others = run.records
    failure = {"samples": (), "answers": (), "failure": "The scores are no numbers."}
    kept = [it for it in others if it.policy == "labels" or it.query == "q1"]
    run.records = [label, first.model_copy(update=failure), *kept]
    text = _text(run)
    for said in (
        "- 1 × The scores are no numbers.",
        "not finished: 0 queries without labels, and 19 policies on queries still",
        "No answer has a verdict on the documents that it used",
    ):
        assert said in text
    assert "## Groups" not in text


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("part", ["deterministic", "plackett-luce", "oracle", "undrawn"])
def test_any_part_of_a_run_can_be_reported(part: str) -> None:
    run = made(alphas=[0, 8], generators=["small"], retrievers=["bm25"])
    drawn = [it for it in run.records if it.policy != "labels"]
    run.records = [it for it in drawn if it.policy == part] or drawn[:1]
    if part == "undrawn":
        empty = {"samples": (), "answers": (), "failure": "no scores"}
        run.records += [it.model_copy(update=empty) for it in drawn[1:]]
    assert "## Cost" in _text(run)
    assert len(figures_of(run.measured())) <= 8


def test_the_same_results_in_another_order_give_the_same_files(tmp_path: Path) -> None:
    run = made(queries=5, generators=["small"], retrievers=["bm25"])
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        run.measured().write_report(folder)
        run.records.reverse()
    files = sorted(path for path in one.rglob("*") if path.is_file())
    assert len(files) == 11
    for path in files:
        assert path.read_bytes() == (other / path.relative_to(one)).read_bytes()


def test_hostile_names_never_become_markup(tmp_path: Path) -> None:
    run = made(of={"title": HOSTILE}, about=HOSTILE, retrievers=["bm25"])
    hostile = {"notes": (HOSTILE,), "attributor": HOSTILE, "versions": {HOSTILE: "1"}}
    run.manifest = run.manifest.model_copy(update=hostile | {"prompts": {HOSTILE: HOSTILE}})
    failed = AnswerRecord(ranking=(0, 1), status=HOSTILE)
    label, first, second, *others = run.records
    run.records = [
        label,
        first.model_copy(update={"samples": (), "answers": (), "failure": HOSTILE}),
        second.model_copy(update={"answers": (failed,)}),
        *others,
    ]
    run.measured().write_report(tmp_path)
    assert read_report(tmp_path).text.count("alert(1)") > 20
