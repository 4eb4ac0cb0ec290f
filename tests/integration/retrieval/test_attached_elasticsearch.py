"""An index that fairqr did not make: searched as it is on either server, and left as it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairqr.base.errors import (
    FairqrError,
    IndexNotFoundError,
    IndexUnavailableError,
    QueryError,
    SourceError,
    UnsupportedError,
)
from fairqr.retrieval.engines.elasticsearch.drafting import draft
from fairqr.retrieval.engines.elasticsearch.engine import ElasticsearchEngine
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.engines.opening import check_source
from fairqr.retrieval.engines.request_template import fill_template
from fairqr.retrieval.sources.source import ElasticsearchSource, load_source
from tests.servers.attached_people import (
    LABELS,
    MAPPING,
    PEOPLE,
    PLACES,
    Server,
    attached,
    described,
    people,
    state,
)
from tests.servers.counting_proxy import counting_proxy
from tests.unit.engines import compare_within, hits_of

pytestmark = pytest.mark.elasticsearch

INDEX = "hr-people-v1"


@pytest.fixture(scope="module", params=["elasticsearch_url", "opensearch_url"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server with the index of people."""
    with people(request.getfixturevalue(request.param), INDEX) as server:
        yield server


async def compare_groups(engine: ElasticsearchEngine) -> None:
    """Compare searches within every group of ``LABELS`` with a filter by hand."""
    groups = {(a.name, g) for a in engine.schema.attributes.values() for g in a.groups}
    assert engine.filterable == groups
    assert "within_group" in engine.capabilities
    only = tuple(PEOPLE)[::3]
    queries = [
        Query("opera", 200),
        Query("opera river", 200, every_word=True),
        Query("opera", 200, only=only),
        Query("unheard", 200),
    ]
    assert await compare_within(engine, queries, 200) > 2000
    # The server chooses which of the documents with the last score come.
    few = [Query("opera", 10), Query("opera railway", 3), Query("river", 10, only=only)]
    assert await compare_within(engine, few, 200, rounded=True) > 300


def group_of(sex: str | None) -> list[float]:
    """The memberships in female and male that a value stands for."""
    return {"F": [1.0, 0.0], "f": [1.0, 0.0], "M": [0.0, 1.0]}.get(sex or "", [0.0, 0.0])


def holds(id_: str, word: str) -> bool:
    return word in f"{PEOPLE[id_]['bio']} {PEOPLE[id_]['headline']}"


def scores_by_hand(server: Server, body: dict[str, Any]) -> dict[str, float]:
    hits = server.ask("POST", f"/{INDEX}/_search", {**body, "size": 200})["hits"]["hits"]
    return {hit["_id"]: hit["_score"] for hit in hits}


@pytest.mark.promise("labels")
async def test_labels_of_every_kind_come_with_the_hits_and_are_counted(server: Server) -> None:
    """Labels of every kind give the shares that the page says, in the hits and in the counts of an
    attached index.

    Keywords, an alias, numbers, dates, booleans and lists.
    """
    async with attached(described(server, INDEX, attributes=LABELS)) as engine:
        hits = await hits_of(engine, " ".join(p["bio"].split()[0] for p in PEOPLE.values()), 200)
        shares = await engine.corpus_shares()
    assert set(hits.ids) == set(PEOPLE)
    for row, id_ in enumerate(hits.ids):
        person, number = PEOPLE[id_], int(id_[1:])
        found = {name: rows[row].tolist() for name, rows in hits.memberships.items()}
        sex = group_of(person["person"].get("sex"))
        held = person["place"]
        assert found == {
            "gender": sex,
            "alias": [*sex, 1 - sum(sex)],
            "height": [person["height"] > 180, person["height"] < 180],
            "some": [person["height"] == 164, person["height"] == 170],
            "era": [1, 0] if number % 100 < 50 else [0, 1],
            "alive": [1, 0] if person["alive"] else [0, 1],
            "living": [1, 0] if person["alive"] else [0, 1],
            "award": [1, 0] if number % 2 == 0 else [0, 1],
            "place": [1 / len(held) if place in held else 0 for place in PLACES],
        }
    assert set(shares) == set(LABELS)
    for name, share in shares.items():
        assert share == pytest.approx(hits.memberships[name].mean(axis=0), abs=1e-9), name


# --- searches ---------------------------------------------------------------------------------


@pytest.mark.promise("engines")
async def test_scores_are_the_servers_and_ties_stand_in_order_of_id(server: Server) -> None:
    """Hits have the server's scores and order, with ties by id.

    The server sorts by score; what it sent with one score is put in order here.
    """
    tied = {"headline": "tie", "bio": ""}
    documents = {**dict.fromkeys(["b", "a10", "a9", "Z", "ä", "日本"], tied)}
    documents["first"] = {"headline": "tie tie tie", "bio": ""}
    with server.index("hr-ties", documents):
        async with attached(described(server, "hr-ties")) as engine:
            hits = await hits_of(engine, "tie", 9)
            assert hits.ids == ["first", *sorted(set(documents) - {"first"})]
            assert hits.scores == sorted(hits.scores, reverse=True)
            for n in range(1, 8):
                some, again = [await hits_of(engine, "tie", n) for _ in "12"]
                assert some.ids == again.ids == ["first", *sorted(some.ids[1:])]


@pytest.mark.promise("engines")
async def test_given_documents_are_scored_and_read(server: Server) -> None:
    """Scoring given documents and reading their texts takes as many requests as the page says.

    One without a word has score 0; ids that are not there, or filtered away, are left out.
    """
    source = described(server, INDEX, filter={"term": {"published": True}})
    async with attached(source) as engine:
        found = await hits_of(engine, "novel", 50)
        without = next(i for i, p in PEOPLE.items() if not holds(i, "novel") and p["published"])
        only = (*found.ids[::-1], "nobody", "p009", without, found.ids[0])
        again = await hits_of(engine, "novel", 99, only=only)
        assert again.ids == [*found.ids, without]
        assert again.scores == [*found.scores, 0]
        assert (await hits_of(engine, "novel", 3, only=only)).ids == found.ids[:3]
        groups = await hits_of(engine, "", 9, only=("p002", "p001", "nobody"))
        assert (groups.ids, groups.scores) == (["p001", "p002"], [0, 0])
        assert groups.memberships["gender"].tolist() == [[1, 0], [0, 1]]
        documents = await engine.documents(["p003", "nobody", "p001", "p003"])
    assert [document.id for document in documents] == ["p003", "p001", "p003"]
    person = PEOPLE["p003"]
    assert (documents[0].title, documents[0].text) == (person["headline"], person["bio"])


@pytest.mark.promise("engines")
@pytest.mark.parametrize(
    "text",
    ['physicist "}},{', "physicist {{query}}", "physicist \ud800 \0", "physicist AND (", "¿", ""],
)
async def test_a_query_is_text_whatever_it_holds(server: Server, text: str) -> None:
    """A query is text: for Elasticsearch and OpenSearch it changes nothing in a request but its
    value.
    """
    async with attached(described(server, INDEX)) as engine:
        expected = (await hits_of(engine, "physicist", 9)).ids if "physicist" in text else []
        assert (await hits_of(engine, text, 9)).ids == expected
        with pytest.raises(QueryError, match="The query has more words than"):
            await hits_of(engine, " ".join(f"w{n}" for n in range(100_000)), 5)


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("own", [False, True])
async def test_a_search_within_a_group_is_filtered_by_the_server(
    server: Server, own: bool, filtered: bool
) -> None:
    """One request, whether the source has a request and a filter of its own or not."""
    parts: dict[str, Any] = {"body": BODY} if own else {}
    parts |= {"filter": {"term": {"published": True}}} if filtered else {}
    with counting_proxy(server.url) as proxy:
        async with attached(
            described(proxy.url, INDEX, engine=server.engine, attributes=LABELS, **parts)
        ) as engine:
            await compare_groups(engine)
            proxy.passed.clear()
            within = [Query("opera", n, within=("era", "old")) for n in (0, 10)]
            size, *_ = await engine.search([Query("", 0, within=("gender", "female")), *within])
            assert len(proxy.passed) == 1
    sexes = [p["person"].get("sex") for p in PEOPLE.values() if p["published"] or not filtered]
    assert size.total == sum(sex in ("F", "f") for sex in sexes)


# --- the source's own request -----------------------------------------------------------------

BODY: dict[str, Any] = {
    "query": {
        "function_score": {
            "query": {"multi_match": {"query": "{{query}}", "fields": ["headline^2", "bio"]}},
            "field_value_factor": {"field": "height"},
        }
    },
    "size": "{{size}}",
    "aggs": {"unneeded": {"terms": {"field": "place"}}},
}


@pytest.mark.promise("engines")
async def test_an_own_request_is_sent_with_values_in_place(server: Server) -> None:
    """A search request of one's own keeps its ranking, and is sent with the values in their places.

    Searching, given documents, counts and the filter work over it, too.
    """
    expected = scores_by_hand(server, fill_template(BODY, "opera", 200))
    scores = {id_: score for id_, score in expected.items() if PEOPLE[id_]["published"]}
    chosen = {"term": {"published": True}}
    async with attached(described(server, INDEX, body=BODY, filter=chosen)) as engine:
        hits = await hits_of(engine, "opera", 200)
        assert dict(zip(hits.ids, hits.scores, strict=True)) == pytest.approx(scores)
        again = await hits_of(engine, "opera", 5, only=hits.ids[:5])
        assert (again.ids, again.scores) == (hits.ids[:5], pytest.approx(hits.scores[:5]))
        both, *counts = await engine.search(
            [
                Query("opera river", 9),
                Query("opera", 0),
                Query("opera river", 0, every_word=True),
                Query("", 0),
            ]
        )
        by_hand = scores_by_hand(server, fill_template(BODY, "opera river", 200))
        assert set(both.ids) <= by_hand.keys()
        every = sum(holds(id_, "river") for id_ in scores)
        assert [count.total for count in counts] == [len(scores), every, 180]
        for odd in ('opera"}},"size":{', "{{query}}", "{{size}} opera", "\\"):
            found = await hits_of(engine, odd, 9)
            assert found.ids == (hits.ids[:9] if "opera" in odd else [])


async def test_an_own_request_that_ranks_by_more_than_its_query(server: Server) -> None:
    """What cannot be asked of it is refused, each by one sentence."""
    body = {**BODY, "rescore": {"window_size": 9, "query": {"rescore_query": {"match_all": {}}}}}
    async with attached(described(server, INDEX, body=body)) as engine:
        assert len(await hits_of(engine, "opera", 9)) == 9
        assert not {"rescore", "document_frequencies", "within_group"} & engine.capabilities
        assert (await hits_of(engine, "", 9, only=("p001",))).ids == ["p001"]
        with pytest.raises(UnsupportedError, match=r"Ranking given documents needs .* 'people'"):
            await hits_of(engine, "opera", 9, only=("p001",))
        with pytest.raises(UnsupportedError, match="Counting the documents that match needs"):
            await hits_of(engine, "opera", 0)
        with pytest.raises(UnsupportedError, match="needs an engine that can search within a gro"):
            await engine.search([Query("opera", 9, within=("gender", "female"))])
    source = described(server, INDEX, body=body, filter={"term": {"published": True}})
    with pytest.raises(SourceError, match="put the filter into the body"):
        async with attached(source):
            pass
    sorted_by_height = {"query": {"match": {"bio": "{{query}}"}}, "sort": ["height"]}
    async with attached(described(server, INDEX, body=sorted_by_height)) as engine:
        with pytest.raises(SourceError, match="gives no scores; remove 'sort'"):
            await hits_of(engine, "opera", 9)


# --- several indices, and ids -----------------------------------------------------------------


@pytest.fixture
def halves(server: Server) -> Iterator[Server]:
    """Two indices behind a pattern and an alias; the first three ids are in both."""
    ids = list(PEOPLE)
    parts = (ids[:100], [*ids[:3], *ids[100:]])
    first, second = (
        {i: {**PEOPLE[i], "number": f"{n}{i}"} for i in p} for n, p in enumerate(parts)
    )
    with server.index("staff-1", first), server.index("staff-2", second):
        add = {"add": {"indices": ["staff-1", "staff-2"], "alias": "staff"}}
        server.ask("POST", "/_aliases", {"actions": [add]})
        yield server


@pytest.mark.parametrize("index", ["staff-*", "staff", "staff-1,staff-2"])
async def test_an_alias_a_pattern_and_a_list_are_searched_as_one(
    halves: Server, index: str
) -> None:
    """By a field of ids that is unique over them."""
    async with attached(described(halves, index, id="number")) as engine:
        assert (await engine.info()).documents == 203
        hits = await hits_of(engine, "physicist", 500)
        assert {"0p000", "1p000"} <= set(hits.ids)
        assert (await hits_of(engine, "", 9, only=("1p001", "0p001"))).ids == ["0p001", "1p001"]
        assert [d.id for d in await engine.documents(["1p002", "0p099"])] == ["1p002", "0p099"]


# --- a server that changes, or fails in parts -------------------------------------------------


async def test_an_index_that_goes_while_it_is_in_use(server: Server) -> None:
    with server.index("hr-gone", PEOPLE):
        async with attached(described(server, "hr-gon*")) as engine:
            server.ask("DELETE", "/hr-gone")
            with pytest.raises(IndexNotFoundError, match="There is no index 'hr-gon"):
                await hits_of(engine, "physicist", 5)


@pytest.mark.promise("engines")
async def test_failed_shards_are_an_error_or_a_warning(server: Server) -> None:
    """Failed shards of a real server are an error, or a warning under `allow_partial`.

    A runtime field whose script fails on one of two indices makes its shards fail.
    """
    if server.engine == "opensearch":
        pytest.skip("OpenSearch has no runtime fields in mappings.")
    script = "if (doc['height'].value > 0) { throw new RuntimeException('no'); } emit(1L);"
    broken = {**MAPPING, "runtime": {"rank": {"type": "long", "script": {"source": script}}}}
    sound = {"properties": {**MAPPING["properties"], "rank": {"type": "long"}}}
    half = {id_: {**PEOPLE[id_], "rank": 1} for id_ in list(PEOPLE)[:100]}
    other = {f"x{id_}": PEOPLE[id_] for id_ in half}
    ranked = {"must": {"match": {"bio": "{{query}}"}}, "filter": {"term": {"rank": 1}}}
    with server.index("parts-1", half, sound), server.index("parts-2", other, broken):
        source = described(server, "parts-*", body={"query": {"bool": ranked}})
        async with attached(source) as engine:
            with pytest.raises(IndexUnavailableError, match=r"runtime error"):
                await hits_of(engine, "opera", 5)
        async with attached(source.model_copy(update={"allow_partial": True})) as engine:
            hits = await hits_of(engine, "opera", 500)
    assert hits.warnings == ("1 of 2 shards of 'parts-*' did not answer.",)
    assert 0 < len(hits) < 200


# --- check and draft --------------------------------------------------------------------------


async def test_where_documents_are_not_kept_labels_come_from_columns(server: Server) -> None:
    """Texts cannot be read there, and the check says so."""
    if server.engine == "opensearch":
        pytest.skip("OpenSearch returns no fields at all without _source.")
    mapping = {**MAPPING, "_source": {"enabled": False}}
    with server.index("hr-no-source", PEOPLE, mapping):
        source = described(server, "hr-no-source")
        async with attached(source) as engine:
            hits = await hits_of(engine, "physicist", 200)
            (document,) = await engine.documents([hits.ids[0]])
        report = await check_source(source)
    assert (document.id, document.title, document.text) == (hits.ids[0], "", "")
    assert (report.sample_query, report.sample) == ("", [])
    assert any("We tried no sample query" in remark for remark in report.remarks)
    for id_, row in zip(hits.ids, hits.memberships["gender"].tolist(), strict=True):
        assert row == group_of(PEOPLE[id_]["person"].get("sex"))


async def test_an_index_that_returns_few_hits_at_once(server: Server) -> None:
    """It gives the best it may, with a warning; texts are read all."""
    with server.index("hr-narrow", PEOPLE, max_result_window=30):
        source = described(server, "hr-narrow")
        async with attached(source) as narrow, attached(described(server, INDEX)) as wide:
            few, all_ = await hits_of(narrow, "opera", 500), await hits_of(wide, "opera", 500)
            assert len(few) == 30
            assert few.scores == pytest.approx(all_.scores[:30])
            assert few.warnings[0].startswith("'hr-narrow' returns at most 30 hits at once")
            given = await hits_of(narrow, "opera", 500, only=tuple(PEOPLE))
            assert (given.ids, len(given.warnings)) == (few.ids, 1)
            assert [document.id for document in await narrow.documents([*PEOPLE])] == [*PEOPLE]
        assert (await check_source(source)).documents == 200


@pytest.mark.promise("engines")
async def test_an_id_that_is_not_unique_is_an_error(halves: Server) -> None:
    """An id field whose values are not unique is an error in one sentence."""
    said = r"The id 'p00\d' belongs to two documents of 'staff-\*'; set 'id' to a field"
    source = described(halves, "staff-*")
    with pytest.raises(SourceError, match=said):
        await check_source(source)
    async with attached(source) as engine:
        for query in (Query("", 1, only=("p000",)), Query("physicist opera river", 500)):
            with pytest.raises(SourceError, match="belongs to two documents"):
                await engine.search([query])


def label(field: str) -> dict[str, Any]:
    return {"attributes": {"gender": {"field": field, "groups": ["F", "M"]}}}


@pytest.mark.promise("engines")
async def test_a_source_that_does_not_fit_is_one_sentence(server: Server) -> None:
    """A source that does not fit its index is one sentence that says what to do."""
    for changes, said in (
        (label("person.sx"), "no field 'person.sx' for .*'gender'; did you mean 'person.sex'"),
        (label("headline"), "'headline' of type text .* label of 'gender'; name 'headline.raw'"),
        (label("person"), "'person' of type object .* label of 'gender'; name 'person.sex'"),
        (
            label("jobs.field"),
            "'jobs.field' of type keyword in nested documents cannot be the label",
        ),
        (label("empty"), "'empty' .* has no label of the checked documents; correct"),
        (label("place"), "'place' .* contains .*Ärmel.*none of which is in a group; correct"),
        ({"link": "home"}, "no field 'home' for a title, a text or a link"),
        ({"text": ["bio", "person.born"]}, "'person.born' of type date cannot be a field to"),
        ({"query": {"fields": ["nothing^2"]}}, "no field 'nothing' for a field to search"),
        ({"query": {"fields": ["jobs.field"]}}, "'jobs.field' of type keyword in nested .* field"),
        ({"filter": {"trem": {"published": True}}}, r"does not do this .*\[trem\]"),
        ({"vectors": {"field": "bio"}}, "'bio' of type text cannot be the field of vectors"),
        ({"id": "place"}, r"has 2 values in its id field 'place'"),
        ({"id": "empty"}, r"has no values in its id field 'empty'"),
        ({"index": "nothing-*"}, r"There is no index 'nothing-\*' at http"),
        ({"attributes": {"place": {"labels": "none.csv"}}}, r"none\.csv cannot be read"),
        ({"credentials": "nobody"}, r"has no \[credentials.nobody\]"),
        ({"body": {"query": {"nomatch": {"bio": "{{query}}"}}}}, r"does not do this .*\[nomatch\]"),
    ):
        source = described(server, **{"index": INDEX, **changes})
        with pytest.raises(FairqrError, match=said) as bad:
            await check_source(source)
        assert "\n" not in str(bad.value)


@pytest.mark.promise("engines")
async def test_nothing_is_written_and_nothing_left_open(server: Server) -> None:
    """Nothing is written to an attached index, and nothing left open on its server.

    Whatever is done: mapping, documents, counters of indexing and open contexts stay.
    """
    before = state(server, INDEX)
    with counting_proxy(server.url) as proxy:
        source = described(proxy.url, INDEX, engine=server.engine)
        async with attached(source) as engine:
            assert proxy.passed == [("GET", f"/{INDEX}")]
            proxy.passed.clear()
            counted = [Query(word, 0) for word in "abcdefgh"]
            hits = await engine.search([Query("opera", 500), Query("novel", 9), *counted])
            assert len(hits) == 10
            ((_, path),) = proxy.passed
            assert path == f"/{INDEX}/_msearch"
            await engine.search([Query("opera", 9, only=("p001",))])
            await engine.documents(["p001"])
            await engine.corpus_shares()
            await engine.info()
        await check_source(source)
        await draft(proxy.url, INDEX)
        kinds = {(method, path.rpartition("/")[2]) for method, path in proxy.passed}
        assert kinds == {("GET", ""), ("GET", INDEX), ("POST", "_msearch")}
    assert state(server, INDEX) == before


@pytest.mark.promise("engines")
async def test_a_draft_is_a_source_once_it_is_read(server: Server, tmp_path: Path) -> None:
    """A draft is a source once a person has read it.

    The check says what is there.
    """
    text = await draft(server.url, INDEX)
    (tmp_path / "people.source.yaml").write_text(text)
    found = load_source(tmp_path / "people.source.yaml")
    assert isinstance(found, ElasticsearchSource)
    assert (found.name, found.engine) == (INDEX, server.engine)
    assert found.searched_fields == ("headline", "bio"), "all notes are the same"
    fields = ["award", "person.sex", "place", "alive", "published"]
    assert [one.field for one in found.attributes.values()] == fields, "flags come last"
    report = await check_source(found)
    version = {"elasticsearch": "8.12.2", "opensearch": "2.5.0"}[server.engine]
    assert (report.version, report.documents) == (version, 200)
    able = "corpus_shares document_frequencies new_queries read_by_id rescore within_group"
    assert report.capabilities == able.split()
    sexes = [person["person"].get("sex") for person in PEOPLE.values()]
    by_origin = {one.origin: one for one in report.attributes}
    values = {one.value: (one.documents, one.group) for one in by_origin["person.sex"].values}
    assert values == {sex: (sexes.count(sex), sex) for sex in "FfMX"}
    assert report.sample[0].title == PEOPLE[report.sample[0].id]["headline"]
    numbers = {"properties": {"year": {"type": "integer"}, "code": {"type": "keyword"}}}
    said = pytest.raises(SourceError, match="The index 'hr-codes' has no text field")
    with server.index("hr-codes", {}, numbers), said:
        await draft(server.url, "hr-codes")
