"""The proxy: an ASGI application that passes everything on, and re-ranks what it can."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

import httpx
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from fairqr.graph.doors.proxy.requests import Plan, planned
from fairqr.graph.doors.proxy.settings import ProxySettings
from fairqr.graph.doors.proxy.worker import UnavailableError, Worker
from fairqr.graph.service.http.serving import Server

TOLD = b"fairqr"
"""The header that says what became of a request."""

HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    b"transfer-encoding upgrade host".split()
)
"""Headers that are for the next server alone, and the name by which it is asked."""

OF_BODY = HOP | {b"content-length", b"content-encoding"}
"""Headers of a body that we have written anew."""

SEARCH = re.compile(r"/([^/,*]+)/_search/?")
MULTI = re.compile(r"(?:/([^/,*]+))?/_msearch/?")

_SEARCHED = (
    "index preference routing search_type ignore_unavailable allow_no_indices expand_wildcards "
    "request_cache allow_partial_search_results"
)
SEARCHED = frozenset(_SEARCHED.split())
"""What may stand before a search of several."""


@dataclass(frozen=True, slots=True)
class Part:
    """A search that is re-ranked, in place ``place`` of several; None if it is alone."""

    place: int | None
    index: str
    plan: Plan


class Proxy:
    """Stands in front of a cluster.

    Args:
        settings: What it does.
        worker: Re-ranks.
    """

    def __init__(self, settings: ProxySettings, worker: Worker) -> None:
        self.settings, self.worker = settings, worker
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
        single, several = SEARCH.fullmatch(path), MULTI.fullmatch(path)
        asks = request.method in ("GET", "POST") and (single or several)
        if not asks or (single and single[1] not in self.settings.indexes):
            return await self._pass(request, request.stream())
        body, rest = await _read(request, self.settings.body)
        if rest is not None:
            return await self._pass(request, rest, "body")
        try:
            text = _unpacked(request, body, self.settings.body)
            if single:
                parts, why, altered = self._alone(request, single[1], text)
            else:
                assert several is not None  # noqa: S101 - one of the two matched
                parts, why, altered = self._several(request, several[1], text)
        except ValueError:
            return await self._pass(request, body, "body")
        if not parts:
            return await self._pass(request, body, why)
        query = [
            it for it in _parameters(request) if single is None or it[0] not in ("from", "size")
        ]
        reply = await self._send(request, altered, query)
        if reply.status_code != 200:
            return await self._pass(request, body, "cluster")
        try:
            told, shown = await self._reranked(parts, reply.content)
        except UnavailableError as error:
            return await self._pass(request, body, str(error))
        response = Response(shown, 200)
        kept = [it for it in reply.headers.raw if it[0].lower() not in OF_BODY]
        response.raw_headers = [*kept, (b"content-length", str(len(shown)).encode())]
        by = {it["by"] for it in told}
        whole = f"; {why}" if why else ""
        _tell(response, f"re-ranked; {'ranks' if 'ranks' in by else 'vectors'}{whole}")
        return response

    def _alone(self, request: Request, index: str, text: bytes) -> tuple[list[Part], str, bytes]:
        """Return the search to re-rank or why it passes, and what to ask instead."""
        asked = json.loads(text) if text.strip() else None
        plan = self._planned(index, asked, dict(_parameters(request)))
        if isinstance(plan, str):
            return [], plan, b""
        return [Part(None, index, plan)], "", json.dumps(plan.body).encode()

    def _several(
        self, request: Request, index: str | None, text: bytes
    ) -> tuple[list[Part], str, bytes]:
        """Return the searches to re-rank, why others pass, and what to ask instead."""
        lines = [json.loads(line) for line in text.split(b"\n") if line.strip()]
        parts, passed = list[Part](), list[str]()
        parameters = dict(_parameters(request))
        for place, (head, body) in enumerate(zip(lines[::2], lines[1::2], strict=True)):
            named = head.get("index", index)
            named = named[0] if isinstance(named, list) and len(named) == 1 else named
            plan: Plan | str = "index"
            if unknown := head.keys() - SEARCHED:
                plan = min(unknown)
            elif isinstance(named, str) and named in self.settings.indexes:
                plan = self._planned(named, body, parameters)
            if isinstance(plan, str):
                passed.append(plan)
            else:
                parts.append(Part(place, str(named), plan))
                lines[2 * place + 1] = plan.body
        altered = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        return parts, f"passed {len(passed)}, {passed[0]}" if passed else "", altered

    def _planned(self, index: str, body: Any, parameters: dict[str, str]) -> Plan | str:
        settings = self.settings.indexes[index]
        plan = planned(body, parameters, settings.window)
        if isinstance(plan, str):
            return plan
        if settings.mode == "shadow":
            return "shadow"
        return plan if int(plan.key, 16) / 16**16 < settings.share else "share"

    async def _reranked(
        self, parts: Sequence[Part], reply: bytes
    ) -> tuple[list[dict[str, Any]], bytes]:
        asked = [
            {
                "place": it.place,
                "index": it.index,
                "start": it.plan.start,
                "size": it.plan.size,
                "window": it.plan.window,
                "words": it.plan.words,
            }
            for it in parts
        ]
        told, shown = await self.worker.ask({"parts": asked}, reply, self.settings.within)
        return told["told"], shown

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
