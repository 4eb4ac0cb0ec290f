"""The proxy: an ASGI application that passes everything on, and re-ranks what it can."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import time
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from socket import socket
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

import httpx
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from fairqr.graph.service.http.serving import Server
from fairqr.graph.service.proxy.requests import Plan, Search, planned
from fairqr.graph.service.proxy.seen import Seen
from fairqr.graph.service.proxy.settings import ProxySettings
from fairqr.graph.service.proxy.worker import UnavailableError, Worker

TOLD = b"fairqr"
"""The header that says what became of a request."""

HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    b"transfer-encoding upgrade host".split()
)
"""Headers that are for the next server alone, and the name by which it is asked."""

OF_BODY = HOP | {b"content-length", b"content-encoding"}
"""Headers of a body that we have written anew."""

SEARCH = re.compile(r"(?:/([^/,*]+))?/(_search|_msearch)/?")

WATCHED = 8
"""So many searches may be looked at behind the replies; more are not recorded."""

PATIENT = 5.0
"""Seconds that re-ranking may take if nobody waits for it."""

_SEARCHED = (
    "index preference routing search_type ignore_unavailable allow_no_indices expand_wildcards "
    "request_cache allow_partial_search_results"
)
SEARCHED = frozenset(_SEARCHED.split())
"""What may stand before a search of several."""


class Proxy:
    """Stands in front of a cluster.

    Args:
        settings: What it does.
        worker: Re-ranks.
    """

    def __init__(self, settings: ProxySettings, worker: Worker) -> None:
        self.settings, self.worker, self.seen = settings, worker, Seen(settings)
        self._watching = 0
        trusted = settings.ca and settings.folder / settings.ca
        self._client = httpx.AsyncClient(
            verify=ssl.create_default_context(cafile=trusted),
            timeout=httpx.Timeout(None, connect=5.0),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=100),
            trust_env=False,  # no other proxy, and no credentials of this machine
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        with suppress(ClientDisconnect):
            try:
                response = await self._answer(request)
            except httpx.TransportError as error:
                why = {"type": "fairqr_proxy", "reason": f"The cluster failed: {error!r}"}
                response = JSONResponse({"error": why, "status": 502}, 502)
                _tell(response, "passed; cluster")
            await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        path = unquote(request.scope["raw_path"].decode("latin-1").partition("?")[0])
        found = SEARCH.fullmatch(path) if request.method in ("GET", "POST") else None
        if found is None or (found[2] == "_search" and found[1] not in self.settings.indexes):
            return await self._pass(request, request.stream())
        body, rest = await _read(request, self.settings.body)
        if rest is not None:
            return await self._pass(request, rest, "body")
        try:
            text = _unpacked(request, body, self.settings.body).strip()
            lines = [json.loads(line) for line in text.split(b"\n") if line.strip()]
            if found[2] == "_search":
                lines = [{}, json.loads(text) if text else {}]
            searches, whys = self._searches(lines, found, request)
        except (ValueError, AttributeError):
            return await self._pass(request, body, "body")
        fair = [it for it in searches if it.fair]
        watched = [it for it in searches if not it.fair]
        whys += ["shadow"] * len(watched)
        try:
            if not fair:
                raise UnavailableError(whys[0] if whys else "empty")
            response = await self._reranked(request, lines, fair, whys)
        except UnavailableError as error:
            response = await self._pass(request, body, str(error))
            for it in fair:
                self.seen.count(it.index, str(error))
        if watched and self._watching < WATCHED:
            sent = response.background
            response.background = BackgroundTask(self._watch, request, lines, watched, sent)
        return response

    def _searches(
        self, lines: Sequence[Any], path: re.Match[str], request: Request
    ) -> tuple[list[Search], list[str]]:
        """Return the searches that can be re-ranked, and why others pass."""
        found, whys, parameters = list[Search](), list[str](), dict(_parameters(request))
        for place, (head, body) in enumerate(zip(lines[::2], lines[1::2], strict=True)):
            plan: Plan | str = "index"
            name = head.get("index", path[1])
            if isinstance(name, list) and len(name) == 1:
                name = name[0]
            if unknown := head.keys() - SEARCHED:
                plan = min(unknown)
            elif isinstance(name, str) and (index := self.settings.indexes.get(name)):
                plan = planned(body, parameters, index.window)
                if isinstance(plan, Plan):
                    fair = index.mode == "fair" and plan.draw < index.share
                    alone = None if path[2] == "_search" else place
                    found.append(Search(alone, name, plan, fair))
                    continue
                self.seen.count(name, plan)
            whys.append(str(plan))
        return found, whys

    async def _reranked(
        self, request: Request, lines: Sequence[Any], searches: Sequence[Search], whys: list[str]
    ) -> Response:
        """Answer with fair lists.

        Raises:
            UnavailableError: There are none.
        """
        reply = await self._windows(request, lines, searches)
        begun = time.perf_counter()
        asked = [it.asked for it in searches]
        told, shown = await self.worker.ask(asked, reply.content, self.settings.within)
        for it, one in zip(searches, told, strict=True):
            self.seen.count(it.index, "re-ranked", time.perf_counter() - begun)
            self.seen.shown(it, one, "fair")
        response = Response(shown, 200)
        kept = [it for it in reply.headers.raw if it[0].lower() not in OF_BODY]
        response.raw_headers = [*kept, (b"content-length", str(len(shown)).encode())]
        by = "ranks" if any(it["by"] == "ranks" for it in told) else "vectors"
        _tell(response, f"re-ranked; {by}" + (f"; passed {len(whys)}, {whys[0]}" if whys else ""))
        return response

    async def _watch(
        self, request: Request, lines: Sequence[Any], searches: Sequence[Search], sent: Any
    ) -> None:
        """Record what was shown and what the fair list would have been, after the reply."""
        if sent is not None:
            await sent()
        self._watching += 1
        try:
            reply = await self._windows(request, lines, searches)
            told, _ = await self.worker.ask([it.asked for it in searches], reply.content, PATIENT)
            for it, one in zip(searches, told, strict=True):
                self.seen.count(it.index, "shadow")
                self.seen.shown(it, one, "engine")
        except (UnavailableError, httpx.HTTPError) as error:
            why = str(error) if isinstance(error, UnavailableError) else "cluster"
            for it in searches:
                self.seen.count(it.index, f"shadow: {why}")
        finally:
            self._watching -= 1

    async def _windows(
        self, request: Request, lines: Sequence[Any], searches: Sequence[Search]
    ) -> httpx.Response:
        """Ask the cluster for the whole window of these searches, and for the others as they are.

        Raises:
            UnavailableError: It answers with an error, perhaps because the window is too large.
        """
        query, asked = _parameters(request), [*lines]
        for it in searches:
            asked[2 * (it.place or 0) + 1] = it.plan.body
        if searches[0].place is None:
            query = [it for it in query if it[0] not in ("from", "size")]
            asked = asked[1:]
        body = b"".join(json.dumps(line).encode() + b"\n" for line in asked)
        reply = await self._send(request, body, query)
        if reply.status_code != 200:
            raise UnavailableError("cluster")
        return reply

    async def _send(
        self, request: Request, body: bytes, query: Sequence[tuple[str, str]]
    ) -> httpx.Response:
        """Ask the cluster for something else, and read its whole reply."""
        dropped = {*OF_BODY, b"accept-encoding", b"content-type"}
        headers = [it for it in request.headers.raw if it[0] not in dropped]
        kind = request.headers.get("content-type", "application/json")
        headers.append((b"content-type", kind.encode("latin-1")))
        url = self._url(request, urlencode(query, quote_via=quote).encode())
        return await self._client.send(
            httpx.Request(request.method, url, headers=headers, content=body)
        )

    async def _pass(
        self, request: Request, body: bytes | AsyncIterator[bytes], why: str = ""
    ) -> Response:
        """Pass a request on as it is, and the reply back as it comes."""
        headers = [it for it in request.headers.raw if it[0] not in HOP]
        has_body = any(it in request.headers for it in ("content-length", "transfer-encoding"))
        url = self._url(request, request.scope["query_string"])
        asked = httpx.Request(
            request.method, url, headers=headers, content=body if has_body else None
        )
        reply = await self._client.send(asked, stream=True)
        response = StreamingResponse(
            reply.aiter_raw(), reply.status_code, background=BackgroundTask(reply.aclose)
        )
        response.raw_headers = [it for it in reply.headers.raw if it[0].lower() not in HOP]
        _tell(response, f"passed; {why}" if why else "passed")
        return response

    def _url(self, request: Request, query: bytes) -> httpx.URL:
        base = httpx.URL(self.settings.cluster)
        path = base.raw_path.rstrip(b"/") + request.scope["raw_path"].partition(b"?")[0]
        return base.copy_with(raw_path=path + (b"?" + query if query else b""))


def _tell(response: Response, what: str) -> None:
    response.raw_headers.append((TOLD, what.encode("latin-1", "replace")))


def _parameters(request: Request) -> list[tuple[str, str]]:
    return parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)


async def _read(request: Request, most: int) -> tuple[bytes, AsyncIterator[bytes] | None]:
    """Read a body; if it is too long, return what yields all of it instead."""
    body, pieces = b"", request.stream()
    async for piece in pieces:
        body += piece
        if len(body) > most:
            return b"", _all(body, pieces)
    return body, None


async def _all(begun: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield begun
    async for piece in rest:
        yield piece


def _unpacked(request: Request, body: bytes, most: int) -> bytes:
    """Return a body without its compression.

    Raises:
        ValueError: It is packed in another way, or too long.
    """
    packed = request.headers.get("content-encoding", "identity")
    if packed == "identity":
        return body
    unpack = zlib.decompressobj(47)
    try:
        text = unpack.decompress(body, most)
    except zlib.error as error:
        raise ValueError from error
    if packed not in ("gzip", "deflate") or not unpack.eof:
        raise ValueError(packed)
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
    proxy, keeping = Proxy(settings, worker), asyncio.create_task(worker.keep())
    own = [it and str(settings.folder / it) for it in (settings.certificate, settings.key)]
    how: Any = {"date_header": False, "ssl_certfile": own[0], "ssl_keyfile": own[1]}
    try:
        await Server(proxy, _at_once, **how).run_on(listener, started)
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])
        await proxy.aclose()


async def _at_once() -> None:
    """Stop listening without waiting for anything."""
