"""The proxy reads labels as searches and audits do, and its replies are those of the cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.engines.opening import open_source
from fairqr.retrieval.sources.source import load_source
from tests.integration.graph.service.proxy.proxied import Proxied, proxied
from tests.patience import until
from tests.servers.attached_people import Server
from tests.servers.service_client import in_process

pytestmark = [pytest.mark.elasticsearch, pytest.mark.timeout(600)]

INDEX = "true-labels"
COUNT = 60
YEARS = {"old": {"lt": 1970}, "new": {"gte": 1970}}
SEXES = {"female": ["female"], "male": ["male"]}

MAPPINGS: dict[str, dict[str, Any]] = {
    "folded": {"type": "keyword", "normalizer": "folding"},
    "millis": {"type": "date", "format": "epoch_millis"},
    "seconds": {"type": "date", "format": "epoch_second"},
    "basic": {"type": "date", "format": "basic_date"},
    "european": {"type": "date", "format": "dd/MM/yyyy"},
    "plain": {"type": "keyword"},
    "truth": {"type": "boolean"},
    "bare": {"type": "keyword", "doc_values": False},
    "shadowed": {"type": "keyword"},
    "nulled": {"type": "keyword", "null_value": "male"},
    "scripted": {
        "type": "keyword",
        "script": {
            "source": "emit(params._source.plain instanceof List"
            " ? params._source.plain[0] : params._source.plain)"
        },
    },
}
SHADOW = {"shadowed": {"type": "keyword", "script": "emit(doc['plain'].value)"}}

DATED = [name for name, mapped in MAPPINGS.items() if mapped["type"] == "date"]

PLAIN = ("folded", "plain", "bare", "shadowed", "nulled", "scripted")

ATTRIBUTES: dict[str, dict[str, Any]] = {
    **{name: {"field": name, "groups": SEXES} for name in PLAIN},
    **{name: {"field": name, "groups": YEARS} for name in DATED},
    "truth": {"field": "truth", "groups": {"yes": ["true"], "no": ["false"]}},
}


def document(number: int) -> dict[str, Any]:
    """A person whose fields are written as their mappings allow."""
    year = 1940 + number
    sex = ("female", "male")[number % 3 > 0]
    seconds = (year - 1970) * 31_556_952 + 86_400
    return {
        "bio": "physicist " * (number % 7 + 1) + "of renown " * (number % 5),
        "folded": (sex.upper(), sex.title(), sex)[number % 3],
        "millis": seconds * 1000,
        "seconds": seconds,
        "basic": f"{year}0301",
        "european": f"01/03/{year}",
        "plain": sex if number % 4 else [sex],
        "truth": number % 2 == 0,
        "bare": sex,
        "shadowed": "nobody",
        "nulled": "female" if sex == "female" else None,
    }


@pytest.fixture(scope="module")
def cluster(elasticsearch_url: str) -> Iterator[httpx.Client]:
    analysis = {"normalizer": {"folding": {"type": "custom", "filter": ["lowercase"]}}}
    mapping = {"properties": {"bio": {"type": "text"}, **MAPPINGS}, "runtime": SHADOW}
    documents = {str(number): document(number) for number in range(COUNT)}
    settings = {"number_of_shards": 1, "analysis": analysis}
    server = Server(elasticsearch_url)
    with server.client, server.index(INDEX, documents, mapping, **settings):
        yield server.client


@pytest.fixture(scope="module")
def proxy(
    cluster: httpx.Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Proxied, Path]]:
    folder = tmp_path_factory.mktemp("proxy")
    attributes = json.loads(json.dumps(ATTRIBUTES))  # YAML would write equal parts as aliases
    source = {"index": INDEX, "title": "bio", "attributes": attributes}
    parameters = {"target": "uniform:1", "attributes": [*ATTRIBUTES], "k": 20}
    index = {"source": "people.yaml", "mode": "fair", "parameters": parameters}
    how: dict[str, Any] = {"source": source, "indexes": {INDEX: index}, "log": "log"}
    with proxied(folder, str(cluster.base_url), **how) as proxy:
        until(lambda: proxy.outcome(index=INDEX).startswith("re-ranked"))
        yield proxy, folder


ASKED: list[dict[str, Any]] = [
    {},
    {"_source": False},
    {"_source": ["bio"]},
    {"docvalue_fields": ["plain"]},
    {"docvalue_fields": [{"field": "millis", "format": "epoch_millis"}, "truth"]},
    {"fields": ["bare", "bio"]},
    {"fields": ["*"]},
    {"_source": {"excludes": ["plain", "folded"]}, "stored_fields": []},
]
"""What clients ask for besides the query; none of it decides what is known."""


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_the_reply_is_the_clusters_but_for_its_order(
    cluster: httpx.Client, proxy: tuple[Proxied, Path], asked: dict[str, Any]
) -> None:
    """What was asked for beside the client's own fields is cut out again, to the byte."""
    for size, pretty in ((10, "?pretty=true"), (COUNT, "")):
        body = {"query": {"match": {"bio": "physicist renown"}}, "size": size, **asked}
        there = proxy[0].client.post(f"/{INDEX}/_search{pretty}", json=body)
        assert there.headers["fairqr"].startswith("re-ranked"), there.text
        here = cluster.post(f"/{INDEX}/_search{pretty}", json={**body, "size": COUNT})
        by_id = {hit["_id"]: hit for hit in here.json()["hits"]["hits"]}
        found = there.json()["hits"]["hits"]
        assert len(found) == size
        for hit in found:
            assert hit == by_id[hit["_id"]]
        if size == COUNT:
            assert len(there.content) == pytest.approx(len(here.content), abs=2)  # "took"


async def test_groups_are_those_of_a_search(
    cluster: httpx.Client, proxy: tuple[Proxied, Path]
) -> None:
    """For each attribute, whichever fields a client asks for."""
    source = load_source(proxy[1] / "people.yaml")
    engine = await open_source(source, retriever="bm25")
    (hits,) = await engine.search([Query("physicist renown", COUNT)])
    await engine.aclose()
    wanted = {
        name: dict(zip(hits.ids, rows.tolist(), strict=True))
        for name, rows in hits.memberships.items()
    }
    assert all(any(map(sum, rows.values())) for rows in wanted.values())
    file = proxy[1] / "log" / "log.jsonl"
    for number, asked in enumerate(ASKED):
        text = " ".join(["physicist renown", *["of"] * number])  # another query: another list
        body = {"query": {"match": {"bio": text}}, **asked}
        before = len(file.read_text().splitlines())
        assert proxy[0].outcome(index=INDEX, body=body).startswith("re-ranked")
        until(lambda before=before: len(file.read_text().splitlines()) > before)
        record = json.loads(file.read_text().splitlines()[-1])
        for name, groups in record["groups"].items():
            universe = engine.schema.attribute(name).universe
            for id_, group in zip(record["ids"], groups, strict=True):
                shares = [float(it == group) for it in universe]
                assert shares == wanted[name][id_], (name, id_, group, asked)


def test_one_label_that_cannot_be_read_is_unknown_for_its_hit(
    cluster: httpx.Client, proxy: tuple[Proxied, Path]
) -> None:
    odd = {"bio": "physicist physicist renown", "plain": ["female", None], "folded": "ünknown"}
    cluster.put(f"/{INDEX}/_doc/odd?refresh=true", json=odd).raise_for_status()
    try:
        body = {"query": {"match": {"bio": "physicist renown odd"}}}
        assert proxy[0].outcome(index=INDEX, body=body).startswith("re-ranked")
    finally:
        cluster.delete(f"/{INDEX}/_doc/odd?refresh=true").raise_for_status()


def test_a_client_that_gives_a_label_another_meaning_is_passed(
    proxy: tuple[Proxied, Path],
) -> None:
    runtime = {"plain": {"type": "keyword", "script": "emit('female')"}}
    body = {"query": {"match": {"bio": "physicist"}}, "runtime_mappings": runtime}
    assert proxy[0].outcome(index=INDEX, body=body) == "passed; runtime_mappings"


@pytest.mark.parametrize("name", ["folded", "shadowed", "nulled", "scripted"])
async def test_a_list_to_re_rank_is_labelled_by_the_index_where_fields_say_something_else(
    cluster: httpx.Client, proxy: tuple[Proxied, Path], name: str
) -> None:
    """By the ids of its documents; without ids nothing is known of them."""
    documents = [{"id": str(number), "fields": document(number)} for number in range(6)]
    asked = {"model": f"people?attributes={name}", "query": "", "documents": documents}
    async with in_process(sources=(proxy[1] / "people.yaml",)) as client:
        found = (await client.post("/v1/rerank", json=asked)).json()
        assert found["fairqr"]["unlabelled"] == {name: 0}
        asked["documents"] = [{"fields": one["fields"]} for one in documents]
        found = await client.post("/v1/rerank", json=asked)
        assert found.headers["fairqr"] == "not re-ranked; no labels"
        asked["model"] = "people?attributes=plain"
        found = (await client.post("/v1/rerank", json=asked)).json()
        assert found["fairqr"]["unlabelled"] == {"plain": 0}
