"""Connections and errors of Elasticsearch, against small HTTP servers that misbehave for real."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fairqr.errors import IndexNotFoundError, IndexUnavailableError, InputError
from fairqr.retrieval.elasticsearch_bulk import Action, Outcome, Tally, bulk
from fairqr.retrieval.elasticsearch_client import Connection, Server
from fairqr.retrieval.elasticsearch_layout import BuildMark, new_index_name

VARIABLES = ("URL", "API_KEY", "USERNAME", "PASSWORD", "CA_CERTS")
SECRET = "s3cret/:@"
Answer = tuple[int, dict[str, str], bytes]
PRODUCT = {"x-elastic-product": "Elasticsearch", "content-type": "application/json"}


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(f"FAIRQR_ELASTICSEARCH_{name}", raising=False)


# --- connections ------------------------------------------------------------------------------


def test_the_environment_describes_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ("http://here:9200/", SECRET, None, None, "/ca.pem")
    for name, value in zip(VARIABLES, settings, strict=True):
        if value:
            monkeypatch.setenv(f"FAIRQR_ELASTICSEARCH_{name}", value)
    connection = Connection.from_environment()
    assert connection.url == "http://here:9200"
    assert connection.api_key
    assert connection.api_key.get_secret_value() == SECRET
    assert connection.ca_certs == Path("/ca.pem")
    assert Connection.from_environment("https://there").url == "https://there:443"


def test_no_url_names_the_option_and_the_variable() -> None:
    with pytest.raises(InputError, match=r"--url .* FAIRQR_ELASTICSEARCH_URL"):
        Connection.from_environment()


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("http://localhost:9200", "http://localhost:9200"),
        ("http://localhost", "http://localhost:80"),
        (" https://user:pw@es.example.org/es/ ", "https://es.example.org:443/es"),
        ("http://u:p@[::1]:9200", "http://[::1]:9200"),
    ],
)
def test_urls_are_shown_without_credentials(given: str, shown: str) -> None:
    assert Connection.from_environment(given).shown == shown


@pytest.mark.parametrize(
    "url",
    [
        "localhost:9200",
        "ftp://u:s3cret@host",
        "http://",
        "http://u:s3cret@",
        "http://u:s3cret@host:port",
        "http://u:s3cret@host:0",
        "http://[u:s3cret",
        "http://host:9200/?key=s3cret",
        "s3cret",
    ],
)
def test_what_is_no_url_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(InputError, match="must look like http://localhost:9200") as caught:
        Connection.from_environment(url)
    assert "s3cret" not in str(caught.value)


def test_credentials_in_the_url_win_and_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRQR_ELASTICSEARCH_API_KEY", "other")
    connection = Connection.from_environment("https://el%40stic:s3cret%2F%3A%40@host:9200")
    assert (connection.url, connection.username) == ("https://host:9200", "el@stic")
    assert connection.password
    assert connection.password.get_secret_value() == SECRET
    assert connection.api_key is None


@pytest.mark.parametrize(
    "credentials",
    [
        {"api_key": SECRET, "username": "u", "password": SECRET},
        {"username": "u"},
        {"password": SECRET},
    ],
)
def test_credentials_must_fit_together(credentials: dict[str, str]) -> None:
    with pytest.raises(InputError, match="FAIRQR_ELASTICSEARCH_API_KEY") as caught:
        Connection(url="http://host:1", **credentials)
    assert SECRET not in str(caught.value)


def test_secrets_do_not_show() -> None:
    by_key = Connection(url="http://host:1", api_key=SECRET)
    by_password = Connection(url=f"http://u:{'s3cret'}@host:1")
    for connection in (by_key, by_password):
        shown = f"{connection!r} {connection} {connection.model_dump()} {connection.shown}"
        assert "s3cret" not in shown + connection.model_dump_json()
        assert pickle.loads(pickle.dumps(connection)) == copy.copy(connection) == connection
    with pytest.raises(ValueError, match="attempts") as caught:
        Connection(url="http://u:s3cret@host:1", api_key=["s3cret"], attempts=0)
    assert "s3cret" not in str(caught.value)


async def test_certificates_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "no.pem").write_text("no certificate")
    for path in (tmp_path / "no.pem", tmp_path / "missing.pem"):
        server = Server(Connection(url="https://127.0.0.1:1", ca_certs=path))
        with pytest.raises(InputError, match=r"in FAIRQR_ELASTICSEARCH_CA_CERTS\.$"):
            await server.call(lambda client: client.count())


# --- servers that misbehave -------------------------------------------------------------------


@contextmanager
def answering(answer: Callable[[int, str], Answer]) -> Iterator[tuple[str, list[float]]]:
    """Serve what ``answer(number of the request from 0, its body)`` says; tell URL and times."""
    times: list[float] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Be silent."""

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
            times.append(time.monotonic())
            status, headers, content = answer(len(times) - 1, body)
            self.send_response(status)
            for key, value in {**headers, "content-length": str(len(content))}.items():
                self.send_header(key, value)
            with suppress(ConnectionError):  # a client that did not wait
                self.end_headers()
                self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", times
        finally:
            server.shutdown()


def of_json(status: int, content: Any, **headers: str) -> Answer:
    return status, {**PRODUCT, **headers}, json.dumps(content).encode()


async def count(url: str, **options: Any) -> int:
    server = Server(Connection(url=url, **options))
    try:
        found: int = (await server.call(lambda client: client.count(index="any")))["count"]
        return found
    finally:
        await server.close()


async def test_an_overload_is_waited_out_as_long_as_the_server_asks() -> None:
    def answer(number: int, _: str) -> Answer:
        if number == 0:
            return of_json(429, {"error": "busy"}, **{"retry-after": "1"})
        return of_json(200, {"count": 7})

    with answering(answer) as (url, times):
        assert await count(url) == 7
    assert len(times) == 2
    assert 1 <= times[1] - times[0] < 3


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (429, "is overloaded (status 429, 2 attempts); try again later."),
        (503, "failed with status 503 (2 attempts); look into its log, and try again."),
        (500, "failed with status 500 (2 attempts); look into its log, and try again."),
    ],
)
@pytest.mark.parametrize("headers", [PRODUCT, {"content-type": "text/html"}])
async def test_what_does_not_heal_is_told(status: int, says: str, headers: dict[str, str]) -> None:
    with answering(lambda *_: (status, headers, b"{}")) as (url, times):
        with pytest.raises(IndexUnavailableError) as caught:
            await count(url, attempts=2)
        assert str(caught.value) == f"Elasticsearch at {url} {says}"
        assert caught.value.__suppress_context__
    assert len(times) == 2


@pytest.mark.parametrize(
    "answer",
    [
        (200, {"content-type": "text/html"}, b"<h1>It works!</h1>"),
        (200, {"content-type": "application/json"}, b'{"count": 3}'),
        (404, {"content-type": "text/html"}, b"nothing here"),
        (404, {"content-type": "application/json"}, b'{"error": "no such page"}'),
        (405, {}, b""),
    ],
)
async def test_another_kind_of_server(answer: Answer) -> None:
    with answering(lambda *_: answer) as (url, times):
        with pytest.raises(IndexUnavailableError) as caught:
            await count(url)
        assert str(caught.value).startswith(f"The server at {url} is not Elasticsearch; name one")
    assert len(times) == 1


async def test_an_answer_that_is_cut_off_or_no_json() -> None:
    for content in (b'{"count": ', b"\xff\xfe"):
        with (
            answering(lambda *_, content=content: (200, PRODUCT, content)) as (url, _),
            pytest.raises(IndexUnavailableError),
        ):
            await count(url, attempts=1)


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        (of_json(401, {}), IndexUnavailableError, r"asks for credentials \(status 401\); set"),
        (of_json(403, {}), IndexUnavailableError, "the privilege 'all' on indices 'fairqr-"),
        (
            of_json(404, {"error": {"type": "index_not_found_exception"}}),
            IndexNotFoundError,
            "create it with 'fairqr index create'",
        ),
        (
            of_json(403, {"error": {"type": "cluster_block_exception", "reason": "disk\nfull"}}),
            IndexUnavailableError,
            r"with status 403 \(disk full\)",
        ),
        (
            of_json(400, {"error": {"reason": "a", "caused_by": {"reason": "b"}}}),
            IndexUnavailableError,
            r"with status 400 \(a: b\)",
        ),
    ],
)
async def test_refusals_are_told_and_not_tried_again(
    answer: Answer, kind: type[Exception], says: str
) -> None:
    with answering(lambda *_: answer) as (url, times), pytest.raises(kind, match=says):
        await count(url)
    assert len(times) == 1


async def test_a_slow_server() -> None:
    def answer(*_: Any) -> Answer:
        time.sleep(0.5)
        return of_json(200, {"count": 1})

    with (
        answering(answer) as (url, _),
        pytest.raises(IndexUnavailableError, match=r"did not answer within 0\.1 seconds"),
    ):
        await count(url, timeout=0.1, attempts=1)


# --- bulk -------------------------------------------------------------------------------------


def actions(number: int) -> Iterator[Action]:
    for place in range(1, number + 1):
        yield Action("index", f"n{place}", "{}", place)


async def outcomes_of(url: str, number: int, attempts: int) -> list[Outcome]:
    server = Server(Connection(url=url, attempts=attempts))
    try:
        return [
            outcome
            async for some in bulk(server, "any", actions(number), alias=True)
            for outcome in some
        ]
    finally:
        await server.close()


def busy(ids: set[str], times: int) -> tuple[Callable[[int, str], Answer], list[list[str]]]:
    """Answer bulks, and refuse some ids as too much for as many requests; tell what was sent."""
    sent: list[list[str]] = []

    def answer(number: int, body: str) -> Answer:
        got = [json.loads(line)["index"]["_id"] for line in body.splitlines()[::2]]
        sent.append(got)
        error = {"type": "es_rejected_execution_exception", "reason": "queue full"}
        items: list[Any] = [
            {"index": {"status": 429, "error": error}}
            if id_ in ids and number < times
            else {"index": {"status": 201}}
            for id_ in got
        ]
        return of_json(200, {"items": items})

    return answer, sent


async def test_only_what_was_too_much_is_sent_again() -> None:
    answer, sent = busy({"n2", "n4"}, times=2)
    with answering(answer) as (url, _):
        outcomes = await outcomes_of(url, 5, attempts=4)
    assert [outcome.status for outcome in outcomes] == [201] * 5
    assert [outcome.action.number for outcome in outcomes] == [1, 2, 3, 4, 5]
    assert sent == [["n1", "n2", "n3", "n4", "n5"], ["n2", "n4"], ["n2", "n4"]]


async def test_tries_are_bounded() -> None:
    answer, sent = busy({"n2"}, times=99)
    with answering(answer) as (url, _):
        outcomes = await outcomes_of(url, 3, attempts=2)
    assert [outcome.status for outcome in outcomes] == [201, 429, 201]
    assert len(sent) == 2
    tally = Tally()
    tally.add(outcomes)
    with pytest.raises(IndexUnavailableError, match=r"1 of the 3 .* 'n2', status 429 \(queue full"):
        tally.complain()


async def test_documents_are_read_a_chunk_at_a_time() -> None:
    read: list[int] = []

    def reading() -> Iterator[Action]:
        for action in actions(1_700):
            read.append(action.number)
            yield action

    answer, sent = busy(set(), times=0)
    with answering(answer) as (url, _):
        server = Server(Connection(url=url))
        async for some in bulk(server, "any", reading(), alias=False):
            assert len(read) <= some[-1].action.number + 1
        await server.close()
    assert [len(ids) for ids in sent] == [500, 500, 500, 200]


# --- names and marks --------------------------------------------------------------------------


def test_names_of_server_indexes_differ() -> None:
    names = {new_index_name("corpus") for _ in range(100)}
    assert len(names) == 100
    assert all(name.startswith("fairqr-corpus-2") and name == name.lower() for name in names)


def test_a_build_is_abandoned_when_silent_or_dead() -> None:
    own = BuildMark.own()
    assert not own.abandoned()
    assert own.model_copy(update={"renewed": own.renewed - 3601}).abandoned()
    assert not own.model_copy(update={"machine": "another", "pid": 2**22 + 1}).abandoned()
    assert not own.model_copy(update={"machine": None, "pid": 2**22 + 1}).abandoned()
    if own.machine:  # told apart on Linux
        assert own.model_copy(update={"pid": 2**22 + 1}).abandoned()


async def test_nothing_secret_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with answering(lambda *_: of_json(200, {"count": 1})) as (url, _):
        assert await count(url.replace("//", "//elastic:s3cret@")) == 1
    assert "s3cret" not in caplog.text
