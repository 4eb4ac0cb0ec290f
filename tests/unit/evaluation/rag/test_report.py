"""The report of Fair RAG: its numbers are the measures' own."""

from __future__ import annotations

import csv
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markdown_it import MarkdownIt

from fairqr.base.errors import InputError
from fairqr.evaluation.rag.measures import Name
from fairqr.evaluation.rag.measuring import MeasuredRag, measure_fair_rag
from fairqr.evaluation.rag.report import figures_of, values_of
from fairqr.evaluation.rag.store import AnswerRecord, RagStore
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


@pytest.fixture(scope="module")
def part(measured: MeasuredRag) -> dict[str, Any]:
    found: dict[str, Any] = values_of(measured)["parts"][0]
    return found


def _text(measured: MeasuredRag) -> str:
    return render("fair_rag", values_of(measured))


def _used(run: Made, uses: Callable[[str, tuple[int, ...]], tuple[bool, ...]]) -> MeasuredRag:
    """Measure a run whose answers use what is said, by query and ranking."""
    run.records = [
        record.model_copy(
            update={
                "answers": tuple(
                    answer.model_copy(update={"used": uses(record.query, answer.ranking)})
                    for answer in record.answers
                )
            }
        )
        for record in run.records
    ]
    return run.measured()


def test_every_measure_is_explained(measured: MeasuredRag) -> None:
    explained = _text(measured).split("| measure | what it is |")[1].replace("\\", "")
    assert [line.split("|")[1].strip() for line in explained.splitlines()[2:]] == list(Name)


def test_the_report_as_a_whole(reported: Path) -> None:
    check_report("fair_rag", (reported / "report.md").read_text(encoding="utf-8"))


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


def test_disparity_falls_from_alpha_8_to_1(part: dict[str, Any]) -> None:
    for row in part["falls"]:
        assert [policy for policy, _ in row["means"]] == ["α = 8", "α = 4", "α = 2", "α = 1"]
        assert row["falls"]
        assert row["always"]
        assert (row["tests"], row["holding"], row["too_few"]) == (6, 0, True)
    fixed = part["rankings"].set_index(["retriever", "policy"])["EE-D"]
    assert fixed["bm25", "deterministic"] == "1.0000 *n=6*"
    assert len(part["differences"]) == 2 * 6


def test_the_report_has_the_papers_figures_and_curves(
    measured: MeasuredRag, part: dict[str, Any], reported: Path
) -> None:
    figures = figures_of(measured)
    lines = (reported / "report.md").read_text(encoding="utf-8").splitlines()
    captions = [lines[place + 2] for place, line in enumerate(lines) if line.startswith("![")]
    assert [caption.split(", means")[0].removeprefix("Films: ") for caption in captions] == [
        "normalised EE-D by α, mean over queries. 0 is even exposure, and 1 is one fixed ranking; "
        "the larger α, the nearer the samples are to the deterministic ranking.",
        "EE-R against EE-D",
        "EU/u\\_max against EE-R",
        "EU/u\\_max against EE-D",
        "EAR against EE-D",
        "EAR against EE-R",
        "EAE-D/k against EE-D/k, answered",
        "EAE-D/(k·EAR) against EE-D/k, answered",
    ]
    assert {figure.name for figure in figures} == set(part["figures"].values())
    for figure in figures:
        ET.fromstring(figure.svg)
    assert part["curves"][["retriever", "normalisation"]].to_numpy().tolist() == [
        ["bm25", "bounds"],
        ["bm25", "fair-rag"],
        ["dense", "bounds"],
        ["dense", "fair-rag"],
    ]
    assert len(values_of(measured)["intervals"]) == 2


def test_what_the_labels_are_like_is_told(measured: MeasuredRag) -> None:
    assert measured.labels.iloc[0].to_dict() == {
        "collection": "films",
        "generator": "small",
        "labelled": 8,
        "kept": 6,
        "documents": 36,
        "unlabelled": 0,
        "useful": 18,
        "useful_mean": 3,
        "useful_sd": 0,
        "share": 0.5,
        "dropped": {
            "fewer than 2 useful documents": 1,
            "the answer without documents failed": 1,
        },
        "failures": {"refused": 1, "timeout": 1},
        "model_calls": 42,
        "tokens": 0,
        "milliseconds": 0,
    }
    assert (
        "| Films | small | 8 | 6 "
        "| 1 × fewer than 2 useful documents; 1 × the answer without documents failed "
        "| 36 | 3.00 *sd 0.00 18 in all* | 0.5000 | 0 *1 × refused; 1 × timeout* |"
    ) in _text(measured)


def test_a_generator_that_uses_all_that_it_reads_has_a_rate_of_1() -> None:
    run = made(queries=12, alphas=(4.0,), samples=60, retrievers=("bm25",), generators=("g",))
    measured = _used(run, lambda _, ranking: (True,) * len(ranking))
    assert set(measured.values[Name.EAR]) == {1.0}


def test_where_all_documents_are_useful_the_report_says_why_there_is_no_relevance() -> None:
    run = made(generators=("g",), retrievers=("bm25",), alphas=(2.0,))
    run.records = [
        record.model_copy(update={"useful": (0, 1, 2, 3, 4, 5)}) for record in run.records
    ]
    text = _text(run.measured())
    assert "of 18 pairs of a policy and a query, EE-R has no value for: 18 × All items" in text


def test_failures_are_counted_and_nothing_else_is_lost() -> None:
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
    failure = {"samples": (), "answers": (), "failure": "The scores are no numbers."}
    records[0] = records[0].model_copy(update=failure)
    run.records = records
    measured = run.measured()
    values = values_of(measured)
    counts = values["parts"][0]["counts"].set_index("policy")
    lost = sum(
        record.answers[0].times
        for record in records
        if record.policy == "plackett-luce" and record.alpha == 1.0
    )
    assert counts.failed["α = 1"] == {"timeout": lost}
    assert counts.undrawn["deterministic"] == 1
    assert f"| {lost} *{lost} × timeout* |" in _text(measured)
    assert values["failures"] == [("The scores are no numbers.", 1)]
    means = measured.frames["means"]
    worth = means[means.measure == Name.EU].set_index("policy").queries
    assert worth["α = 1"] == 6
    assert worth["deterministic"] == 5


def test_a_run_that_was_interrupted_says_what_is_missing() -> None:
    run = made(generators=("g",))
    assert values_of(run.measured())["missing"] == []
    run.records = run.records[:-3]
    (sentence,) = values_of(run.measured())["missing"]
    assert "not finished: 0 queries without labels, and 3 policies on queries still" in sentence


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("part", ["deterministic", "plackett-luce", "oracle", "first", "undrawn"])
def test_any_part_of_a_run_can_be_reported(part: str) -> None:
    run = made(alphas=(0.0, 8.0))
    records = run.records
    run.records = [record for record in records if record.policy == part] or records[:1]
    if part == "undrawn":
        empty = {"samples": (), "answers": (), "failure": "no scores"}
        run.records += [record.model_copy(update=empty) for record in records[1:]]
    measured = run.measured()
    assert "## Cost" in render("fair_rag", values_of(measured), figures_of(measured))


def test_without_an_attributor_the_report_says_so_and_has_the_rest() -> None:
    run = made(generators=("g",))
    measured = _used(run, lambda *_: ())
    assert not values_of(measured)["has_use"]
    text = render("fair_rag", values_of(measured), figures_of(measured))
    assert "No answer has a verdict on the documents that it used" in text
    assert "EU/u\\_max against EE-D" in text
    assert "EAR against" not in text


def test_an_attribution_rate_that_is_the_same_everywhere_is_said_to_be() -> None:
    """For each generator of which it is so, and for none where it differs."""
    assert values_of(made(generators=("g",)).measured())["parts"][0]["constant"] == []
    for verdict, rate in ((False, 0.0), (True, 1.0)):
        measured = _used(
            made(generators=("g",)),
            lambda _, ranking, verdict=verdict: (verdict,) * len(ranking),  # type: ignore[misc]
        )
        assert values_of(measured)["parts"][0]["constant"] == [("g", rate)]
        said = f"Films, g: EAR is {rate:.4f} for every policy"
        assert _text(measured).count(said) == 1


def test_labels_that_are_gone_are_missed() -> None:
    """Rankings were made with them, so a table of no labels would be wrong without a word."""
    run = made(generators=("g",))
    assert run.measured().warnings == ()
    run.labels = {("films", "g"): []}
    measured = run.measured()
    (sentence,) = measured.warnings
    assert sentence.startswith("Films, g: the labels of 6 of 6 queries that were ranked are gone")
    assert sentence in values_of(measured)["missing"]


def test_two_collections_stand_in_the_order_of_the_experiment() -> None:
    """With groups in one of them, a family of tests for each, and one for the intervals of both."""
    run, other = (made(queries=9, schema=schema) for schema in (SCHEMA, None))
    (entry,) = run.manifest.collections
    entries = (entry.model_copy(update={"name": "zoo", "title": "Zoo"}), entry)
    run.manifest = run.manifest.model_copy(update={"collections": entries})
    run.records += [r.model_copy(update={"collection": "zoo"}) for r in other.records]
    run.labels |= {("zoo", name): found for (_, name), found in other.labels.items()}
    run.collections["zoo"] = other.collections["films"]
    values = values_of(run.measured())
    assert [part["title"] for part in values["parts"]] == ["Zoo", "Films"]
    assert [len(part["groups"]) for part in values["parts"]] == [0, 1]
    assert [set(part["differences"].tests) for part in values["parts"]] == [{2}, {2}]
    for rows in values["intervals"].values():
        assert rows.collection.tolist() == ["Zoo"] * 4 + ["Films"] * 4
        zoo, films = (rows[rows.collection == name] for name in ("Zoo", "Films"))
        assert zoo.generator.tolist() == ["small", "small", "large", "large"]
        assert zoo.iloc[:, 1:].to_numpy().tolist() == films.iloc[:, 1:].to_numpy().tolist()


def test_groups_are_left_out_where_there_are_none() -> None:
    measured = made(schema=None).measured()
    assert values_of(measured)["parts"][0]["groups"] == []
    assert measured.groups.empty
    assert "## Groups" not in _text(measured)


def test_the_groups_shares_are_those_of_the_rankings() -> None:
    run = made(generators=("g",), retrievers=("bm25",), alphas=(2.0,))
    (group,) = values_of(run.measured())["parts"][0]["groups"]
    assert group["title"] == "Films, gender"
    shares = group["shares"]
    assert list(shares.columns) == [
        "generator",
        "retriever",
        "policy",
        "female",
        "male",
        "unknown",
        "queries",
    ]
    for policy, kind in (("α = 2", "plackett-luce"), ("oracle", "oracle")):
        expected = []
        for record in run.records:
            if record.policy == kind:
                read = Counter(i for sample in record.samples for i in sample)
                female = sum(count for i, count in read.items() if i in (0, 3))
                expected.append(female / sum(read.values()))
        (found,) = shares[shares.policy == policy].female
        assert float(found.split()[0]) == pytest.approx(np.mean(expected), abs=1e-4)
        # Two of the three useful documents are of women.
        assert "target 0.6667" in found


def test_the_same_results_in_another_order_give_the_same_files(tmp_path: Path) -> None:
    run = made(queries=5, generators=("g",), retrievers=("bm25",))
    one, other = RagStore(tmp_path / "one"), RagStore(tmp_path / "other")
    for store in (one, other):
        run.measured().write_report(store.folder)
        run.records.reverse()
    files = sorted(path for path in one.folder.rglob("*") if path.is_file())
    assert len(files) == 11
    for path in files:
        assert path.read_bytes() == (other.folder / path.relative_to(one.folder)).read_bytes()


def test_hostile_names_never_become_markup(tmp_path: Path) -> None:
    run = made(title=HOSTILE, generators=(f"local:{HOSTILE}",), about=HOSTILE)
    run.manifest = run.manifest.model_copy(
        update={
            "notes": (HOSTILE,),
            "attributor": HOSTILE,
            "versions": {HOSTILE: "1"},
            "collections": (
                run.manifest.collections[0].model_copy(update={"left_out": {HOSTILE: 1}}),
            ),
        }
    )
    failed = AnswerRecord(ranking=(0, 1), times=1, status=HOSTILE)
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
    kinds: Counter[str] = Counter()
    for token in READER.parse((tmp_path / "report.md").read_text()):
        kinds.update(child.type for child in token.children or [])
        kinds[token.type] += 1
    assert not kinds["html_inline"]
    assert not kinds["html_block"]
    assert not kinds["link_open"]
    assert kinds["image"] == 8


def test_the_page_is_whole(reported: Path) -> None:
    page = read((reported / "report.html").read_text())
    assert len(page.named("svg")) == 8
    assert "nan" not in page.text.lower().split()


def test_an_experiment_without_rankings_cannot_be_measured() -> None:
    run = made()
    with pytest.raises(InputError, match="no rankings yet"):
        measure_fair_rag(run.manifest, [], run.labels, run.collections)
    with pytest.raises(InputError, match="'films', which is not among"):
        measure_fair_rag(run.manifest, run.records, run.labels, {})


@pytest.mark.parametrize("queries", [1, 2])
def test_a_report_of_a_query_or_two_claims_nothing(queries: int) -> None:
    measured = made(queries=queries, alphas=(1.0,), samples=1).measured()
    assert "| yes |" not in _text(measured)
