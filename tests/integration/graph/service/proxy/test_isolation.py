"""One index cannot harm another, or the cluster: each has a process of its own."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.graph.service.proxy.proxied import (
    QUERY,
    SOURCE,
    Proxied,
    answer,
    frozen,
    proxied,
    raw_cluster,
)
from tests.patience import until
from tests.servers.attached_people import TOPICS, Server, people
from tests.servers.counting_proxy import counting_proxy

pytestmark = [
    pytest.mark.elasticsearch,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("people"),
]

SELLERS = [f"seller {number}" for number in range(2_000)]
OFFERS = {"properties": {"title": {"type": "text"}, "seller": {"type": "keyword"}}}
LARGE = 80_000


@pytest.fixture(scope="module")
def cluster(elasticsearch_url: str) -> Iterator[Server]:
    with people(elasticsearch_url, "people") as server:
        yield server


def beside(folder: Path, cluster: str, name: str, **source: Any) -> dict[str, Any]:
    """Write the source of another index; return the settings of both."""
    folder.mkdir(exist_ok=True)
    of_server = {"engine": "elasticsearch", "url": cluster, "index": name}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump({"name": name, **of_server, **source}))
    return {
        "people": {
            "source": "people.yaml",
            "mode": "fair",
            "parameters": {"target": "gender=female:0.9,male:0.1"},
        },
        name: {"source": f"{name}.yaml", "mode": "fair", "parameters": {"target": "uniform:1"}},
    }


def test_an_index_of_two_thousand_groups_costs_another_nothing(
    tmp_path: Path, cluster: Server
) -> None:
    draw = random.Random(3)
    offers = {
        str(number): {"title": " ".join(draw.choices(TOPICS, k=9)), "seller": seller}
        for number, seller in enumerate(SELLERS)
    }
    with cluster.index("offers", offers, OFFERS):
        groups = {"seller": {"field": "seller", "groups": SELLERS}}
        indexes = beside(tmp_path, cluster.url, "offers", text=["title"], attributes=groups)
        with proxied(tmp_path, cluster.url, indexes=indexes) as proxy:
            until(lambda: proxy.outcome().startswith("re-ranked"))
            until(lambda: offer(proxy, TOPICS[0]).startswith("re-ranked"))
            over = threading.Event()

            def many_groups() -> None:
                while not over.wait(0.2):
                    offer(proxy, f"{draw.choice(TOPICS)} {draw.choice(TOPICS)}")

            asking = threading.Thread(target=many_groups)
            asking.start()
            try:
                words = [f"{one} {two}" for one in TOPICS for two in TOPICS[:7]]
                outcomes = Counter(
                    proxy.outcome(body={"query": {"match": {"bio": it}}}) for it in words
                )
            finally:
                over.set()
                asking.join()
            assert outcomes == {"re-ranked; ranks": len(words)}


def offer(proxy: Proxied, words: str) -> str:
    return proxy.outcome(body={"query": {"match": {"title": words}}}, index="offers")


def test_an_index_that_is_away_is_tried_again_and_the_others_are_re_ranked(
    tmp_path: Path, cluster: Server
) -> None:
    attributes = SOURCE["attributes"]
    indexes = beside(tmp_path, cluster.url, "later", text=["bio"], attributes=attributes)
    cluster.client.delete("/later")
    with proxied(tmp_path, cluster.url, indexes=indexes) as proxy:
        until(lambda: proxy.outcome().startswith("re-ranked"))
        until(lambda: "Nothing of 'later' is re-ranked at present" in proxy.log)
        reply = proxy.search(index="later")
        assert (reply.status_code, reply.headers["fairqr"]) == (404, "passed; opening")
        with people(cluster.url, "later"):
            until(lambda: proxy.outcome(index="later").startswith("re-ranked"))
        assert proxy.log.count("Nothing of 'later'") == 1
        assert "Traceback" not in proxy.log


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
def test_an_error_of_an_overloaded_cluster_goes_out_and_it_is_asked_once(
    tmp_path: Path, cluster: Server, status: str
) -> None:
    body = b'{"error": {"type": "es_rejected_execution_exception"}, "status": 429}'
    with raw_cluster() as raw:
        raw.replies = lambda asked, send: send(answer(body, status, "retry-after: 7\r\n"))
        with proxied(tmp_path, raw.url, source={"url": cluster.url}) as proxy:
            until(lambda: proxy.search().headers["fairqr"] == "passed; cluster")
            for path, asked in (("_search", QUERY), ("_search/template", {"source": QUERY})):
                raw.asked.clear()
                reply = proxy.client.post(f"/people/{path}", json=asked)
                assert reply.status_code == int(status[:3])
                assert reply.content == body
                assert reply.headers["retry-after"] == "7"
                assert len(raw.asked) == 1


def test_where_re_ranking_is_late_the_page_is_cut_from_the_window(
    tmp_path: Path, cluster: Server
) -> None:
    with (
        counting_proxy(cluster.url) as counted,
        proxied(tmp_path, counted.url, source={"url": cluster.url}, within=0.5) as proxy,
    ):
        worker = proxy.ready()
        body = {"query": {"match": {"bio": "opera tennis"}}, "from": 5, "size": 7}
        with frozen(worker):
            counted.passed.clear()
            reply = proxy.search(body)
            assert reply.headers["fairqr"] == "passed; slow"
            assert counted.passed == [("POST", "/people/_search")]
        direct = cluster.ask("POST", "/people/_search", body)
        assert reply.json()["hits"] == direct["hits"]


def test_a_search_that_mostly_fails_is_not_tried_for_a_while(
    tmp_path: Path, cluster: Server
) -> None:
    """An index whose lists are always late is asked for its pages alone, as the log says."""
    with (
        counting_proxy(cluster.url) as counted,
        proxied(tmp_path, counted.url, source={"url": cluster.url}, within=0.001) as proxy,
    ):
        until(lambda: proxy.search().headers["fairqr"] == "passed; paused")
        assert "Searches of 'people' are not re-ranked for 60 s" in proxy.log
        counted.passed.clear()
        assert proxy.search().headers["fairqr"] == "passed; paused"
        assert counted.passed[:1] == [("POST", "/people/_search")]


def test_large_documents_are_fetched_for_the_page_alone(tmp_path: Path, cluster: Server) -> None:
    draw = random.Random(4)
    works = {
        str(number): {
            "title": " ".join(draw.choices(TOPICS, k=9)),
            "seller": ["female", "male"][number % 4 > 0],
            "body": "x" * LARGE,
        }
        for number in range(150)
    }
    mapping = {"properties": {**OFFERS["properties"], "body": {"type": "keyword", "index": False}}}
    mapping["properties"]["body"]["doc_values"] = False
    attributes = {"seller": {"field": "seller", "groups": ["female", "male"]}}
    with (
        cluster.index("works", works, mapping),
        counting_proxy(cluster.url) as counted,
    ):
        indexes = beside(tmp_path, cluster.url, "works", text=["title"], attributes=attributes)
        with proxied(tmp_path, counted.url, indexes=indexes) as proxy:
            until(lambda: proxy.outcome().startswith("re-ranked"))
            until(lambda: proxy.search(_works("opera", 10), "works").headers["fairqr"][:2] != "pa")
            for words in TOPICS[:5]:
                body = _works(words, 10)
                counted.sizes.clear()
                reply = proxy.search(body, "works")
                assert reply.headers["fairqr"] == "re-ranked; ranks"
                assert len(counted.sizes) == 2
                assert sum(counted.sizes) < 12 * LARGE  # and not those of 100 documents
                _compare_with_whole_hits(cluster, reply.json(), body)


def _works(words: str, size: int) -> dict[str, Any]:
    return {
        "query": {"match": {"title": words}},
        "size": size,
        "highlight": {"fields": {"title": {}}},
        "aggs": {"sellers": {"terms": {"field": "seller"}}},
    }


def _compare_with_whole_hits(cluster: Server, page: Any, body: dict[str, Any]) -> None:
    """Compare a page with what the cluster says of the same documents in its own order."""
    whole = cluster.ask("POST", "/works/_search", {**body, "size": 100})
    own = {hit["_id"]: hit for hit in whole["hits"]["hits"]}
    hits = page["hits"]["hits"]
    assert [own[hit["_id"]] for hit in hits] == hits
    assert page["hits"]["total"] == whole["hits"]["total"]
    assert page["aggregations"] == whole["aggregations"]
    women = [hit["_source"]["seller"] for hit in hits].count("female")
    first = [hit["_source"]["seller"] for hit in whole["hits"]["hits"][:10]].count("female")
    assert women > first
