"""The proxy: an ASGI application that passes everything on, and re-ranks what it can."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from pathlib import Path
from socket import socket
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import httpx
from anyio import create_task_group
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from fairqr.base.errors import ConfigError
from fairqr.graph.service.http.serving import Server
from fairqr.graph.service.proxy.ordering import Told
from fairqr.graph.service.proxy.requests import NO_FIELDS, Search, UnavailableError, planned
from fairqr.graph.service.proxy.seen import Seen
from fairqr.graph.service.proxy.settings import ProxySettings
from fairqr.graph.service.proxy.worker import Worker

HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    b"transfer-encoding upgrade host".split()
)
"""Headers that are for the next server alone, and the name by which it is asked."""

OF_BODY = HOP | {b"content-length", b"content-encoding"}
"""Headers that a body has no longer once we have changed it."""

SEARCH = re.compile(r"(?:/([^/]+))?/(_search|_msearch)/?")

LONGEST = 5_000_000
"""Longer replies, in bytes, are not re-ranked."""

WATCHED = 8
"""So many searches may be looked at behind the replies; more are not recorded."""

MANY = 50
"""More searches in one request are not re-ranked."""

PATIENT = 5.0
"""Seconds that a whole window may take, and re-ranking if nobody waits for it."""

CONNECTING = {"connect": 5.0}
"""Seconds; how long a reply may take is the client's decision."""

GRACE = 20
"""Seconds that requests under way have when the proxy is told to end."""

Headers = list[tuple[bytes, bytes]]

log = logging.getLogger(__name__)


class Proxy:
    """Stands in front of a cluster.

    Args:
        settings: What it does.
        worker: Re-ranks.

    Attributes:
        cluster: The connections to it. No client, which would keep cookies and follow redirects.
    """

    def __init__(self, settings: ProxySettings, worker: Worker) -> None:
        self.settings, self.worker, self.seen = settings, worker, Seen(settings)
        self._prefix = urlsplit(settings.cluster).path.encode()
        self._watching = asyncio.Semaphore(WATCHED)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
        self.cluster = httpx.AsyncHTTPTransport(settings.trusted(), limits=limits, trust_env=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, unless its client leaves: then the cluster's reply is not awaited."""
        whole = asyncio.Event()

        async def hear() -> Message:
            message = await receive()
            if not message.get("more_body"):
                whole.set()
            return message

        async def leave() -> None:
            await whole.wait()
            while (await receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

        request = Request(scope, hear)
        if not _has_body(request):
            whole.set()
        async with AsyncExitStack() as stack, create_task_group() as tasks:
            tasks.start_soon(leave)
            # Where a reply of the cluster breaks off, that to the client breaks off as well.
            with suppress(ClientDisconnect, httpx.TransportError):
                response = await self._answer(request, stack)
                await response(scope, hear, send)
            tasks.cancel_scope.cancel()

    async def _answer(self, request: Request, stack: AsyncExitStack) -> Response:
        path = SEARCH.fullmatch(unquote(request.scope["raw_path"].decode("latin-1")))
        if path is None or request.method not in ("GET", "POST"):
            return await self._pass(request, stack, request.stream(), "no search")
        if path[2] == "_search" and path[1] not in self.settings.indexes:
            return await self._pass(request, stack, request.stream(), "index")
        body, pieces = b"", request.stream()
        async for piece in pieces:
            body += piece
            if len(body) > self.settings.body:
                return await self._pass(request, stack, _joined(body, pieces), "body")
        try:
            lines, plans = self._planned(request, path, body)
        except Exception:  # whatever is wrong with it, the cluster says so
            if path[1] in self.settings.indexes:  # clients choose other names
                self.seen.passed(path[1], "body")
            return await self._pass(request, stack, body, "body")
        searches = [it for it in plans if isinstance(it, Search)]
        whys = [it for it in plans if isinstance(it, str)]
        whys += ["shadow" for it in searches if not it.fair]
        if not any(it.fair for it in searches):
            response = await self._pass(request, stack, body, whys[0])
            if searches and response.status_code == 200:
                stack.push_async_callback(self._watch, request, lines, searches)
            return response
        try:
            return await self._reranked(request, lines, searches, whys)
        except UnavailableError as error:
            return await self._pass(request, stack, body, str(error))

    def _planned(
        self, request: Request, path: re.Match[str], body: bytes
    ) -> tuple[list[Any], list[Search | str]]:
        """Return the lines of a body, and for each search how to re-rank it, or why it passes.

        Raises:
            ValueError: The body is no JSON, or too long.
        """
        text = _unpacked(request, body, self.settings.body).strip()
        alone, parameters = path[2] == "_search", dict(_parameters(request))
        written = [text] if alone else text.split(b"\n")
        if len(written) > 2 * MANY:
            return [], ["many"]
        lines = [json.loads(it or b"{}", object_pairs_hook=_once) for it in written]
        heads: Sequence[Any] = [{}] if alone else lines[::2]
        plans = list[Search | str]()
        for place, head in enumerate(heads):
            names = head.get("index", path[1])
            name = str(names[0] if isinstance(names, list) and len(names) == 1 else names)
            index, at = self.settings.indexes.get(name), 0 if alone else 2 * place + 1
            plan: Search | str = "index"
            if index:
                labels = self.worker.label_fields.get(name, NO_FIELDS)
                plan = planned(lines[at], {**parameters, **head}, index, name, at, labels)
                if isinstance(plan, str):
                    self.seen.passed(name, plan)
            plans.append(plan)
        return lines, plans

    async def _reranked(
        self, request: Request, lines: Sequence[Any], searches: Sequence[Search], whys: list[str]
    ) -> Response:
        """Answer with fair lists, and with the cluster's own where there are none.

        Raises:
            UnavailableError: The cluster has to be asked for its own reply.
        """
        within = self.settings.within
        reply, told, shown = await self._looked_at(request, lines, searches, within)
        fair = [one for it, one in zip(searches, told, strict=True) if it.fair]
        ranked = [one for one in fair if not isinstance(one, str)]
        by = {one["by"] for one in ranked}
        words_of = [one["model"] for one in ranked if one["model"]]
        whys += [one for one in fair if isinstance(one, str)]
        outcome = f"re-ranked; {min(by)}" if by else f"passed; {whys[0]}"
        if words_of:
            outcome += f", words of {words_of[0]}"
        if by and whys:
            outcome += f"; passed {len(whys)}, {whys[0]}"
        length = (b"content-length", str(len(shown)).encode())
        response = Response(shown)
        response.raw_headers = [*_without(reply.headers.raw, OF_BODY), length, _told(outcome)]
        return response

    async def _watch(
        self, request: Request, lines: Sequence[Any], searches: Sequence[Search]
    ) -> None:
        """Record what was shown and what the fair list would have been, after the reply."""
        if self._watching.locked():
            self.seen.failed(searches, "busy")
            return
        async with self._watching:
            with suppress(UnavailableError):
                await self._looked_at(request, lines, searches, PATIENT)

    async def _looked_at(
        self, request: Request, lines: Sequence[Any], searches: Sequence[Search], within: float
    ) -> tuple[httpx.Response, list[Told | str], bytes]:
        """Return a reply to whole windows, what was done to each search, and the pages.

        Raises:
            UnavailableError: There is no such reply.
        """
        try:
            reply, window = await self._windows(request, lines, searches)
            started = time.perf_counter()
            told, shown = await self.worker.ask(searches, window, within)
            for it, one in zip(searches, told, strict=True):
                if isinstance(one, str):
                    self.seen.failed([it], one)
                else:
                    self.seen.shown(it, one, time.perf_counter() - started)
            return reply, told, shown
        except Exception as error:  # whatever it is, the cluster's own hits are shown
            why = str(error) if isinstance(error, UnavailableError) else type(error).__name__
            if why != str(error):
                log.exception("A search is not re-ranked.")
            self.seen.failed(searches, why)
            raise UnavailableError(why) from None

    async def _windows(
        self, request: Request, lines: Sequence[Any], searches: Sequence[Search]
    ) -> tuple[httpx.Response, bytes]:
        """Ask the cluster for the whole window of these searches, and for the others as they are.

        Raises:
            UnavailableError: The worker is not there, so it would be for nothing; or the cluster
                gives an error, perhaps because the window is too large for it, or too long a reply.
        """
        self.worker.check()
        query, asked, window = _parameters(request), [*lines], b""
        for it in searches:
            asked[it.place] = it.body
        if len(lines) == 1:
            query = [it for it in query if it[0] not in ("from", "size")]
        body = b"".join(json.dumps(line).encode() + b"\n" for line in asked)
        headers = _without(request.headers.raw, OF_BODY | {b"accept-encoding"})
        if "content-type" not in request.headers:
            headers.append((b"content-type", b"application/json"))
        try:
            async with asyncio.timeout(PATIENT):
                reply = await self._ask(request, urlencode(query, quote_via=quote), headers, body)
                async with aclosing(reply):
                    async for piece in reply.aiter_raw():
                        window += piece
                        if len(window) > LONGEST:
                            raise UnavailableError("reply too long")
        except (httpx.TransportError, TimeoutError):
            raise UnavailableError("cluster") from None
        if reply.status_code != 200:
            raise UnavailableError("cluster")
        return reply, window

    async def _pass(
        self, request: Request, stack: AsyncExitStack, body: bytes | AsyncIterator[bytes], why: str
    ) -> Response:
        """Pass a request on as it is, and the reply back as it comes."""
        query = request.scope["query_string"].decode("latin-1")
        content = body if _has_body(request) else None
        headers = _onward(request.headers.raw)
        if "transfer-encoding" in request.headers:  # which says where the body ends
            headers = _without(headers, frozenset([b"content-length"]))
        try:
            reply = await self._ask(request, query, headers, content)
        except httpx.TransportError as error:
            reason = f"The cluster gave no reply: {type(error).__name__}."
            told = {"error": {"type": "fairqr_proxy", "reason": reason}, "status": 502}
            return JSONResponse(told, 502, {"fairqr": "passed; cluster"})
        stack.push_async_callback(reply.aclose)
        response = StreamingResponse(reply.aiter_raw(), reply.status_code)
        response.raw_headers = [*_onward(reply.headers.raw), _told(f"passed; {why}")]
        return response

    async def _ask(
        self, request: Request, query: str, headers: Headers, body: Any
    ) -> httpx.Response:
        target = self._prefix + request.scope["raw_path"]
        target += f"?{query}".encode("latin-1") if query else b""
        how = {"target": target, "timeout": CONNECTING}
        asked = httpx.Request(
            request.method, self.settings.cluster, headers=headers, content=body, extensions=how
        )
        return await self.cluster.handle_async_request(asked)


def _told(what: str) -> tuple[bytes, bytes]:
    """Return the header that says what became of a request."""
    return b"fairqr", what.encode("ascii", "replace")


def _without(headers: Headers, names: frozenset[bytes]) -> Headers:
    return [it for it in headers if it[0].lower() not in names]


def _onward(headers: Headers) -> Headers:
    """Return the headers that go on: not those that belong to this connection."""
    own = b",".join(value for name, value in headers if name.lower() == b"connection").split(b",")
    return _without(headers, HOP.union(it.strip().lower() for it in own))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object, unless it has a member twice, which clusters refuse."""
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("twice")
    return found


def _has_body(request: Request) -> bool:
    return any(it in request.headers for it in ("content-length", "transfer-encoding"))


def _parameters(request: Request) -> list[tuple[str, str]]:
    query = request.scope["query_string"].decode("latin-1").replace(";", "&")  # as clusters do
    return parse_qsl(query, keep_blank_values=True)


async def _joined(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece


def _unpacked(request: Request, body: bytes, most: int) -> bytes:
    packed = request.headers.get("content-encoding", "identity")
    if packed == "identity":
        return body
    unpack = zlib.decompressobj(47)  # gzip or deflate
    text = unpack.decompress(body, most)
    if not unpack.eof:
        raise ValueError("too long")
    return text


async def serve(
    settings: ProxySettings, path: Path, listener: socket, started: Callable[[], None]
) -> None:
    """Serve until the process is told to end.

    Args:
        settings: What the file says.
        path: The file.
        listener: Where to listen.
        started: Called when clients can connect.
    """
    worker = Worker(path)
    keeping = asyncio.create_task(worker.keep())
    try:
        proxy = Proxy(settings, worker)
        server = Server(proxy, lambda: asyncio.sleep(0), date_header=False, **settings.certified())
        server.config.timeout_graceful_shutdown = GRACE
        server.config.load()
    except OSError as error:
        why = (error.strerror or "it is none").lower()
        raise ConfigError(f"A certificate cannot be read: {why}.") from None
    async with proxy.cluster:
        await server.run_on(listener, started)
        keeping.cancel()
        await asyncio.wait([keeping])
