"""``fairqr evaluate``: what it prints and writes, and what it says of bad input."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

Fairqr = Callable[..., Any]

SCHEMA = (
    "attributes: {gender: {field: gender, groups: [female, male],"
    " population: {female: 0.5, male: 0.5}}}"
)


QUERIES = [f"q{number}" for number in range(8)]


def write_run(name: str, order: str) -> None:
    """Write a run that ranks the same for each query."""
    rows = []
    for query in QUERIES:
        for rank, id_ in enumerate(order, start=1):
            rows.append(f"{query} Q0 {id_} {rank} {10 - rank} {name}\n")
    Path(f"{name}.run").write_text("".join(rows))


@pytest.fixture(autouse=True)
def evaluate(monkeypatch: pytest.MonkeyPatch, fairqr: Fairqr) -> Fairqr:
    """Runs the command in a folder with two runs, judgements and documents."""
    monkeypatch.setenv("COLUMNS", "120")
    people = [("f", "female"), ("g", "female"), ("m", "male"), ("n", "male"), ("u", None)]
    lines = [json.dumps({"id": id_, "title": id_, "gender": gender}) for id_, gender in people]
    Path("people.jsonl").write_text("\n".join(lines) + "\n")
    Path("people.schema.yaml").write_text(SCHEMA)
    write_run("low", "unmgf")
    write_run("high", "fmgnu")
    judgements = [f"{query} 0 f 1\n{query} 0 m 1\n{query} 0 n 0\n" for query in QUERIES]
    Path("qrels").write_text("".join(judgements))

    return partial(fairqr, "evaluate")


AVERAGE_PRECISION = (1 / 3 + 2 / 5) / 2
"""In the run ``low``, m is at rank 3 and f at rank 5."""

LOW_RUN = ("low.run", "--qrels", "qrels", "--corpus", "people.jsonl", "--attribute", "gender")


def test_it_prints_means_and_what_they_are_over(evaluate: Fairqr) -> None:
    code, stdout, stderr = evaluate(*LOW_RUN, "--measures", "nDCG@20,AWRF@20", "--measures", "P@2")
    assert code == 0

    lines = stdout.splitlines()
    assert lines[0] == "low  8 queries"

    measures = [line.split()[0] for line in lines[2:5]]
    assert measures == ["nDCG@20", "AWRF@20(attribute=gender)", "P@2"]
    assert lines[4].split()[1] == "0.0000"
    assert [line.split()[1] for line in lines[6:8]] == ["female", "male"]
    assert stderr == "fairqr: 1 of 5 documents ranked by low have no known gender.\n"


def test_who_gets_seen_is_told_of_each_run(evaluate: Fairqr) -> None:
    _, stdout, _ = evaluate(*LOW_RUN, "--measures", "AWRF@2", "--compare", "high.run")
    low, high = (line.split() for line in stdout.splitlines() if line.startswith("gender: f"))
    assert low[2] != high[2]
    assert low[3] == high[3]

    _, stdout, _ = evaluate(*LOW_RUN, "--measures", "AWRF@2", "--compare", "high.run", "--json")
    shares = [run["by_group"][0]["exposure"] for run in json.loads(stdout)["runs"]]
    assert [f"{share:.4f}" for share in shares] == [low[2], high[2]]


def test_without_measures_the_usual_ones_are_computed(evaluate: Fairqr) -> None:
    text = evaluate(*LOW_RUN).stdout
    usual = ("nDCG@20 ", "P@20", "AP ", "AWRF@20(attribute=gender)", "nDCG@20×AWRF@20")
    assert [name for name in usual if name not in text] == []


def test_without_groups_no_measure_of_fairness_is_computed(evaluate: Fairqr) -> None:
    assert "AWRF" not in evaluate("low.run", "--qrels", "qrels").stdout


def test_the_help_of_measures_lists_them(evaluate: Fairqr) -> None:
    assert "EE-D@20(attribute=gender)" in evaluate("--measures", "help").stdout


@pytest.mark.promise("command")
def test_json_is_one_object_with_values_by_query(evaluate: Fairqr) -> None:
    """`fairqr evaluate --json` prints one object that has the runs, their measures, the values by
    query and the notes.
    """
    stdout = evaluate(*LOW_RUN, "--measures", "AP,AWRF@2", "--json", "--by-query").stdout
    (run,) = json.loads(stdout)["runs"]
    assert (run["run"], run["queries"]) == ("low", 8)

    ap, awrf = run["measures"]
    assert ap["values"]["q0"] == pytest.approx(AVERAGE_PRECISION)
    assert (awrf["count"], awrf["best"]) == (8, "1 is fair")
    assert run["notes"][0]["kind"] == "unlabelled_documents"


@pytest.mark.promise("evaluation")
def test_a_table_has_the_values_by_query(evaluate: Fairqr) -> None:
    """A table that `--csv` writes has the same values by query."""
    evaluate(*LOW_RUN, "--measures", "AP,AWRF@2", "--csv", "out/values.csv")
    with Path("out/values.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 16
    assert float(rows[0]["value"]) == pytest.approx(AVERAGE_PRECISION)


COMPARED = (*LOW_RUN, "--measures", "nDCG@2,AWRF@2", "--compare", "high.run")


def test_a_comparison_says_which_differences_hold(evaluate: Fairqr) -> None:
    text = " ".join(evaluate(*COMPARED).stdout.split())
    assert "nDCG@2: high is 1.0000 above low (better) over 8 queries; the difference holds" in text
    assert "Holm-corrected for 2" in text


def test_a_comparison_is_an_object_for_scripts(evaluate: Fairqr) -> None:
    comparisons = json.loads(evaluate(*COMPARED, "--json").stdout)["comparisons"]
    row = comparisons["rows"][0]
    assert row["randomisation"] == pytest.approx(2 / 2**8)
    assert row["holds"] is True


def test_runs_of_one_name_are_told_apart_by_their_files(evaluate: Fairqr) -> None:
    Path("again.run").write_text(Path("low.run").read_text())
    others = ("--compare", "again.run", "--compare", "high.run", "--json")
    _, stdout, _ = evaluate("low.run", "--qrels", "qrels", "--measures", "AP", *others)
    names = [run["run"] for run in json.loads(stdout)["runs"]]

    assert names == ["low (low.run)", "low (again.run)", "high"]


@pytest.mark.promise("evaluation")
def test_by_query_shows_values_and_reasons(evaluate: Fairqr) -> None:
    """Each query has a value, or the reason why it has none; queries without judgements
    are left out and counted.
    """
    Path("qrels").write_text("q0 0 f 1\nq1 0 f 0\n")
    _, stdout, stderr = evaluate("low.run", "--qrels", "qrels", "--measures", "AP", "--by-query")
    rows = [line.split() for line in stdout.splitlines()]

    assert ["q0", "AP", "0.2000"] in rows
    assert ["q1", "AP", "–", "no", "relevant"] in rows
    assert "6 queries of low without judgements: left out." in stderr


def test_groups_may_come_from_an_index(evaluate: Fairqr, fairqr: Fairqr) -> None:
    """Both ways to the groups give the same."""
    assert fairqr("index", "create", "people", "people.jsonl").code == 0

    by_file = evaluate(*LOW_RUN, "--measures", "AWRF@20", "--json")
    by_index = evaluate(
        "low.run", "--qrels", "qrels", "--corpus", "people", "--measures", "AWRF@20", "--json"
    )
    assert by_index[1:] == by_file[1:]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "An evaluation needs a run"),
        (("low.run", "--measures", "AP"), "AP needs judgements; pass qrels in Python, or --qrels"),
        (("low.run", "--qrels", "qrels", "--measures", "nDGC@20"), "the measures are nDCG, P, R"),
        (("low.run", "--qrels", "qrels", "--measures", "AWRF@20"), "--corpus"),
        ((*LOW_RUN, "--target", "retrieved:1"), "write relevance instead"),
        ((*LOW_RUN, "--ties", "coin"), "cannot be ordered by 'coin'"),
        ((*LOW_RUN, "--corpus", "absent.jsonl"), "There is no corpus at absent.jsonl"),
        (("qrels", "--qrels", "qrels"), "qrels, line 1: it has 4 fields instead of the 6"),
        ((*LOW_RUN, "--measures", "AP", "--csv", "people.jsonl/x.csv"), "check the path"),
    ],
    ids=[
        "no run",
        "no judgements",
        "no such measure",
        "no groups",
        "target of a search",
        "ties",
        "no corpus",
        "no run's form",
        "no folder",
    ],
)
def test_what_is_wrong_is_one_sentence(
    evaluate: Fairqr, arguments: tuple[str, ...], words: str
) -> None:
    code, stdout, stderr = evaluate(*arguments)
    assert (code, stdout) == (2, "")
    assert words in stderr.splitlines()[-1]


def test_names_in_files_cannot_steer_the_terminal(evaluate: Fairqr) -> None:
    Path("odd.run").write_text("q0 Q0 f 1 1 \x1b[2Jred\nq0\x1b[3m Q0 f 1 1 \x1b[2Jred\n")
    _, stdout, stderr = evaluate("odd.run", "--qrels", "qrels", "--measures", "AP", "--by-query")
    assert "\x1b" not in stdout + stderr
    assert "red" in stdout
