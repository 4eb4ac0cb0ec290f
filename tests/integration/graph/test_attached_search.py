"""Fair searches of what fairqr has by a file or an object alone, by command and by Python.

An endpoint, a ranking that somebody exported, and a retriever of LangChain.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document

from fairqr import FairSearch
from tests.servers.model_server import Answer, Asked, Main, ModelServer, says
from tests.unit.retrieval.test_langchain_engine import WordRetriever


@pytest.fixture
def rows(people: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in people.read_text().splitlines()]


def write_labels(folder: Path, rows: list[dict[str, Any]], name: str) -> None:
    """Write a file of labels."""
    lines = [f"{row['id']},{row[name]}\n" for row in rows]
    (folder / f"{name}.csv").write_text("id,group\n" + "".join(lines))


@pytest.fixture
def endpoint(rows: list[dict[str, Any]]) -> Iterator[ModelServer]:
    """An endpoint that ranks people by how often their text has the words of the query."""
    server = ModelServer()

    def rank(asked: Asked) -> Answer:
        words = asked.body["find"]["words"].lower().split()
        scored = [
            {**person, "score": sum(person["text"].lower().count(w) for w in words)}
            for person in rows
        ]
        found = sorted((p for p in scored if p["score"]), key=lambda p: -p["score"])
        return Answer(body=json.dumps({"found": found[: asked.body["find"]["limit"]]}).encode())

    server.does(rank)
    yield server
    server.close()


@pytest.fixture
def source(endpoint: ModelServer, people: Path, rows: list[dict[str, Any]]) -> Path:
    """The file that describes the endpoint, with a file of labels beside."""
    write_labels(people.parent, rows, "continent")
    source = people.parent / "outside.source.yaml"
    source.write_text(f"""name: outside
engine: http
url: {endpoint.base_url}/find
body: {{find: {{words: "{{{{query}}}}", limit: "{{{{size}}}}"}}}}
hits: found
id: id
score: score
title: title
text: text
sample: physicist
attributes:
  gender: {{field: gender, groups: [female, male], population: {{female: 0.5, male: 0.5}}}}
  continent:
    labels: continent.csv
    population: {{Asia: 0.4, Europe: 0.3, Africa: 0.3}}
""")
    return source


@pytest.fixture
def retriever(rows: list[dict[str, Any]]) -> WordRetriever:
    documents = []
    for row in rows:
        metadata = {"name": row["title"], "about": {"gender": row["gender"]}}
        documents.append(Document(row["text"], id=row["id"], metadata=metadata))
    return WordRetriever(documents=documents)


def test_an_endpoint_is_checked_and_searched_fairly(
    source: Path, endpoint: ModelServer, model_server: ModelServer, quick: Main
) -> None:
    report = quick("attach", source, "--json").result
    assert report["engine"] == "http"
    labelled = {a["name"]: a["labelled"] for a in report["attributes"]}
    assert labelled == {"gender": 60, "continent": 60}
    asked = len(endpoint.asked)
    model_server.does(says({"keywords": ["woman", "laboratory"]}))
    result = quick(
        *("search", "physicist", "--corpus", "outside", "--attribute", "gender", "-k", "10"),
        *("--set", "ask=always"),
        *("--model", "openai:fake", "--base-url", model_server.base_url, "--json"),
    ).result
    assert result["divergence"] < result["baseline"]["divergence"] / 50
    words = [asked.body["find"]["words"] for asked in endpoint.asked[asked:]]
    assert words[0] == "physicist"
    assert set(words[1:]) == {"physicist woman laboratory"}
    with FairSearch.open(str(source)) as search:
        found = search.search("physicist", attribute="continent", method="baseline", k=10)
    assert [hit.groups["continent"] for hit in found.ranking] == [{"Europe": 1.0}] * 10


def test_an_exported_ranking_is_made_fairer(
    people: Path, rows: list[dict[str, Any]], quick: Main
) -> None:
    """It has all men before all women, for one query."""
    folder = people.parent
    ranked = sorted(rows, key=lambda row: (row["gender"] == "female", row["id"]))
    lines = [f"q1 Q0 {row['id']} {n} {100 - n} bm25\n" for n, row in enumerate(ranked, 1)]
    (folder / "bm25.run").write_text("".join(lines))
    (folder / "topics.tsv").write_text("q1\tphysicist\n")
    write_labels(folder, rows, "gender")
    source = folder / "exported.source.yaml"
    source.write_text("""name: exported
engine: run
runs: bm25.run
topics: topics.tsv
documents: documents.jsonl
attributes:
  gender: {labels: gender.csv, population: {female: 0.5, male: 0.5}}
""")
    report = quick("attach", source, "--json").result
    assert (report["engine"], report["documents"], report["sample_query"]) == ("run", 60, "q1")

    def asked(query: str, *more: str) -> Any:
        return quick("search", query, "--corpus", "exported", "--attribute", "gender", *more)

    baseline = asked("physicist", "--method", "baseline", "--json").result
    assert {group for hit in baseline["ranking"][:10] for group in hit["groups"]["gender"]} == {
        "male"
    }
    fair = asked("physicist", "--max-iterations", "0", "--json").result
    assert fair["divergence"] < baseline["divergence"] / 10
    with FairSearch.open(str(source)) as search:
        result = search.search("q1", attribute="gender", method="baseline", k=2)
    assert [hit.title for hit in result.ranking] == ["Person 1", "Person 2"]
    assert result.retriever == "run:bm25"
    refined = asked("physicist", "--model", "openai:none", "--base-url", "http://127.0.0.1:9/v1")
    assert "needs an engine that can answer any query" in refined.complaint()
