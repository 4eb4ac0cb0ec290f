"""Clients that are slow, or silent, or never read: they cost little, and hold up nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from fairqr.graph.service.configuration import Limits, ServiceSettings
from fairqr.graph.service.http import serving
from tests.integration.page_service import run_command
from tests.integration.service_client import PHYSICIST, a_service, until

LARGE = 8_000_000
"""Bytes; more than the system takes for a client that does not read."""


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["path"] == "/slow":
        while (await receive())["type"] != "http.disconnect":
            pass
        return
    size = LARGE if scope["path"] == "/large" else 2
    await PlainTextResponse(b"x" * size)(scope, receive, send)


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[serving.Server, int]]:
    """A server on a real socket, which waits for a moment only; and its port."""
    monkeypatch.setattr(serving, "HEADERS_WITHIN", 1)
    monkeypatch.setattr(serving, "READ_WITHIN", 1)
    monkeypatch.setattr(serving, "KEPT_ALIVE", 1)
    settings = ServiceSettings(port=0, limits=Limits(connections=100))
    listener, started = serving.bound(settings), asyncio.Event()

    async def drain() -> None:
        pass

    running = serving.Server(answer, settings, drain)
    task = asyncio.create_task(running.run_on(listener, started.set))
    await started.wait()
    yield running, listener.getsockname()[1]
    running.end()
    await task


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: ",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n",
        b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n" * 5,
    ],
    ids=["nothing", "half", "one-and-a-half", "no-body", "unread", "pipelined-unread"],
)
async def test_a_client_that_does_not_go_on_is_let_go(
    server: tuple[serving.Server, int], sent: bytes
) -> None:
    running, port = server
    connections = running.server_state.connections
    with contextlib.ExitStack() as stack:
        for _ in range(15):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", port))
            client.sendall(sent)
        # From a thread, so that this client is not kept waiting by the loop of the server.
        found = await asyncio.to_thread(
            httpx.get, f"http://127.0.0.1:{port}/", trust_env=False, timeout=30
        )
        assert found.status_code == 200
        async with asyncio.timeout(60):
            while connections:
                await asyncio.sleep(0.02)


async def test_a_body_that_nobody_waits_for_is_not_waited_for(
    server: tuple[serving.Server, int],
) -> None:
    """It is answered before it is there, and then comes byte by byte, for ever."""
    running, port = server
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
    await reader.readuntil(b"xx")
    async with asyncio.timeout(60):
        while running.server_state.connections:
            with contextlib.suppress(OSError):
                writer.write(b"x")
            await asyncio.sleep(0.05)
    writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"hello\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * serving.LONGEST_HEADERS,
        b"POST /slow HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nhello\r\n",
    ],
    ids=["no-http", "no-host", "long-headers", "no-chunk"],
)
async def test_what_is_no_http_is_told_as_a_problem(
    server: tuple[serving.Server, int], sent: bytes
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server[1])
    writer.write(sent)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert b"application/problem+json" in head
    assert json.loads(body)["type"] == "urn:fairqr:error:malformed"
    writer.close()


async def test_one_connection_too_many_is_told_so_and_a_flood_is_closed(
    server: tuple[serving.Server, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "HEADERS_WITHIN", 30)
    monkeypatch.setattr(serving, "SPARE", 5)
    running, port = server
    connections, address = running.server_state.connections, f"http://127.0.0.1:{port}"
    with contextlib.ExitStack() as stack:

        async def idle(number: int) -> None:
            for _ in range(number):
                client = stack.enter_context(socket.socket())
                client.connect(("127.0.0.1", port))
            await asyncio.sleep(0.1)

        await idle(100)
        async with httpx.AsyncClient(trust_env=False, timeout=30) as other:
            refused = await other.get(f"{address}/")
            assert (await other.get(f"{address}/healthz")).status_code == 200
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
        assert refused.json()["type"] == "urn:fairqr:error:busy"
        await idle(100)
        assert len(connections) <= 105
    async with asyncio.timeout(30), httpx.AsyncClient(trust_env=False, timeout=30) as other:
        while len(connections) > 90:
            await asyncio.sleep(0.02)
        assert (await other.get(f"{address}/")).status_code == 200


async def test_who_reads_slowly_but_reads_has_it_all(server: tuple[serving.Server, int]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server[1], limit=4096)
    writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    size = 0
    while piece := await reader.read(100_000):
        size += len(piece)
        await asyncio.sleep(0)
    writer.close()
    assert size > LARGE


def test_streams_that_nobody_reads_keep_no_slot(tmp_path: Path) -> None:
    with a_service(tmp_path, settings='concurrency = 1\nlimits.rate = ""') as service:
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
            asked = {**PHYSICIST, "model": "feedback"}
            assert service.client.post("/v1/search", json=asked).status_code == 200
            runs = until(lambda: _if_over(service.client))
            assert len(runs) == 21


def _if_over(client: httpx.Client) -> list[str] | None:
    states = [run["status"] for run in client.get("/v1/runs?limit=200").json()["runs"]]
    return states if {*states} == {"done"} else None


def test_guesses_cost_the_guesser_alone(tmp_path: Path) -> None:
    """Who has a key is served, however many wrong ones come from the same address."""
    with a_service(tmp_path, settings='limits.rate = "10/hour"') as service:
        made = ("keys", "create", "--quiet")
        keys = [run_command(service.variables, *made, name).strip() for name in ("one", "two")]

        def statuses(key: str, number: int) -> list[int]:
            headers = {"Authorization": f"Bearer {key}", "X-Forwarded-For": "192.0.2.1"}
            found = (service.client.get("/v1/me", headers=headers) for _ in range(number))
            return [answer.status_code for answer in found]

        wrong = keys[0][:-6] + "aaaaaa"
        assert statuses(wrong, 14) == [401] * 10 + [429] * 4
        assert statuses(keys[0], 12) == [200] * 10 + [429] * 2
        assert statuses(keys[1], 10) == [200] * 10
