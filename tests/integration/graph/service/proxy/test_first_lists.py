"""Lists that clients wait for are in time, from the first on."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.graph.service.proxy.proxied import frozen, proxied, write_settings
from tests.servers.attached_people import TOPICS, Server, people

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
from fairqr.graph.service.proxy.requests import ProxiedSearch
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
    search = ProxiedSearch("people", 0, {}, 0, 10, 100, "tennis", "a", True)
    await reranked(order, [search], warming._reply(order, 100, text=""), time.monotonic() + 60)
    print(sorted({*sys.modules} - before))


asyncio.run(main())
"""


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


def test_searches_that_are_sent_together_have_their_time_each(
    tmp_path: Path, cluster: Server
) -> None:
    """While the worker is stopped, three wait three times as long as one."""
    with proxied(tmp_path, cluster.url, within=0.5) as proxy:
        worker = proxy.ready()
        with frozen(worker):
            bodies = [{"query": {"match": {"bio": words}}} for words in TOPICS[:3]]
            lines = [json.dumps(one) for body in bodies for one in ({}, body)]
            started = time.monotonic()
            reply = proxy.client.post(
                "/people/_msearch",
                content="\n".join([*lines, ""]),
                headers={"content-type": "application/x-ndjson"},
            )
            seconds = time.monotonic() - started
        assert reply.headers["fairqr"] == "passed; slow"
        assert seconds > 3 * 0.5
