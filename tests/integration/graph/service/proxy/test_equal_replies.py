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


DOCUMENTED: Any = yaml.safe_load(Path(__file__).with_name("options.yaml").read_text())
VOLATILE = ("took", "_scroll_id", "profile", "pit_id")


def without_hits(reply: httpx.Response) -> Any:
    """Return all of a reply but its hits and what differs from time to time."""
    if "json" not in reply.headers.get("content-type", ""):
        return [line for line in reply.text.splitlines() if "took" not in line]
    search = reply.json()
    for name in VOLATILE:
        search.pop(name, None)
    search.get("hits", {}).pop("hits", None)
    return search


def compare(sides: DirectAndProxied, body: Any, parameters: dict[str, str]) -> str:
    """Ask both sides, compare, and return what the proxy says that it did."""
    sent: Any = {"json": body, "params": parameters}
    direct = sides.direct.post("/people/_search", **sent)
    passed = sides.proxy.client.post("/people/_search", **sent)
    outcome = passed.headers.pop("fairqr")
    assert passed.status_code == direct.status_code, (body, passed.text)
    assert without_hits(passed) == without_hits(direct), body
    # Of what passes alone even these are the same: see test_passed_bytes.py.
    # OpenSearch warns of old options only at times.
    packed = {"content-length", "content-encoding", "transfer-encoding", "warning"}
    names = {*direct.headers, *passed.headers} - packed
    if outcome.startswith("passed"):
        others = [name for name in names if passed.headers.get(name) != direct.headers.get(name)]
        assert not others, (body, others)
        if passed.status_code == 200 and "json" in direct.headers["content-type"]:
            hits = passed.json().get("hits", {}).get("hits")
            assert hits == direct.json().get("hits", {}).get("hits"), body
    else:
        page = {"from": 0, "size": 200}
        unpaged = {name: parameters[name] for name in parameters.keys() - page.keys()}
        whole = sides.direct.post("/people/_search", json={**body, **page}, params=unpaged)
        assert len(hits_of(passed)) == len(hits_of(direct))
        assert not Counter(hits_of(passed)) - Counter(hits_of(whole)), body
    return outcome


def test_two_hundred_requests_give_equal_replies(sides: DirectAndProxied) -> None:
    """One for each documented option with each kind of query."""
    options = itertools.product(DOCUMENTED["queries"], DOCUMENTED["options"])
    requests: list[tuple[Any, Any]] = [({**query, **option}, {}) for query, option in options]
    requests += [({"query": kind}, {}) for kind in DOCUMENTED["kinds"]]
    query = DOCUMENTED["queries"][1]
    requests += [(query, parameters) for parameters in DOCUMENTED["parameters"]]
    outcomes = Counter(compare(sides, body, parameters) for body, parameters in requests)
    reranked = [number for outcome, number in outcomes.items() if outcome.startswith("re-ranked")]
    reasons = ("sort", "search_after", "size", "cluster", "from", "scroll", "terminate_after")

    assert outcomes.total() >= 200
    assert sum(reranked) > 100
    assert {f"passed; {reason}" for reason in reasons} <= outcomes.keys()


LINES: list[Any] = [
    *({"index": "people"}, QUERY),
    *({"index": "nowhere"}, {}),
    *({"index": ["people"], "preference": "a"}, {**QUERY, "sort": ["number"]}),
    *({"index": "people"}, {"query": {"match": {"bio": "opera"}}, "from": 2, "size": 4}),
    *({"index": "people"}, {"query": {"range": {"height": {"gt": "tall"}}}}),
]
"""Searches of one request; the last one fails."""


def send_lines(client: httpx.Client, lines: list[Any]) -> httpx.Response:
    content = "".join(f"{json.dumps(line)}\n" for line in lines)
    headers = {"content-type": "application/x-ndjson"}
    return client.post("/_msearch", content=content, headers=headers)


def test_several_searches_are_each_treated_on_their_own(sides: DirectAndProxied) -> None:
    direct = send_lines(sides.direct, LINES[:8]).json()["responses"]
    passed = send_lines(sides.proxy.client, LINES[:8])
    replies = passed.json()["responses"]

    assert passed.headers["fairqr"] == "re-ranked; ranks; passed 2, index"

    hits = [reply.pop("hits", {}).pop("hits", []) for reply in replies]
    own_hits = [reply.pop("hits", {}).pop("hits", []) for reply in direct]
    are_equal = [first == second for first, second in zip(hits, own_hits, strict=True)]

    assert [*map(len, hits)] == [*map(len, own_hits)] == [10, 0, 10, 4]
    assert are_equal == [False, True, True, False], hits
    assert [{**reply, "took": 0} for reply in replies] == [{**reply, "took": 0} for reply in direct]


def test_with_a_search_that_fails_none_of_a_request_is_re_ranked(sides: DirectAndProxied) -> None:
    direct = send_lines(sides.direct, LINES).json()["responses"]
    passed = send_lines(sides.proxy.client, LINES)
    assert passed.headers["fairqr"] == "passed; reply"

    hits = [reply.get("hits") for reply in passed.json()["responses"]]
    assert hits == [reply.get("hits") for reply in direct]


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


def test_a_packed_body_is_read(sides: DirectAndProxied) -> None:
    body = gzip.compress(json.dumps({**QUERY, "size": 2}).encode())
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    reply = sides.proxy.client.post("/people/_search", content=body, headers=headers)

    assert reply.headers["fairqr"] == "re-ranked; ranks"
    assert len(hits_of(reply)) == 2


def is_elasticsearch(sides: DirectAndProxied) -> bool:
    return "x-elastic-product" in sides.direct.get("/").headers


def test_an_official_client_searches_through_the_proxy(sides: DirectAndProxied) -> None:
    if is_elasticsearch(sides):
        elasticsearch = Elasticsearch(sides.proxy.url, http_compress=True)
        assert elasticsearch.search(index="people", q="bio:opera").meta.headers["fairqr"]
    else:
        reply = OpenSearch(sides.proxy.url).search(index="people", q="bio:opera")
        assert len(reply["hits"]["hits"]) == 10


@pytest.mark.parametrize("sides", ["elasticsearch"], indirect=True)
def test_numbers_stay_exact(sides: DirectAndProxied) -> None:
    exact = b'{"bio": "theorem river", "exact": [1.10, 1e-300, 123456789012345678901.50, 1E400]}'
    mapping = {"properties": {"exact": {"type": "object", "enabled": False}}}
    sides.direct.put("/people/_mapping", json=mapping)
    written = sides.direct.put(
        "/people/_doc/exact",
        content=exact,
        params={"refresh": "true"},
        headers={"content-type": "application/json"},
    )

    assert written.is_success

    reply = sides.proxy.search({"query": {"match": {"bio": "theorem"}}, "size": 100})
    sides.direct.delete("/people/_doc/exact?refresh=true")
    assert reply.headers["fairqr"].startswith("re-ranked")
    assert exact in reply.content


def test_a_window_that_the_cluster_refuses_passes(sides: DirectAndProxied) -> None:
    setting = {"index": {"max_result_window": 50}}
    sides.direct.put("/people/_settings", json=setting)
    assert sides.proxy.outcome() == "passed; cluster"

    sides.direct.put("/people/_settings", json={"index": {"max_result_window": None}})


def test_a_window_that_is_too_long_passes(sides: DirectAndProxied) -> None:
    long = "x" * 60_000
    scripted = {"script_fields": {"a": {"script": f"return '{long}'"}}}
    assert sides.proxy.outcome(body={**QUERY, **scripted}) == "passed; long"


def test_a_re_ranked_reply_is_packed_for_clients_that_unpack(sides: DirectAndProxied) -> None:
    body = {**QUERY, "size": 50}
    replies = {
        accepted: sides.proxy.search(body, headers={"accept-encoding": accepted})
        for accepted in ("gzip, deflate", "identity", "gzip;q=0", "*;q=0.1")
    }
    packed = replies["gzip, deflate"]
    bare = replies["identity"]
    packings = {name: reply.headers.get("content-encoding") for name, reply in replies.items()}

    assert packings == {
        "gzip, deflate": "gzip",
        "identity": None,
        "gzip;q=0": None,
        "*;q=0.1": None,
    }
    assert all(reply.headers["fairqr"] == "re-ranked; ranks" for reply in replies.values())
    assert all(reply.json()["hits"] == bare.json()["hits"] for reply in replies.values())

    packed_size = int(packed.headers["content-length"])
    assert packed_size < int(bare.headers["content-length"]) / 3
