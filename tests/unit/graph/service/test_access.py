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
from tests.integration.service_client import ACCEPT, INITIALIZE, in_process
from tests.patience import PATIENCE

OPEN = {"/", "/healthz", "/readyz", "/openapi.json"}
"""The page and its files, health, and the description of the API."""


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(tmp_path))


async def test_every_route_refuses_a_request_without_a_key(store: Store) -> None:
    _, secret = await store.create_key("reader", ["read"])
    seen: dict[str, set[int]] = {}
    async with in_process(store, require_keys=True) as client:
        app: Any = client._transport.app  # type: ignore[attr-defined]
        for route in iter_route_contexts(app.routes):
            template = cast("str", route.path)
            path = re.sub(r"{[^}]*}", "x", template)
            for method in route.methods or {"GET", "POST", "DELETE"}:
                answer = await client.request(method, path, json={})
                seen.setdefault(template, set()).add(answer.status_code)
                if answer.status_code == 401 and (method == "POST" or path == "/metrics"):
                    reader = {"Authorization": f"Bearer {secret}"}
                    answer = await client.request(method, path, json={}, headers=reader)
                    assert answer.status_code == 403, (method, path)
        assert (await client.get("/not/there")).status_code == 401
    some = {"/v1/search", "/v1/documents/{id:path}", "/openai/v1/chat/completions", "/mcp"}
    assert some <= seen.keys()
    assert {path for path, statuses in seen.items() if statuses != {401}} == OPEN


async def test_every_path_begins_with_a_part_that_no_root_path_may_hide() -> None:
    async with in_process() as client:
        app: Any = client._transport.app  # type: ignore[attr-defined]
        paths = [cast("str", route.path) for route in iter_route_contexts(app.routes)]
    assert {path.split("/")[1] for path in paths} - {""} == {*FIRST_PARTS}


async def test_only_openai_takes_the_keys_of_others(store: Store) -> None:
    """OpenAI's clients always send a key, and one that is not ours proves nothing."""
    theirs, ours = {"Authorization": "Bearer sk-x"}, {"Authorization": "Bearer fqr_x"}

    async def status(client: httpx.AsyncClient, path: str, headers: dict[str, str]) -> int:
        return (await client.get(path, headers=headers)).status_code

    async with in_process(store) as client:
        assert await status(client, "/openai/v1/not/there", theirs) == 404
        assert await status(client, "/openai/v1/not/there", ours) == 401
        assert await status(client, "/v1/not/there", theirs) == 401
        for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
            assert await status(client, path, theirs) == 405
            assert await status(client, path, ours) == 401
        for odd in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
            assert await status(client, "/openai/v1/not/there", {**theirs, **odd}) == 403
    async with in_process(store, require_keys=True) as client:
        assert await status(client, "/openai/v1/not/there", theirs) == 401
        for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
            assert await status(client, path, theirs) == 401


async def test_open_paths_ask_for_no_key_and_no_database() -> None:
    """Not even a key that is wrong is looked up; the page and health answer HEAD, too."""
    wrong = {"Authorization": f"Bearer fqr_{'0' * 12}_{'x' * 43}"}
    async with in_process(require_keys=True) as client:  # any use of the store fails
        for path in ("/", "/healthz", "/openapi.json", "/page/app.js"):
            assert (await client.get(path, headers=wrong)).status_code == 200
        for path in ("/", "/healthz"):
            answer = await client.head(path)
            assert (answer.status_code, answer.content) == (200, b"")


async def test_agents_have_no_sessions_that_could_fill_up() -> None:
    async with in_process() as client:
        asked: Any = {"json": INITIALIZE, "headers": ACCEPT}
        answers = [await client.post("/mcp", **asked) for _ in range(50)]
    assert {answer.status_code for answer in answers} == {200}


@pytest.mark.parametrize("path", ["/v1/documents?id=x", "/v1/documents/x"])
async def test_who_reads_many_documents_keeps_no_source_from_others(
    store: Store, path: str
) -> None:
    """Keys take turns, and none takes all places."""
    one, other = [await store.create_key(name, ["read"]) for name in ("one", "other")]

    async with in_process(store, require_keys=True) as client:
        parts = client._transport.app.state.parts  # type: ignore[attr-defined]

        def asked(secret: str) -> asyncio.Task[httpx.Response]:
            headers = {"Authorization": f"Bearer {secret}"}
            return asyncio.create_task(client.get(path, headers=headers))

        async with AsyncExitStack() as stack:
            for _ in range(READERS * 3 // 4):
                await stack.enter_async_context(parts.reading.hold(one[0].id))
            more = asked(one[1])
            assert (await asked(other[1])).status_code in (200, 404)
            assert not more.done()
        assert (await more).status_code in (200, 404)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/search", b'{"query": "physicist"}'),
        ("POST", "/v1/rerank", b'{"model": "notables", "query": "a", "documents": ["b"]}'),
        ("GET", "/v1/documents/one", b""),
        ("GET", "/v1/documents", b""),
    ],
)
async def test_who_leaves_while_waiting_gives_the_place_up(
    method: str, path: str, body: bytes
) -> None:
    """Nobody waits for a slot, or for a turn to read, on behalf of a client that is gone."""
    left = asyncio.Event()
    sent: list[Message] = []
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    async with in_process() as client, AsyncExitStack() as stack:
        app = client._transport.app  # type: ignore[attr-defined]
        parts = app.state.parts
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
        left.set()
        await asyncio.wait_for(served, PATIENCE)
        assert not parts.runs.waiting
        assert not parts.reading._waiting


async def test_a_silent_stream_shows_that_it_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every 15 s, which are a millisecond here."""
    monkeypatch.setattr("fastapi.routing._PING_INTERVAL", 0.001)
    async with in_process() as client:
        told = await client.post("/v1/search/stream", json={"query": "physicist"})
    assert "\n\n: ping\n\n" in told.text
    assert "event: end" in told.text


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/search", {"query": "physicist"}),
        ("/v1/search/stream", {"query": "physicist"}),
        ("/mcp", INITIALIZE),
    ],
)
async def test_a_body_may_begin_with_a_byte_order_mark(path: str, asked: dict[str, Any]) -> None:
    headers = {**ACCEPT, "Content-Type": "application/json"}
    async with in_process() as client:
        marked = json.dumps(asked).encode("utf-8-sig")
        answer = await client.post(path, content=marked, headers=headers)
        assert answer.status_code == 200, answer.text
        twice = await client.post(path, content=codecs.BOM_UTF8 + marked, headers=headers)
        other = json.dumps(asked).encode("utf-16")
        in_utf_16 = await client.post(path, content=other, headers=headers)
    assert (twice.status_code, in_utf_16.status_code) == (400, 400)
