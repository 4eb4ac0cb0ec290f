"""Titles and random documents of an attached index, on either server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any

import pytest

from fairqr.retrieval.engines.engine import Query, SearchEngine, titles_of
from fairqr.retrieval.engines.hybrid.encoded_pool import EncodedPoolEngine
from tests.servers.attached_people import Server, attached, described
from tests.servers.counting_proxy import CountingProxy, counting_proxy
from tests.unit.engines import hits_of
from tests.unit.retrieval.vector_encoders import CountingEncoder

pytestmark = [pytest.mark.elasticsearch, pytest.mark.usefixtures("clean_environment")]

INDEX = "hr-titled"
TEXT = {"type": "text"}
KEYWORD = {"type": "keyword", "ignore_above": 80}
LONG = " ".join(["physicist"] * 12)
ATTRIBUTES = {"gender": {"field": "gender", "groups": ["F", "M"]}}

TITLED: dict[str, dict[str, Any]] = {
    "long": {"title": LONG},
    "several": {"title": ["Zoe", "Ada"]},
    "none": {},
    "empty": {"title": ""},
    **{f"p{number}": {"title": f"Person {number}"} for number in range(40)},
}
TITLES = {"long": LONG, "several": "Zoe Ada", "none": "", "empty": ""}
TITLES |= {f"p{number}": f"Person {number}" for number in range(40)}


@pytest.fixture(params=["elasticsearch_url", "opensearch_url"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of each kind."""
    server = Server(request.getfixturevalue(request.param))
    with server.client:
        yield server


def mapping_of(title: Any) -> dict[str, Any]:
    properties = {"title": title, "bio": TEXT, "gender": {"type": "keyword"}}
    return {"properties": properties}


async def asked_for(
    proxy: CountingProxy,
    engine: SearchEngine,
    query: str = "physicist",
    wanted: Mapping[str, str] = TITLES,
) -> tuple[int, int]:
    """Search and read all titles, and return how many requests each takes."""
    proxy.passed.clear()
    (hits,) = await engine.search([Query(query, 500, with_titles=True)])
    searches = len(proxy.passed)
    titles = await titles_of(engine, hits.ids)
    assert hits.ids
    assert titles == {id_: wanted[id_] for id_ in hits.ids}
    return searches, len(proxy.passed) - searches


@pytest.mark.parametrize(
    ("title", "reads"),
    [(TEXT, 0), ({**TEXT, "fields": {"raw": KEYWORD}}, 1), (KEYWORD, 1)],
    ids=["in the document", "in a column beside", "in a column"],
)
async def test_titles_come_with_the_hits(server: Server, title: Any, reads: int) -> None:
    """As the documents have them; one that a column lacks, or two in its order, are read once.

    A keyword that is too long for its own column is not returned at all.
    """
    wanted = {**TITLES, "long": "" if title == KEYWORD else LONG}
    people = {id_: {**one, "bio": "physicist"} for id_, one in TITLED.items()}
    with (
        server.index(INDEX, people, mapping_of(title)),
        counting_proxy(server.url) as proxy,
    ):
        parts = {"engine": server.engine, "title": "title", "attributes": ATTRIBUTES}
        async with attached(described(proxy.url, INDEX, **parts)) as engine:
            assert await asked_for(proxy, engine, wanted=wanted) == (1, reads)
            assert await asked_for(proxy, engine, wanted=wanted) == (1, 0)


async def test_titles_of_large_documents_are_read_alone(server: Server) -> None:
    """Once a search has seen that one is large; a column is as cheap as ever."""
    words = ["physicist", "opera"]
    people = {
        id_: {**one, "bio": f"{words[row % 2]} {'x ' * 6000}"}
        for row, (id_, one) in enumerate(TITLED.items())
    }
    with (
        server.index(INDEX, people, mapping_of(TEXT)),
        counting_proxy(server.url) as proxy,
    ):
        parts = {"engine": server.engine, "title": "title", "attributes": ATTRIBUTES}
        source = described(proxy.url, INDEX, **parts, query={"fields": ["bio"]})
        async with attached(source) as engine:
            assert await asked_for(proxy, engine, words[0]) == (1, 0)
            assert await asked_for(proxy, engine, words[1]) == (1, 1)
            assert await asked_for(proxy, engine, words[1]) == (1, 0)


async def test_usual_similarity_is_that_of_random_documents(
    server: Server,
) -> None:
    """They are those of the source's filter, the same ones each time, with their texts."""
    words = ["वैज्ञानिक", "गणितज्ञ", "कवि", "चित्रकार", "नदी"]
    people = {
        f"p{number}": {
            "title": f"व्यक्ति {number}",
            "bio": " ".join([words[number % 5], words[number % 3]]),
            "gender": "FM"[number % 2],
        }
        for number in range(300)
    }
    with (
        server.index(INDEX, people, mapping_of(TEXT)),
        counting_proxy(server.url) as proxy,
    ):
        parts = {"engine": server.engine, "title": "title", "attributes": ATTRIBUTES}
        source = described(proxy.url, INDEX, **parts, filter={"term": {"gender": "F"}})
        async with attached(source) as engine:
            proxy.passed.clear()
            drawn = await engine.random_documents(60)
            assert len(proxy.passed) == 1
            assert len({document.id for document in drawn}) == 60
            assert drawn == await engine.random_documents(60)
            for document in drawn:
                held = people[document.id]
                assert (held["gender"], document.text) == ("F", held["bio"])
            assert len(await engine.random_documents(500)) == 150
            dated = {"filter": {"range": {"born": {"gte": date(1980, 1, 1)}}}}
            async with attached(source.model_copy(update=dated)) as other:
                assert other.sample_key != engine.sample_key
            hybrid = await EncodedPoolEngine.open(engine, CountingEncoder(), keeps_order=True)
            hits = await hits_of(hybrid, "वैज्ञानिक", 20)
            assert hits.relevance is not None
            assert len({*hits.relevance.tolist()}) > 1
