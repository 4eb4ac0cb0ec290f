"""Lists that clients wait for are in time: from the first on, and beside those of shadows."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, product
from os import kill
from pathlib import Path
from typing import Any

import pytest

from fairqr.graph.service.proxy.requests import is_fair, key_of
from fairqr.graph.service.proxy.settings import ProxiedIndex
from tests.integration.attached_people import TOPICS, Server, people
from tests.integration.graph.service.proxy.proxied import proxied, write_settings
from tests.patience import until

pytestmark = [
    pytest.mark.elasticsearch,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("people"),
]

FIRST = """
import asyncio, sys, time
from pathlib import Path

import numpy as np

from fairqr.graph.service.proxy import warming
from fairqr.graph.service.proxy.ordering import opened, reranked
from fairqr.graph.service.proxy.process import _Answers
from fairqr.graph.service.proxy.requests import Search
from fairqr.graph.service.proxy.settings import proxy_settings


async def main() -> None:
    order = await opened(proxy_settings(Path(sys.argv[1])), "people", lambda texts: None)
    outcomes = []
    made = warming.reranked

    async def counted(*asked):
        told, reply = await made(*asked)
        outcomes.extend(one if isinstance(one, str) else one["by"] for one in told)
        return told, reply

    warming.reranked = counted
    await warming.warm_up(order, 100)
    print(outcomes)
    print(len(order.kept))
    before = {*sys.modules}
    search = Search("people", 0, {}, 0, 10, 100, "tennis", "a", True)
    await reranked(order, [search], warming._reply(order, 100, text=""), time.monotonic() + 60)
    print(sorted({*sys.modules} - before))


asyncio.run(main())
"""

SHARE = 0.3
RATE = 15.0
WITHIN = 0.25


@pytest.fixture(scope="module")
def cluster(elasticsearch_url: str) -> Iterator[Server]:
    with people(elasticsearch_url, "people") as server:
        yield server


def test_lists_of_made_up_hits_of_both_kinds_leave_nothing_to_load_for_the_first_real_one(
    tmp_path: Path, cluster: Server, minilm_cache: Path
) -> None:
    file = write_settings(tmp_path, cluster.url)
    command = [sys.executable, "-c", FIRST, str(file)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert printed.splitlines() == [str(["ranks", "vectors"] * 3), "0", "[]"]


def arms() -> tuple[list[Any], list[Any]]:
    """Return distinct queries that get fair lists, and those that do not."""
    index = ProxiedIndex(source=Path(), mode="fair", share=SHARE)
    fair = list[Any]()
    others = list[Any]()
    for words in product(TOPICS, repeat=3):
        body = {"query": {"match": {"bio": " ".join(words)}}}
        arm = fair if is_fair(key_of(body, ""), index) else others
        arm.append(body)
    return fair, others


def test_shadow_lists_hold_up_none_that_a_client_waits_for(tmp_path: Path, cluster: Server) -> None:
    alone = in_time(tmp_path / "alone", cluster, shadows=0)
    beside = in_time(tmp_path / "beside", cluster, shadows=2)
    assert beside >= min(0.95, alone - 0.05)


def in_time(folder: Path, cluster: Server, shadows: int) -> float:
    """Return the share of fair searches that are re-ranked beside clients of the others."""
    fair, others = arms()
    with proxied(folder, cluster.url, within=WITHIN, index={"share": SHARE}) as proxy:
        until(lambda: proxy.outcome(body=fair[0]).startswith("re-ranked"))
        outcomes = Counter[str]()
        over = threading.Event()

        def shadow(number: int) -> None:
            for body in cycle(others[number::shadows]):
                if over.wait(1 / RATE):
                    return
                assert proxy.outcome(body=body) == "passed; shadow"

        with ThreadPoolExecutor(1 + shadows) as pool:
            asking = [pool.submit(shadow, number) for number in range(shadows)]
            for body in fair[1:100]:
                over.wait(1 / RATE)
                outcomes[proxy.outcome(body=body).split("; ")[0]] += 1
            over.set()
            for one in asking:
                one.result()
        return outcomes["re-ranked"] / outcomes.total()


def test_searches_that_are_sent_together_have_their_time_each(
    tmp_path: Path, cluster: Server
) -> None:
    """While the worker is stopped, three wait three times as long as one."""
    with proxied(tmp_path, cluster.url, within=0.5) as proxy:
        worker = proxy.ready()
        kill(worker, signal.SIGSTOP)
        try:
            lines = [json.dumps(one) for body in arms()[0][:3] for one in ({}, body)]
            started = time.monotonic()
            reply = proxy.client.post(
                "/people/_msearch",
                content="\n".join([*lines, ""]),
                headers={"content-type": "application/x-ndjson"},
            )
            seconds = time.monotonic() - started
        finally:
            kill(worker, signal.SIGCONT)
        assert reply.headers["fairqr"] == "passed; slow"
        assert seconds > 3 * 0.5
