"""What a proxy in front of a real Elasticsearch records, and what it keeps over restarts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
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


def asked(word: str, **more: Any) -> dict[str, Any]:
    return {"query": {"match": {"bio": word}}, **more}


@pytest.fixture
def watched(elasticsearch_url: str, tmp_path: Path) -> Iterator[Running]:
    """Runs a proxy in front of an index of people, with these settings of the index and others."""
    usual = {"window": 50, "parameters": {"target": "gender=female:0.5,male:0.5", "k": 10}}

    @contextmanager
    def run(index: dict[str, Any], **more: Any) -> Iterator[httpx.Client]:
        own = {**usual, **index}
        with proxied(tmp_path, elasticsearch_url, index=own, within=10, **more) as proxy:
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
    return [it for it in logged(folder) if "unseen" not in it]


def ready(client: httpx.Client, holds: Callable[[httpx.Response], Any]) -> None:
    """Ask until the worker has started."""
    until(lambda: holds(client.post("/people/_search", json=asked("novel"))))


def figures(port: int) -> dict[str, float]:
    text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    return {name: float(it) for name, it in re.findall(r"^([^# ].*) (\S+)$", text, re.MULTILINE)}


def test_shadow_changes_nothing_and_its_log_is_audited(
    watched: Running, elasticsearch_url: str, quick: Main, tmp_path: Path
) -> None:
    log, port = tmp_path / "log", free_port()
    with watched({"mode": "shadow"}, log="log", log_words=True, metrics_port=port) as client:
        ready(client, lambda _: records(log))
        direct = httpx.Client(base_url=elasticsearch_url, timeout=PATIENCE)

        def ask(number: int) -> None:
            body = asked(TOPICS[number % 8], size=10, _source=["headline"])
            pair = [it.post("/people/_search", json=body) for it in (client, direct)]
            one, two = (re.sub(rb'^\{"took":\d+', b"", it.content) for it in pair)
            assert one == two
            assert pair[0].headers["fairqr"] == "passed; shadow"

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(ask, range(160)))

        for word in TOPICS:  # many at once are not all looked at

            def recorded(word: str = word) -> bool:
                client.post("/people/_search", json=asked(word))
                return word in {it["words"] for it in records(log)}

            until(recorded)
        until(lambda: figures(port)[SHADOW] == len(logged(log)))
        each = {it["words"]: it["exposure"] for it in records(log)}.values()
        far = {
            which: sum(abs(it[which]["gender"]["female"] - 0.5) for it in each) / len(each)
            for which in ("fair", "engine")
        }
        assert far["fair"] < 0.01 < far["engine"]
        second = quick("proxy", tmp_path / "proxy.yaml")
        assert (second.code, second.stderr.count("\n")) == (2, 1)
        assert "another proxy uses it" in second.stderr or "metrics_port" in second.stderr
    told = quick(*("audit", "--from-log", log, "-o", tmp_path / "out", "--json"))
    audit = json.loads(told.stdout)
    assert audit["queries"]["weight"] == len(records(log))
    relevance = next(it for it in audit["lists"]["both"] if it["name"] == "relevance")
    cost = relevance["fair"]["value"] - relevance["engine"]["value"]
    assert relevance["change"]["value"] == pytest.approx(cost)  # what fair re-ranking would cost
    women = next(it for it in audit["lists"]["both"] if it["name"] == "gender: female")
    every = [it["exposure"]["engine"]["gender"]["female"] for it in records(log)]
    assert women["engine"]["value"] == pytest.approx(sum(every) / len(every))


def test_clicks_on_swapped_lists_say_how_users_look(
    watched: Running, quick: Main, tmp_path: Path
) -> None:
    """Made users look at the second rank half as often as at the first, and at no other."""
    rng = np.random.default_rng(64)
    clicks: list[dict[str, str]] = []
    headers = set[str]()
    parameters = {"target": "gender=female:0.5,male:0.5", "k": 2}
    how = {"mode": "fair", "share": 0.8, "swap": 0.7, "parameters": parameters}
    with watched(how, log="log") as client:
        engine = Elasticsearch(str(client.base_url))
        ready(client, lambda _: records(tmp_path / "log"))
        queries = [f"{one} {two} {three}" for one in TOPICS for two in TOPICS for three in TOPICS]
        for words in queries[::2]:
            found = engine.search(index="people", **asked(words), size=5)
            headers.add(found.meta.headers["fairqr"])
            for hit, looks in zip(found["hits"]["hits"], (1, 0.5), strict=False):
                if rng.random() < looks * 0.8:
                    id_ = found.meta.headers["fairqr-search"]
                    clicks.append({"query_id": id_, "document": hit["_id"]})
        until(lambda: len({it["query"] for it in records(tmp_path / "log")}) > len(queries) / 2)
    assert {it.endswith(", ranks 1 and 2 swapped") for it in headers} == {True, False}
    file = tmp_path / "clicks.jsonl"
    file.write_text("".join(json.dumps(click) + "\n" for click in clicks))
    found = quick(
        *("audit", "--from-log", tmp_path / "log", "--clicks", file, "-o", tmp_path / "out")
    )
    assert found.code == 0, found.stderr
    assert "searches show by intervention: rank 2 is looked at" in found.stdout
    assert "Of a fair list, users clicked" in found.stdout
    figures = json.loads((tmp_path / "out" / "audit.json").read_text())["clicks"]
    examined = figures["examination"]
    low = examined["low"][1]
    high = examined["high"][1]
    assert abs(np.log(examined["values"][1] / 0.5)) < np.log(high / low)
    assert figures["trial"]["decision"] in ("go on", "differs")
    assert figures["trial"]["low"] < 0 < figures["trial"]["high"]
    untossed = {it["query"] for it in records(tmp_path / "log") if "swap" not in it}
    assert sum(figures["trial"]["queries"].values()) == len(untossed)
    assert quick("audit", "verify", tmp_path / "out").code == 0


def test_a_share_of_the_queries_gets_fair_lists_and_the_arms_are_compared(
    watched: Running, quick: Main, tmp_path: Path
) -> None:
    got: dict[str, str] = {}
    with watched({"mode": "fair", "share": 0.5}, log="log") as client:
        queries = [f"{one} {two}" for one in TOPICS for two in TOPICS[:5]]
        engine = Elasticsearch(str(client.base_url))
        ready(client, lambda _: records(tmp_path / "log"))
        for words in queries * 2:
            for start in (0, 10):
                it = engine.search(index="people", **asked(words), from_=start, size=10)
                assert got.setdefault(words, it.meta.headers["fairqr"][:4]) in ("re-r", "pass")
        until(lambda: len({it["query"] for it in records(tmp_path / "log")}) >= len(queries))
    assert 8 < sum(it == "re-r" for it in got.values()) < 32
    found = quick("audit", "--from-log", tmp_path / "log", "-o", tmp_path / "out")
    assert found.code == 0, found.stderr
    assert "queries that get fair lists, beside the others: relevance" in found.stdout
    audit = json.loads((tmp_path / "out" / "audit.json").read_text())
    both, arms = (
        next(it["change"] for it in audit["lists"][of] if it["name"] == "gender: female")
        for of in ("both", "arms")
    )
    widths = [high - low for low, high in (both["interval"], arms["interval"])]
    assert 0 < widths[0] < widths[1]  # the arms have other queries


def test_amortised_deficits_are_kept_over_a_restart(watched: Running, tmp_path: Path) -> None:
    file = tmp_path / "deficit.json"

    def deficit() -> float:
        found: float = json.loads(file.read_text())["gender"]["female"] if file.exists() else 0.0
        return found

    settings, narrow = (
        {"mode": "fair", "amortised": "deficit.json"},
        {"fairness_weight": 0.2, "k": 3},
    )
    settings |= {"parameters": {"target": "uniform:1", **narrow}}
    with watched(settings) as client:
        ready(client, lambda it: it.headers["fairqr"].startswith("re-ranked"))
        for word in TOPICS:
            client.post("/people/_search", json=asked(word))
        until(lambda: deficit() != 0)
    before = deficit()
    assert before != 0
    with watched(settings) as client:
        ready(client, lambda it: it.headers["fairqr"].startswith("re-ranked"))
        until(lambda: deficit() != before)
        assert abs(deficit() - 0.99 * before) <= 1.0  # one list more, and none forgotten
