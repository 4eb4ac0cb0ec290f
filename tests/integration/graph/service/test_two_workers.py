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
from tests.integration.page_service import (
    Process,
    ServiceClient,
    environment,
    events_of,
    run_command,
    running,
    settings_for,
)
from tests.integration.service_client import PHYSICIST, answers_all, index_people
from tests.patience import PATIENCE, until
from tests.ports import free_port

ROOT = Path(__file__).parents[4]
NGINX = shutil.which("nginx") or "/usr/sbin/nginx"
pytestmark = pytest.mark.skipif(not Path(NGINX).exists(), reason="install nginx-light")


SEARCH = {**PHYSICIST, "corpus": "shared"}


@contextlib.contextmanager
def balancer(folder: Path, workers: list[Process]) -> Iterator[str]:
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
        address = f"http://127.0.0.1:{port}"
        until(lambda: answers(address))
        yield address
    finally:
        child.terminate()
        child.wait(PATIENCE)


def answers(address: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return bool(httpx.get(address, timeout=PATIENCE, trust_env=False).status_code)
    return False


def _variables(folder: Path, model: ModelServer, database: str, search: str) -> dict[str, str]:
    more = f'database = "{database}"\ncorpora = ["shared"]\nlease = 3\ngrace = 1'
    variables = settings_for(model, folder, f"{more}\nrequire_keys = true")
    return variables | {"FAIRQR_ELASTICSEARCH_URL": search}


@pytest.mark.elasticsearch
def test_workers_share_runs_and_take_over(
    tmp_path: Path, elasticsearch_url: str, postgres_url: str, model_server: ModelServer
) -> None:
    """What one has done the other tells; what one was doing when it ended, the other finishes."""
    model = model_server
    model.does(answers_all)
    with contextlib.ExitStack() as stack:
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
        workers = [stack.enter_context(running(variables)) for variables in (one, other)]
        address = stack.enter_context(balancer(tmp_path, workers))
        keyed: Any = {"headers": {"Authorization": f"Bearer {key}"}}
        options: Any = {"timeout": PATIENCE, "trust_env": False}
        client = stack.enter_context(ServiceClient(base_url=address, **options, **keyed))
        assert client.get("/metrics").status_code == 404
        assert httpx.get(f"{address}/v1/runs", trust_env=False).status_code == 401

        # Both answer alike, and each knows what the other has done.
        found = [it.client.post("/v1/search", json=SEARCH, **keyed) for it in workers]
        assert [it.status_code for it in found] == [200, 200]
        rankings = [[document["id"] for document in it.json()["ranking"]] for it in found]
        assert rankings[0] == rankings[1]
        kept = {**SEARCH, "keep": True}
        assert workers[0].client.post("/v1/search", json=kept, **keyed).is_success
        seen = [it.client.get("/v1/runs", **keyed).json()["runs"] for it in workers]
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


async def an_agent(url: str, key: str, told: list[str | None]) -> set[int]:
    """Search five times in a session, and return how many passages were found."""

    async def progress(done: float, total: float | None, message: str | None) -> None:
        told.append(message)

    async with Client(StreamableHttpTransport(url, auth=key), progress_handler=progress) as client:
        asked = {"query": "physicist", "attributes": ["gender"]}
        found = [await client.call_tool("fair_search", asked) for _ in range(5)]
    return {len(it.structured_content["passages"]) for it in found}


@pytest.mark.parametrize("database", ["SQLite", "PostgreSQL"])
def test_workers_of_one_command_share_a_port_and_one_that_is_killed_comes_back(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    variables = {"FAIRQR_CONFIG": os.devnull, "FAIRQR_DATA_DIR": str(tmp_path)}
    shared = database == "PostgreSQL"
    if shared:
        variables["FAIRQR_SERVICE_DATABASE"] = request.getfixturevalue("postgres_url")
    index_people(variables, write_people(tmp_path / "people"))
    arguments = ("--workers", "2", "--corpus", "people", "--model", "feedback")
    if not shared:
        command = [Command.executable, "serve", "--port", "0", *arguments]
        given: Any = {"env": environment(variables), "capture_output": True, "text": True}
        refused = subprocess.run(command, **given)
        assert refused.returncode == 2
        assert "cannot share the runs in a SQLite file" in refused.stderr
        variables["FAIRQR_SERVICE_WORK"] = "false"
    with running(variables, "--port", str(free_port()), *arguments) as process:
        pid = process.child.pid

        def children() -> set[int]:
            file = Path(f"/proc/{pid}/task/{pid}/children")
            return {*map(int, file.read_text().split())}

        search = {"query": "physicist", "ask": "never", "attributes": ["gender"], "k": 3}
        before = until(lambda: len(it := children()) == 2 and it)
        os.kill(min(before), signal.SIGKILL)
        until(lambda: len(children() - {min(before)}) == 2)
        for keep in (False, shared):
            found = process.client.post("/v1/search", json={**search, "keep": keep})
            assert len(found.raise_for_status().json()["ranking"]) == 3
        kept = process.client.post("/v1/search", json={**search, "keep": True})
        assert kept.status_code == (200 if shared else 403), kept.text
        if shared:
            process.send(signal.SIGTERM)
            process.ends()
        else:  # workers end with a parent that is killed
            last = children()
            process.child.kill()
            until(lambda: not any(_is_running(it) for it in last))


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
