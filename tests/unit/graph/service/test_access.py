"""Every path of the application needs a scope, but for the few that are open to all."""

from __future__ import annotations

import asyncio
import codecs
import json
import re
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from fastapi.routing import iter_route_contexts
from starlette.types import Message

from fairqr.graph.service.configuration import FIRST_PARTS
from fairqr.graph.service.http.parts import READERS
from fairqr.graph.service.records import NOBODY
from fairqr.graph.service.store import Store
from tests.patience import PATIENCE
from tests.servers.service_client import ACCEPT, INITIALIZE, in_process

OPEN = {"/", "/healthz", "/readyz", "/openapi.json"}
"""The page and its files, health, and the description of the API."""

RERANK_PATHS = ("/v1/rerank", "/v2/rerank", "/rerank")
FOREIGN_KEY = {"Authorization": "Bearer sk-x"}
WRONG_KEY = {"Authorization": "Bearer fqr_x"}


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(tmp_path))


def routes_of(client: httpx.AsyncClient) -> dict[str, set[str]]:
    """Return the methods of each path of the application."""
    app: Any = client._transport.app  # type: ignore[attr-defined]
    methods: dict[str, set[str]] = {}
    for route in iter_route_contexts(app.routes):
        of_path = methods.setdefault(cast("str", route.path), set())
        of_path.update(route.methods or {"GET", "POST", "DELETE"})
    return methods


async def status_of(client: httpx.AsyncClient, path: str, headers: dict[str, str]) -> int:
    return (await client.get(path, headers=headers)).status_code


@pytest.mark.promise("service")
async def test_every_route_refuses_a_request_without_a_key(store: Store) -> None:
    """Every path of the service needs an access key, except the page, its health and the
    description of its API.
    """
    statuses: dict[str, set[int]] = {}
    async with in_process(store, require_keys=True) as client:
        for template, methods in routes_of(client).items():
            path = re.sub(r"{[^}]*}", "x", template)
            for method in methods:
                answer = await client.request(method, path, json={})
                statuses.setdefault(template, set()).add(answer.status_code)
        unknown = await client.get("/not/there")

    some = {"/v1/search", "/v1/documents/{id:path}", "/openai/v1/chat/completions", "/mcp"}
    assert some <= statuses.keys()
    assert {path for path, seen in statuses.items() if seen != {401}} == OPEN
    assert unknown.status_code == 401


@pytest.mark.promise("service")
async def test_a_key_that_may_read_can_change_nothing(store: Store) -> None:
    """A key with the scope to read may start no run, change nothing and read no metrics."""
    _, secret = await store.create_key("reader", ["read"])
    reader = {"Authorization": f"Bearer {secret}"}
    statuses: dict[tuple[str, str], int] = {}
    async with in_process(store, require_keys=True) as client:
        for template, methods in routes_of(client).items():
            path = re.sub(r"{[^}]*}", "x", template)
            refused = methods if path == "/metrics" else methods & {"POST"}
            for method in refused:
                answer = await client.request(method, path, json={}, headers=reader)
                statuses[method, path] = answer.status_code

    assert len(statuses) > 10
    assert {request for request, status in statuses.items() if status != 403} == set()


async def test_every_path_begins_with_a_part_of_its_own() -> None:
    """No root path may hide these parts; see the tests of the configuration."""
    async with in_process() as client:
        paths = routes_of(client)
    assert {path.split("/")[1] for path in paths} - {""} == {*FIRST_PARTS}


async def test_clients_of_others_may_send_a_key_that_is_not_ours(store: Store) -> None:
    """OpenAI's clients always send a key, and one that is not ours proves nothing."""
    expected = {
        ("/openai/v1/not/there", "foreign"): 404,
        ("/openai/v1/not/there", "wrong"): 401,
        ("/v1/not/there", "foreign"): 401,
    }
    for path in RERANK_PATHS:
        expected[path, "foreign"] = 405
        expected[path, "wrong"] = 401
    keys = {"foreign": FOREIGN_KEY, "wrong": WRONG_KEY}
    async with in_process(store) as client:
        statuses = {(path, key): await status_of(client, path, keys[key]) for path, key in expected}

    assert statuses == expected


async def test_a_foreign_key_excuses_no_wrong_host_or_origin(store: Store) -> None:
    path = "/openai/v1/not/there"
    evil_host = {**FOREIGN_KEY, "Host": "evil.example"}
    evil_origin = {**FOREIGN_KEY, "Origin": "http://evil.example"}
    async with in_process(store) as client:
        assert await status_of(client, path, evil_host) == 403
        assert await status_of(client, path, evil_origin) == 403


async def test_a_foreign_key_is_no_key_where_one_is_needed(store: Store) -> None:
    paths = ["/openai/v1/not/there", *RERANK_PATHS]
    async with in_process(store, require_keys=True) as client:
        statuses = {path: await status_of(client, path, FOREIGN_KEY) for path in paths}
    assert statuses == dict.fromkeys(paths, 401)


async def test_open_paths_ask_for_no_key_and_no_database() -> None:
    """Not even a key that is wrong is looked up."""
    paths = ["/", "/healthz", "/openapi.json", "/page/app.js"]
    wrong_key = {"Authorization": f"Bearer fqr_{'0' * 12}_{'x' * 43}"}
    async with in_process(require_keys=True) as client:  # any use of the store fails
        statuses = {path: await status_of(client, path, wrong_key) for path in paths}

    assert statuses == dict.fromkeys(paths, 200)


async def test_the_page_and_health_answer_head() -> None:
    async with in_process(require_keys=True) as client:
        answers = [await client.head(path) for path in ("/", "/healthz")]
    assert [(answer.status_code, answer.content) for answer in answers] == [(200, b"")] * 2


@pytest.mark.promise("service")
async def test_agents_have_no_sessions_that_could_fill_up() -> None:
    """The tools of MCP keep no sessions, so any number of clients can connect and none can fill the
    service up.
    """
    async with in_process() as client:
        answers = [await client.post("/mcp", json=INITIALIZE, headers=ACCEPT) for _ in range(50)]
    assert {answer.status_code for answer in answers} == {200}


@pytest.mark.parametrize(
    "path", ["/v1/documents?id=x", "/v1/documents/x"], ids=["by query", "by path"]
)
async def test_who_reads_many_documents_keeps_no_source_from_others(
    store: Store, path: str
) -> None:
    """Keys take turns, and none takes all places."""
    greedy, greedy_secret = await store.create_key("greedy", ["read"])
    _, other_secret = await store.create_key("other", ["read"])

    async with in_process(store, require_keys=True) as client:
        parts = client._transport.app.state.parts  # type: ignore[attr-defined]

        def begin_to_read(secret: str) -> asyncio.Task[httpx.Response]:
            headers = {"Authorization": f"Bearer {secret}"}
            return asyncio.create_task(client.get(path, headers=headers))

        async with AsyncExitStack() as stack:
            for _ in range(READERS * 3 // 4):
                await stack.enter_async_context(parts.reading.hold(greedy.id))
            one_more = begin_to_read(greedy_secret)
            assert (await begin_to_read(other_secret)).status_code in (200, 404)
            assert not one_more.done()

        assert (await one_more).status_code in (200, 404)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/search", b'{"query": "physicist"}'),
        ("POST", "/v1/rerank", b'{"model": "notables", "query": "a", "documents": ["b"]}'),
        ("GET", "/v1/documents/one", b""),
        ("GET", "/v1/documents", b""),
    ],
    ids=["search", "rerank", "document", "documents"],
)
async def test_who_leaves_while_waiting_gives_the_place_up(
    method: str, path: str, body: bytes
) -> None:
    """Nobody waits for a slot, or for a turn to read, on behalf of a client that is gone."""
    client_is_gone = asyncio.Event()
    sent: list[Message] = []
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await client_is_gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    async with in_process() as client, AsyncExitStack() as stack:
        app = client._transport.app  # type: ignore[attr-defined]
        parts = app.state.parts
        # All slots and turns are taken.
        for _ in range(parts.settings.concurrency):
            await stack.enter_async_context(parts.runs.slot(NOBODY))
        for _ in range(READERS):
            await stack.enter_async_context(parts.reading.hold(NOBODY))

        headers = {"Host": "localhost", "Content-Type": "application/json"}
        request = client.build_request(method, path, params={"id": "one"}, headers=headers)
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": request.url.query,
            "root_path": "",
            "scheme": "http",
            "http_version": "1.1",
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "client": ("127.0.0.1", 1),
            "server": ("localhost", 80),
        }

        served = asyncio.create_task(app(scope, receive, send))
        while not (parts.runs.waiting or parts.reading._waiting):
            assert not served.done(), sent

            await asyncio.sleep(0)
        client_is_gone.set()
        await asyncio.wait_for(served, PATIENCE)

        assert not parts.runs.waiting
        assert not parts.reading._waiting


@pytest.mark.promise("service")
async def test_a_silent_stream_sends_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that has nothing to say sends a ping, so that its client knows that it is alive.

    Every 15 s, which are a millisecond here.
    """
    monkeypatch.setattr("fastapi.routing._PING_INTERVAL", 0.001)
    async with in_process() as client:
        stream = await client.post("/v1/search/stream", json={"query": "physicist"})
    assert "\n\n: ping\n\n" in stream.text
    assert "event: end" in stream.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/search", {"query": "physicist"}),
        ("/v1/search/stream", {"query": "physicist"}),
        ("/mcp", INITIALIZE),
    ],
    ids=["search", "stream", "mcp"],
)
async def test_a_body_may_begin_with_one_byte_order_mark(path: str, body: dict[str, Any]) -> None:
    headers = {**ACCEPT, "Content-Type": "application/json"}
    marked = json.dumps(body).encode("utf-8-sig")
    async with in_process() as client:
        once = await client.post(path, content=marked, headers=headers)
        twice = await client.post(path, content=codecs.BOM_UTF8 + marked, headers=headers)
        in_utf_16 = json.dumps(body).encode("utf-16")
        other_encoding = await client.post(path, content=in_utf_16, headers=headers)

    assert once.status_code == 200, once.text
    assert twice.status_code == 400
    assert other_encoding.status_code == 400
