"""An index that fairqr did not make: attached by a file, searched, and left as it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairqr import FairSearch
from fairqr.graph.search.result import SearchResult
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.source import load_source
from tests.integration.attached_people import PEOPLE, Server, people, state
from tests.integration.model_server import Command, Main, ModelServer
from tests.integration.page_service import run_command, running, settings_for
from tests.integration.service_client import answers_all

pytestmark = [pytest.mark.elasticsearch, pytest.mark.usefixtures("clean_environment")]

INDEX = "hr-people-v2"
PUBLISHED = {id_: person for id_, person in PEOPLE.items() if person["published"]}
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
            " population: {female: 0.8, male: 0.2}}"
            "\n  height: {field: height, groups: {tall: {gte: 180}, small: {lt: 180}}}"
            "\n  place: {labels: places.csv}"
        ),
    } | changes
    return "".join(f"{name}: {value}\n" for name, value in lines.items() if value)


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
    all_three = command("search", "physicist", "--corpus", "people", *target, *options)
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


def test_the_check_says_what_is_there(quick: Main, source: Path) -> None:
    """Server, documents, fields, each value with its count, and which belong to no group."""
    run = quick("attach", source)
    assert run.code == 0, run
    sexes = Counter(person["person"].get("sex") for person in PUBLISHED.values())
    labelled = sum(sexes[sex] for sex in "FfM")
    assert "8.12.2" in run.stdout
    assert f"documents: {len(PUBLISHED)}" in run.stdout
    assert f"gender, from person.sex: {labelled} of {len(PUBLISHED)} documents have" in run.stdout
    assert "belongs to no group" in run.stdout
    assert f"place, from places.csv: {len(PUBLISHED)} of" in run.stdout
    assert "sample query" in run.stdout
    report = quick("source", "check", "people", "--json").result
    assert report == quick("source", "check", source, "--json").result
    (gender,) = [one for one in report["attributes"] if one["name"] == "gender"]
    values = {(one["value"], one["documents"], one["group"]) for one in gender["values"]}
    groups = {"F": "female", "f": "female", "M": "male", "X": None}
    assert values == {(sex, sexes[sex], group) for sex, group in groups.items()}
    assert report["sample"]


def test_an_index_without_text_has_no_draft(quick: Main, index: Server) -> None:
    """No source could search it, so no file is written."""
    numbers = {"properties": {"year": {"type": "integer"}, "code": {"type": "keyword"}}}
    with index.index("hr-codes", {}, numbers):
        where = ("--url", index.url, "--index", "hr-codes")
        drafted = quick("attach", "--draft", *where, "-o", "a.yaml")
        assert "The index 'hr-codes' has no text field" in drafted.complaint()
        assert not Path("a.yaml").exists()


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
