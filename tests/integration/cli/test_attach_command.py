"""An index that fairqr did not make: attached by a file, searched, and left as it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fairqr import FairSearch
from fairqr.graph.search.result import SearchResult
from fairqr.retrieval.sources.source import load_source
from tests.servers.attached_people import PEOPLE, Server, people, state
from tests.servers.model_server import Main, ModelServer
from tests.servers.page_service import run_command, running, settings_for
from tests.servers.service_client import answers_all

pytestmark = [pytest.mark.elasticsearch, pytest.mark.usefixtures("clean_environment")]

INDEX = "hr-people-v2"
PUBLISHED = {id_: person for id_, person in PEOPLE.items() if person["published"]}
SEARCH = ("--model", "feedback", "--attribute", "gender", "-k", "10", "--json")
SOURCE = """name: people
engine: elasticsearch
title: headline
text: [bio]
query: {fields: ["headline^2", bio]}
filter: {term: {published: true}}
attributes:
  gender:
    field: person.sex
    groups: {female: [F, f], male: M}
    population: {female: 0.8, male: 0.2}
  height: {field: height, groups: {tall: {gte: 180}, small: {lt: 180}}}
  place: {labels: places.csv}
"""


@pytest.fixture(scope="module")
def index(elasticsearch_url: str) -> Iterator[Server]:
    """A server with an index of people, some of whom are not published."""
    with people(elasticsearch_url, INDEX) as server:
        yield server


@pytest.fixture
def source(clean_environment: Path, index: Server) -> Path:
    """The file that describes the index, with a file of labels beside."""
    rows = "".join(f"{id_},{'North' if id_ < 'p100' else 'South'}\n" for id_ in PEOPLE)
    (clean_environment / "places.csv").write_text("id,group\n" + rows)
    path = clean_environment / "people.source.yaml"
    path.write_text(f"{SOURCE}url: {index.url}\nindex: {INDEX}\n")
    return path


@pytest.mark.promise("engines")
def test_an_index_is_attached_and_left_as_it_was(
    quick: Main,
    source: Path,
    index: Server,
    model_server: ModelServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is written to an attached index; its check counts the values of each label and lists
    those in no group.

    By command, by Python and by the service: the same documents, and nothing is written.
    """
    before = state(index, INDEX)
    attached = quick("attach", source)
    assert attached.code == 0, attached
    assert "people: attached" in attached.stdout
    assert f"place, from places.csv: {len(PUBLISHED)} of {len(PUBLISHED)}" in attached.stdout
    assert "belongs to no group" in attached.stdout

    by_name = quick("search", "physicist", "--corpus", "people", *SEARCH)
    by_file = quick("search", "physicist", "--corpus", source, *SEARCH)
    assert by_name.code == by_file.code == 0, by_name
    result = SearchResult.model_validate(by_name.result)
    assert result.corpus == "people"
    assert result.divergence < result.baseline.divergence
    ids = [document.id for document in result.ranking]
    assert len(ids) == 10
    assert {*ids} <= PUBLISHED.keys()
    assert [one["id"] for one in by_file.result["ranking"]] == ids

    monkeypatch.chdir(source.parent)
    for named in ("people.source.yaml", "people", load_source(source)):
        with FairSearch.open(named, "feedback") as fair:
            found = fair.search("physicist", attribute="gender", k=10)
        assert [document.id for document in found.ranking] == ids

    target = ("--target", "retrieved:0.5,uniform:0.5")
    options = ("--model", "feedback", "-k", "10", "--json")
    all_three = quick("search", "physicist", "--corpus", "people", *target, *options)
    assert set(all_three.result["exposure"]) == {"gender", "height", "place"}

    model_server.does(answers_all)
    variables = settings_for(model_server, source.parent / "service")
    run_command(variables, "attach", source)
    with running(variables, "--corpus", "people") as service:
        asked = {"query": "physicist", "attributes": ["gender"], "k": 10, "model": "feedback"}
        answer = service.client.post("/v1/search", json=asked)
        assert answer.status_code == 200, answer.text
        assert [document["id"] for document in answer.json()["ranking"]] == ids
        (described,) = service.client.get("/v1/indexes").json()["indexes"]
        assert (described["name"], described["engine"]) == ("people", "elasticsearch")
        assert described["documents"] == len(PUBLISHED)
        assert described["attributes"]["place"]["groups"] == ["North", "South"]
        # No request names a file or an engine that the service was not given.
        for corpus, codes in (("notables", {403, 404}), (str(source), {403, 404}), ({}, {422})):
            answer = service.client.post("/v1/search", json={**asked, "corpus": corpus})
            assert answer.status_code in codes, answer.text
        assert service.client.get("/readyz").status_code == 200
    assert state(index, INDEX) == before
