"""Clients that are slow, or silent, or never read: they cost little, and hold up nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from fairqr.graph.service.configuration import ServiceSettings, Traffic
from fairqr.graph.service.http import access, app, connections, serving
from fairqr.graph.service.http.access import Guard
from fairqr.graph.service.http.parts import Metrics
from fairqr.graph.service.records import SCOPES, AccessKey
from fairqr.graph.service.store import Store
from tests.patience import PATIENCE, until
from tests.servers.model_server import Asked
from tests.servers.service_client import PHYSICIST, a_key, a_service, answers_all


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["path"].endswith("/slow"):
        while (await receive())["type"] != "http.disconnect":
            pass
        return
    await PlainTextResponse(b"xx")(scope, receive, send)


@contextlib.asynccontextmanager
async def a_server(served: ASGIApp = answer) -> AsyncIterator[tuple[serving.Server, int]]:
    """Serve on a real socket; yields the server and its port."""
    listener = serving.bound("127.0.0.1", 0)
    has_started = asyncio.Event()

    async def drain() -> None:
        pass

    running = serving.Server(served, drain)
    task = asyncio.create_task(running.run_on(listener, has_started.set))
    await has_started.wait()
    yield running, listener.getsockname()[1]
    running.end()
    await task


@pytest.fixture
async def server() -> AsyncIterator[tuple[serving.Server, int]]:
    """A server on a real socket, and its port."""
    async with a_server() as running:
        yield running


@pytest.mark.promise("service")
@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: ",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n",
    ],
    ids=["nothing", "half", "one-and-a-half", "no-body"],
)
async def test_a_thousand_clients_that_do_not_go_on_stop_no_other(
    server: tuple[serving.Server, int], sent: bytes
) -> None:
    """A thousand clients that connect and do not go on stop no other."""
    # Both ends of each connection are files of this process.
    await asyncio.to_thread(serving.let_open_files_be_many)
    with contextlib.ExitStack() as stack:
        for number in range(1000):
            client = stack.enter_context(socket.socket())
            client.connect(("127.0.0.1", server[1]))
            client.sendall(sent)
            if number % 50 == 0:
                await asyncio.sleep(0)
        async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as other:
            reply = await other.get(f"http://127.0.0.1:{server[1]}/")

        assert reply.status_code == 200


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "], ids=["nothing", "half"]
)
async def test_who_sends_no_whole_headers_is_let_go(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """Also if it sends a byte now and then: that gains no time."""
    monkeypatch.setattr(serving, "KEPT_ALIVE", 0.3)
    async with a_server() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        started = asyncio.get_running_loop().time()

        async def drip() -> None:
            while sent:
                writer.write(b"x")
                await asyncio.sleep(0.05)

        dripping = asyncio.create_task(drip())
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
        assert asyncio.get_running_loop().time() - started >= 0.25

        dripping.cancel()
        writer.close()


async def test_a_request_that_is_under_way_may_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "KEPT_ALIVE", 0.2)
    async with a_server() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.6)

        writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"what?\r\n\r\n",
        b"GET / HTTQ/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1, 2\r\n\r\n",
    ],
    ids=["words", "protocol", "tls", "lengths"],
)
async def test_what_is_no_http_is_refused_as_a_problem(
    server: tuple[serving.Server, int], sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server[1])
    writer.write(sent)
    head, _, body = (await asyncio.wait_for(reader.read(), PATIENCE)).partition(b"\r\n\r\n")
    writer.close()

    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/problem+json" in head.lower()
    assert not caplog.records, "whoever sends it could fill the log"
    assert json.loads(body)["status"] == 400


async def exchange(port: int, sent: str) -> tuple[int, bytes]:
    """Send something to a port of this machine; return the status and the body of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent.encode())
    head, _, body = (await asyncio.wait_for(reader.read(), PATIENCE)).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


@pytest.mark.parametrize(
    ("target", "path", "query", "host"),
    [
        ("/healthz?a=b", "/healthz", "a=b", "here"),
        ("http://there:80/healthz?a=/b", "/healthz", "a=/b", "there:80"),
        ("HTTPS://there", "/", "", "there"),
        ("http://there?a", "/", "a", "there"),
        ("http://there/page/../v1/me", "/page/../v1/me", "", "there"),
        ("http://there/%2Fv1/http://x/", "//v1/http://x/", "", "there"),
    ],
    ids=["path", "uri", "host", "query", "dots", "slashes"],
)
async def test_a_whole_uri_is_its_path_and_its_host(
    target: str, path: str, query: str, host: str
) -> None:
    seen: list[Scope] = []

    async def note(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)
        await answer(scope, receive, send)

    async with a_server(note) as (_, port):
        sent = f"GET {target} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"
        assert (await exchange(port, sent))[0] == 200
    (scope,) = seen
    assert (scope["path"], scope["query_string"].decode()) == (path, query)

    hosts = [value.decode() for name, value in scope["headers"] if name == b"host"]
    assert hosts == [host]


@pytest.mark.parametrize(
    "target",
    ["healthz", "there:80", "ftp://there/", "http:///", "http://me@there/", "http://there/#x", "*"],
)
async def test_a_target_that_names_no_path_is_refused(
    server: tuple[serving.Server, int], target: str
) -> None:
    reply = await exchange(server[1], f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n")
    assert reply[0] == 400


def status_of(port: int, target: str, host: str) -> int:
    """Return the status of the answer to a target."""
    sent = f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    status, _ = asyncio.run(exchange(port, sent))
    return status


def test_a_whole_uri_needs_a_key_as_its_path_does(tmp_path: Path) -> None:
    with a_service(tmp_path, "--require-keys") as served:
        url = str(served.client.base_url).rstrip("/")
        port = served.client.base_url.port or 0
        assert status_of(port, f"{url}/healthz", "x") == 200
        for path in ("/v1/me", "/page/../v1/me", "/v1/me?http://127.0.0.1/healthz"):
            assert status_of(port, f"{url}{path}", "x") in (401, 404), path


def test_the_host_of_a_whole_uri_counts(tmp_path: Path) -> None:
    """Without keys, no other name than this machine's counts."""
    with a_service(tmp_path) as served:
        port = served.client.base_url.port or 0
        assert status_of(port, "http://localhost/v1/me", "evil.example") == 200
        assert status_of(port, "http://evil.example/v1/me", "localhost") == 403


class Keys:
    """Keys that are what their secrets are."""

    async def key_for(self, secret: str) -> AccessKey:
        return AccessKey(id=secret, name="", scopes=SCOPES, created=0, sha256="")


ONE = {"Authorization": "Bearer one"}
OTHER = {"Authorization": "Bearer other"}


def client_of(settings: ServiceSettings, store: Any = None) -> httpx.AsyncClient:
    """Return a client of a guard in front of :func:`answer`."""
    transport = httpx.ASGITransport(Guard(answer, settings, store))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=PATIENCE)


async def cancelled(tasks: list[asyncio.Task[httpx.Response]]) -> None:
    """Cancel requests, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_too_many_requests_are_told_so() -> None:
    async with client_of(ServiceSettings(traffic=Traffic(requests=20))) as client:
        slow = [asyncio.create_task(client.get("/slow")) for _ in range(20)]
        await asyncio.sleep(0.01)
        refused = await client.get("/")

        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
        assert refused.json()["type"] == "urn:fairqr:error:busy"
        assert refused.headers["connection"] == "close"  # it may go on sending a body
        assert (await client.get("/healthz")).status_code == 200

        await cancelled(slow)
        assert (await client.get("/")).status_code == 200


async def test_who_reads_nothing_of_open_paths_leaves_room_for_others() -> None:
    """They need no key, so the address counts."""
    settings = ServiceSettings(traffic=Traffic(requests=20, arriving=5))
    async with client_of(settings) as client:
        slow = [asyncio.create_task(client.get("/page/slow")) for _ in range(5)]
        await asyncio.sleep(0.01)
        refused = await client.get("/page/app.js")

        assert refused.status_code == 429
        assert "Your address has 5 requests under way" in refused.json()["detail"]
        assert (await client.get("/v1/me")).status_code == 200

        await cancelled(slow)
        assert (await client.get("/page/app.js")).status_code == 200


async def test_half_sent_bodies_count_for_their_key() -> None:
    """So that another key at the same address, as behind a proxy, can send its own."""
    settings = ServiceSettings(traffic=Traffic(requests=100, arriving=3), require_keys=True)
    headers = {**ONE, "Content-Type": "application/json"}
    never = asyncio.Event()

    async def half() -> AsyncIterator[bytes]:
        yield b"{"
        await never.wait()

    async with client_of(settings, Keys()) as client:
        slow = [
            asyncio.create_task(client.post("/v1/search", content=half(), headers=headers))
            for _ in range(3)
        ]
        await asyncio.sleep(0.05)
        refused = await client.post("/v1/search", json={}, headers=ONE)

        assert refused.status_code == 429
        assert "of your key" in refused.json()["detail"]
        assert (await client.post("/v1/search", json={}, headers=OTHER)).status_code == 200

        await cancelled(slow)


@pytest.mark.promise("service")
@pytest.mark.parametrize(
    ("method", "path", "most"), [("GET", "/v1/me", 15), ("POST", "/v1/me", 10), ("POST", "/mcp", 5)]
)
async def test_one_key_leaves_room_for_others(method: str, path: str, most: int) -> None:
    """No key keeps others waiting by its requests and streams: however many it has under way, there
    is room for others.

    Three of four requests under way may be of one key; few more of them post than it may run.

    No tool is called that could not run.
    """
    settings = ServiceSettings(traffic=Traffic(requests=20, live=5), require_keys=True)
    async with client_of(settings, Keys()) as client:

        async def ask(path: str, headers: dict[str, str]) -> httpx.Response:
            body: dict[str, Any] | None = {} if method == "POST" else None
            return await client.request(method, path, headers=headers, json=body)

        slow = [asyncio.create_task(ask("/slow", ONE)) for _ in range(most)]
        await asyncio.sleep(0.01)
        refused = await ask(path, ONE)

        assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
        assert f"{most} requests under way" in refused.json()["detail"]
        assert (await ask(path, OTHER)).status_code == 200

        await cancelled(slow)
        assert (await ask(path, ONE)).status_code == 200


async def test_requests_of_a_key_share_their_looks_at_it(store: Store) -> None:
    """So a key that asks much reads the store little."""
    _, secret = await store.create_key("one", ["run"])
    transactions: list[object] = []

    def note(connection: object) -> None:
        transactions.append(connection)

    async with client_of(ServiceSettings(require_keys=True), store) as client:
        client.headers["Authorization"] = f"Bearer {secret}"
        sa.event.listen(sa.Engine, "begin", note)
        answers = await asyncio.gather(*(client.get("/v1/me") for _ in range(200)))
        sa.event.remove(sa.Engine, "begin", note)

    assert {answer.status_code for answer in answers} == {200}
    assert len(transactions) < 50


async def test_no_request_shares_a_look_that_is_older_than_it(store: Store) -> None:
    """So a revoked key is useless at once."""
    key, secret = await store.create_key("one", ["run"])
    async with client_of(ServiceSettings(require_keys=True), store) as client:
        client.headers["Authorization"] = f"Bearer {secret}"
        asking = [asyncio.create_task(client.get("/v1/me")) for _ in range(50)]
        await store.revoke_key(key.id)
        late = await asyncio.gather(*(client.get("/v1/me") for _ in range(50)))

        assert {answer.status_code for answer in late} == {401}

        await asyncio.wait(asking)


async def test_a_key_that_is_revoked_while_its_body_arrives_is_refused(store: Store) -> None:
    key, secret = await store.create_key("one", ["run"])
    has_begun = asyncio.Event()
    is_revoked = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"{"
        has_begun.set()
        await is_revoked.wait()
        yield b"}"

    headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
    async with client_of(ServiceSettings(require_keys=True), store) as client:
        asking = asyncio.create_task(client.post("/v1/search", content=body(), headers=headers))
        await has_begun.wait()
        await store.revoke_key(key.id)
        await asyncio.sleep(access.A_MOMENT)
        is_revoked.set()

        assert (await asking).status_code == 401


@pytest.mark.promise("service")
def test_bodies_that_do_not_arrive_keep_nobody_waiting(tmp_path: Path) -> None:
    """Bodies that have not arrived count for their address and keep nobody else waiting.

    Neither at open paths, which take none, nor at others, where they count for their address.
    """
    settings = 'traffic.rate = ""\ntraffic.requests = 50\ntraffic.arriving = 30'
    with a_service(tmp_path, settings=settings) as service, contextlib.ExitStack() as stack:
        base = service.client.base_url

        def half(path: str) -> socket.socket:
            client = stack.enter_context(socket.socket())
            client.settimeout(PATIENCE)
            client.connect((base.host, base.port))
            head = f"POST {path} HTTP/1.1\r\nHost: {base.host}\r\nContent-Length: 100\r\n"
            client.sendall(f"{head}Content-Type: application/json\r\n\r\n{{".encode())
            return client

        for path in ("/", "/healthz", "/page/app.js"):
            head = half(path).recv(4096).decode()
            assert "405" in head.partition("\r\n")[0], "before the rest has arrived"
            assert "connection: close" in head.lower()
        for _ in range(30):
            half("/v1/search")

        # Whoever holds a body back keeps others from nothing but sending bodies from this address.
        assert service.client.get("/v1/indexes").status_code == 200

        until(lambda: "busy" in half("/v1/search").recv(4096).decode())


@pytest.mark.promise("service")
def test_slow_runs_of_one_key_keep_no_other_waiting(tmp_path: Path) -> None:
    """Slow runs of one key keep no other key waiting.

    Thirty-two of them, which are kept, while another key searches; it takes turns with them.
    """
    gate = threading.Event()

    def answer_later(asked: Asked) -> Any:
        assert gate.wait(PATIENCE)
        return answers_all(asked)

    settings = 'concurrency = 4\ntraffic.rate = ""\ntraffic.wait = 5'
    with a_service(tmp_path, settings=settings) as service:
        _, greedy = a_key(service.variables, "greedy")
        _, other = a_key(service.variables, "other")
        service.model.does(answer_later)
        try:
            for _ in range(32):
                service.client.in_background({**PHYSICIST, "keep": True}, headers=greedy)
            service.model.wait_for(3)
            quick = {**PHYSICIST, "model": "feedback"}
            for _ in range(10):
                answer = service.client.post("/v1/search", json=quick, headers=other)
                assert answer.status_code == 200, answer.text
        finally:
            gate.set()


@pytest.mark.promise("service")
def test_streams_that_nobody_reads_keep_no_slot(tmp_path: Path) -> None:
    """Streams that nobody reads keep no slot from others."""
    with a_service(
        tmp_path, settings=f'concurrency = 1\ntraffic.rate = ""\ntraffic.wait = {PATIENCE}'
    ) as service:
        base = service.client.base_url
        body = '{"query":"physicist","corpus":"people","model":"feedback"}'
        head = (
            f"POST /v1/search/stream HTTP/1.1\r\nHost: {base.host}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        )
        with contextlib.ExitStack() as stack:
            for _ in range(20):
                client = stack.enter_context(socket.socket())
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                client.connect((base.host, base.port))
                client.sendall(head.encode())

            search = {**PHYSICIST, "model": "feedback"}
            assert service.client.post("/v1/search", json=search).status_code == 200

            ended = 'fairqr_runs_finished_total{kind="search",status="done"} 21.0'
            until(lambda: ended in service.client.get("/metrics").text)


@pytest.mark.promise("service")
def test_guesses_cost_the_guesser_alone(tmp_path: Path) -> None:
    """Who guesses keys is soon refused with `Retry-After`, and who has a key is served at the same
    address all the same.
    """
    with a_service(tmp_path, settings='traffic.rate = "10/hour"') as service:
        keys = [a_key(service.variables, name)[1]["Authorization"] for name in ("one", "two")]

        def statuses(key: str, number: int) -> list[int]:
            headers = {"Authorization": key, "X-Forwarded-For": "192.0.2.1"}
            answers = [service.client.get("/v1/me", headers=headers) for _ in range(number)]
            limited = [answer for answer in answers if answer.status_code == 429]
            assert all(1 <= int(answer.headers["retry-after"]) <= 3600 for answer in limited)
            return [answer.status_code for answer in answers]

        wrong = keys[0][:-6] + "aaaaaa"
        assert statuses(wrong, 14) == [401] * 10 + [429] * 4
        assert statuses(keys[0], 12) == [200] * 10 + [429] * 2
        assert statuses(keys[1], 10) == [200] * 10


@pytest.mark.promise("service")
@pytest.mark.parametrize("size", [50_000_000, 50_000], ids=["one piece", "many pieces"])
@pytest.mark.parametrize("ends", ["", "Connection: close\r\n"], ids=["kept", "closed"])
async def test_who_reads_no_answer_is_let_go_and_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, size: int, ends: str
) -> None:
    """A client that reads no answer is let go in time and is no failure in the log.

    It may be one large piece or many; its client is cut off in time, and the log is silent.
    """
    monkeypatch.setattr(connections, "READ_WITHIN", 0.3)
    ended = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(50_000_000 // size):
            yield b"x" * size

    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        await StreamingResponse(pieces())(scope, receive, send)
        ended.set()

    async with a_server(app.Edge(large, Metrics())) as (_, port):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(f"GET / HTTP/1.1\r\nHost: localhost\r\n{ends}\r\n".encode())
            await asyncio.wait_for(ended.wait(), PATIENCE)
            await asyncio.sleep(0.6)
            client.settimeout(PATIENCE)

            assert await asyncio.to_thread(_read_all, client) < 50_000_000

    assert not caplog.records


@pytest.mark.parametrize("ends", ["", "Connection: close\r\n"], ids=["kept", "closed"])
async def test_who_does_not_read_a_small_answer_is_let_go(
    monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """It is too small to be waited for, and too large for what the system keeps."""
    monkeypatch.setattr(connections, "READ_WITHIN", 0.3)
    monkeypatch.setattr(serving, "KEPT_ALIVE", 0.1)

    async def small(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse(b"x" * 40_000)(scope, receive, send)

    async with a_server(small) as (running, port):
        listener = running.servers[0].sockets[0]
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            client.connect(("127.0.0.1", port))
            client.sendall(f"GET / HTTP/1.1\r\nHost: localhost\r\n{ends}\r\n".encode())
            open_ = running.server_state.connections
            await _until(
                lambda: any(connection.transport.get_write_buffer_size() for connection in open_)
            )
            await _until(lambda: not open_)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


def _read_all(client: socket.socket) -> int:
    """Return how many bytes come until the connection ends."""
    size = 0
    with contextlib.suppress(ConnectionError):
        while piece := client.recv(2**20):
            size += len(piece)
    return size


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ("Content-Type: application/json\r\nContent-Encoding: gzip", 415),
        ("Content-Type: application/json\r\nContent-Encoding: identity", 200),
        ("Content-Type: application/json\r\nContent-Type: text/plain", 400),
        ("Content-Type: application/json\r\nIdempotency-Key: a\r\nIdempotency-Key: b", 400),
        ("Content-Type: application/json\r\nAuthorization: a\r\nAuthorization: b", 400),
        ("Content-Type: application/json\r\nOrigin: http://localhost\r\nOrigin: http://x", 400),
        ("Content-Type: application/json\r\nTransfer-Encoding: chunked", 400),
    ],
    ids=[
        "gzip",
        "identity",
        "two types",
        "two keys of a request",
        "two keys",
        "two origins",
        "two lengths",
    ],
)
async def test_what_could_be_read_in_two_ways_is_refused(headers: str, status: int) -> None:
    nothing: Any = None
    async with a_server(Guard(answer, ServiceSettings(), nothing)) as (_, port):
        sent = f"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}"
        reply = await exchange(port, f"{sent}\r\nContent-Length: 2\r\n\r\n{{}}")
    assert reply[0] == status, reply[1]
