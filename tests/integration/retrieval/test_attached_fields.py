"""Fields of unusual kinds: what a draft makes of them, and labels that are read from them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairqr.base.errors import IndexUnavailableError
from fairqr.retrieval.engines.elasticsearch.drafting import draft
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.engines.opening import check_source
from fairqr.retrieval.sources.corpus import BUILT_IN, find_corpus
from fairqr.retrieval.sources.source import load_source
from tests.servers.attached_people import Server, attached, described
from tests.unit.engines import hits_of

pytestmark = [pytest.mark.elasticsearch, pytest.mark.usefixtures("clean_environment")]

INDEX = "hr-unusual"
TEXT = {"type": "text"}
KEYWORD = {"type": "keyword"}
LOWERCASE = {**KEYWORD, "normalizer": "lowercase"}


@pytest.fixture(params=["elasticsearch_url", "opensearch_url"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of each kind."""
    server = Server(request.getfixturevalue(request.param))
    with server.client:
        yield server


@pytest.fixture
def elasticsearch(elasticsearch_url: str) -> Iterator[Server]:
    """A server of Elasticsearch alone."""
    server = Server(elasticsearch_url)
    with server.client:
        yield server


def people_with(**fields: Any) -> dict[str, dict[str, Any]]:
    """Return 60 people with long texts of their own; a function makes a field from a number."""
    people = {}
    for number in range(60):
        bio = f"physicist {number} " + "who found and wrote much about rivers and stars " * 2
        person = {"title": f"Person {number}", "bio": bio}
        person |= {name: make(number) for name, make in fields.items()}
        people[f"p{number}"] = person
    return people


async def drafted(server: Server) -> dict[str, Any]:
    """Return the source that a draft describes."""
    found = yaml.safe_load(await draft(server.url, INDEX))
    assert isinstance(found, dict)
    return found


async def test_a_draft_chooses_fields_as_a_person_would(server: Server, tmp_path: Path) -> None:
    """The long field is its text; ids and categories, which the server maps as texts, are none."""
    text = {**TEXT, "analyzer": "english"}
    properties = {"title": text, "text": text, "gender": KEYWORD, "continent": KEYWORD}
    corpus = find_corpus(BUILT_IN["notables"])
    people = {
        it.id: {**it.fields, "id": it.id, "title": it.title, "text": it.text}
        for it, _ in zip(corpus.documents(), range(500), strict=False)
    }
    with server.index(INDEX, people, {"properties": properties}):
        written = await draft(server.url, INDEX)
        found = yaml.safe_load(written)
        assert (found["title"], found["text"]) == ("title", ["text"])
        assert {"gender", "continent", "domain"} <= found["attributes"].keys()
        assert "id" not in found["attributes"]
        assert "# title: 'title' by its name, with 2 words on average, 100% of them" in written
        assert "# text: 'text' with " in written
        assert "# Not searched, as short or the same in many: country, domain, id, " in written
        path = tmp_path / "drafted.source.yaml"
        path.write_text(written)
        report = await check_source(load_source(path))
        assert not any("is not searched" in remark for remark in report.remarks)


async def test_a_check_warns_where_a_long_field_is_not_searched(server: Server) -> None:
    """Unless the field is copied to one that is, or the source's own request names it."""
    properties = {"title": TEXT, "bio": TEXT, "all": TEXT, "sex": KEYWORD}
    label = {"gender": {"field": "sex", "groups": ["F", "M"]}}
    people = people_with(sex=lambda number: "FM"[number % 2])

    async def warned(**changes: Any) -> bool:
        parts = {"title": "title", "text": None, "attributes": label, **changes}
        report = await check_source(described(server, INDEX, **parts))
        return any("'bio' holds texts" in remark for remark in report.remarks)

    with server.index(INDEX, people, {"properties": properties}):
        assert await warned()
        assert not await warned(text=["bio"])
        assert not await warned(query={"fields": ["title^2", "b*"]})
        assert not await warned(body={"query": {"match": {"bio": "{{query}}"}}})
    copied = {**properties, "bio": {**TEXT, "copy_to": "all"}}
    with server.index(INDEX, people, {"properties": copied}):
        assert not await warned(query={"fields": ["all"]})


async def test_every_field_of_a_draft_has_a_name_of_its_own(server: Server) -> None:
    """Fields that differ only in script or dots, and those that begin with a digit."""
    names = ["пол", "страна", "a.b", "a_b", "2nd", "größe"]
    properties = {"title": TEXT, "bio": TEXT, **dict.fromkeys(names, KEYWORD)}
    fields = dict.fromkeys(names, lambda number: "xy"[number % 2])
    with server.index(INDEX, people_with(**fields), {"properties": properties}):
        found = await drafted(server)
    described_fields = {each["field"] for each in found["attributes"].values()}
    assert described_fields == {*names}
    assert {"field", "field_2", "a_b", "a_b_2", "a_2nd"} <= found["attributes"].keys()


async def test_a_draft_names_no_text_that_cannot_be_read(server: Server) -> None:
    """It is left out of the documents that are kept, or belongs to none."""
    properties = {"title": TEXT, "bio": TEXT, "secret": TEXT, "all": TEXT}
    properties["bio"] = {**TEXT, "copy_to": "all"}
    mapping = {"properties": properties, "_source": {"excludes": ["sec*"]}}
    people = people_with(secret=lambda number: f"secret {number} " * 20)
    with server.index(INDEX, people, mapping):
        found = await drafted(server)
        assert (found["title"], found["text"]) == ("title", ["bio"])
    with server.index(INDEX, people, {**mapping, "_source": {"enabled": False}}):
        found = await drafted(server)
        assert "text" not in found
        assert found["query"]["fields"] == ["all", "bio", "secret", "title"]


async def test_a_closed_index_behind_an_alias_is_one_sentence(server: Server) -> None:
    people = people_with()
    with server.index(f"{INDEX}-1", people), server.index(f"{INDEX}-2", people):
        add = {"indices": [f"{INDEX}-1", f"{INDEX}-2"], "alias": INDEX}
        server.ask("POST", "/_aliases", {"actions": [{"add": add}]})
        server.ask("POST", f"/{INDEX}-2/_close")
        said = rf"^The index '{INDEX}-2' is closed; open it, or name only open ones in 'index'\.$"
        with pytest.raises(IndexUnavailableError, match=said):
            await draft(server.url, INDEX)
        with pytest.raises(IndexUnavailableError, match=said):
            await check_source(described(server, INDEX))


async def test_labels_of_normalized_keywords_are_the_servers_values(
    server: Server,
) -> None:
    people = people_with(sex=lambda number: ["Female", "MALE", "male"][number % 3])
    properties = {"title": TEXT, "bio": TEXT, "sex": LOWERCASE}
    with server.index(INDEX, people, {"properties": properties}):
        found = await drafted(server)
        assert found["attributes"]["sex"]["groups"].keys() == {"female", "male"}
        label = {"gender": {"field": "sex", "groups": ["female", "male"]}}
        async with attached(described(server, INDEX, title="title", attributes=label)) as engine:
            hits = await hits_of(engine, "physicist", 60)
            shares = await engine.corpus_shares()
    assert hits.memberships["gender"].sum(axis=0).tolist() == [20, 40]
    assert shares["gender"].tolist() == pytest.approx([1 / 3, 2 / 3])


@pytest.mark.parametrize(
    "kept",
    [KEYWORD, {**KEYWORD, "doc_values": False}, {"type": "long"}, {"type": "boolean"}],
    ids=["keyword", "without doc values", "long", "boolean"],
)
async def test_a_value_that_a_label_repeats_counts_once(
    server: Server, kept: dict[str, Any]
) -> None:
    """Columns of keywords hold distinct values; numbers and sources keep repeated ones."""
    one, other = {"long": (1, 0), "boolean": (True, False)}.get(kept["type"], ("F", "M"))
    people = people_with(sex=lambda _: [one, one, other])
    properties = {"title": TEXT, "bio": TEXT, "sex": kept}
    label = {"gender": {"field": "sex", "groups": {"female": [one], "male": [other]}}}
    with server.index(INDEX, people, {"properties": properties}):
        async with attached(described(server, INDEX, title="title", attributes=label)) as engine:
            hits = await hits_of(engine, "physicist", 5)
    assert hits.memberships["gender"].tolist() == [[0.5, 0.5]] * 5


@pytest.mark.parametrize("field", ["tags.person.sex", "made.sex"])
async def test_flattened_and_runtime_fields_can_be_labels(
    elasticsearch: Server, field: str
) -> None:
    """Read, counted and searched within, as keywords are; OpenSearch 2.5 has neither."""
    script = "emit(['sex': doc['tags.person.sex'].value, 'one': 1])"
    parts = {"sex": KEYWORD, "one": {"type": "long"}}
    runtime = {"made": {"type": "composite", "script": {"source": script}, "fields": parts}}
    properties = {"title": TEXT, "bio": TEXT, "tags": {"type": "flattened"}}
    people = people_with(tags=lambda number: {"person": {"sex": "FMM"[number % 3]}})
    mapping = {"properties": properties, "runtime": runtime}
    label = {"gender": {"field": field, "groups": {"female": ["F"], "male": ["M"]}}}
    with elasticsearch.index(INDEX, people, mapping):
        source = described(elasticsearch, INDEX, title="title", attributes=label)
        async with attached(source) as engine:
            hits = await hits_of(engine, "physicist", 60)
            shares = await engine.corpus_shares()
            (women,) = await engine.search([Query("physicist", 60, within=("gender", "female"))])
        report = await check_source(source)
        assert "made_sex" in (await drafted(elasticsearch))["attributes"]
    assert hits.memberships["gender"].sum(axis=0).tolist() == [20, 40]
    assert shares["gender"].tolist() == pytest.approx([1 / 3, 2 / 3])
    assert len(women) == 20
    assert report.attributes[0].labelled == 60
