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


def statuses_of(guarded: Served, headers: dict[str, str]) -> list[int]:
    """Return what the indexes, a search, the metrics and health answer to a key."""
    client = guarded.client
    answers = [
        client.get("/v1/indexes", headers=headers),
        client.post("/v1/search", json=FEEDBACK, headers=headers),
        client.get("/metrics", headers=headers),
        client.get("/healthz", headers=headers),
    ]
    return [answer.status_code for answer in answers]


@pytest.mark.promise("service")
def test_each_scope_has_what_those_below_it_have(guarded: Served) -> None:
    """Each scope of a key has what those below it have: `read` reads, `run` also begins runs, and
    `admin` also reads the metrics.
    """
    _, reader = a_key(guarded.variables, "reader", "read")
    _, runner = a_key(guarded.variables, "runner", "run")
    _, admin = a_key(guarded.variables, "admin", "admin")

    assert statuses_of(guarded, reader) == [200, 403, 403, 200]
    assert statuses_of(guarded, runner) == [200, 200, 403, 200]
    assert statuses_of(guarded, admin) == [200, 200, 200, 200]

    me = guarded.client.get("/v1/me", headers=runner).json()
    assert me == {"key": "runner", "scopes": ["read", "run"]}


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Basic Zm9vOmJhcg=="}], ids=["nothing", "basic"]
)
def test_without_a_key_only_health_is_told(guarded: Served, headers: dict[str, str]) -> None:
    assert statuses_of(guarded, headers) == [401, 401, 401, 200]


@pytest.mark.promise("service")
def test_a_revoked_key_is_useless_at_once(guarded: Served) -> None:
    """A revoked key is useless at once, and a refusal does not repeat it."""
    id_, key = a_key(guarded.variables, "shortlived")
    assert guarded.client.get("/v1/me", headers=key).status_code == 200

    run_command(guarded.variables, "keys", "revoke", id_)
    answer = guarded.client.get("/v1/me", headers=key)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert key["Authorization"][7:] not in answer.text


ASKED_BY_A_PAGE = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}


def test_pages_of_configured_origins_may_ask(guarded: Served) -> None:
    answer = guarded.client.options("/v1/search", headers=ASKED_BY_A_PAGE)
    assert answer.headers["access-control-allow-origin"] == "https://a.example"


def test_pages_of_other_origins_may_not_ask(guarded: Served) -> None:
    headers = {**ASKED_BY_A_PAGE, "Origin": "https://b.example"}
    answer = guarded.client.options("/v1/search", headers=headers)
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "change",
    [{"Origin": "https://b.example"}, {"Access-Control-Request-Method": "X"}],
    ids=["origin", "method"],
)
def test_a_page_is_refused_with_a_problem(guarded: Served, change: dict[str, str]) -> None:
    refused = guarded.client.options("/v1/search", headers={**ASKED_BY_A_PAGE, **change})
    assert refused.status_code == 400
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["type"] == "urn:fairqr:error:malformed"


@pytest.mark.promise("service")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0", "--model", "feedback"], "fairqr keys create"),
        ([], "fairqr models pull"),
        (["--corpus", "nothing", "--model", "feedback"], "nothing"),
    ],
    ids=["keys", "model", "corpus"],
)
def test_it_says_what_is_missing_before_it_listens(
    quick: Main, arguments: list[str], words: str
) -> None:
    """On other addresses than loopback the service needs keys; before it listens it says in one
    sentence what is missing.
    """
    assert words in quick("serve", "--port", "0", *arguments).complaint()


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
    ids=[
        "audits",
        "traces",
        "folder of replies",
        "file of replies",
        "replies as a folder",
        "model of a judge",
        "judge",
        "origin without scheme",
        "origin with path",
        "root path",
        "collector",
        "count of spans",
        "propagator",
    ],
)
def test_what_would_fail_later_is_told_before_it_listens(
    variables: dict[str, str], words: str, quick: Main, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("This is no database.")
    environment = {
        name: text.replace("FILE", str(file)).replace("FOLDER", str(tmp_path))
        for name, text in variables.items()
    }
    ended = quick("serve", "--port", "0", "--model", "feedback", **environment)

    assert words in ended.complaint()


@pytest.mark.elasticsearch
def test_a_source_that_is_away_is_searched_once_it_is_back(
    tmp_path: Path, elasticsearch_url: str
) -> None:
    with contextlib.ExitStack() as stack:
        people = find_corpus(write_people(tmp_path / "people"))
        there = fill(stack, elasticsearch_url, "there", people)
        wire = stack.enter_context(contextlib.closing(Wire(elasticsearch_url)))
        wire.cut()
        away = there.model_copy(update={"name": "away", "url": wire.address})
        files = json.dumps([str(write_source(source, tmp_path)) for source in (there, away)])
        settings = f'sources = {files}\ncorpora = ["there"]\nlog = "json"'
        service = stack.enter_context(a_service(tmp_path / "s", corpus="there", settings=settings))
        ready = service.client.get("/readyz")

        assert ready.status_code == 200
        assert ready.json()["reached"]["sources"] is False

        listed = service.client.get("/v1/indexes").json()
        assert [index["name"] for index in listed["indexes"]] == ["there"]
        assert listed["unavailable"] == ["away"]

        request = {**FEEDBACK, "corpus": "away"}
        assert service.client.post("/v1/search", json=request).status_code == 503

        wire.repair()
        until(lambda: service.client.post("/v1/search", json=request).status_code == 200)
        until(lambda: service.client.get("/readyz").json()["reached"]["sources"])
        lines = service.process.said.decode().splitlines()
        (warning,) = [json.loads(line) for line in lines if "without a source" in line]

        assert warning["level"] == "warning"
        assert warning.keys() == {"time", "level", "logger", "message"}


impatient = service_of_a_module(settings="traffic.body_seconds = 3\nlimits.body_bytes = 5000")
CHUNKS = "".join(f"{1000:x}\r\n{'x' * 1000}\r\n" for _ in range(8))


@pytest.mark.parametrize(
    ("rest", "status"),
    [
        pytest.param("Content-Length: 100\r\n\r\n" + '{"query":', 408, id="half a body"),
        pytest.param(f"Transfer-Encoding: chunked\r\n\r\n{CHUNKS}0\r\n\r\n", 413, id="chunks"),
        pytest.param("Content-Length: 99999999999\r\n\r\n", 408, id="no body"),
        # Who sends everything before it reads still gets the answer, and no broken connection.
        pytest.param(f"Content-Length: 20000000\r\n\r\n{'x' * 20_000_000}", 413, id="large"),
    ],
)
def test_a_body_that_is_slow_or_large_is_refused(impatient: Served, rest: str, status: int) -> None:
    address = impatient.client.base_url
    head = f"POST /v1/search HTTP/1.1\r\nHost: {address.host}:{address.port}\r\n"
    head += "Content-Type: application/json\r\n"
    with socket.create_connection((address.host, address.port), timeout=PATIENCE) as connection:
        connection.sendall((head + rest).encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))

    assert answer.startswith(b"HTTP/1.1 %d" % status)
    assert (b"urn:fairqr:error:slow-body" in answer) == (status == 408)


@pytest.mark.promise("service")
def test_readiness_names_a_model_that_is_away(impatient: Served) -> None:
    """`/readyz` names what does not respond, such as a model that is away, while `/healthz` stays
    well.
    """
    assert impatient.client.get("/readyz").json()["status"] == "ready"

    impatient.model.does(failure(500))
    result = impatient.client.post("/v1/search", json=PHYSICIST).json()
    assert result["stop_reason"] == "model_failed"  # the baseline ranking stays

    impatient.model.close()
    until(lambda: impatient.client.get("/readyz").status_code == 503)
    not_ready = impatient.client.get("/readyz")
    reached = {"index": True, "sources": True, "model": False, "store": True}

    assert not_ready.json() == {"status": "not ready", "reached": reached}
    assert impatient.client.get("/healthz").json() == {"status": "ok"}


ENDING = {**PHYSICIST, "corpus": None}


@pytest.fixture
def ending(tmp_path: Path, model_server: ModelServer) -> list[Any]:
    """The variables and arguments of a service that a test ends itself."""
    variables = settings_for(model_server, tmp_path, "grace = 60")
    return [variables, "--corpus", write_people(tmp_path / "people")]


@pytest.mark.promise("service")
def test_sigterm_lets_work_end_and_takes_no_more(
    ending: list[Any], model_server: ModelServer
) -> None:
    """SIGTERM lets work end that is under way, and takes no more."""
    gate = threading.Event()
    model_server.does(says(HELD, gate=gate))
    with ThreadPoolExecutor() as pool, running(*ending) as service:
        client = service.client
        waiting = pool.submit(client.post, "/v1/search", json=ENDING)
        model_server.wait_for(1)
        service.send(signal.SIGTERM)
        until(lambda: client.get("/readyz").json()["status"] == "draining")

        assert all(client.get("/readyz").json()["reached"].values())

        refused = client.post("/v1/search", json=ENDING)
        assert refused.status_code == 503
        assert refused.json()["type"] == "urn:fairqr:error:busy"

        gate.set()
        assert waiting.result().status_code == 200

        service.ends()


@pytest.mark.promise("service")
def test_at_the_end_kept_runs_are_handed_over_and_others_told(
    ending: list[Any], model_server: ModelServer
) -> None:
    """What does not end in time after SIGTERM is told so, and what is kept goes on in the next
    process.
    """
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

        assert name == "error"
        assert data["type"] == "urn:fairqr:error:interrupted"

        service.ends()
        assert time.monotonic() - started < 30
    gate.set()
    with running(*ending) as service:
        run = service.client.ended(kept)
        assert (run["status"], run["attempts"]) == ("done", 2)


def test_a_second_signal_ends_it_and_ctrl_c_may_be_ignored(
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
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with running(*ending) as service:
        address = service.client.base_url
        with socket.create_connection((address.host, address.port), PATIENCE) as client:
            client.sendall(request)
            received = client.recv(2**16)
            assert received.startswith(b"HTTP/1.1 200 ")

            client.sendall(b"ZZ\r\n")
            while client.recv(2**16):
                pass
        service.send(signal.SIGTERM)
        service.ends()

        assert b"rror" not in service.said, service.said.decode()


HEAD = "POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize("signals", [1, 2])
@pytest.mark.parametrize(
    "sent",
    [
        f"{HEAD}Content-Length: 50\r\n\r\n{{",
        f"{HEAD}Transfer-Encoding: chunked\r\n\r\n1\r\n{{\r\n",
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
