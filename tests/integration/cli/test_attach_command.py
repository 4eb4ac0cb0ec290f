"""An index that fairqr did not make: attached by a file, searched, and left as it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairqr import FairSearch
from fairqr.graph.search.result import SearchResult
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.source import load_source
from tests.integration.attached_people import Server, state
from tests.integration.model_server import Command, Main, ModelServer, write_people
from tests.integration.page_service import run_command, running, settings_for
from tests.integration.service_client import answers_all

pytestmark = [pytest.mark.elasticsearch, pytest.mark.usefixtures("clean_environment")]

INDEX = "hr-people-v2"
MAPPING = {
    "properties": {
        "headline": {"type": "text", "fields": {"raw": {"type": "keyword"}}},
        "bio": {"type": "text", "analyzer": "english"},
        "person": {"properties": {"sex": {"type": "keyword"}}},
        "born": {"type": "integer"},
        "published": {"type": "boolean"},
    }
}
SEARCH = ("--model", "feedback", "--attribute", "gender", "-k", "10", "--json")


def source_text(url: str, **changes: str) -> str:
    """Return a source file; a change replaces the line that begins with its name, or adds it."""
    lines = {
        "name": "people",
        "engine": "elasticsearch",
        "url": url,
        "index": INDEX,
        "title": "headline",
        "text": "[bio]",
        "query": '{fields: ["headline^2", bio]}',
        "filter": "{term: {published: true}}",
        "attributes": (
            "\n  gender: {field: person.sex, groups: {female: [F, f], male: M},"
            " population: {female: 0.5, male: 0.5}}"
            "\n  era: {field: born, groups: {older: {lt: 1930}, younger: {gte: 1930}}}"
            "\n  continent: {labels: continents.csv}"
        ),
    } | changes
    return "".join(f"{name}: {value}\n" for name, value in lines.items() if value)


@pytest.fixture(scope="module")
def persons(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Sixty people."""
    text = write_people(tmp_path_factory.mktemp("persons")).read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def index(elasticsearch_url: str, persons: list[dict[str, Any]]) -> Iterator[Server]:
    """A server with an index of them and one more, who is not published."""
    documents = {}
    for person in [*persons, {"id": "hidden", "title": "x", "text": "physicist"}]:
        number = int(person["id"][1:]) if person["id"] != "hidden" else 0
        sex = {"female": "F" if number % 2 else "f", "male": "M"}.get(person.get("gender", ""))
        documents[person["id"]] = {
            "headline": person["title"],
            "bio": person["text"],
            # One has a value that belongs to no group.
            "person": {"sex": "X" if number == 59 else sex},
            "born": 1900 + number,
            "published": person["id"] != "hidden",
        }
    server = Server(elasticsearch_url)
    with server.client, server.index(INDEX, documents, MAPPING):
        yield server


@pytest.fixture
def source(clean_environment: Path, index: Server, persons: list[dict[str, Any]]) -> Path:
    """The file that describes the index, with a file of labels beside."""
    rows = "".join(f"{person['id']},{person['continent']}\n" for person in persons)
    (clean_environment / "continents.csv").write_text("id,group\n" + rows)
    path = clean_environment / "people.source.yaml"
    path.write_text(source_text(index.url))
    return path


def test_an_index_is_attached_searched_everywhere_and_left_as_it_was(
    command: Command,
    source: Path,
    index: Server,
    model_server: ModelServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By command, by Python and by the service: the same documents, and nothing is written."""
    before = state(index, INDEX)
    attached = command("attach", source)
    assert attached.code == 0, attached
    assert "people: attached" in attached.stdout

    by_name = command("search", "physicist", "--corpus", "people", *SEARCH)
    by_file = command("search", "physicist", "--corpus", source, *SEARCH)
    assert by_name.code == by_file.code == 0, by_name
    result = SearchResult.model_validate(by_name.result)
    assert result.corpus == "people"
    assert len(result.ranking) == 10
    assert result.divergence < result.baseline.divergence
    ids = [document.id for document in result.ranking]
    assert "hidden" not in ids
    assert [one["id"] for one in by_file.result["ranking"]] == ids

    monkeypatch.chdir(source.parent)
    for named in ("people.source.yaml", "people", load_source(source)):
        with FairSearch.open(named, "feedback") as fair:
            found = fair.search("physicist", attribute="gender", k=10)
        assert [document.id for document in found.ranking] == ids

    target = ("--target", "retrieved:0.5,uniform:0.5")
    options = ("--model", "feedback", "-k", "10", "--json")
    all_three = command("search", "physicist", "--corpus", "people", *target, *options)
    assert set(all_three.result["exposure"]) == {"gender", "era", "continent"}

    model_server.does(answers_all)
    variables = settings_for(model_server, source.parent / "service")
    run_command(variables, "attach", source)
    with running(variables, "--corpus", "people") as service:
        asked = {"query": "physicist", "attributes": ["gender"], "k": 10, "model": "feedback"}
        answer = service.client.post("/v1/search", json=asked)
        assert answer.status_code == 200, answer.text
        assert [document["id"] for document in answer.json()["ranking"]] == ids
        (described,) = service.client.get("/v1/indexes").json()["indexes"]
        assert described["name"] == "people"
        assert described["engine"] == "elasticsearch"
        assert described["documents"] == 60
        assert described["attributes"]["continent"]["groups"] == ["Africa", "Asia", "Europe"]
        # No request names a file or an engine that the service was not given.
        for corpus, codes in (("notables", {403, 404}), (str(source), {403, 404}), ({}, {422})):
            answer = service.client.post("/v1/search", json={**asked, "corpus": corpus})
            assert answer.status_code in codes, answer.text
        assert service.client.get("/readyz").status_code == 200
    assert state(index, INDEX) == before


def test_the_check_says_what_is_there(quick: Main, source: Path) -> None:
    """Server, documents, fields, each value with its count, and which belong to no group."""
    run = quick("attach", source)
    assert run.code == 0, run
    assert "8.12.2" in run.stdout
    assert "documents: 60" in run.stdout
    assert "gender, from person.sex: 59 of 60 documents have a group" in run.stdout
    assert "belongs to no group" in run.stdout
    assert "continent, from continents.csv: 60 of" in run.stdout
    assert "sample query" in run.stdout
    report = quick("source", "check", "people", "--json").result
    assert report == quick("source", "check", source, "--json").result
    assert report["documents"] == 60
    (gender,) = [one for one in report["attributes"] if one["name"] == "gender"]
    values = {(one["value"], one["documents"], one["group"]) for one in gender["values"]}
    assert values == {("M", 39, "male"), ("F", 10, "female"), ("f", 10, "female"), ("X", 1, None)}
    assert report["sample"]


def test_a_draft_can_be_attached(command: Command, source: Path, index: Server) -> None:
    """What is written from the mapping is a source, and says which values there are."""
    before = state(index, INDEX)
    where = ("--url", index.url, "--index", INDEX)
    file = source.parent / "drafted.source.yaml"
    drafted = command("attach", "--draft", *where, "-o", file)
    assert drafted.code == 0, drafted
    assert command("attach", "--draft", *where).stdout == file.read_text()
    described = load_source(file)
    assert "person.sex" in {one.field for one in described.attributes.values()}
    attached = command("attach", file)
    assert attached.code == 0, attached
    # A mapping does not know the population.
    target = ("--target", "retrieved:0.5,uniform:0.5")
    arguments = (*target, "--model", "feedback", "-k", "5", "--json")
    found = command("search", "physicist", "--corpus", described.name, *arguments)
    assert len(found.result["ranking"]) == 5
    assert state(index, INDEX) == before


def test_an_index_without_text_has_no_draft(quick: Main, index: Server) -> None:
    """No source could search it, so no file is written."""
    numbers = {"properties": {"year": {"type": "integer"}, "code": {"type": "keyword"}}}
    with index.index("hr-codes", {}, numbers):
        where = ("--url", index.url, "--index", "hr-codes")
        drafted = quick("attach", "--draft", *where, "-o", "a.yaml")
        assert "The index 'hr-codes' has no text field" in drafted.complaint()
        assert not Path("a.yaml").exists()


GENDER = "\n  gender: {field: person.sex, groups: {female: [F, f], male: M}}"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"index": "nothing-like-it"}, "nothing-like-it"),
        ({"attributes": "\n  gender: {labels: none.csv}"}, "none.csv"),
        ({"attributes": "\n  gender: {field: person.sex, groups: [woman, man]}"}, "person.sex"),
        ({"query": "", "body": "{query: {match: {bio: x}}}"}, "{{query}}"),
        ({"query": "", "body": '{query: {nomatch: {bio: "{{query}}"}}}'}, "nomatch"),
        ({"credentials": "nobody"}, "credentials.nobody"),
        ({"url": "http://127.0.0.1:9"}, "127.0.0.1:9"),
        ({"name": "notables"}, "notables"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_registers_nothing(
    quick: Main, source: Path, index: Server, changes: dict[str, str], said: str
) -> None:
    """It ends with exit code 2, and names what is wrong."""
    source.write_text(source_text(**{"url": index.url, **changes}))
    assert said in quick("attach", source).complaint()
    assert Catalog().sources() == {}
