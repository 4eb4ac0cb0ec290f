"""Two workers behind the balancer of deploy/, with one database and one index, without containers.

All are real: nginx with the shipped settings but for addresses, `fairqr serve` twice, PostgreSQL
and Elasticsearch. What is played is the model.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport

from fairqr.retrieval.sources.corpus import find_corpus
from tests.patience import PATIENCE, until
from tests.ports import free_port
from tests.servers.filled_elasticsearch import fill, write_source
from tests.servers.http_servers import answering, of_json
from tests.servers.model_server import Main, ModelServer, write_people
from tests.servers.nginx import running_nginx, with_nginx
from tests.servers.page_service import (
    ServiceClient,
    events_of,
    run_command,
    running,
    settings_for,
)
from tests.servers.service_client import PHYSICIST, answers_all, index_people

ROOT = Path(__file__).parents[4]
pytestmark = with_nginx


SEARCH = {**PHYSICIST, "corpus": "shared"}


@contextlib.contextmanager
def balancer(folder: Path, workers: list[str]) -> Iterator[str]:
    """Run nginx with the shipped settings; only addresses and files are others."""
    text = (ROOT / "deploy" / "nginx.conf").read_text()
    port = free_port()
    changes = {
        "listen 8080": f"listen 127.0.0.1:{port}",
        "/tmp/nginx.pid": str(folder / "nginx.pid"),
        "/dev/stdout": str(folder / "access.log"),
        **{f"serve-{n}:8080": it.removeprefix("http://") for n, it in enumerate(workers, 1)},
    }
    for old, new in changes.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    with running_nginx(text, folder):
        yield f"http://127.0.0.1:{port}"


def test_the_balancer_names_the_address_of_each_client(tmp_path: Path) -> None:
    """It is the one that it sees, whatever the client says; shares by address count by it."""
    lie = {"X-Forwarded-For": "203.0.113.7"}
    with (
        answering(lambda *_: of_json(200, {})) as (worker, received),
        balancer(tmp_path, [worker, worker]) as address,
    ):
        httpx.get(f"{address}/v1/indexes", headers=lie, trust_env=False).raise_for_status()
    assert [it.headers["x-forwarded-for"] for it in received] == ["127.0.0.1"]


@pytest.mark.elasticsearch
def test_workers_share_runs_and_take_over(
    tmp_path: Path, elasticsearch_url: str, postgres_url: str, model_server: ModelServer
) -> None:
    """What one has done the other tells; what one was doing when it ended, the other finishes."""
    model = model_server
    model.does(answers_all)
    with contextlib.ExitStack() as stack:
        people = find_corpus(write_people(tmp_path / "people"))
        source = write_source(fill(stack, elasticsearch_url, "shared", people), tmp_path)
        settings = f'database = "{postgres_url}"\nsources = ["{source}"]\ncorpora = ["shared"]\n'
        settings += "lease = 3\ngrace = 1\nrequire_keys = true"
        one, other = (settings_for(model, tmp_path / name, settings) for name in ("one", "other"))
        key = run_command(one, "keys", "create", "test").strip()
        workers = [stack.enter_context(running(variables)) for variables in (one, other)]
        address = stack.enter_context(balancer(tmp_path, [it.address for it in workers]))
        keyed: Any = {"headers": {"Authorization": f"Bearer {key}"}}
        options: Any = {"base_url": address, "timeout": PATIENCE, "trust_env": False, **keyed}
        client = stack.enter_context(ServiceClient(**options))
        assert client.get("/metrics").status_code == 404
        assert httpx.get(f"{address}/v1/runs", trust_env=False).status_code == 401

        # An agent's calls go to either worker, and steps are told through the balancer.
        told_of: list[str | None] = []
        assert asyncio.run(an_agent(f"{address}/mcp", key, told_of)) == {10}
        assert told_of.count("prepare") == 5

        # Events pass the balancer as they come: the first are there while the model is silent.
        gate = threading.Event()

        def silent(asked: Any) -> Any:
            assert gate.wait(PATIENCE)
            return answers_all(asked)

        model.does(silent)
        fresh = {**SEARCH, "query": "physicist laboratory"}
        with client.stream("POST", "/v1/search/stream", json=fresh) as response:
            events = events_of(response)
            names = (name for _, name, _ in events if name)
            assert [next(names), next(names)] == ["run", "step"]
            gate.set()
            assert list(names)[-1] == "end"

        # A worker is told to end while it does a run that is to be kept: the other finishes it.
        gate.clear()
        model.does(silent)
        workers[1].send(signal.SIGSTOP)  # so that the first does the run
        asked = {**SEARCH, "query": "physicist workshop"}
        place = workers[0].client.in_background(asked, **keyed)
        model.wait_for(1)
        workers[1].send(signal.SIGCONT)
        workers[0].send(signal.SIGTERM)
        workers[0].ends()
        gate.set()
        done = client.ended(place)
        assert done["status"] == "done", done
        assert done["attempts"] > 1
        assert len(done["result"]["ranking"]) == 10
    served = re.findall(r"127\.0\.0\.1:\d+$", (tmp_path / "access.log").read_text(), re.MULTILINE)
    assert served, "nothing went through the balancer"


async def all_of(awaited: list[Any]) -> list[Any]:
    return await asyncio.gather(*awaited)


async def an_agent(url: str, key: str | None, told: list[str | None]) -> set[int]:
    """Search five times, and return how many passages were found."""

    async def progress(done: float, total: float | None, message: str | None) -> None:
        told.append(message)

    async with Client(StreamableHttpTransport(url, auth=key), progress_handler=progress) as client:
        asked = {"query": "physicist", "attributes": ["gender"]}
        found = [await client.call_tool("fair_search", asked) for _ in range(5)]
    return {len(it.structured_content["passages"]) for it in found}


@pytest.mark.parametrize("database", ["SQLite", "PostgreSQL"])
def test_workers_of_one_command_share_a_port_and_one_that_is_killed_comes_back(
    database: str, tmp_path: Path, request: pytest.FixtureRequest, quick: Main
) -> None:
    variables = {"FAIRQR_CONFIG": os.devnull, "FAIRQR_DATA_DIR": str(tmp_path)}
    shared = database == "PostgreSQL"
    if shared:
        variables["FAIRQR_SERVICE_DATABASE"] = request.getfixturevalue("postgres_url")
    index_people(variables, write_people(tmp_path / "people"))
    arguments = ("--workers", "2", "--corpus", "people", "--model", "feedback")
    if not shared:
        refused = quick("serve", "--port", "0", *arguments, **variables)
        assert "cannot share the runs in a SQLite file" in refused.complaint()
        variables["FAIRQR_SERVICE_WORK"] = "false"
    port = free_port()

    def listening() -> set[int]:
        """Return the processes that accept connections at the port."""
        found = [it for it in psutil.net_connections("tcp") if it.status == psutil.CONN_LISTEN]
        return {it.pid for it in found if it.pid and it.laddr.port == port}

    with running(variables, "--port", str(port), *arguments) as process:
        search = {"query": "physicist", "ask": "never", "attributes": ["gender"], "k": 3}
        killed, *_ = until(lambda: len(it := listening()) == 2 and it)
        os.kill(killed, signal.SIGKILL)
        until(lambda: len(listening() - {killed}) == 2)
        for keep in (False, shared):
            found = process.client.post("/v1/search", json={**search, "keep": keep})
            assert len(found.raise_for_status().json()["ranking"]) == 3
        # Eight stock clients of agents' tools: their requests go to either worker.
        agents = [an_agent(f"{process.address}/mcp", None, []) for _ in range(8)]
        assert asyncio.run(all_of(agents)) == [{10}] * 8
        # Whichever answers, the figures are those of both: 40 searches of agents, and two above.
        done = 'fairqr_runs_finished_total{kind="search",status="done"} 42.0'
        for _ in range(8):
            with httpx.Client(base_url=process.address, trust_env=False) as fresh:
                figures = fresh.get("/metrics").text
            assert done in figures, figures
            if shared:
                ended = 'fairqr_durable_runs_finished_total{kind="search",status="done"} 1.0'
                assert ended in figures
        kept = process.client.post("/v1/search", json={**search, "keep": True})
        assert kept.status_code == (200 if shared else 403), kept.text
        if shared:
            process.send(signal.SIGTERM)
            process.ends()
        else:  # workers end with a parent that is killed
            last = psutil.Process(process.child.pid).children()
            process.child.kill()
            for it in last:
                until(lambda it=it: not it.is_running() or it.status() == psutil.STATUS_ZOMBIE)
