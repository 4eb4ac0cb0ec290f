"""A fair search through an endpoint that fairqr knows by a file alone: by command and by Python."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairqr import FairSearch
from tests.integration.model_server import (
    Answer,
    Asked,
    Command,
    Main,
    ModelServer,
    clean_environment,
    command,
    model_server,
    people,
    quick,
    says,
)

__all__ = ["clean_environment", "command", "model_server", "people", "quick"]


@pytest.fixture
def endpoint(people: Path) -> Iterator[ModelServer]:
    """An endpoint that ranks people by how often their text has the words of the query."""
    documents = [json.loads(line) for line in people.read_text().splitlines()]
    server = ModelServer()

    def rank(asked: Asked) -> Answer:
        words = asked.body["find"]["words"].lower().split()
        scored = [
            ({**person, "score": sum(person["text"].lower().count(w) for w in words)})
            for person in documents
        ]
        found = sorted((p for p in scored if p["score"]), key=lambda p: -p["score"])
        return Answer(body=json.dumps({"found": found[: asked.body["find"]["limit"]]}).encode())

    server.does(rank)
    yield server
    server.close()


@pytest.fixture
def source(endpoint: ModelServer, people: Path) -> Path:
    """The file that describes the endpoint, with a file of labels beside."""
    rows = [json.loads(line) for line in people.read_text().splitlines()]
    labels = "".join(f"{row['id']},{row['continent']}\n" for row in rows)
    (people.parent / "continents.csv").write_text(f"id,group\n{labels}")
    path = people.parent / "outside.source.yaml"
    path.write_text(f"""name: outside
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
    labels: continents.csv
    population: {{Asia: 0.4, Europe: 0.3, Africa: 0.3}}
""")
    return path


def test_the_command_checks_the_source_and_searches_fairly(
    source: Path, endpoint: ModelServer, model_server: ModelServer, command: Command
) -> None:
    report = command("attach", source, "--json").result
    assert report["engine"] == "http"
    assert {a["name"]: a["labelled"] for a in report["attributes"]} == {
        "gender": 60,
        "continent": 60,
    }
    asked = len(endpoint.asked)
    model_server.does(says({"keywords": ["woman", "laboratory"]}))
    result = command(
        *("search", "physicist", "--corpus", "outside", "--attribute", "gender", "-k", "10"),
        *("--set", "ask=always"),
        *("--model", "openai:fake", "--base-url", model_server.base_url, "--json"),
    ).result
    shown = {group for person in result["ranking"] for group in person["groups"]["gender"]}
    assert shown == {"female", "male"}
    assert result["divergence"] < result["baseline"]["divergence"] / 50
    words = [asked.body["find"]["words"] for asked in endpoint.asked[asked:]]
    assert words[0] == "physicist"
    assert set(words[1:]) == {"physicist woman laboratory"}


def test_python_searches_the_same_file(source: Path) -> None:
    with FairSearch.open(str(source)) as search:
        result = search.search("physicist", attribute="continent", method="plain", k=10)
    assert [hit.groups["continent"] for hit in result.ranking] == [{"Europe": 1.0}] * 10


@pytest.mark.parametrize(
    ("options", "purpose"),
    [
        (["--model", "feedback"], "The refiner 'feedback' needs an engine that can count"),
        (["--set", "rerank=original_query"], "The order 'original_query' needs an engine that can"),
        (
            ["--target", "corpus:1"],
            "all documents is not known, so the target cannot have the part",
        ),
    ],
)
def test_what_an_endpoint_cannot_do_is_said_in_one_sentence(
    source: Path, quick: Main, model_server: ModelServer, options: list[str], purpose: str
) -> None:
    model = ["--model", "openai:fake", "--base-url", model_server.base_url]
    options = options if "--model" in options else [*options, *model]
    run = quick("search", "physicist", "--corpus", source, "--attribute", "gender", *options)
    assert purpose in run.complaint()
