"""Requests give the same replies directly and through the proxy, the order of hits apart."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from elasticsearch import Elasticsearch
from opensearchpy import OpenSearch

from tests.integration.graph.service.proxy.proxied import QUERY, Proxied, hits_of, proxied
from tests.servers.attached_people import TOPICS, people

pytestmark = [pytest.mark.timeout(1200), pytest.mark.xdist_group("people")]


@dataclass
class DirectAndProxied:
    """A cluster, directly and through the proxy."""

    direct: httpx.Client
    proxy: Proxied


@pytest.fixture(scope="module", params=["elasticsearch", "opensearch"])
def sides(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DirectAndProxied]:
    url = request.getfixturevalue(f"{request.param}_url")
    source = {"engine": request.param}
    with ExitStack() as stack:
        server = stack.enter_context(people(url, "people"))
        folder = tmp_path_factory.mktemp(request.param)
        proxy = stack.enter_context(proxied(folder, url, source=source))
        proxy.ready()
        yield DirectAndProxied(server.client, proxy)


ASKED: Any = yaml.safe_load(Path(__file__).with_name("options.yaml").read_text())
VOLATILE = ("took", "_scroll_id", "profile", "pit_id")


def without_hits(reply: httpx.Response) -> Any:
    """Return all of a reply but its hits and what differs from time to time."""
    if "json" not in reply.headers.get("content-type", ""):
        return [line for line in reply.text.splitlines() if "took" not in line]
    said = reply.json()
    for name in VOLATILE:
        said.pop(name, None)
    said.get("hits", {}).pop("hits", None)
    return said


def compare(sides: DirectAndProxied, body: Any, parameters: dict[str, str]) -> str:
    """Ask both sides, compare, and return what the proxy says that it did."""
    how: Any = {"json": body, "params": parameters}
    direct = sides.direct.post("/people/_search", **how)
    passed = sides.proxy.client.post("/people/_search", **how)
    outcome = passed.headers.pop("fairqr")
    assert passed.status_code == direct.status_code, (body, passed.text)
    assert without_hits(passed) == without_hits(direct), body
    # Of what passes alone even these are the same: see test_passed_bytes.py.
    # OpenSearch warns of old options only at times.
    packed = {"content-length", "content-encoding", "transfer-encoding", "warning"}
    names = {*direct.headers, *passed.headers} - packed
    if outcome.startswith("passed"):
        kept = [name for name in names if passed.headers.get(name) != direct.headers.get(name)]
        assert not kept, (body, kept)
        if passed.status_code == 200 and "json" in direct.headers["content-type"]:
            hits = [it.json().get("hits", {}).get("hits") for it in (passed, direct)]
            assert hits[0] == hits[1], body
    else:
        size = {"from": 0, "size": 200}
        told = {name: value for name, value in parameters.items() if name not in size}
        asked = {"json": {**body, **size}, "params": told}
        every = Counter(hits_of(sides.direct.post("/people/_search", **asked)))
        assert len(hits_of(passed)) == len(hits_of(direct))
        assert not Counter(hits_of(passed)) - every, body
    return outcome


def test_two_hundred_requests_give_equal_replies(sides: DirectAndProxied) -> None:
    """One for each documented option with each kind of query."""
    options = itertools.product(ASKED["queries"], ASKED["options"])
    requests = [({**query, **option}, {}) for query, option in options]
    requests += [({"query": it}, {}) for it in ASKED["kinds"]]
    requests += [(ASKED["queries"][1], it) for it in ASKED["parameters"]]
    outcomes = Counter(compare(sides, *it) for it in requests)
    assert outcomes.total() >= 200
    assert sum(outcomes[it] for it in outcomes if it.startswith("re-ranked")) > 100
    passed = "sort search_after size cluster from scroll terminate_after"
    for why in passed.split():
        assert outcomes[f"passed; {why}"] >= 1, outcomes


def test_several_searches_are_each_treated_on_their_own(sides: DirectAndProxied) -> None:
    lines: list[Any] = [{"index": "people"}, QUERY, {"index": "nowhere"}, {}]
    lines += [{"index": ["people"], "preference": "a"}, {**QUERY, "sort": ["number"]}]
    lines += [{"index": "people"}, {"query": {"match": {"bio": "opera"}}, "from": 2, "size": 4}]
    lines += [{"index": "people"}, {"query": {"range": {"height": {"gt": "tall"}}}}]
    for last in (10, 8):  # with a search that fails, nothing is re-ranked
        content = "".join(json.dumps(it) + "\n" for it in lines[:last])
        how: Any = {"content": content, "headers": {"content-type": "application/x-ndjson"}}
        direct, passed = (it.post("/_msearch", **how) for it in (sides.direct, sides.proxy.client))
        pairs = [*zip(direct.json()["responses"], passed.json()["responses"], strict=True)]
        if last == 10:
            assert passed.headers["fairqr"] == "passed; reply"
            assert [a.get("hits") for a, _ in pairs] == [b.get("hits") for _, b in pairs]
            continue
        assert passed.headers["fairqr"] == "re-ranked; ranks; passed 2, index"
        hits = [[it.pop("hits", {}).pop("hits", []) for it in pair] for pair in pairs]
        assert [len(a) for a, _ in hits] == [len(b) for _, b in hits] == [10, 0, 10, 4]
        assert [a == b for a, b in hits] == [False, True, True, False], hits
        assert all({**a, "took": 0} == {**b, "took": 0} for a, b in pairs)


def test_ten_pages_of_a_query_have_each_document_once(sides: DirectAndProxied) -> None:
    for words in itertools.combinations(TOPICS, 2):
        query = {"match": {"bio": " ".join(words)}}
        whole = sides.direct.post("/people/_search", json={"query": query, "size": 100})
        pages = []
        for start in range(0, 100, 10):
            reply = sides.proxy.search({"query": query, "from": start})
            assert reply.headers["fairqr"] == "re-ranked; ranks"
            pages += hits_of(reply)
        assert sorted(pages) == sorted(hits_of(whole))
        assert pages != hits_of(whole)


def test_official_clients_packed_bodies_and_exact_numbers(sides: DirectAndProxied) -> None:
    body = gzip.compress(json.dumps({**QUERY, "size": 2}).encode())
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    reply = sides.proxy.client.post("/people/_search", content=body, headers=headers)
    assert reply.headers["fairqr"] == "re-ranked; ranks"
    assert len(hits_of(reply)) == 2
    exact = b'{"bio": "theorem river", "exact": [1.10, 1e-300, 123456789012345678901.50, 1E400]}'
    if "x-elastic-product" in reply.headers:
        es = Elasticsearch(sides.proxy.url, http_compress=True)
        assert es.search(index="people", q="bio:opera").meta.headers["fairqr"]
        how: Any = {"params": {"refresh": "true"}, "headers": {"content-type": "application/json"}}
        mapping = {"properties": {"exact": {"type": "object", "enabled": False}}}
        sides.direct.put("/people/_mapping", json=mapping)
        assert sides.direct.put("/people/_doc/exact", content=exact, **how).is_success
        found = sides.proxy.search({"query": {"match": {"bio": "theorem"}}, "size": 100})
        sides.direct.delete("/people/_doc/exact?refresh=true")
        assert found.headers["fairqr"].startswith("re-ranked")
        assert exact in found.content
    else:
        found = OpenSearch(sides.proxy.url).search(index="people", q="bio:opera")
        assert len(found["hits"]["hits"]) == 10


def test_windows_that_the_cluster_refuses_or_are_too_long_pass(sides: DirectAndProxied) -> None:
    setting = {"index": {"max_result_window": 50}}
    sides.direct.put("/people/_settings", json=setting)
    assert sides.proxy.outcome() == "passed; cluster"
    sides.direct.put("/people/_settings", json={"index": {"max_result_window": None}})
    long = "x" * 60_000
    scripted = {"script_fields": {"a": {"script": f"return '{long}'"}}}
    assert sides.proxy.outcome(body={**QUERY, **scripted}) == "passed; long"


def test_a_re_ranked_reply_is_packed_for_clients_that_unpack(sides: DirectAndProxied) -> None:
    body = {**QUERY, "size": 50}
    replies = {
        accepted: sides.proxy.search(body, headers={"accept-encoding": accepted})
        for accepted in ("gzip, deflate", "identity", "gzip;q=0", "*;q=0.1")
    }
    packings = {accepted: it.headers.get("content-encoding") for accepted, it in replies.items()}
    assert packings == {
        "gzip, deflate": "gzip",
        "identity": None,
        "gzip;q=0": None,
        "*;q=0.1": None,
    }
    assert {it.headers["fairqr"] for it in replies.values()} == {"re-ranked; ranks"}
    assert len({json.dumps(it.json()["hits"]) for it in replies.values()}) == 1
    sizes = {it: int(reply.headers["content-length"]) for it, reply in replies.items()}
    assert sizes["gzip, deflate"] < sizes["identity"] / 3
