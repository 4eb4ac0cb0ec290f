"""A ranking that somebody exported: attached, measured and made fairer, by command and Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairqr import FairSearch
from tests.integration.model_server import (
    Command,
    Main,
    clean_environment,
    command,
    people,
    quick,
)

__all__ = ["clean_environment", "command", "people", "quick"]


@pytest.fixture
def source(people: Path) -> Path:
    """All men before all women, for one query; labels of gender stand beside."""
    rows = [json.loads(line) for line in people.read_text().splitlines()]
    ranked = sorted(rows, key=lambda row: (row["gender"] == "female", row["id"]))
    folder = people.parent
    (folder / "bm25.run").write_text(
        "".join(f"q1 Q0 {row['id']} {n} {100 - n} bm25\n" for n, row in enumerate(ranked, 1))
    )
    (folder / "topics.tsv").write_text("q1\tphysicist\n")
    (folder / "gender.csv").write_text(
        "id,group\n" + "".join(f"{row['id']},{row['gender']}\n" for row in rows)
    )
    path = folder / "exported.source.yaml"
    path.write_text("""name: exported
engine: run
runs: bm25.run
topics: topics.tsv
documents: documents.jsonl
attributes:
  gender: {labels: gender.csv, population: {female: 0.5, male: 0.5}}
  continent: {field: continent, groups: [Asia, Europe, Africa]}
""")
    return path


def test_the_command_attaches_it_measures_it_and_makes_it_fairer(source: Path, quick: Main) -> None:
    report = quick("attach", source, "--json").result
    assert (report["engine"], report["documents"], report["sample_query"]) == ("run", 60, "q1")
    assert {a["name"]: a["labelled"] for a in report["attributes"]} == {
        "gender": 60,
        "continent": 60,
    }
    asked = ("search", "physicist", "--corpus", "exported", "--attribute", "gender", "-k", "10")
    plain = quick(*asked, "--method", "plain", "--json").result
    assert {group for hit in plain["ranking"] for group in hit["groups"]["gender"]} == {"male"}
    fair = quick(*asked, "--max-iterations", "0", "--json").result
    assert fair["divergence"] < plain["divergence"] / 10


def test_python_searches_by_the_id_of_the_query(source: Path) -> None:
    with FairSearch.open(str(source)) as search:
        result = search.search("q1", attribute="gender", method="plain", k=5)
    assert [(hit.id, hit.title) for hit in result.ranking][:2] == [
        ("p01", "Person 1"),
        ("p02", "Person 2"),
    ]
    assert result.retriever == "run:bm25"


def test_a_query_that_it_does_not_have_is_one_sentence(source: Path, command: Command) -> None:
    asked = ("search", "chemist", "--corpus", source, "--attribute", "gender")
    run = command(*asked, "--max-iterations", "0")
    assert run.complaint() == (
        "No run of 'exported' has the query 'chemist'; ask by id or by text for one that it has, "
        "such as q1."
    )


def test_a_search_that_would_refine_is_refused_before_a_model_is_asked(
    source: Path, quick: Main
) -> None:
    model = ("--model", "openai:none", "--base-url", "http://127.0.0.1:9/v1")
    run = quick("search", "physicist", "--corpus", source, "--attribute", "gender", *model)
    assert run.complaint() == (
        "Refining the query needs an engine that can answer any query, and 'exported' cannot; set "
        "max_iterations to 0."
    )
