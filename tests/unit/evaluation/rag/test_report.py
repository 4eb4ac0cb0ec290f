"""The report of Fair RAG: its numbers are the measures' own, and it is whole for any run."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from markdown_it import MarkdownIt

from fairqr.evaluation.rag.measures import MeasuredRag, Name
from fairqr.evaluation.rag.report import figures_of, values_of
from fairqr.evaluation.rag.store import AnswerRecord
from fairqr.evaluation.reports.writer import render
from tests.golden.reports import check_report
from tests.unit.evaluation.rag.made_records import SCHEMA, Made, made
from tests.unit.evaluation.reports.pages import read

READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
HOSTILE = "<script>alert(1)</script> | `x` *y* $\\frac{ & &lt; ]]> [a](http://evil.example)"


@pytest.fixture(scope="module")
def measured() -> MeasuredRag:
    return made(alphas=(1.0, 2.0, 4.0, 8.0), samples=20).measured()


@pytest.fixture(scope="module")
def reported(measured: MeasuredRag, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the report of these results."""
    folder = tmp_path_factory.mktemp("reported")
    written = measured.write_report(folder)
    names = [path.name for path in written]
    assert (names[:2], names[-1]) == (["report.md", "report.html"], "measures.csv")
    return folder


def _text(run: Made) -> str:
    measured = run.measured()
    return render("fair_rag", values_of(measured), figures_of(measured))


def test_the_report_as_a_whole(reported: Path) -> None:
    text = (reported / "report.md").read_text(encoding="utf-8")
    check_report("fair_rag", text)
    explained = text.split("| measure | what it is |")[1].replace("\\", "")
    assert [line.split("|")[1].strip() for line in explained.splitlines()[2:]] == list(Name)
    page = read((reported / "report.html").read_text())
    assert len(page.named("svg")) == 8
    assert "nan" not in page.text.lower().split()


def test_every_mean_is_the_mean_of_the_values_that_were_written(
    measured: MeasuredRag, reported: Path
) -> None:
    """Recomputed from measures.csv, which another reader would use."""
    rows = list(csv.DictReader((reported / "measures.csv").read_text().splitlines()))
    assert len(rows) == len(measured.values) * len(Name)
    means = measured.frames["means"]
    assert len(means) == 2 * (2 * 5 + 1) * len(Name)
    for line in means.itertuples():
        by_query: dict[str, list[float]] = {}
        for row in rows:
            here = (row["generator"], row["retriever"], row["policy"], row["measure"])
            if here == (line.generator, line.retriever, line.policy, line.measure) and row["value"]:
                by_query.setdefault(row["query"], []).append(float(row["value"]))
        assert line.queries == len(by_query)
        if by_query:
            mean = np.mean([np.mean(values) for values in by_query.values()])
            assert line.mean == pytest.approx(mean)


def test_the_report_has_the_papers_figures_and_tables(reported: Path) -> None:
    lines = (reported / "report.md").read_text(encoding="utf-8").splitlines()
    captions = [lines[place + 2] for place, line in enumerate(lines) if line.startswith("![")]
    assert [caption.split(", mean")[0].removeprefix("Films: ") for caption in captions] == [
        "normalised EE-D by α",
        "EE-R against EE-D",
        "EU/u\\_max against EE-R",
        "EU/u\\_max against EE-D",
        "EAR against EE-D",
        "EAR against EE-R",
        "EAE-D/k against EE-D/k, answered",
        "EAE-D/(k·EAR) against EE-D/k, answered",
    ]
    starts = ["| bm25 | bounds |", "| bm25 | fair-rag |", "| Films | small | bm25 |"]
    assert [sum(line.startswith(start) for line in lines) for start in starts] == [1, 1, 2]


def test_what_a_run_lacks_is_said() -> None:
    """What was declined, why nothing was drawn, and what is still to do."""
    run = made(generators=("g",), retrievers=("bm25",))
    assert "not finished" not in _text(run)
    failure = {"samples": (), "answers": (), "failure": "The scores are no numbers."}
    first, second, *others = run.records
    declined = second.answers[0].model_copy(update={"status": "refused", "utility": None})
    run.records = [
        first.model_copy(update=failure),
        second.model_copy(update={"answers": (declined, *second.answers[1:])}),
        *(it for it in others if not (it.policy == "oracle" and it.query in ("q4", "q5"))),
    ]
    text = _text(run)
    assert "- 1 × The scores are no numbers." in text
    assert f"| {declined.times} *{declined.times} × refused* |" in text
    assert "not finished: 0 queries without labels, and 2 policies on queries still" in text
    run.records = [it.model_copy(update={"useful": (0, 1, 2, 3, 4, 5)}) for it in run.records]
    assert "EE-R has no value for 21 pairs of a policy and a query: all relevant" in _text(run)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("part", ["deterministic", "plackett-luce", "oracle", "first", "undrawn"])
def test_any_part_of_a_run_can_be_reported(part: str) -> None:
    run = made(alphas=(0.0, 8.0))
    records = run.records
    run.records = [record for record in records if record.policy == part] or records[:1]
    if part == "undrawn":
        empty = {"samples": (), "answers": (), "failure": "no scores"}
        run.records += [it.model_copy(update=empty) for it in records[1:] if it.policy != "labels"]
    assert "## Cost" in _text(run)


def test_without_an_attributor_or_groups_the_report_has_the_rest() -> None:
    run = made(generators=("g",), schema=None)
    for record in run.records:
        unused = tuple(it.model_copy(update={"used": ()}) for it in record.answers)
        record.__dict__["answers"] = unused
    text = _text(run)
    assert "No answer has a verdict on the documents that it used" in text
    assert "EU/u\\_max against EE-D" in text
    assert "EAR against" not in text
    assert "## Groups" not in text


def test_two_collections_stand_in_the_order_of_the_experiment() -> None:
    """With groups in one of them, and one table of intervals for both."""
    run, other = (made(queries=9, schema=schema) for schema in (SCHEMA, None))
    run.records += [record.model_copy(update={"collection": "zoo"}) for record in other.records]
    run.collections = {"zoo": other.collections["films"], **run.collections}
    values = values_of(run.measured())
    assert [len(part["groups"]) for part in values["parts"]] == [0, 1]
    for _, rows in values["intervals"].values():
        assert rows.collection.tolist() == ["zoo"] * 20 + ["films"] * 20
        assert rows.difference[:20].dropna().tolist() == rows.difference[20:].dropna().tolist()


def test_the_same_results_in_another_order_give_the_same_files(tmp_path: Path) -> None:
    run = made(queries=5, generators=("g",), retrievers=("bm25",))
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        run.measured().write_report(folder)
        run.records.reverse()
    files = sorted(path for path in one.rglob("*") if path.is_file())
    assert len(files) == 11
    for path in files:
        assert path.read_bytes() == (other / path.relative_to(one)).read_bytes()


def test_hostile_names_never_become_markup(tmp_path: Path) -> None:
    run = made(title=HOSTILE, generators=(f"local:{HOSTILE}",), about=HOSTILE)
    hostile = {"notes": (HOSTILE,), "attributor": HOSTILE, "versions": {HOSTILE: "1"}}
    run.manifest = run.manifest.model_copy(update=hostile | {"prompts": {HOSTILE: HOSTILE}})
    failed = AnswerRecord(ranking=(0, 1), status=HOSTILE)
    first, second, *others = run.records
    run.records = [
        first.model_copy(update={"samples": (), "answers": (), "failure": HOSTILE}),
        second.model_copy(update={"answers": (failed,)}),
        *others,
    ]
    run.measured().write_report(tmp_path)
    page = read((tmp_path / "report.html").read_text())
    assert not {tag for tag, _ in page.tags} & {"script", "img", "iframe"}
    assert page.text.count("alert(1)") > 40
    links = [attrs.get("href", "") for tag, attrs in page.tags if tag == "a"]
    assert all(link.startswith("#") for link in links)
    tokens = READER.parse((tmp_path / "report.md").read_text())
    kinds = Counter(it.type for token in tokens for it in (token, *(token.children or [])))
    assert not kinds.keys() & {"html_inline", "html_block", "link_open"}
    assert kinds["image"] == 8
