"""How often one fair search asks Elasticsearch, counted by a proxy that all requests pass."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from fairqr import FairSearch, SearchResult
from fairqr.api import open_engine
from fairqr.retrieval.engines.elasticsearch.drafting import draft
from fairqr.retrieval.engines.opening import check_source
from fairqr.retrieval.sources.source import ElasticsearchSource
from tests.servers import attached_people
from tests.servers.attached_people import Server
from tests.servers.counting_proxy import CountingProxy, counting_proxy
from tests.servers.model_server import write_people
from tests.unit.graph.corpora import KnownRefiner

pytestmark = [pytest.mark.elasticsearch, pytest.mark.usefixtures("clean_environment")]

INDEX = "counted-people"
ROUNDS = 2
WORDS = {
    "female": ("woman", "laboratory", "she"),
    "male": ("man", "workshop", "he"),
    "Asia": ("Tokyo", "Asia"),
    "Africa": ("Cairo", "Africa"),
    "any": ("Berlin", "laboratory", "Tokyo", "Cairo", "workshop"),
}
DECADES = {f"{year}s": {"gte": year, "lt": year + 5} for year in range(1900, 1960, 5)}


@pytest.fixture
def proxy(elasticsearch_url: str, tmp_path: Path) -> Iterator[CountingProxy]:
    """A proxy before a server with 600 people, more than a query finds, who have years of birth."""
    lines = write_people(tmp_path).read_text().splitlines()
    people = {
        f"p{place}{copy}": {**json.loads(it), "born": 1900 + place}
        for place, it in enumerate(lines)
        for copy in "abcdefghij"
    }
    keyword = {"type": "keyword"}
    fields = {"gender": keyword, "continent": keyword, "born": {"type": "integer"}}
    server = Server(elasticsearch_url)
    with (
        server.client,
        server.index(INDEX, people, {"properties": fields}),
        counting_proxy(elasticsearch_url) as proxy,
    ):
        yield proxy


@pytest.fixture
def minilm(clean_environment: Path, minilm_cache: Path) -> None:
    """MiniLM's weights, in an environment that has nothing else."""


ATTRIBUTES = [["gender"], ["gender", "continent", "decade"]]


@pytest.mark.promise("engines")
@pytest.mark.parametrize("method", ["fairqr", "fair-qr"])
@pytest.mark.parametrize("attributes", ATTRIBUTES)
async def test_a_round_is_two_requests_and_texts_are_one(
    proxy: CountingProxy, attributes: list[str], method: str
) -> None:
    """A round on an attached index is two requests, and its texts are one; names that a model gives
    cost one round trip more.

    However many attributes and groups there are, and where only refined queries found some.
    """
    result, asked = await searched(proxy, attributes, method)
    assert len(result.iterations) == 1 + ROUNDS, result.stop_reason
    assert any(round_.refinements for round_ in result.iterations)
    assert len(asked) <= 2 * len(result.iterations) + 1, asked
    assert result.ranking[0].title


@pytest.mark.usefixtures("minilm")
async def test_one_round_is_three_requests_or_two_without_texts(
    proxy: CountingProxy,
) -> None:
    """The mapping, the search and the texts, and once a sample; an open engine knows the mapping.

    Titles come with the hits.
    """
    assert await counted(proxy, "bm25") == [2, 1, 1]
    assert await counted(proxy, "bm25") == [2, 1, 1]
    assert await counted(proxy, "auto") == [4, 2, 1], "the sample is first taken"
    assert await counted(proxy, "auto") == [3, 2, 1], "the texts of a query are known for a while"


@pytest.mark.usefixtures("minilm")
async def test_a_sample_is_taken_again_where_it_may_be_another(
    proxy: CountingProxy, elasticsearch_url: str
) -> None:
    """Of an index that was made again under the same name, and where other texts are read."""
    assert await counted(proxy, "auto") == [4, 2, 1]
    assert await counted(proxy, "auto", text=["text", "title"]) == [4, 2, 1]
    assert await counted(proxy, "auto", filter={"exists": {"field": "gender"}}) == [4, 2, 1]
    assert await counted(proxy, "auto", link="title") == [3, 2, 1]
    server = Server(elasticsearch_url)
    with server.client:
        kept = server.ask("GET", f"/{INDEX}/_search?size=600")["hits"]["hits"]
        mapping = server.ask("GET", f"/{INDEX}/_mapping")[INDEX]["mappings"]
        server.ask("DELETE", f"/{INDEX}")
        settings = {"number_of_replicas": 0}
        server.ask("PUT", f"/{INDEX}", {"mappings": mapping, "settings": settings})
        server.write(INDEX, {hit["_id"]: hit["_source"] for hit in kept})
    assert await counted(proxy, "auto") == [4, 2, 1]


async def counted(proxy: CountingProxy, retriever: str, **changes: Any) -> list[int]:
    """Return how often three searches of one engine ask; the last is the same as the first."""
    source = described(proxy).model_copy(update=changes)
    asked = []
    proxy.passed.clear()
    async with aclosing(await open_engine(source, retriever=retriever)) as engine:
        for query in ("physicist", "laboratory", "physicist"):
            result = await FairSearch(engine).search(
                query, attributes=["gender"], k=10, max_iterations=0
            )
            assert len(result.ranking) == 10
            assert all(document.title for document in (*result.ranking, *result.baseline.ranking))
            asked.append(len(proxy.passed))
            proxy.passed.clear()
    return asked


@pytest.mark.promise("engines")
async def test_a_check_is_seven_requests_and_a_draft_two(proxy: CountingProxy) -> None:
    """A check of an attached index is seven requests, and a draft two.

    As the page on Elasticsearch says.
    """
    await check_source(described(proxy))
    assert len(proxy.passed) == 7, proxy.passed
    proxy.passed.clear()
    await draft(proxy.url, INDEX)
    assert [path.rpartition("/")[2] for _, path in proxy.passed] == [INDEX, "_msearch"]


async def searched(
    proxy: CountingProxy, attributes: list[str], method: str
) -> tuple[SearchResult, list[tuple[str, str]]]:
    """Return the result of a search with two rounds, and what was asked for it."""
    # Whatever comes of it, both rounds are searched.
    several: dict[str, Any] = {"threshold": 0}
    if method == "fairqr":
        several = {"groups": "lacking", "ask": "always", "fairness_weight": 0}
    async with aclosing(await open_engine(described(proxy))) as engine:
        proxy.passed.clear()
        result = await FairSearch(engine, KnownRefiner(WORDS)).search(
            "physicist",
            attributes=attributes,
            method=method,
            target="retrieved:0.5,uniform:0.5",
            k=10,
            patience=9,
            max_iterations=ROUNDS,
            **several,
        )
    return result, proxy.passed


def described(proxy: CountingProxy) -> ElasticsearchSource:
    """Return a source over the people behind a proxy."""
    groups = {"gender": ["female", "male"], "continent": ["Asia", "Europe", "Africa"]}
    attributes: dict[str, Any] = {it: {"field": it, "groups": groups[it]} for it in groups}
    attributes["decade"] = {"field": "born", "groups": DECADES}
    return attached_people.described(
        proxy.url, INDEX, title="title", text="text", attributes=attributes
    )
