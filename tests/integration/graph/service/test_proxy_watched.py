"""What a proxy in front of a real Elasticsearch records, and what it keeps over restarts."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx
import numpy as np
import pytest
from elasticsearch import Elasticsearch

from tests.integration.graph.service.proxy.proxied import proxied
from tests.patience import PATIENCE, until
from tests.ports import free_port
from tests.servers.attached_people import TOPICS, people
from tests.servers.model_server import Main

pytestmark = [pytest.mark.elasticsearch, pytest.mark.xdist_group("people")]
SHADOW = 'fairqr_proxy_searches_total{index="people",outcome="shadow"}'
Running = Callable[..., Any]


def search_body(word: str, **options: Any) -> dict[str, Any]:
    return {"query": {"match": {"bio": word}}, **options}


@pytest.fixture
def watched(elasticsearch_url: str, tmp_path: Path) -> Iterator[Running]:
    """Runs a proxy in front of an index of people, with these settings of the index and others."""
    usual = {"window": 50, "parameters": {"target": "gender=female:0.5,male:0.5", "k": 10}}

    @contextmanager
    def run(index: dict[str, Any], **options: Any) -> Iterator[httpx.Client]:
        settings = {**usual, **index}
        with proxied(tmp_path, elasticsearch_url, index=settings, within=10, **options) as proxy:
            yield proxy.client
            assert proxy.end() == 0

    with people(elasticsearch_url, "people"):
        yield run


def logged(folder: Path) -> list[dict[str, Any]]:
    file = folder / "log.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line) for line in lines if line]


def records(folder: Path) -> list[dict[str, Any]]:
    """Return what is logged of searches whose lists are known."""
    return [record for record in logged(folder) if "unseen" not in record]


def ready(client: httpx.Client, holds: Callable[[httpx.Response], Any]) -> None:
    """Ask until the worker has started."""
    until(lambda: holds(client.post("/people/_search", json=search_body("novel"))))


def is_reranked(reply: httpx.Response) -> bool:
    return reply.headers["fairqr"].startswith("re-ranked")


def figures(port: int) -> dict[str, float]:
    text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    samples = re.findall(r"^([^# ].*) (\S+)$", text, re.MULTILINE)
    return {name: float(number) for name, number in samples}


def series(report: dict[str, Any], lists: str, name: str) -> dict[str, Any]:
    """Return a series of the lists that a report compares."""
    (matching,) = [row for row in report["lists"][lists] if row["name"] == name]
    return dict(matching)


def compare_replies(number: int, proxy: httpx.Client, engine: httpx.Client) -> None:
    """Check that a proxy in the shadow answers what the engine does."""
    body = search_body(TOPICS[number % 8], size=10, _source=["headline"])
    replies = [client.post("/people/_search", json=body) for client in (proxy, engine)]
    first, second = (re.sub(rb'^\{"took":\d+', b"", reply.content) for reply in replies)
    assert first == second
    assert replies[0].headers["fairqr"] == "passed; shadow"


def record_each_topic(client: httpx.Client, log: Path) -> None:
    """Search for each topic until its list is recorded; of many at once not all are looked at."""
    for word in TOPICS:

        def is_recorded(word: str = word) -> bool:
            client.post("/people/_search", json=search_body(word))
            return word in {record["words"] for record in records(log)}

        until(is_recorded)


def mean_gap(log_records: list[dict[str, Any]], order: str) -> float:
    """Return how far from a half the share of women in an order is, over the queries."""
    shares = {}
    for record in log_records:
        shares[record["words"]] = record["exposure"][order]["gender"]["female"]
    return fmean(abs(share - 0.5) for share in shares.values())


@pytest.mark.promise("service")
def test_shadow_changes_nothing_and_its_log_is_audited(
    watched: Running, elasticsearch_url: str, quick: Main, tmp_path: Path
) -> None:
    """In the shadow a proxy changes nothing of what the engine replies, and its log is audited with
    the weights of its searches.
    """
    log = tmp_path / "log"
    port = free_port()
    with watched({"mode": "shadow"}, log="log", log_words=True, metrics_port=port) as client:
        ready(client, lambda _: records(log))
        engine = httpx.Client(base_url=elasticsearch_url, timeout=PATIENCE)
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(partial(compare_replies, proxy=client, engine=engine), range(160)))

        record_each_topic(client, log)
        until(lambda: figures(port)[SHADOW] == len(logged(log)))
        assert mean_gap(records(log), "fair") < 0.01 < mean_gap(records(log), "engine")

        second = quick("proxy", tmp_path / "proxy.yaml")
        assert (second.code, second.stderr.count("\n")) == (2, 1)
        assert "another proxy uses it" in second.stderr or "metrics_port" in second.stderr

    ended = quick("audit", "--from-log", log, "-o", tmp_path / "out", "--json")
    report = json.loads(ended.stdout)
    assert report["queries"]["weight"] == len(records(log))

    relevance = series(report, "both", "relevance")
    cost = relevance["fair"]["value"] - relevance["engine"]["value"]
    assert relevance["change"]["value"] == pytest.approx(cost)  # what fair re-ranking would cost

    women = series(report, "both", "gender: female")
    shares = [record["exposure"]["engine"]["gender"]["female"] for record in records(log)]
    assert women["engine"]["value"] == pytest.approx(fmean(shares))


def queries_of(log: Path) -> set[str]:
    """Return the hashes of the queries that a log has records of."""
    return {record["query"] for record in records(log)}


@pytest.mark.promise("service")
def test_clicks_on_swapped_lists_say_how_users_look(
    watched: Running, quick: Main, tmp_path: Path
) -> None:
    """A report on the log has the attention that clicks on swapped lists show.

    Made users look at the second rank half as often as at the first, and at no other.
    """
    rng = np.random.default_rng(64)
    log = tmp_path / "log"
    clicks: list[dict[str, str]] = []
    headers = set[str]()
    parameters = {"target": "gender=female:0.5,male:0.5", "k": 2}
    settings = {"mode": "fair", "share": 0.8, "swap": 0.7, "parameters": parameters}
    words_of_queries = [" ".join(words) for words in product(TOPICS, repeat=3)]
    with watched(settings, log="log") as client:
        engine = Elasticsearch(str(client.base_url))
        ready(client, lambda _: records(log))
        for words in words_of_queries[::2]:
            reply = engine.search(index="people", **search_body(words), size=5)
            headers.add(reply.meta.headers["fairqr"])
            for hit, looks in zip(reply["hits"]["hits"], (1, 0.5), strict=False):
                if rng.random() < looks * 0.8:
                    id_ = reply.meta.headers["fairqr-search"]
                    clicks.append({"query_id": id_, "document": hit["_id"]})
        until(lambda: len(queries_of(log)) > len(words_of_queries) / 2)

    assert {header.endswith(", ranks 1 and 2 swapped") for header in headers} == {True, False}

    file = tmp_path / "clicks.jsonl"
    file.write_text("".join(json.dumps(click) + "\n" for click in clicks))
    ended = quick("audit", "--from-log", log, "--clicks", file, "-o", tmp_path / "out")

    assert ended.code == 0, ended.stderr
    assert "searches show by intervention: rank 2 is looked at" in ended.stdout
    assert "Of a fair list, users clicked" in ended.stdout

    report = json.loads((tmp_path / "out" / "audit.json").read_text())["clicks"]
    examined = report["examination"]
    low = examined["low"][1]
    high = examined["high"][1]

    assert abs(np.log(examined["values"][1] / 0.5)) < np.log(high / low)

    trial = report["trial"]
    untossed = {record["query"] for record in records(log) if "swap" not in record}
    assert trial["decision"] in ("go on", "differs")
    assert trial["low"] < 0 < trial["high"]
    assert sum(trial["queries"].values()) == len(untossed)
    assert quick("audit", "verify", tmp_path / "out").code == 0


def width_of_change(row: dict[str, Any]) -> float:
    """Return how wide the interval of a change is."""
    low, high = row["change"]["interval"]
    return float(high - low)


@pytest.mark.promise("service")
def test_a_share_of_the_queries_gets_fair_lists(
    watched: Running, quick: Main, tmp_path: Path
) -> None:
    """A share of the queries gets fair lists, each query always the same kind, and an audit of the
    log compares both arms.
    """
    arms: dict[str, str] = {}
    log = tmp_path / "log"
    with watched({"mode": "fair", "share": 0.5}, log="log") as client:
        queries = [f"{first} {second}" for first in TOPICS for second in TOPICS[:5]]
        engine = Elasticsearch(str(client.base_url))
        ready(client, lambda _: records(log))
        for words, start in product(queries * 2, (0, 10)):
            body = search_body(words)
            reply = engine.search(index="people", **body, from_=start, size=10)
            arm = reply.meta.headers["fairqr"][:4]

            assert arms.setdefault(words, arm) in ("re-r", "pass")
        until(lambda: len(queries_of(log)) >= len(queries))

    assert 8 < Counter(arms.values())["re-r"] < 32

    ended = quick("audit", "--from-log", log, "-o", tmp_path / "out")
    assert ended.code == 0, ended.stderr
    assert "queries that get fair lists, beside the others: relevance" in ended.stdout

    report = json.loads((tmp_path / "out" / "audit.json").read_text())
    by_query = width_of_change(series(report, "both", "gender: female"))
    by_arm = width_of_change(series(report, "arms", "gender: female"))

    assert 0 < by_query < by_arm  # the arms have other queries


@pytest.mark.promise("service")
def test_amortised_deficits_are_kept_over_a_restart(watched: Running, tmp_path: Path) -> None:
    """Amortised deficits of a proxy outlast its restarts."""
    file = tmp_path / "deficit.json"

    def deficit() -> float:
        if not file.exists():
            return 0.0
        return float(json.loads(file.read_text())["gender"]["female"])

    parameters = {"target": "uniform:1", "fairness_weight": 0.2, "k": 3}
    settings = {"mode": "fair", "amortised": "deficit.json", "parameters": parameters}
    with watched(settings) as client:
        ready(client, is_reranked)
        for word in TOPICS:
            client.post("/people/_search", json=search_body(word))
        until(lambda: deficit() != 0)

    before = deficit()
    assert before != 0

    with watched(settings) as client:
        ready(client, is_reranked)
        until(lambda: deficit() != before)
        assert abs(deficit() - 0.99 * before) <= 1.0  # one list more, and none forgotten
