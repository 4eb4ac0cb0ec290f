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
from collections.abc import Callable, Iterator
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
    Process,
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
FEEDBACK = {"query": "physicist", "ask": "never", "attributes": ["gender"], "k": 3}


@contextlib.contextmanager
def balancer(folder: Path, workers: list[str]) -> Iterator[str]:
    """Run nginx with the shipped settings; only addresses and files are others."""
    text = (ROOT / "deploy" / "nginx.conf").read_text()
    port = free_port()
    changes = {
        "listen 8080": f"listen 127.0.0.1:{port}",
        "/tmp/nginx.pid": str(folder / "nginx.pid"),
        "/dev/stdout": str(folder / "access.log"),
    }
    for number, worker in enumerate(workers, start=1):
        changes[f"serve-{number}:8080"] = worker.removeprefix("http://")
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

    assert [request.headers["x-forwarded-for"] for request in received] == ["127.0.0.1"]


def answer_behind(gate: threading.Event) -> Callable[[Any], Any]:
    """Play a model that answers once a gate is open."""

    def answer(asked: Any) -> Any:
        assert gate.wait(PATIENCE)
        return answers_all(asked)

    return answer


def tell_events_as_they_come(client: ServiceClient, model: ModelServer) -> None:
    """Check that events pass the balancer: the first are there while the model is silent."""
    gate = threading.Event()
    model.does(answer_behind(gate))
    request = {**SEARCH, "query": "physicist laboratory"}
    with client.stream("POST", "/v1/search/stream", json=request) as response:
        names = (name for _, name, _ in events_of(response) if name)
        assert [next(names), next(names)] == ["run", "step"]

        gate.set()
        assert list(names)[-1] == "end"


def finish_what_another_began(
    client: ServiceClient, model: ModelServer, workers: list[Process], keyed: Any
) -> None:
    """Check that a worker that ends while it does a kept run leaves it to the other."""
    gate = threading.Event()
    model.does(answer_behind(gate))
    ending, other = workers
    other.send(signal.SIGSTOP)  # so that the first does the run
    request = {**SEARCH, "query": "physicist workshop"}
    location = ending.client.in_background(request, **keyed)
    model.wait_for(1)
    other.send(signal.SIGCONT)
    ending.send(signal.SIGTERM)
    ending.ends()
    gate.set()

    run = client.ended(location)
    assert run["status"] == "done", run
    assert run["attempts"] > 1
    assert len(run["result"]["ranking"]) == 10


@pytest.mark.promise("service")
@pytest.mark.elasticsearch
def test_workers_share_runs_and_take_over(
    tmp_path: Path, elasticsearch_url: str, postgres_url: str, model_server: ModelServer
) -> None:
    """Workers share their runs: what one has done the other tells, and what one was doing when it
    ended the other finishes.
    """
    model = model_server
    model.does(answers_all)
    with contextlib.ExitStack() as stack:
        people = find_corpus(write_people(tmp_path / "people"))
        source = write_source(fill(stack, elasticsearch_url, "shared", people), tmp_path)
        settings = f'database = "{postgres_url}"\nsources = ["{source}"]\ncorpora = ["shared"]\n'
        settings += "lease = 3\ngrace = 1\nrequire_keys = true"
        first = settings_for(model, tmp_path / "first", settings)
        second = settings_for(model, tmp_path / "second", settings)
        key = run_command(first, "keys", "create", "test").strip()
        workers = [stack.enter_context(running(variables)) for variables in (first, second)]
        address = stack.enter_context(balancer(tmp_path, [worker.address for worker in workers]))
        keyed: Any = {"headers": {"Authorization": f"Bearer {key}"}}
        options: Any = {"base_url": address, "timeout": PATIENCE, "trust_env": False, **keyed}
        client = stack.enter_context(ServiceClient(**options))

        assert client.get("/metrics").status_code == 404
        assert httpx.get(f"{address}/v1/runs", trust_env=False).status_code == 401

        # An agent's calls go to either worker, and steps are told through the balancer.
        messages: list[str | None] = []
        assert asyncio.run(search_as_agent(f"{address}/mcp", key, messages)) == {10}
        assert messages.count("prepare") == 5

        tell_events_as_they_come(client, model)
        finish_what_another_began(client, model, workers, keyed)

    served = re.findall(r"127\.0\.0\.1:\d+$", (tmp_path / "access.log").read_text(), re.MULTILINE)
    assert served, "nothing went through the balancer"


async def gather(agents: list[Any]) -> list[Any]:
    return await asyncio.gather(*agents)


async def search_as_agent(url: str, key: str | None, messages: list[str | None]) -> set[int]:
    """Search five times, and return how many passages were found."""

    async def progress(done: float, total: float | None, message: str | None) -> None:
        messages.append(message)

    async with Client(StreamableHttpTransport(url, auth=key), progress_handler=progress) as client:
        arguments = {"query": "physicist", "attributes": ["gender"]}
        results = [await client.call_tool("fair_search", arguments) for _ in range(5)]
    return {len(result.structured_content["passages"]) for result in results}


def is_alive(process: psutil.Process) -> bool:
    return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)


def listening_at(port: int) -> set[int]:
    """Return the processes that accept connections at a port."""
    processes = set()
    for connection in psutil.net_connections("tcp"):
        is_listening = connection.status == psutil.CONN_LISTEN
        if is_listening and connection.pid and connection.laddr.port == port:
            processes.add(connection.pid)
    return processes


def kill_one_worker(port: int) -> None:
    """Kill one of two workers, and wait until another stands in its place."""
    until(lambda: len(listening_at(port)) == 2)
    killed = min(listening_at(port))
    os.kill(killed, signal.SIGKILL)
    until(lambda: len(listening_at(port) - {killed}) == 2)


@pytest.mark.promise("service")
@pytest.mark.parametrize("database", ["SQLite", "PostgreSQL"])
def test_workers_share_a_port_and_a_killed_one_comes_back(
    database: str, tmp_path: Path, request: pytest.FixtureRequest, quick: Main
) -> None:
    """Workers of one command share a port, any of them answers agents, and one that is killed comes
    back.
    """
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
    with running(variables, "--port", str(port), *arguments) as process:
        kill_one_worker(port)
        for keep in (False, shared):
            answer = process.client.post("/v1/search", json={**FEEDBACK, "keep": keep})
            assert len(answer.raise_for_status().json()["ranking"]) == 3

        # Eight stock clients of agents' tools: their requests go to either worker.
        agents = [search_as_agent(f"{process.address}/mcp", None, []) for _ in range(8)]
        assert asyncio.run(gather(agents)) == [{10}] * 8

        # Whichever answers, the figures are those of both: 40 searches of agents, and two above.
        expected = ['fairqr_runs_finished_total{kind="search",status="done"} 42.0']
        if shared:
            expected.append('fairqr_durable_runs_finished_total{kind="search",status="done"} 1.0')
        for _ in range(8):
            with httpx.Client(base_url=process.address, trust_env=False) as fresh:
                figures = fresh.get("/metrics").text
            assert [line for line in expected if line not in figures] == [], figures

        kept = process.client.post("/v1/search", json={**FEEDBACK, "keep": True})
        assert kept.status_code == (200 if shared else 403), kept.text
        if shared:
            process.send(signal.SIGTERM)
            process.ends()
        else:  # workers end with a parent that is killed
            workers = psutil.Process(process.child.pid).children()
            process.child.kill()
            until(lambda: not any(map(is_alive, workers)))
