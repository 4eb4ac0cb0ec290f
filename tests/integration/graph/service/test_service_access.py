"""Who may ask the service, how much, and how it starts and ends."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fairqr.retrieval.sources.corpus import find_corpus
from tests.patience import PATIENCE, until
from tests.servers.filled_elasticsearch import fill, write_source
from tests.servers.model_server import Answer, Main, ModelServer, failure, says, write_people
from tests.servers.page_service import Wire, events_of, run_command, running, settings_for
from tests.servers.service_client import (
    PHYSICIST,
    Served,
    a_key,
    a_service,
    service_of_a_module,
)

FEEDBACK = {**PHYSICIST, "model": "feedback"}
HELD = {"keywords": ["woman"]}


guarded = service_of_a_module(
    "--require-keys", settings='traffic.rate = "500/minute"\ncors_origins = ["https://a.example"]'
)


def test_each_scope_has_what_those_below_it_have(guarded: Served) -> None:
    (_, reads), (_, runs), (_, rules) = (
        a_key(guarded.variables, name, scope)  # type: ignore[arg-type]
        for name, scope in (("reader", "read"), ("runner", "run"), ("ruler", "admin"))
    )

    def statuses(headers: dict[str, str]) -> list[int]:
        client = guarded.client
        got = [client.get(it, headers=headers) for it in ("/v1/indexes", "/metrics", "/healthz")]
        got.insert(1, client.post("/v1/search", json=FEEDBACK, headers=headers))
        return [answer.status_code for answer in got]

    assert statuses(reads) == [200, 403, 403, 200]
    assert statuses(runs) == [200, 200, 403, 200]
    assert statuses(rules) == [200, 200, 200, 200]
    assert statuses({}) == [401, 401, 401, 200]
    assert statuses({"Authorization": "Basic Zm9vOmJhcg=="}) == [401, 401, 401, 200]
    me = guarded.client.get("/v1/me", headers=runs).json()
    assert me == {"key": "runner", "scopes": ["read", "run"]}


def test_a_revoked_key_is_useless_at_once(guarded: Served) -> None:
    id_, key = a_key(guarded.variables, "shortlived")
    assert guarded.client.get("/v1/me", headers=key).status_code == 200
    run_command(guarded.variables, "keys", "revoke", id_)
    answer = guarded.client.get("/v1/me", headers=key)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert key["Authorization"][7:] not in answer.text


def test_pages_of_configured_origins_may_ask(guarded: Served) -> None:
    """A method that is none of ours is refused as a problem, as all is."""
    asked = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    answer = guarded.client.options("/v1/search", headers=asked)
    assert answer.headers["access-control-allow-origin"] == "https://a.example"
    other = guarded.client.options("/v1/search", headers={**asked, "Origin": "https://b.example"})
    assert "access-control-allow-origin" not in other.headers
    for refused in (
        other,
        guarded.client.options(
            "/v1/search", headers={**asked, "Access-Control-Request-Method": "X"}
        ),
    ):
        assert refused.status_code == 400
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.json()["type"] == "urn:fairqr:error:malformed"


def test_it_says_what_is_in_its_way(quick: Main) -> None:
    run = quick("serve", "--host", "0.0.0.0", "--port", "0", "--model", "feedback")
    assert "fairqr keys create" in run.complaint()
    assert "fairqr models pull" in quick("serve", "--port", "0").complaint()
    run = quick("serve", "--port", "0", "--corpus", "nothing", "--model", "feedback")
    assert "nothing" in run.complaint()


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"FAIRQR_SERVICE_AUDITS": "FILE/audits"}, "(service.audits) cannot be written"),
        ({"FAIRQR_SERVICE_TRACES": "FILE/traces"}, "(service.traces) cannot be written"),
        ({"FAIRQR_SERVICE_REPLIES": "FILE/r.sqlite"}, "(service.replies) cannot be written"),
        ({"FAIRQR_SERVICE_REPLIES": "FILE"}, "name a file that is new, or that fairqr has written"),
        ({"FAIRQR_SERVICE_REPLIES": "FOLDER"}, "No replies can be kept"),
        ({"FAIRQR_SERVICE_ATTRIBUTORS": "llm:openai:other"}, "its model is not offered"),
        ({"FAIRQR_SERVICE_ATTRIBUTORS": "overlap, nli"}, "choose from overlap, transformers, llm"),
        ({"FAIRQR_SERVICE_CORS_ORIGINS": "search.example"}, "write * or an origin"),
        ({"FAIRQR_SERVICE_CORS_ORIGINS": "https://a.example/x"}, "write * or an origin"),
        ({"FAIRQR_SERVICE_ROOT_PATH": "/v1"}, "a path such as /fair, and none of our own"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"}, "write it like http://127.0.0.1:4318"),
        ({"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "-1"}, "COUNT_LIMIT is not a whole number"),
        ({"OTEL_PROPAGATORS": "pigeon"}, "OTEL_PROPAGATORS names what is not installed"),
    ],
)
def test_what_would_fail_later_is_told_before_it_listens(
    variables: dict[str, str], words: str, quick: Main, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("This is no database.")
    places = {"FILE": str(file), "FOLDER": str(tmp_path)}
    given = {name: _with(text, places) for name, text in variables.items()}
    assert words in quick("serve", "--port", "0", "--model", "feedback", **given).complaint()


def _with(text: str, places: dict[str, str]) -> str:
    for name, place in places.items():
        text = text.replace(name, place)
    return text


@pytest.mark.elasticsearch
def test_it_starts_without_a_source_that_is_away_and_searches_it_once_it_is_back(
    tmp_path: Path, elasticsearch_url: str
) -> None:
    with contextlib.ExitStack() as stack:
        people = find_corpus(write_people(tmp_path / "people"))
        there = fill(stack, elasticsearch_url, "there", people)
        wire = stack.enter_context(contextlib.closing(Wire(elasticsearch_url)))
        wire.cut()
        away = there.model_copy(update={"name": "away", "url": wire.address})
        files = json.dumps([str(write_source(it, tmp_path)) for it in (there, away)])
        settings = f'sources = {files}\ncorpora = ["there"]\nlog = "json"'
        service = stack.enter_context(a_service(tmp_path / "s", corpus="there", settings=settings))
        ready = service.client.get("/readyz")
        assert (ready.status_code, ready.json()["reached"]["sources"]) == (200, False)
        told = service.client.get("/v1/indexes").json()
        assert [it["name"] for it in told["indexes"]] == ["there"]
        assert told["unavailable"] == ["away"]
        asked = {**FEEDBACK, "corpus": "away"}
        assert service.client.post("/v1/search", json=asked).status_code == 503
        wire.repair()
        until(lambda: service.client.post("/v1/search", json=asked).status_code == 200)
        until(lambda: service.client.get("/readyz").json()["reached"]["sources"])
        lines = service.process.said.decode().splitlines()
        (told,) = [json.loads(line) for line in lines if "without a source" in line]
        assert told["level"] == "warning"
        assert told.keys() == {"time", "level", "logger", "message"}


def test_slow_clients_hold_up_nobody_and_a_model_that_is_away_is_named(tmp_path: Path) -> None:
    settings = "traffic.body_seconds = 3\nlimits.body_bytes = 5000"
    with a_service(tmp_path, settings=settings) as service:
        host, port = service.client.base_url.host, service.client.base_url.port
        head = f"POST /v1/search HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json"
        chunks = "".join(f"{1000:x}\r\n{'x' * 1000}\r\n" for _ in range(8))
        for rest, status in (
            ("Content-Length: 100\r\n\r\n" + '{"query":', b"408"),
            (f"Transfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n", b"413"),
            ("Content-Length: 99999999999\r\n\r\n", b"408"),
            # Who sends everything before it reads still gets the answer, and no broken connection.
            (f"Content-Length: 20000000\r\n\r\n{'x' * 20_000_000}", b"413"),
        ):
            with socket.create_connection((host, port), timeout=PATIENCE) as connection:
                connection.sendall(f"{head}\r\n{rest}".encode())
                answer = b"".join(iter(lambda: connection.recv(65536), b""))
            assert answer.startswith(b"HTTP/1.1 " + status)
            assert (b"urn:fairqr:error:slow-body" in answer) == (status == b"408")
        # Readiness names what is missing.
        assert service.client.get("/readyz").json()["status"] == "ready"
        service.model.does(failure(500))
        found = service.client.post("/v1/search", json=PHYSICIST).json()
        assert found["stop_reason"] == "model_failed"  # the baseline ranking stays
        service.model.close()
        gone = until(lambda: (it := service.client.get("/readyz")).status_code == 503 and it)
        reached = {"index": True, "sources": True, "model": False, "store": True}
        assert gone.json() == {"status": "not ready", "reached": reached}
        assert service.client.get("/healthz").json() == {"status": "ok"}


ENDING = {**PHYSICIST, "corpus": None}


@pytest.fixture
def ending(tmp_path: Path, model_server: ModelServer) -> list[Any]:
    """The variables and arguments of a service that a test ends itself."""
    variables = settings_for(model_server, tmp_path, "grace = 60")
    return [variables, "--corpus", write_people(tmp_path / "people")]


def test_sigterm_lets_work_end_and_takes_no_more(
    ending: list[Any], model_server: ModelServer
) -> None:
    gate = threading.Event()
    model_server.does(says(HELD, gate=gate))
    with ThreadPoolExecutor() as pool, running(*ending) as service:
        client = service.client
        waiting = pool.submit(client.post, "/v1/search", json=ENDING)
        model_server.wait_for(1)
        service.send(signal.SIGTERM)
        draining = until(
            lambda: (it := client.get("/readyz").json())["status"] == "draining" and it
        )
        assert all(draining["reached"].values())
        refused = client.post("/v1/search", json=ENDING)
        assert (refused.status_code, refused.json()["type"]) == (503, "urn:fairqr:error:busy")
        gate.set()
        assert waiting.result().status_code == 200
        service.ends()


def test_what_does_not_end_in_time_is_told_so_and_what_is_kept_goes_on_later(
    ending: list[Any], model_server: ModelServer
) -> None:
    gate = threading.Event()
    model_server.does(says(HELD, gate=gate))
    ending[0]["FAIRQR_SERVICE_GRACE"] = "1"
    with running(*ending) as service:
        kept = service.client.in_background(ENDING)
        model_server.wait_for(1)
        other = {**ENDING, "query": "physicist two"}
        with service.client.stream("POST", "/v1/search/stream", json=other) as response:
            events = events_of(response)
            assert [next(events)[1], next(events)[1]] == ["run", "step"]
            started = time.monotonic()
            service.send(signal.SIGTERM)
            *_, (_, name, data) = events
        assert (name, data["type"]) == ("error", "urn:fairqr:error:interrupted")
        service.ends()
        assert time.monotonic() - started < 30
    gate.set()
    with running(*ending) as service:
        done = service.client.ended(kept)
        assert (done["status"], done["attempts"]) == ("done", 2)


def test_a_second_signal_ends_it_at_once_and_an_ignored_ctrl_c_stays_ignored(
    ending: list[Any], model_server: ModelServer
) -> None:
    """A script's shell ignores it for what runs in the background, and so do we."""
    model_server.does(Answer(never=True))
    with contextlib.ExitStack() as stack:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            service = stack.enter_context(running(*ending))
        finally:
            signal.signal(signal.SIGINT, before)
        service.client.in_background(ENDING)
        model_server.wait_for(1)
        service.send(signal.SIGINT)
        assert service.client.get("/readyz").json()["status"] == "ready"
        service.send(signal.SIGTERM)
        until(lambda: service.client.get("/readyz").json()["status"] == "draining")
        started = time.monotonic()
        service.send(signal.SIGTERM)
        service.ends()
        assert time.monotonic() - started < 30


def test_a_body_that_breaks_off_after_its_answer_is_no_failure(ending: list[Any]) -> None:
    asked = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with running(*ending) as service:
        address = service.client.base_url
        with socket.create_connection((address.host, address.port), PATIENCE) as client:
            client.sendall(asked)
            received = client.recv(2**16)
            assert received.startswith(b"HTTP/1.1 200 ")
            client.sendall(b"ZZ\r\n")
            while client.recv(2**16):
                pass
        service.send(signal.SIGTERM)
        service.ends()
        assert b"rror" not in service.said, service.said.decode()


HALF = "POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize("signals", [1, 2])
@pytest.mark.parametrize(
    "sent",
    [
        f"{HALF}Content-Length: 50\r\n\r\n{{",
        f"{HALF}Transfer-Encoding: chunked\r\n\r\n1\r\n{{\r\n",
        "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100,
    ],
    ids=["half", "half of chunks", "unread"],
)
def test_what_clients_leave_half_done_at_the_end_is_no_failure(
    ending: list[Any], sent: str, signals: int
) -> None:
    """Nothing of it is in the log, and the service ends as ever."""
    with contextlib.ExitStack() as stack, running(*ending) as service:
        address = service.client.base_url
        for _ in range(20):
            client = stack.enter_context(socket.create_connection((address.host, address.port)))
            client.sendall(sent.encode())
        service.client.get("/readyz").raise_for_status()
        before = len(service.said)
        started = time.monotonic()
        for _ in range(signals):
            service.send(signal.SIGTERM)
        service.ends()
        assert time.monotonic() - started < PATIENCE / 2
        assert b"rror" not in service.said[before:], service.said.decode()
        assert b"xception" not in service.said[before:]
