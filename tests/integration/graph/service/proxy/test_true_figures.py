"""The figures of a proxy are those of what its clients were shown, whatever became of a search."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from fairqr.retrieval.fairness.exposure import FloatArray
from tests.integration.graph.service.proxy.proxied import Proxied, proxied
from tests.patience import until
from tests.ports import free_port
from tests.servers.attached_people import PEOPLE, TOPICS, people
from tests.servers.model_server import Main

pytestmark = [
    pytest.mark.elasticsearch,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("people"),
]

GROUPS = {"F": "female", "f": "female", "M": "male"}
SIZE = 10
ALIAS = "persons"
TARGET = {"parameters": {"target": "gender=female:0.9,male:0.1", "k": 10}}
TEMPLATE = {"query": {"match": {"bio": "{{words}}"}}, "size": SIZE}


def asked(number: int) -> tuple[str, dict[str, Any]]:
    """Return one of 400 searches of 56 texts, in the ways in which clients ask."""
    words = f"{TOPICS[number % 8]} {TOPICS[number % 7]}"
    body: dict[str, Any] = {"query": {"match": {"bio": words}}, "size": SIZE}
    match number % 10:
        case 0:
            return "people/_search", {**body, "sort": ["height", "number"]}
        case 1:
            return f"{ALIAS}/_search", body
        case 2:
            return "people/_search/template", {"source": TEMPLATE, "params": {"words": words}}
        case 3:
            return "people/_async_search?wait_for_completion_timeout=60s", body
        case 4:
            return "people/_search", {**body, "collapse": {"field": "number"}}
    return "people/_search", body


def women_in(reply: Any) -> float:
    """Count by hand which share of the exposure in a page women have."""
    hits = reply.get("response", reply)["hits"]["hits"]
    groups = [GROUPS.get(PEOPLE[hit["_id"]].get("person", {}).get("sex", "")) for hit in hits]
    weights = 1 / np.log2(np.arange(len(hits)) + 2)
    women, men = (
        float(sum(weights[[group == name for group in groups]])) for name in ("female", "male")
    )
    return women / (women + men)


def figures(port: int) -> dict[str, float]:
    text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    return {name: float(it) for name, it in re.findall(r"^([^# ].*) (\S+)$", text, re.MULTILINE)}


def counted(port: int, name: str) -> float:
    return sum(it for key, it in figures(port).items() if key.startswith(f"fairqr_proxy_{name}"))


def searched(proxy: Proxied) -> tuple[list[float], Counter[str]]:
    """Search 400 times; return the shares of women that were shown, and what became of searches."""
    shown: list[float] = []
    outcomes: Counter[str] = Counter()
    for number in range(400):
        path, body = asked(number)
        reply = proxy.client.post(f"/{path}", json=body)
        assert reply.status_code == 200, reply.text
        shown.append(women_in(reply.json()))
        outcomes[reply.headers["fairqr"]] += 1
    return shown, outcomes


@pytest.mark.parametrize(
    ("mode", "within"), [("shadow", 5.0), ("fair", 5.0), ("fair", 0.001)], ids=str
)
def test_figures_equal_an_own_count_over_all_that_clients_were_shown(
    elasticsearch_url: str, quick: Main, tmp_path: Path, mode: str, within: float
) -> None:
    index = {"mode": mode, **TARGET}
    port = free_port()
    how = {"index": index, "within": within, "log": "log", "metrics_port": port}
    warming = Counter[str]()

    def is_warm() -> bool:
        warming["searches"] += 1
        proxy.search()
        return counted(port, "exposure_count") > 0

    with contextlib.ExitStack() as stack:
        server = stack.enter_context(people(elasticsearch_url, "people"))
        server.client.put(f"/people/_alias/{ALIAS}").raise_for_status()
        proxy = stack.enter_context(proxied(tmp_path, elasticsearch_url, **how))
        until(is_warm)
        before = warming["searches"]
        until(lambda: counted(port, "searches_total") == before)
        known = exposure_of_women(port)
        shown, outcomes = searched(proxy)
        until(lambda: counted(port, "searches_total") == before + 400)
        women, lists = (now - was for now, was in zip(exposure_of_women(port), known, strict=True))
        assert lists == 400
        assert women / lists == pytest.approx(np.mean(shown), abs=1e-3)
        assert outcomes["passed; name"] == outcomes["passed; sort"] == 40
        if within < 1:
            assert not any(told.startswith("re-ranked") for told in outcomes)
        elif mode == "fair":  # templates, asynchronous and collapsed searches included
            assert outcomes["re-ranked; ranks"] > 320 - 10
        else:
            assert outcomes["passed; shadow"] == 320
        assert proxy.end() == 0

    told = quick("audit", "--from-log", tmp_path / "log", "-o", tmp_path / "out", "--json")
    assert told.code == 0, told.stderr
    audit = json.loads(told.stdout)
    (group,) = (it for it in audit["groups"] if it["group"] == "female")
    coverage = audit["coverage"]
    assert coverage["searches"] == before + 400
    # What was asked until the proxy had started is in the log, too.
    mean = (known[0] + sum(shown)) / (known[1] + 400)
    assert group["exposure"]["value"] == pytest.approx(mean, abs=1e-3)
    assert coverage["in_figures"] == known[1] + 400
    assert coverage["outcomes"]["sort"] == 40


def variants(words: str) -> list[tuple[str, dict[str, Any]]]:
    """Return searches of the same words: several sizes and orders, and some that pass."""
    query = {"match": {"bio": words}}
    pinned = {"pinned": {"ids": ["p101", "p033"], "organic": query}}
    return [
        ("people/_search", {"query": query}),
        ("people/_search", {"query": query, "size": 4}),
        ("people/_search", {"query": query, "size": 25}),
        ("people/_search", {"query": query, "sort": ["_score", "number"]}),
        ("people/_search", {"query": query, "sort": "number", "size": 7}),
        ("people/_search", {"query": pinned}),
        ("people/_search", {"query": query, "rescore": {"window_size": 5, "query": AGAIN}}),
        (f"{ALIAS}/_search", {"query": query}),
        ("people/_search?terminate_after=100", {"query": query}),
    ]


AGAIN = {"rescore_query": {"match": {"headline": "river"}}}


def women_shown(reply: Any) -> float:
    """Count by hand which share of the exposure in the first ten women have; nan if nobody has."""
    hits = reply["hits"]["hits"][:SIZE]
    groups = [GROUPS.get(hit["_source"].get("person", {}).get("sex", "")) for hit in hits]
    weights = 1 / np.log2(np.arange(len(hits)) + 2)
    women, men = (
        float(sum(weights[[group == name for group in groups]])) for name in ("female", "male")
    )
    return women / (women + men) if women + men else float("nan")


def searched_in_all_ways(proxy: Proxied) -> list[float]:
    """Search for each topic in each way, and return the shares of women that were shown."""
    shown = []
    for topic in TOPICS:
        for path, body in variants(topic):
            reply = proxy.client.post(f"/{path}", json=body)
            assert reply.status_code == 200, reply.text
            shown.append(women_shown(reply.json()))
    return shown


def write_first(server: Any, number: int, sex: str) -> None:
    """Write a document that is found first whatever is searched for."""
    document = {"bio": " ".join(TOPICS), "person": {"sex": sex}, "number": f"a{number}"}
    server.client.put(f"/people/_doc/new{number}?refresh", json=document).raise_for_status()


def warmed(proxy: Proxied, port: int) -> int:
    """Search until lists are known and counted; return how many searches that were."""
    asked_for = 0

    def is_warm() -> bool:
        nonlocal asked_for
        asked_for += 1
        proxy.search()
        return counted(port, "exposure_count") > 0

    until(is_warm)
    until(lambda: counted(port, "searches_total") == asked_for)
    return asked_for


def searched_while_the_index_changes(
    proxy: Proxied, port: int, server: Any, first: int
) -> tuple[int, FloatArray]:
    """Search and write; return how many searches there were, and the exposure of women in all."""
    asked_for = warmed(proxy, port)
    known = np.array(exposure_of_women(port))
    shown = list[float]()

    def are_all_counted() -> bool:
        return counted(port, "searches_total") == asked_for + len(shown)

    for number in range(3):
        shown += searched_in_all_ways(proxy)
        until(are_all_counted)
        write_first(server, first + number, "MFM"[number])
    women, lists = np.array(exposure_of_women(port)) - known
    own = [it for it in shown if not np.isnan(it)]
    assert lists == len(own) > len(shown) - 9
    assert women / lists == pytest.approx(np.mean(own), abs=1e-6)
    return asked_for + len(shown), np.array(exposure_of_women(port))


def test_figures_are_of_what_was_shown_while_index_and_share_change(
    elasticsearch_url: str, quick: Main, tmp_path: Path
) -> None:
    """First a shadow, then a share, then all, in one log; documents come while each is asked."""
    total = np.zeros(2)
    every = 0
    port = free_port()
    with people(elasticsearch_url, "people") as server:
        server.client.put(f"/people/_alias/{ALIAS}").raise_for_status()
        for phase, (mode, share) in enumerate([("shadow", 1.0), ("fair", 0.5), ("fair", 1.0)]):
            index = {"mode": mode, "share": share, **TARGET}
            how = {"index": index, "log": "log", "metrics_port": port}
            with proxied(tmp_path, elasticsearch_url, **how) as proxy:
                count, exposure = searched_while_the_index_changes(proxy, port, server, 3 * phase)
                every += count
                total += exposure
                is_of_engine = (exposure == exposure_of_women(port, "engine")).all()
                assert is_of_engine == (mode == "shadow")
                assert proxy.end() == 0
            write_first(server, 3 * phase, "F")  # a label changes

    told = quick("audit", "--from-log", tmp_path / "log", "-o", tmp_path / "out", "--json")
    assert told.code == 0, told.stderr
    audit = json.loads(told.stdout)
    (group,) = (it for it in audit["groups"] if it["group"] == "female")
    assert group["exposure"]["value"] == pytest.approx(total[0] / total[1], abs=1e-6)
    assert audit["spec"]["k"] == SIZE
    coverage = audit["coverage"]
    assert coverage["searches"] == every
    assert {"shadow", "re-ranked", "name", "sort", "terminate_after"} <= coverage["outcomes"].keys()
    assert audit["lists"]["arms"]


@pytest.mark.parametrize("within", [5.0, 0.001])
def test_searches_of_one_request_count_by_their_arms(
    elasticsearch_url: str, tmp_path: Path, within: float
) -> None:
    """Those of the engine's are no slow ones; and what finds nothing is empty in both."""
    log = tmp_path / "log" / "log.jsonl"

    def records() -> list[Any]:
        lines = log.read_text().splitlines() if log.exists() else []
        return [json.loads(it) for it in lines if it.endswith("}")]

    def of_bundle() -> list[Any]:
        # A search that warmed may be told late, and its words are among the texts.
        return [it for it in records() if it["outcome"] != "terminate_after"]

    def is_warm() -> bool:
        proxy.search(params={"terminate_after": 100})
        return any("exposure" in it for it in records())

    texts = [*TOPICS, *(f"{topic}{topic}" for topic in TOPICS)]  # nobody has the latter
    lines = [json.dumps(it) for text in texts for it in ({}, {"query": {"match": {"bio": text}}})]
    how: dict[str, Any] = {"index": {"share": 0.5, **TARGET}, "within": within, "log": "log"}
    with (
        people(elasticsearch_url, "people"),
        proxied(tmp_path, elasticsearch_url, log_words=True, **how) as proxy,
    ):
        until(is_warm)
        body = "\n".join(lines) + "\n"
        kind = {"content-type": "application/x-ndjson"}
        reply = proxy.client.post("/people/_msearch", content=body, headers=kind)
        reply.raise_for_status()
        until(lambda: {*texts} <= {it["words"] for it in of_bundle()})
        found = {it["words"]: (it["arm"], it["outcome"]) for it in of_bundle()}
    outcomes = {(text in TOPICS, *found[text]) for text in texts}
    expected = {(True, "engine", "shadow"), (False, "engine", "empty")}
    if within < 1:
        expected |= {(True, "fair", "slow"), (False, "fair", "slow")}
    else:
        expected |= {(True, "fair", "re-ranked"), (False, "fair", "empty")}
    assert outcomes == expected


def test_what_is_asked_while_the_proxy_starts_is_counted(
    elasticsearch_url: str, tmp_path: Path
) -> None:
    """By an alias, too, once it is known for one; and by a name of another index never."""
    port = free_port()
    with people(elasticsearch_url, "people") as server:
        server.client.put(f"/people/_alias/{ALIAS}").raise_for_status()
        server.client.put("/other", json={}).raise_for_status()
        with proxied(tmp_path, elasticsearch_url, log="log", metrics_port=port) as proxy:
            for name in (ALIAS, "other", "people", ALIAS):
                proxy.search(index=name, body={"query": {"match_all": {}}})
            lines = f'{{"index": "{ALIAS}"}}\n{{}}\n{{"index": "other"}}\n{{}}\n'
            how = {"headers": {"content-type": "application/x-ndjson"}}
            proxy.client.post("/_msearch", content=lines, **how).raise_for_status()
            until(lambda: counted(port, "searches_total") >= 4)
            proxy.ready()
            found = figures(port)
            of = 'fairqr_proxy_searches_total{{index="people",outcome="{}"}}'
            assert found[of.format("name")] == 3
        server.client.delete("/other").raise_for_status()
    records = [
        json.loads(it) for it in (tmp_path / "log" / "log.jsonl").read_text().split("\n")[1:]
    ]
    assert [it["outcome"] for it in records].count("name") == 3


def exposure_of_women(port: int, which: str = "shown") -> tuple[float, float]:
    """Return the exposure of women in lists, summed, and the number of lists."""
    labels = f'{{attribute="gender",group="female",index="people",list="{which}"}}'
    found = figures(port)
    total, count = (f"fairqr_proxy_exposure_{it}{labels}" for it in ("sum", "count"))
    return found.get(total, 0.0), found.get(count, 0.0)
