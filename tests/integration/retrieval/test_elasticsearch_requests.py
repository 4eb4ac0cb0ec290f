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
from fairqr.retrieval.engines.elasticsearch.attaching import draft
from fairqr.retrieval.engines.opening import check_source
from fairqr.retrieval.sources.source import ElasticsearchSource
from tests.integration import attached_people
from tests.integration.attached_people import Server
from tests.integration.counting_proxy import CountingProxy, counting_proxy
from tests.integration.model_server import write_people
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


ATTRIBUTES = [["gender"], ["gender", "continent", "decade"]]


@pytest.mark.parametrize("method", ["fairqr", "fair-qr"])
@pytest.mark.parametrize("attributes", ATTRIBUTES)
async def test_a_round_is_two_requests_and_texts_are_one(
    proxy: CountingProxy, attributes: list[str], method: str
) -> None:
    """However many attributes and groups there are, and where only refined queries found some."""
    result, asked = await searched(proxy, attributes, method)
    assert len(result.iterations) == 1 + ROUNDS, result.stop_reason
    assert any(round_.refinements for round_ in result.iterations)
    assert len(asked) <= 2 * len(result.iterations) + 1, asked
    assert result.ranking[0].title


async def test_a_check_is_seven_requests_and_a_draft_two(proxy: CountingProxy) -> None:
    """As the page on Elasticsearch says."""
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
