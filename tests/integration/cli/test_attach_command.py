"""An index that fairqr did not make: attached by a file, searched, and left as it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairqr import FairSearch
from fairqr.graph.search.result import SearchResult
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.source import load_source
from tests.integration.attached_people import ATTRIBUTES, LABELS, PEOPLE, Server, people, state
from tests.integration.model_server import Command, Main, ModelServer
from tests.integration.page_service import run_command, running, settings_for
from tests.integration.service_client import answers_all

pytestmark = [pytest.mark.elasticsearch, pytest.mark.usefixtures("clean_environment")]

INDEX = "hr-people-v3"
SEARCH = ("--model", "feedback", "--attribute", "gender", "-k", "10", "--json")
SOURCE: dict[str, Any] = {
    "name": "people",
    "engine": "elasticsearch",
    "index": INDEX,
    "title": "headline",
    "text": ["bio"],
    "query": {"fields": ["headline^2", "bio"]},
    "filter": {"term": {"published": True}},
    "attributes": {
        "gender": {**ATTRIBUTES["gender"], "population": {"female": 0.5, "male": 0.5}},
        "era": LABELS["era"],
        "continent": {"labels": "continents.csv"},
    },
}
PUBLISHED = {id_: person for id_, person in PEOPLE.items() if person["published"]}
SEXES = Counter(person["person"].get("sex") for person in PUBLISHED.values())


def write(path: Path, **changes: Any) -> None:
    """Write a source file with changes; one of None leaves a part out."""
    path.write_text(
        yaml.safe_dump({name: it for name, it in {**SOURCE, **changes}.items() if it is not None})
    )


@pytest.fixture(scope="module")
def index(elasticsearch_url: str) -> Iterator[Server]:
    """A server with an index of people, of whom some are not published."""
    with people(elasticsearch_url, INDEX) as server:
        yield server


@pytest.fixture
def source(clean_environment: Path, index: Server) -> Path:
    """The file that describes the index, with a file of labels beside."""
    rows = (f"{id_},{('Asia', 'Africa', 'Europe')[n % 3]}\n" for n, id_ in enumerate(PEOPLE))
    (clean_environment / "continents.csv").write_text("id,group\n" + "".join(rows))
    path = clean_environment / "people.source.yaml"
    write(path, url=index.url)
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
    assert {*ids} <= PUBLISHED.keys()
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
        assert described["documents"] == len(PUBLISHED)
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
    labelled = len(PUBLISHED) - SEXES["X"] - SEXES[None]
    for words in (
        "8.12.2",
        f"documents: {len(PUBLISHED)}",
        f"gender, from person.sex: {labelled} of {len(PUBLISHED)} documents have a group",
        "belongs to no group",
        f"continent, from continents.csv: {len(PUBLISHED)} of",
        "sample query",
    ):
        assert words in run.stdout
    report = quick("source", "check", "people", "--json").result
    assert report == quick("source", "check", source, "--json").result
    (gender,) = [one for one in report["attributes"] if one["name"] == "gender"]
    groups = {"M": "male", "F": "female", "f": "female", "X": None}
    values = {one["value"]: (one["documents"], one["group"]) for one in gender["values"]}
    assert values == {value: (SEXES[value], group) for value, group in groups.items()}
    assert report["sample"]


def test_a_draft_can_be_attached(command: Command, source: Path, index: Server) -> None:
    """What is written from the mapping is a source, unless it has no text to search."""
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
    with index.index("hr-codes", {}, {"properties": {"code": {"type": "keyword"}}}):
        drafted = command("attach", "--draft", "--url", index.url, "--index", "hr-codes")
        assert "The index 'hr-codes' has no text field" in drafted.complaint()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"index": "nothing-like-it"}, "nothing-like-it"),
        ({"attributes": {"gender": {"labels": "none.csv"}}}, "none.csv"),
        ({"attributes": {"a": {"field": "person.sex", "groups": ["b", "c"]}}}, "person.sex"),
        ({"query": None, "body": {"query": {"match": {"bio": "x"}}}}, "{{query}}"),
        ({"query": None, "body": {"query": {"nomatch": {"bio": "{{query}}"}}}}, "nomatch"),
        ({"credentials": "nobody"}, "credentials.nobody"),
        ({"url": "http://127.0.0.1:9"}, "127.0.0.1:9"),
        ({"name": "notables"}, "notables"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_registers_nothing(
    quick: Main, source: Path, index: Server, changes: dict[str, Any], said: str
) -> None:
    """It ends with exit code 2, and names what is wrong."""
    write(source, **{"url": index.url, **changes})
    assert said in quick("attach", source).complaint()
    assert Catalog().sources() == {}
