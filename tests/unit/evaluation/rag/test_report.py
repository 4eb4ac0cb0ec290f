"""The report of Fair RAG: its parts are the numbers, and names are never markup."""

from __future__ import annotations

import csv
import re
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markdown_it import MarkdownIt

from fairqr.base.errors import InputError
from fairqr.evaluation.experiments.report.parts import (
    Figure,
    Heading,
    Items,
    Paragraph,
    Report,
    Table,
)
from fairqr.evaluation.rag.analysis.measuring import MeasuredRag, measure_fair_rag
from fairqr.evaluation.rag.analysis.names import Name
from fairqr.evaluation.rag.records import AnswerRecord
from fairqr.evaluation.rag.report import exposure, use, utility, writing
from fairqr.evaluation.rag.report.writing import build_rag_report, write_rag_report
from fairqr.evaluation.rag.store import RagStore
from tests.unit.evaluation.rag.made_records import made
from tests.unit.evaluation.reports.pages import read

READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
HOSTILE = "<script>alert(1)</script> | `x` *y* $\\frac{ & &lt; ]]> [a](http://evil.example)"


@pytest.fixture(scope="module")
def measured() -> MeasuredRag:
    return made(alphas=(1.0, 2.0, 4.0, 8.0), samples=20).measured()


@pytest.fixture(scope="module")
def report(measured: MeasuredRag) -> Report:
    return build_rag_report(measured)


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes a second, and most of what is proved here stands in tables."""
    for module in (writing, exposure, use, utility):
        monkeypatch.setattr(module, "can_draw", lambda: False)


def _tables(report: Report, *words: str) -> list[Table]:
    return [
        block
        for block in report.blocks
        if isinstance(block, Table) and all(word in block.caption for word in words)
    ]


def _texts(report: Report) -> str:
    found = []
    for block in report.blocks:
        match block:
            case Paragraph(text) | Heading(text, _):
                found.append(text)
            case Items(items):
                found += items
            case Figure(_, caption, alt, _):
                found += [caption, alt]
            case Table():
                found.append(block.caption)
    return "\n".join(found)


def test_every_mean_is_the_mean_of_the_values_that_were_written(
    measured: MeasuredRag, report: Report, tmp_path: Path
) -> None:
    """Recomputed from measures.csv, which another reader would use."""
    written = write_rag_report(RagStore(tmp_path), measured)
    assert {path.name for path in written[:3]} == {"report.md", "report.html", "measures.csv"}
    rows = list(csv.DictReader((tmp_path / "measures.csv").read_text().splitlines()))
    assert len(rows) == len(measured.frame.cells) * len(Name)
    (table,) = _tables(report, "measures of the rankings")
    assert table.header[:4] == ("retriever", "policy", "EE-D", "EE-D/k")
    for line in table.rows:
        retriever = "" if line[0].text == "none" else line[0].text
        for column, name in enumerate(table.header[2:], start=2):
            by_query: dict[str, list[float]] = {}
            for row in rows:
                here = (row["retriever"], row["policy"], row["measure"])
                if here == (retriever, line[1].text, name) and row["value"]:
                    by_query.setdefault(row["query"], []).append(float(row["value"]))
            mean = np.mean([np.mean(values) for values in by_query.values()])
            # Rounding may leave a zero on either side.
            shown = line[column].text.replace("−", "-")
            assert float(shown) == pytest.approx(mean, abs=6e-5)
            assert line[column].note.endswith(f"n={len(by_query)}")


def test_disparity_falls_from_alpha_8_to_1_and_is_said_to(report: Report) -> None:
    (table,) = _tables(report, "measures of the rankings")
    for retriever in ("bm25", "dense"):
        values = {row[1].text: float(row[2].text) for row in table.rows if row[0].text == retriever}
        assert values["α = 1"] < values["α = 2"] < values["α = 4"] < values["α = 8"] <= 1
        assert values["deterministic"] == 1
        assert f"{retriever}: disparity (EE-D) falls at every step as α does" in _texts(report)
    (tests,) = _tables(report, "differences in normalised EE-D")
    assert len(tests.rows) == 2 * 6


def test_the_report_has_the_papers_tables_and_figures(report: Report) -> None:
    titles = [block.text for block in report.blocks if isinstance(block, Heading)]
    assert titles == [
        "In short",
        "Disparity by α",
        "Relevance against disparity",
        "Utility against exposure",
        "Random rankings against the deterministic one",
        "What answers use",
        "Groups",
        "Labels of utility",
        "What failed, and over how many things numbers are",
        "Cost",
        "How it was measured",
    ]
    figures = [block for block in report.blocks if isinstance(block, Figure)]
    beginnings = [figure.caption.split(",")[0].removeprefix("Films: ") for figure in figures]
    assert beginnings == [
        "normalised EE-D by α",
        "EE-R against EE-D",
        "EU/u_max against EE-R",
        "EU/u_max against EE-D",
        "EAR against EE-D",
        "EAR against EE-R",
        "EAE-D/k against EE-D/k",
        "EAE-D/(k·EAR) against EE-D/k",
    ]
    assert len({figure.name for figure in figures}) == len(figures)
    for figure in figures:
        ET.fromstring(figure.svg)
    (curves,) = _tables(report, "the slope of the least-squares line")
    assert [(row[0].text, row[1].text) for row in curves.rows] == [
        ("bm25", "bounds"), ("bm25", "fair-rag"), ("dense", "bounds"), ("dense", "fair-rag"),
    ]  # fmt: skip
    assert len(_tables(report, "Utility of random rankings less")) == 2


def test_what_the_labels_are_like_is_told(report: Report) -> None:
    (table,) = _tables(report, "Labels of utility")
    cells = [cell.text for cell in table.rows[0]]
    assert cells == [
        "Films", "small", "8", "6",
        "1 × fewer than 2 useful documents; 1 × the answer without documents failed",
        "36", "3.00", "0.5000", "0",
    ]  # fmt: skip
    assert table.rows[0][8].note == "1 × refused; 1 × timeout"


def test_a_generator_that_uses_all_that_it_reads_has_a_rate_of_1(no_plots: None) -> None:
    run = made(queries=12, alphas=(4.0,), samples=60, retrievers=("bm25",), generators=("g",))
    run.records = [
        record.model_copy(
            update={
                "answers": tuple(
                    answer.model_copy(update={"used": (True,) * len(answer.ranking)})
                    for answer in record.answers
                )
            }
        )
        for record in run.records
    ]
    report = build_rag_report(run.measured())
    (used,) = _tables(report, "what answers used, as the mean")
    assert {row[3].text for row in used.rows} == {"1.0000"}


def test_use_of_what_is_shown_most_alone_is_more_concentrated_than_exposure(
    no_plots: None,
) -> None:
    run = made(queries=12, alphas=(2.0,), samples=60, retrievers=("bm25",), generators=("g",))
    first = {r.query: r.samples[0][0] for r in run.records if r.policy == "deterministic"}
    run.records = [
        record.model_copy(
            update={
                "answers": tuple(
                    answer.model_copy(
                        update={"used": tuple(i == first[record.query] for i in answer.ranking)}
                    )
                    for answer in record.answers
                )
            }
        )
        for record in run.records
    ]
    text = _texts(build_rag_report(run.measured()))
    assert "what is used is more concentrated than what is shown" in text
    assert "more concentrated" not in _texts(build_rag_report(made(alphas=(0.0,)).measured()))


def test_where_all_documents_are_useful_the_report_says_why_there_is_no_relevance(
    no_plots: None,
) -> None:
    run = made(generators=("g",), retrievers=("bm25",), alphas=(2.0,))
    run.records = [
        record.model_copy(update={"useful": (0, 1, 2, 3, 4, 5)}) for record in run.records
    ]
    text = _texts(build_rag_report(run.measured()))
    assert "of 18 pairs of a policy and a query, EE-R has no value for: 18 × All items" in text


def test_failures_are_counted_and_nothing_else_is_lost(no_plots: None) -> None:
    run = made(generators=("g",), retrievers=("bm25",))
    records = []
    for record in run.records:
        answers = list(record.answers)
        if record.policy == "plackett-luce" and record.alpha == 1.0:
            broken = AnswerRecord(
                ranking=answers[0].ranking, times=answers[0].times, status="timeout"
            )
            answers = [broken, *answers[1:]]
        records.append(record.model_copy(update={"answers": tuple(answers)}))
    first = records[0]
    records[0] = first.model_copy(
        update={"samples": (), "answers": (), "failure": "The scores are no numbers."}
    )
    run.records = records
    report = build_rag_report(run.measured())
    (table,) = _tables(report, "over how many things the numbers are")
    by_policy = {row[2].text: row for row in table.rows}
    lost = sum(
        record.answers[0].times
        for record in records
        if record.policy == "plackett-luce" and record.alpha == 1.0
    )
    assert by_policy["α = 1"][8].text == str(lost)
    assert by_policy["α = 1"][8].note == f"{lost} × timeout"
    assert by_policy["deterministic"][4].text == "1"
    assert "1 × The scores are no numbers." in _texts(report)
    (worth,) = _tables(report, "expected utility, as it is")
    notes = {row[2].text: row[3].note for row in worth.rows}
    assert notes["α = 1"].endswith("n=6")
    assert notes["deterministic"].endswith("n=5")


def test_a_run_that_was_interrupted_says_what_is_missing(no_plots: None) -> None:
    run = made(generators=("g",))
    assert "not finished" not in _texts(build_rag_report(run.measured()))
    run.records = run.records[:-3]
    run.labels["films", "g"] = run.labels["films", "g"][1:]
    text = _texts(build_rag_report(run.measured()))
    assert "Films, g: not finished: 0 queries without labels" not in text
    run = made(generators=("g",))
    run.records = run.records[:-3]
    text = _texts(build_rag_report(run.measured()))
    assert "not finished: 0 queries without labels, and 3 policies on queries still" in text


def test_without_an_attributor_the_report_says_so_and_has_the_rest() -> None:
    run = made(generators=("g",))
    run.records = [
        record.model_copy(
            update={"answers": tuple(a.model_copy(update={"used": ()}) for a in record.answers)}
        )
        for record in run.records
    ]
    text = _texts(build_rag_report(run.measured()))
    assert "No answer has a verdict on what it used" in text
    assert "EU/u_max against EE-D" in text
    assert "EAR against" not in text


def test_an_attribution_rate_that_is_the_same_everywhere_is_said_to_be(no_plots: None) -> None:
    """A sentence for each generator of which it is so, and none where it differs."""
    said = "EAR is 0.0000 for every policy: the attributor says of no document"
    run = made(generators=("g",))
    assert "for every policy" not in _texts(build_rag_report(run.measured()))
    records = run.records
    for verdict, sentence in (
        (False, said),
        (True, "EAR is 1.0000 for every policy: so it does not tell"),
    ):
        run.records = [
            record.model_copy(
                update={
                    "answers": tuple(
                        a.model_copy(update={"used": (verdict,) * len(a.ranking)})
                        for a in record.answers
                    )
                }
            )
            for record in records
        ]
        assert _texts(build_rag_report(run.measured())).count(f"Films, g: {sentence}") == 1


def test_labels_that_are_gone_are_missed(no_plots: None) -> None:
    """Rankings were made with them, so a table of no labels would be wrong without a word."""
    run = made(generators=("g",))
    assert run.measured().warnings == ()
    run.labels = {("films", "g"): []}
    (sentence,) = run.measured().warnings
    assert sentence.startswith("Films, g: the labels of 6 of 6 queries that were ranked are gone")
    assert sentence in _texts(build_rag_report(run.measured()))


def test_groups_are_left_out_where_there_are_none(no_plots: None) -> None:
    assert "Groups" not in _texts(build_rag_report(made(schema=None).measured()))


def test_the_groups_shares_are_those_of_the_rankings(no_plots: None) -> None:
    run = made(generators=("g",), retrievers=("bm25",), alphas=(2.0,))
    shares, _ = _tables(build_rag_report(run.measured()), "Films, gender")
    assert shares.header == ("generator", "retriever", "policy", "female", "male", "unknown",
                             "queries")  # fmt: skip
    for policy, kind in (("α = 2", "plackett-luce"), ("oracle", "oracle")):
        expected = []
        for record in run.records:
            if record.policy == kind:
                read = Counter(i for sample in record.samples for i in sample)
                female = sum(count for i, count in read.items() if i in (0, 3))
                expected.append(female / sum(read.values()))
        (row,) = [row for row in shares.rows if row[2].text == policy]
        assert float(row[3].text) == pytest.approx(np.mean(expected), abs=1e-4)
        # Two of the three useful documents are of women.
        assert "target 0.6667" in row[3].note


def test_the_same_results_in_another_order_give_the_same_files(tmp_path: Path) -> None:
    run = made(queries=5, generators=("g",), retrievers=("bm25",))
    one, other = RagStore(tmp_path / "one"), RagStore(tmp_path / "other")
    for store in (one, other):
        write_rag_report(store, run.measured())
        run.records.reverse()
    files = sorted(path for path in one.folder.rglob("*") if path.is_file())
    assert len(files) == 11
    for path in files:
        assert path.read_bytes() == (other.folder / path.relative_to(one.folder)).read_bytes()


def test_hostile_names_never_become_markup(tmp_path: Path) -> None:
    run = made(title=HOSTILE, generators=(f"local:{HOSTILE}",), about=HOSTILE)
    run.manifest = run.manifest.model_copy(
        update={"notes": (HOSTILE,), "attributor": HOSTILE, "versions": {HOSTILE: "1"}}
    )
    first = run.records[0]
    run.records[0] = first.model_copy(update={"samples": (), "answers": (), "failure": HOSTILE})
    write_rag_report(RagStore(tmp_path), run.measured())
    page = read((tmp_path / "report.html").read_text())
    assert page.wrong == []
    assert not {tag for tag, _ in page.tags} & {"script", "img", "iframe"}
    assert "alert(1)" in page.text
    links = [attrs.get("href", "") for tag, attrs in page.tags if tag == "a"]
    assert all(link.startswith("#") for link in links)
    tokens = READER.parse((tmp_path / "report.md").read_text())
    kinds: Counter[str] = Counter()
    for token in tokens:
        kinds.update(child.type for child in token.children or [])
        kinds[token.type] += 1
    assert not kinds["html_inline"]
    assert not kinds["html_block"]
    assert not kinds["link_open"]
    assert kinds["image"] == 8


def test_the_page_is_whole_and_fetches_nothing(measured: MeasuredRag, tmp_path: Path) -> None:
    write_rag_report(RagStore(tmp_path), measured)
    html = (tmp_path / "report.html").read_text()
    page = read(html)
    assert page.wrong == []
    assert not page.open
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(set(ids)) == len(ids)
    assert not re.search(r'(src|href)="(?!#)', html)
    assert "nan" not in re.findall(r"\w+", page.text.lower())


def test_without_matplotlib_the_report_is_written_without_plots(
    measured: MeasuredRag, tmp_path: Path, no_plots: None
) -> None:
    with pytest.raises(InputError, match="without plots"):
        write_rag_report(RagStore(tmp_path), measured)
    assert "There are no plots" in (tmp_path / "report.md").read_text()
    assert not (tmp_path / "figures").exists()


def test_an_experiment_without_rankings_cannot_be_measured() -> None:
    run = made()
    with pytest.raises(InputError, match="no rankings yet"):
        measure_fair_rag(run.manifest, [], run.labels, run.collections)
    with pytest.raises(InputError, match="'films', which is not among"):
        measure_fair_rag(run.manifest, run.records, run.labels, {})


@pytest.mark.parametrize("queries", [1, 2])
def test_a_report_of_a_query_or_two_claims_nothing_from_intervals(
    queries: int, no_plots: None
) -> None:
    changes: dict[str, Any] = {"alphas": (1.0,), "samples": 1}
    text = _texts(build_rag_report(made(queries=queries, **changes).measured()))
    assert "more concentrated" not in text
