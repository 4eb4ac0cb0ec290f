"""Who may ask the service, how much, and how it starts and ends."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairqr.graph.service.store import Store
from tests.integration.model_server import (
    Answer,
    Command,
    ModelServer,
    command,
    failure,
    says,
    write_people,
)
from tests.integration.model_server import clean_environment as clean_environment
from tests.integration.page_service import _environment, run_command, settings_for
from tests.integration.service_client import (
    PHYSICIST,
    Served,
    a_service,
    answers_all,
    events_of,
    until,
)
from tests.patience import PATIENCE

__all__ = ["command"]


def a_key(service: Served, name: str, *scopes: str) -> tuple[str, dict[str, str]]:
    """Make an access key; return its id and the header that carries it."""
    options = [part for scope in scopes for part in ("--scope", scope)]
    made = json.loads(run_command(service.variables, "keys", "create", name, "--json", *options))
    return made["id"], {"Authorization": f"Bearer {made['key']}"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("guarded")
    # There has to be a key before it starts.
    model = ModelServer()
    variables = settings_for(model, folder)
    run_command(variables, "keys", "create", "first")
    model.close()
    settings = 'limits.rate = "500/minute"\nlimits.live = 2\ncors_origins = ["https://a.example"]'
    with a_service(folder, "--require-keys", settings=settings) as running:
        yield running


def test_each_scope_has_what_those_below_it_have(guarded: Served) -> None:
    _, reads = a_key(guarded, "reader", "read")
    _, runs = a_key(guarded, "runner", "run")
    _, rules = a_key(guarded, "ruler", "admin")
    search = {**PHYSICIST, "model": "feedback"}

    def statuses(headers: dict[str, str]) -> list[int]:
        client = guarded.client
        return [
            client.get("/v1/indexes", headers=headers).status_code,
            client.post("/v1/search", json=search, headers=headers).status_code,
            client.get("/metrics", headers=headers).status_code,
            client.get("/healthz", headers=headers).status_code,
            client.get("/", headers=headers).status_code,
        ]

    assert statuses(reads) == [200, 403, 403, 200, 200]
    assert statuses(runs) == [200, 200, 403, 200, 200]
    assert statuses(rules) == [200, 200, 200, 200, 200]
    assert statuses({}) == [401, 401, 401, 200, 200]
    assert statuses({"Authorization": "Basic Zm9vOmJhcg=="}) == [401, 401, 401, 200, 200]
    assert guarded.client.get("/v1/me", headers=runs).json() == {
        "key": "runner",
        "scopes": ["read", "run"],
    }


def test_a_run_is_seen_by_its_own_key_alone(guarded: Served) -> None:
    _, mine = a_key(guarded, "mine")
    _, theirs = a_key(guarded, "theirs", "admin")
    asked = {"kind": "search", "request": {**PHYSICIST, "model": "feedback"}}
    place = guarded.client.post("/v1/runs", json=asked, headers=mine).headers["location"]
    assert guarded.client.get(place, headers=mine).status_code == 200
    for method, path in (("GET", place), ("GET", f"{place}/events"), ("DELETE", place)):
        answer = guarded.client.request(method, path, headers=theirs)
        assert (answer.status_code, answer.json()["type"]) == (
            404,
            "urn:fairqr:error:run-not-found",
        )
    assert guarded.client.get("/v1/runs", headers=theirs).json() == {"runs": []}


def test_a_revoked_key_is_useless_at_once(guarded: Served) -> None:
    id_, key = a_key(guarded, "shortlived")
    assert guarded.client.get("/v1/me", headers=key).status_code == 200
    run_command(guarded.variables, "keys", "revoke", id_)
    answer = guarded.client.get("/v1/me", headers=key)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert key["Authorization"][7:] not in answer.text


def test_too_many_live_runs_of_a_key_are_refused_and_say_when_to_come_back(guarded: Served) -> None:
    _, key = a_key(guarded, "busy")
    _, other = a_key(guarded, "idle")
    gate = threading.Event()
    guarded.model.does(says({"keywords": ["woman"]}, gate=gate))
    places = []
    for number in range(2):
        asked = {"kind": "search", "request": {**PHYSICIST, "query": f"physicist busy {number}"}}
        places.append(guarded.client.post("/v1/runs", json=asked, headers=key).headers["location"])
    again = {"kind": "search", "request": PHYSICIST}
    refused = guarded.client.post("/v1/runs", json=again, headers=key)
    assert (refused.status_code, refused.json()["type"]) == (429, "urn:fairqr:error:busy")
    assert int(refused.headers["retry-after"]) >= 1
    search = {**PHYSICIST, "model": "feedback"}
    assert guarded.client.post("/v1/search", json=search, headers=other).status_code == 200
    gate.set()
    for place in places:
        until(lambda: guarded.client.get(place, headers=key).json()["status"] == "done")  # noqa: B023
    guarded.model.does(answers_all)


def test_pages_of_configured_origins_may_ask(guarded: Served) -> None:
    asked = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    answer = guarded.client.options("/v1/search", headers=asked)
    assert answer.headers["access-control-allow-origin"] == "https://a.example"
    other = guarded.client.options("/v1/search", headers={**asked, "Origin": "https://b.example"})
    assert "access-control-allow-origin" not in other.headers


def test_it_says_what_is_in_its_way(command: Command) -> None:
    run = command("serve", "--host", "0.0.0.0", "--port", "0", "--model", "feedback")
    assert "fairqr keys create" in run.complaint()
    assert "fairqr models pull" in command("serve", "--port", "0").complaint()
    run = command("serve", "--port", "0", "--corpus", "nothing", "--model", "feedback")
    assert "nothing" in run.complaint()


def test_a_rate_and_a_full_queue_are_answered_fast(tmp_path: Path) -> None:
    gate = threading.Event()
    settings = 'concurrency = 1\nlimits.queue = 2\nlimits.rate = "12/minute"'
    with a_service(tmp_path, settings=settings) as service:
        service.model.does(says({"keywords": ["woman"]}, gate=gate))
        begun = time.monotonic()
        answers = []
        for number in range(5):
            asked = {**PHYSICIST, "query": f"physicist {number}"}
            answers.append(
                service.client.post("/v1/runs", json={"kind": "search", "request": asked})
            )
            if not number:
                service.model.wait_for(1)  # it is under way, and waits no longer
        assert [answer.status_code for answer in answers] == [202, 202, 202, 503, 503]
        assert answers[-1].json()["retry_after"] > 0
        assert int(answers[-1].headers["retry-after"]) >= 1
        assert time.monotonic() - begun < 30
        gate.set()
        accepted = [answer.json()["id"] for answer in answers[:3]]
        until(lambda: [run["status"] for run in _runs(service)].count("done") == len(accepted))
        limited = until(lambda: (it := service.client.get("/v1/me")).status_code == 429 and it)
        assert 1 <= int(limited.headers["retry-after"]) <= 60


def _runs(service: Served) -> list[dict[str, Any]]:
    async def found() -> list[dict[str, Any]]:
        store = await Store.open(f"sqlite:///{service.folder}/data/service/runs.sqlite")
        try:
            return [run.model_dump() for run in await store.runs("")]
        finally:
            await store.close()

    return asyncio.run(found())


def test_slow_clients_hold_up_nobody_and_a_model_that_is_away_is_named(tmp_path: Path) -> None:
    settings = "limits.body_seconds = 3\ncaps.body_bytes = 5000\nlimits.requests = 40"
    with a_service(tmp_path, settings=settings) as service:
        host, port = service.client.base_url.host, service.client.base_url.port
        head = f"POST /v1/search HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json"

        def says_(text: str) -> bytes:
            with socket.create_connection((host, port), timeout=PATIENCE) as connection:
                connection.sendall(text.encode())
                answer = b""
                while piece := connection.recv(65536):
                    answer += piece
                return answer

        slow = says_(f"{head}\r\nContent-Length: 100\r\n\r\n" + '{"query":')
        assert slow.startswith(b"HTTP/1.1 408")
        assert b"urn:fairqr:error:slow-body" in slow
        chunks = "".join(f"{1000:x}\r\n{'x' * 1000}\r\n" for _ in range(8))
        large = says_(f"{head}\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n")
        assert large.startswith(b"HTTP/1.1 413")
        declared = says_(f"{head}\r\nContent-Length: 99999999999\r\n\r\n")
        assert declared.startswith(b"HTTP/1.1 413")
        assert says_(f"{head}\r\nX-Long: {'x' * 100_000}\r\n").startswith(b"HTTP/1.1 400")
        # Who sends everything before it reads still gets the answer, and no broken connection.
        whole = says_(f"{head}\r\nContent-Length: 20000000\r\n\r\n{'x' * 20_000_000}")
        assert whole.startswith(b"HTTP/1.1 413")
        idle = [socket.create_connection((host, port)) for _ in range(20)]
        for connection in idle:
            connection.sendall(f"{head}\r\nX-Slow: ".encode())
        assert service.client.post("/v1/search", json={**PHYSICIST, "model": "feedback"}).is_success
        for connection in idle:
            connection.close()
        # Readiness names what is missing.
        assert service.client.get("/readyz").json()["status"] == "ready"
        service.model.does(failure(500))
        answer = service.client.post("/v1/search", json=PHYSICIST)
        assert answer.json()["stop_reason"] == "model_failed"  # the plain ranking stays
        service.model.close()
        gone = until(lambda: (it := service.client.get("/readyz")).status_code == 503 and it)
        assert gone.json() == {
            "status": "not ready",
            "reached": {"index": True, "model": False, "store": True},
        }
        assert service.client.get("/healthz").json() == {"status": "ok"}


class Ending:
    """A service whose process a test ends by itself."""

    def __init__(self, folder: Path, model: Any, grace: float) -> None:
        variables = settings_for(model, folder, f"grace = {grace}")
        path = write_people(folder / "people")
        self.process = subprocess.Popen(
            [Command.executable, "serve", "--port", "0", "--corpus", path],
            env=_environment(variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.client = httpx.Client(base_url=line.split()[-1], timeout=PATIENCE, trust_env=False)

    def ends(self) -> tuple[int, str]:
        """Wait for the end of the process; return its exit code and what it complained of."""
        _, complaints = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, complaints

    def __enter__(self) -> Ending:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


def test_sigterm_lets_work_end_and_takes_no_more(tmp_path: Path, own_model: ModelServer) -> None:
    model, gate = own_model, threading.Event()
    model.does(says({"keywords": ["woman"]}, gate=gate))
    asked = {**PHYSICIST, "corpus": None}
    with Ending(tmp_path, model, grace=15) as service:
        found: list[httpx.Response] = []
        waiting = threading.Thread(
            target=lambda: found.append(service.client.post("/v1/search", json=asked))
        )
        waiting.start()
        model.wait_for(1)
        service.process.send_signal(signal.SIGTERM)
        draining = until(
            lambda: (it := service.client.get("/readyz").json())["status"] == "draining" and it
        )
        assert all(draining["reached"].values())
        refused = service.client.post("/v1/search", json=asked)
        assert (refused.status_code, refused.json()["type"]) == (503, "urn:fairqr:error:busy")
        gate.set()
        waiting.join()
        assert found[0].status_code == 200
        assert service.ends() == (0, "")


def test_what_does_not_end_in_time_is_told_so_and_what_is_kept_goes_on_later(
    tmp_path: Path, own_model: ModelServer
) -> None:
    model, gate = own_model, threading.Event()
    model.does(says({"keywords": ["woman"]}, gate=gate))
    asked = {**PHYSICIST, "corpus": None}
    with Ending(tmp_path, model, grace=1) as service:
        kept = service.client.post("/v1/runs", json={"kind": "search", "request": asked}).json()
        model.wait_for(1)
        last: list[Any] = []

        def follow() -> None:
            other = {**asked, "query": "physicist two"}
            with service.client.stream("POST", "/v1/search/stream", json=other) as response:
                for _, name, data in events_of(response):
                    last[:] = [name, data]

        following = threading.Thread(target=follow)
        following.start()
        until(lambda: last[:1] == ["step"])
        begun = time.monotonic()
        service.process.send_signal(signal.SIGTERM)
        following.join()
        assert last[0] == "error"
        assert last[1]["type"] == "urn:fairqr:error:interrupted"
        assert service.ends() == (0, "")
        assert time.monotonic() - begun < 30
    gate.set()
    with Ending(tmp_path, model, grace=5) as service:
        done = until(
            lambda: (it := service.client.get(f"/v1/runs/{kept['id']}").json())["finished"] and it
        )
        assert (done["status"], done["attempts"]) == ("done", 2)
        service.process.send_signal(signal.SIGTERM)
        assert service.ends() == (0, "")


def test_a_second_signal_ends_it_at_once(tmp_path: Path, own_model: ModelServer) -> None:
    model = own_model
    model.does(Answer(never=True))
    with Ending(tmp_path, model, grace=60) as service:
        asked = {"kind": "search", "request": {**PHYSICIST, "corpus": None}}
        service.client.post("/v1/runs", json=asked)
        model.wait_for(1)
        service.process.send_signal(signal.SIGINT)
        until(lambda: service.client.get("/readyz").json()["status"] == "draining")
        begun = time.monotonic()
        service.process.send_signal(signal.SIGINT)
        assert service.ends()[0] == 0
        assert time.monotonic() - begun < 30


def test_an_ignored_ctrl_c_stays_ignored(tmp_path: Path, own_model: ModelServer) -> None:
    """A script's shell ignores it for what runs in the background, and so do we."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        started = Ending(tmp_path, own_model, grace=60)
    finally:
        signal.signal(signal.SIGINT, before)
    with started as service:
        service.process.send_signal(signal.SIGINT)
        assert service.client.get("/readyz").json()["status"] == "ready"
        service.process.send_signal(signal.SIGTERM)
        assert service.ends() == (0, "")


@pytest.fixture
def own_model() -> Iterator[Any]:
    server = ModelServer()
    yield server
    server.close()
