"""Groups that nobody lists, in front of a real cluster: each seller is one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from fairqr import Context, FairSearch
from fairqr.auditing import audit
from fairqr.retrieval.engines.opening import open_source
from fairqr.retrieval.rerankers.base import OTHERS
from fairqr.retrieval.sources.source import load_source
from tests.integration.graph.service.proxy.proxied import Proxied, proxied
from tests.patience import until
from tests.ports import free_port
from tests.servers.attached_people import Server

pytestmark = [pytest.mark.elasticsearch, pytest.mark.timeout(600)]

INDEX = "sold"
COUNT = 80
SELLERS = 25
ATTRIBUTES = {"seller": {"field": "seller", "groups": "any"}}
QUERY = {"query": {"match": {"bio": "shoe"}}}


def sellers_of(number: int) -> list[str]:
    """The first half is of one seller; one in nine has two sellers, one in thirteen has none."""
    if number % 13 == 12:
        return []
    first = 0 if number < COUNT // 2 else number % SELLERS
    second = [f"shop {number % 7 + SELLERS}"] if number % 9 == 0 else []
    return [f"shop {first}", *second]


def document(number: int) -> dict[str, Any]:
    words = "shoe " * (4 if number < COUNT // 2 else 3)
    return {"bio": f"{words} number{number}", "headline": "A shoe", "seller": sellers_of(number)}


@pytest.fixture(scope="module")
def cluster(elasticsearch_url: str) -> Iterator[httpx.Client]:
    properties = {name: {"type": "text"} for name in ("bio", "headline")}
    mapping = {"properties": {**properties, "seller": {"type": "keyword"}}}
    documents = {str(number): document(number) for number in range(COUNT)}
    server = Server(elasticsearch_url)
    with server.client, server.index(INDEX, documents, mapping, number_of_shards=1):
        yield server.client


Fronted = tuple[Proxied, Path, int]


@pytest.fixture(scope="module")
def proxy(cluster: httpx.Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fronted]:
    folder = tmp_path_factory.mktemp("proxy")
    metrics = free_port()
    parameters = {"target": "uniform:1", "k": 10}
    index = {"source": "people.yaml", "parameters": parameters, "amortised": "deficits.json"}
    how: dict[str, Any] = {"source": {"index": INDEX, "attributes": ATTRIBUTES}, "log": "log"}
    how |= {"indexes": {INDEX: {"mode": "fair", **index}}, "metrics_port": metrics}
    with proxied(folder, str(cluster.base_url), **how) as fronted:
        until(lambda: fronted.outcome(index=INDEX, body=QUERY).startswith("re-ranked"))
        yield fronted, folder, metrics


def exposure_of(ids: list[str]) -> dict[str, float]:
    """Count by hand which share of the exposure in a page each seller has."""
    shares: dict[str, float] = {}
    for id_, weight in zip(ids, (1 / np.log2(np.arange(len(ids)) + 2)).tolist(), strict=True):
        names = sellers_of(int(id_))
        for name in names:
            shares[name] = shares.get(name, 0.0) + weight / len(names)
    total = sum(shares.values())
    return {name: share / total for name, share in shares.items()}


def test_a_page_shows_more_sellers_and_the_log_says_what_each_has(
    cluster: httpx.Client, proxy: Fronted
) -> None:
    fronted, folder, _ = proxy
    body = {"query": {"match": {"bio": "shoe shoe"}}, "size": 10}
    before = [
        hit["_id"] for hit in cluster.post(f"/{INDEX}/_search", json=body).json()["hits"]["hits"]
    ]
    file = folder / "log" / "log.jsonl"
    reply = fronted.search(index=INDEX, body=body)
    assert reply.headers["fairqr"].startswith("re-ranked")
    after = [hit["_id"] for hit in reply.json()["hits"]["hits"]]
    assert len(exposure_of(before)) < 5 < 8 <= len(exposure_of(after))

    def record() -> dict[str, Any] | None:
        """Return the record of this reply; there are others of the searches before it."""
        for line in file.read_text().splitlines():
            told = json.loads(line)
            if [told["ids"][place] for place in told.get("order", ())][:10] == after:
                return told
        return None

    told = until(record)
    for id_, group in zip(told["ids"], told["groups"]["seller"], strict=True):
        names = sellers_of(int(id_))
        shares = {group: 1.0} if isinstance(group, str) else group or {}
        assert shares == {name: 1 / len(names) for name in names}
    for name, ids in (("engine", before), ("shown", after)):
        shares = dict(told["exposure"][name]["seller"])
        others = shares.pop(OTHERS)
        assert others == pytest.approx(0)
        wanted = exposure_of(ids)
        assert {it: share for it, share in shares.items() if share} == pytest.approx(wanted)


def test_thousands_of_sellers_are_no_series_of_prometheus(proxy: Fronted) -> None:
    fronted, folder, metrics = proxy
    assert fronted.outcome(index=INDEX, body=QUERY).startswith("re-ranked")
    with httpx.Client(trust_env=False) as client:
        text = client.get(f"http://127.0.0.1:{metrics}/metrics").text
    assert "fairqr_proxy_searches_total" in text
    assert "shop" not in text
    assert "Traceback" not in fronted.log
    assert (folder / "deficits.json").exists()


async def test_searches_and_audits_take_the_same_groups(proxy: Fronted) -> None:
    source = load_source(proxy[1] / "people.yaml")
    engine = await open_source(source, retriever="bm25")
    async with FairSearch(engine, None) as search:
        result = await search.search("shoe", Context(k=10, target="uniform:1", ask="never"))
        assert exposure_of([it.id for it in result.ranking]) == pytest.approx(
            {group: share for group, share in result.exposure["seller"].items() if share > 0}
        )
        queries = [f"shoe number{number}" for number in range(0, COUNT, 8)]
        found = await audit(engine, queries, target="uniform:1", k=10)
    groups = {it.group for it in found.figures.groups}
    assert "shop 0" in groups
    assert "other" in groups
