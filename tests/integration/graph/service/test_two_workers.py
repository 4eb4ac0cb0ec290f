"""Two workers behind the balancer of deploy/, with one database and one index, without containers.

All are real: nginx with the shipped settings but for addresses, `fairqr serve` twice, PostgreSQL
and Elasticsearch. What is played is the model.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport

from fairqr.retrieval.sources.corpus import find_corpus
from tests.integration.filled_elasticsearch import fill, write_source
from tests.integration.model_server import Command, ModelServer, write_people
from tests.integration.page_service import run_command
from tests.integration.service_client import answers_all, events_of, until
from tests.patience import PATIENCE
from tests.ports import free_port

ROOT = Path(__file__).parents[4]
NGINX = shutil.which("nginx") or "/usr/sbin/nginx"
SEARCH = {
    "query": "physicist",
    "corpus": "shared",
    "attributes": ["gender"],
    "k": 10,
    "ask": "always",
    "groups": "all",
}


class Worker:
    """`fairqr serve` as a worker."""

    def __init__(self, variables: dict[str, str], port: int, *arguments: str) -> None:
        self.address = f"http://127.0.0.1:{port}"
        self._child = subprocess.Popen(
            [Command.executable, "serve", "--port", str(port), *arguments],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        until(self._is_ready)

    def _is_ready(self) -> bool:
        assert self._child.poll() is None
        with contextlib.suppress(httpx.TransportError):
            return (
                httpx.get(f"{self.address}/readyz", timeout=PATIENCE, trust_env=False).status_code
                == 200
            )
        return False

    @property
    def children(self) -> set[int]:
        """The processes that it has started, by their ids."""
        pid = self._child.pid
        return {*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())}

    def send(self, number: signal.Signals) -> None:
        self._child.send_signal(number)

    def end(self) -> int:
        """Tell it to end, and return with which code it did."""
        self.send(signal.SIGTERM)
        return self._child.wait(PATIENCE)

    def close(self) -> None:
        """End it, if it has not ended."""
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()


@contextlib.contextmanager
def balancer(folder: Path, workers: list[Worker]) -> Iterator[str]:
    """Run nginx with the shipped settings; only addresses and files are others."""
    text = (ROOT / "deploy" / "nginx.conf").read_text()
    port = free_port()
    changes = {
        "listen 8080": f"listen 127.0.0.1:{port}",
        "/tmp/nginx.pid": str(folder / "nginx.pid"),
        "/dev/stdout": str(folder / "access.log"),
        **{
            f"serve-{n}:8080": it.address.removeprefix("http://") for n, it in enumerate(workers, 1)
        },
    }
    for old, new in changes.items():
        assert text.count(old) == 1 + old.startswith("serve")
        text = text.replace(old, new)
    settings = folder / "nginx.conf"
    settings.write_text(text)
    command = [NGINX, "-c", str(settings), "-p", str(folder), "-e", "stderr"]
    assert subprocess.run([*command, "-t"], check=False, capture_output=True).returncode == 0
    child = subprocess.Popen([*command, "-g", "daemon off;"], stderr=subprocess.DEVNULL)
    try:
        until(lambda: _listens(port))
        yield f"http://127.0.0.1:{port}"
    finally:
        child.terminate()
        child.wait(PATIENCE)


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    return False


def _variables(folder: Path, model: ModelServer, database: str, search: str) -> dict[str, str]:
    folder.mkdir()
    (folder / "fairqr.toml").touch()
    outside = ("FAIRQR_", "OPENAI_", "LANGCHAIN_", "LANGSMITH_", "OTEL_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(outside)}
    return kept | {
        "FAIRQR_DATA_DIR": str(folder / "data"),
        "FAIRQR_CACHE_DIR": str(folder / "cache"),
        "FAIRQR_CONFIG": str(folder / "fairqr.toml"),
        "FAIRQR_ELASTICSEARCH_URL": search,
        "FAIRQR_MODEL": "openai:fake",
        "FAIRQR_BASE_URL": model.base_url,
        "OPENAI_API_KEY": "none",
        "FAIRQR_SERVICE_DATABASE": database,
        "FAIRQR_SERVICE_CORPORA": "shared",
        "FAIRQR_SERVICE_MODELS": "openai:fake,feedback",
        "FAIRQR_SERVICE_REQUIRE_KEYS": "true",
        "FAIRQR_SERVICE_LEASE": "3",
        "FAIRQR_SERVICE_GRACE": "1",
    }


@pytest.mark.elasticsearch
def test_workers_share_runs_and_take_over(
    tmp_path: Path, elasticsearch_url: str, postgres_url: str
) -> None:
    """What one has done the other tells; what one was doing when it ended, the other finishes."""
    model = ModelServer()
    model.does(answers_all)
    with contextlib.ExitStack() as stack:
        stack.callback(model.close)
        one, other = (
            _variables(tmp_path / name, model, postgres_url, elasticsearch_url)
            for name in ("one", "other")
        )
        people = write_people(tmp_path / "people")
        made = fill(stack, elasticsearch_url, "shared", find_corpus(people))
        source = write_source(made, tmp_path)
        for variables in (one, other):
            variables["FAIRQR_SERVICE_SOURCES"] = str(source)
        key = run_command(one, "keys", "create", "test", "--quiet").strip()
        workers = [Worker(one, free_port()), Worker(other, free_port())]
        for worker in workers:
            stack.callback(worker.close)
        address = stack.enter_context(balancer(tmp_path, workers))
        options: dict[str, Any] = {
            "headers": {"Authorization": f"Bearer {key}"},
            "timeout": PATIENCE,
            "trust_env": False,
        }
        client = stack.enter_context(httpx.Client(base_url=address, **options))
        assert client.get("/metrics").status_code == 404
        assert httpx.get(f"{address}/v1/runs", trust_env=False).status_code == 401

        # Both answer alike, and each knows what the other has done.
        found = [httpx.post(f"{it.address}/v1/search", json=SEARCH, **options) for it in workers]
        assert [it.status_code for it in found] == [200, 200]
        rankings = [[document["id"] for document in it.json()["ranking"]] for it in found]
        assert rankings[0] == rankings[1]
        kept = {**SEARCH, "keep": True}
        assert httpx.post(f"{workers[0].address}/v1/search", json=kept, **options).is_success
        seen = [httpx.get(f"{it.address}/v1/runs", **options).json()["runs"] for it in workers]
        assert len(seen[0]) == 1
        assert seen[0] == seen[1]

        # A session of an agent stays with one worker, and steps are told through the balancer.
        told_of: list[str | None] = []
        assert asyncio.run(an_agent(f"{address}/mcp", key, told_of)) == {len(rankings[0])}
        assert told_of.count("begin") == 5

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
        asked = {"kind": "search", "request": {**SEARCH, "query": "physicist workshop"}}
        told = httpx.post(f"{workers[0].address}/v1/runs", json=asked, **options)
        assert told.status_code == 202
        place = told.headers["Location"]
        model.wait_for(1)
        workers[1].send(signal.SIGCONT)
        assert workers[0].end() == 0
        gate.set()
        done = until(lambda: _over(client.get(place).json()))
        assert done["status"] == "done", done
        assert done["attempts"] > 1
        assert len(done["result"]["ranking"]) == 10
    served = re.findall(r"127\.0\.0\.1:\d+$", (tmp_path / "access.log").read_text(), re.MULTILINE)
    assert served, "nothing went through the balancer"


async def an_agent(url: str, key: str, told: list[str | None]) -> set[int]:
    """Search five times in a session, and return how many passages were found."""

    async def progress(done: float, total: float | None, message: str | None) -> None:
        told.append(message)

    async with Client(StreamableHttpTransport(url, auth=key), progress_handler=progress) as client:
        asked = {"query": "physicist", "attributes": ["gender"]}
        found = [await client.call_tool("fair_search", asked) for _ in range(5)]
    return {len(it.structured_content["passages"]) for it in found}


def _over(run: dict[str, Any]) -> dict[str, Any] | None:
    return run if run["status"] in ("done", "failed", "cancelled") else None


@pytest.mark.parametrize("database", ["SQLite", "PostgreSQL"])
def test_workers_of_one_command_share_a_port_and_one_that_is_killed_comes_back(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    variables = {"PATH": os.environ["PATH"], "FAIRQR_DATA_DIR": str(tmp_path)}
    shared = database == "PostgreSQL"
    if shared:
        variables["FAIRQR_SERVICE_DATABASE"] = request.getfixturevalue("postgres_url")
    people = str(write_people(tmp_path / "people"))
    run_command(variables, "index", "create", "people", people)
    arguments = ("--workers", "2", "--corpus", "people", "--model", "feedback")
    if not shared:
        command = [Command.executable, "serve", "--port", "0", *arguments]
        refused = subprocess.run(command, env=variables, capture_output=True, text=True)
        assert refused.returncode == 2
        assert "cannot share the runs in a SQLite file" in refused.stderr
        variables["FAIRQR_SERVICE_WORK"] = "false"
    worker = Worker(variables, free_port(), *arguments)
    try:
        search = {"query": "physicist", "ask": "never", "attributes": ["gender"], "k": 3}
        before = worker.children
        assert len(before) == 2
        os.kill(min(before), signal.SIGKILL)
        until(lambda: len(worker.children - {min(before)}) == 2)
        with httpx.Client(base_url=worker.address, timeout=PATIENCE, trust_env=False) as client:
            for keep in (False, shared):
                found = client.post("/v1/search", json={**search, "keep": keep})
                assert len(found.raise_for_status().json()["ranking"]) == 3
            kept = client.post("/v1/search", json={**search, "keep": True})
            assert kept.status_code == (200 if shared else 403), kept.text
        assert worker.end() == 0
    finally:
        worker.send(signal.SIGKILL)
