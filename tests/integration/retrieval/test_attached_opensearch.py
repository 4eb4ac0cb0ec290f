"""An index of OpenSearch that fairqr did not make, on a real server of version 2.5."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairqr.base.errors import IndexNotFoundError, IndexUnavailableError, SourceError
from fairqr.retrieval.engines.elasticsearch.attaching import draft
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.engines.opening import check_source
from fairqr.retrieval.sources.source import load_source
from tests.integration.attached_people import (
    LABELS,
    PEOPLE,
    Server,
    attached,
    compare_groups,
    described,
    people,
    state,
)
from tests.integration.counting_proxy import counting_proxy
from tests.unit.engines import hits_of

pytestmark = pytest.mark.elasticsearch

INDEX = "hr-people-v3"
OPENSEARCH = {"engine": "opensearch"}


@pytest.fixture(scope="module")
def server(opensearch_url: str) -> Iterator[Server]:
    """A server with the index of people."""
    with people(opensearch_url, INDEX) as server:
        yield server


async def test_an_index_is_searched_with_its_labels_and_left_as_it_was(server: Server) -> None:
    """One request for all queries; scores, given documents, counts and shares."""
    before = state(server, INDEX)
    attributes = {name: LABELS[name] for name in ("gender", "height", "era", "place", "job")}
    with counting_proxy(server.url) as proxy:
        source = described(proxy.url, INDEX, attributes=attributes, **OPENSEARCH)
        async with attached(source) as engine:
            proxy.clear()
            hits, counted, among, everything = await engine.search(
                [
                    Query("opera", 200),
                    Query("opera river", 0, every_word=True),
                    Query("opera", 0, only=("p001", "p002")),
                    Query("", 0),
                ]
            )
            assert len(proxy.passed) == 1
            again = await hits_of(engine, "opera", 9, only=hits.ids[:9])
            everyone = await hits_of(engine, "", 200, only=tuple(PEOPLE))
            shares = await engine.corpus_shares()
            (document,) = await engine.documents(["p001"])
        await check_source(source)
    by_hand = server.ask(
        "POST",
        f"/{INDEX}/_search",
        {
            "size": 200,
            "query": {"multi_match": {"query": "opera", "fields": ["headline", "bio"]}},
        },
    )["hits"]["hits"]
    assert dict(zip(hits.ids, hits.scores, strict=True)) == {
        hit["_id"]: hit["_score"] for hit in by_hand
    }
    assert (again.ids, again.scores) == (hits.ids[:9], hits.scores[:9])

    def both(person: dict[str, Any], *words: str) -> bool:
        return all(word in f"{person['bio']} {person['headline']}" for word in words)

    assert counted.total == sum(both(person, "opera", "river") for person in PEOPLE.values())
    assert among.total == sum(both(PEOPLE[id_], "opera") for id_ in ("p001", "p002"))
    assert everything.total == 200
    assert document.text == PEOPLE["p001"]["bio"]
    assert set(shares) == set(attributes) - {"job"}
    for name, found in shares.items():
        assert found == pytest.approx(everyone.memberships[name].mean(axis=0), abs=1e-9), name
    assert everyone.memberships["job"][:2].tolist() == [[0.5, 0.5], [1, 0]]
    assert state(server, INDEX) == before


async def test_a_search_within_a_group_is_filtered_by_the_server(server: Server) -> None:
    async with attached(described(server.url, INDEX, attributes=LABELS, **OPENSEARCH)) as engine:
        await compare_groups(engine)


async def test_the_check_and_the_draft_know_which_server_it_is(
    server: Server, tmp_path: Path
) -> None:
    text = await draft(server.url, INDEX)
    assert yaml.safe_load(text)["engine"] == "opensearch"
    (tmp_path / "people.source.yaml").write_text(text)
    source = load_source(tmp_path / "people.source.yaml")
    report = await check_source(source)
    assert (report.engine, report.version, report.documents) == ("opensearch", "2.5.0", 200)
    async with attached(source) as engine:
        assert (await engine.info()).server == "OpenSearch 2.5.0"
    assert report.sample


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"index": "nothing-*"}, r"There is no index 'nothing-\*' at http"),
        ({"filter": {"trem": {"published": True}}}, r"does not do this .*\[trem\]"),
        ({"engine": "elasticsearch"}, "is not Elasticsearch; correct its url, or its engine"),
    ],
)
async def test_a_source_that_does_not_fit_is_one_sentence(
    server: Server, changes: dict[str, Any], said: str
) -> None:
    parts = {**OPENSEARCH, **changes}
    index = parts.pop("index", INDEX)
    with pytest.raises((SourceError, IndexNotFoundError, IndexUnavailableError), match=said) as bad:
        await check_source(described(server.url, index, **parts))
    assert "\n" not in str(bad.value)
