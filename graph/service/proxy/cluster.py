"""The cluster behind the proxy: requests go on to it as they are, or for whole windows."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import httpx
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from fairqr.graph.service.proxy.requests import UnavailableError
from fairqr.graph.service.proxy.settings import ProxySettings

HOP = frozenset(
    [
        b"connection",
        b"host",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    ]
)
"""Headers that are only for the next server, among them the name by which it is addressed."""

OF_BODY = HOP | {b"content-length", b"content-encoding"}
"""Headers that a body has no longer once we have changed it."""

LONGEST = 5_000_000
"""Longer replies, in bytes, are not read."""

PACKED = 1_000
"""Shorter bodies, in bytes, are not packed."""

UNPACKS = re.compile(r"\bgzip\b(?! *; *q=0(\.0*)?(,|$))")
"""What a client accepts that unpacks gzip."""

FAST = 1
"""The level of compression: the fastest, since somebody waits."""

CONNECTING = {"connect": 5.0}
"""Seconds; how long a reply may take is the client's decision."""

ENDING = 5.0
"""Seconds that ending a search may take."""

OVERLOADED = frozenset([429, *range(500, 600)])
"""Statuses of a cluster that is not asked again: it has too much to do, or is broken."""

IN_BODY = frozenset(["from", "size"])
"""Parameters in an address that the body of a window has in their place."""

KEPT = re.compile(r'\s*\{\s*"id"\s*:\s*"([^"]+)"')
"""How the reply of an asynchronous search begins that the cluster keeps, since it goes on."""

Headers = list[tuple[bytes, bytes]]

TakeReply = Callable[[bytes | None, str], None]
"""Takes a whole reply and its ``content-encoding`` once it is out.

There is no reply if it was an error, too long, or did not arrive.
"""


class RefusedError(Exception):
    """The cluster cannot answer, which is what its client is told.

    Attributes:
        response: What the client is told.
    """

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response


class Cluster:
    """The connections to a cluster. No client, which would keep cookies and follow redirects.

    Args:
        settings: Where it is.
    """

    def __init__(self, settings: ProxySettings) -> None:
        self._address = settings.cluster
        self._prefix = urlsplit(settings.cluster).path.encode()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
        self.connections = httpx.AsyncHTTPTransport(
            settings.trusted(), limits=limits, trust_env=False
        )

    async def pass_on(
        self,
        request: Request,
        stack: AsyncExitStack,
        body: bytes | AsyncIterator[bytes],
        reason: str,
        take_reply: TakeReply | None = None,
    ) -> Response:
        """Pass a request on as it is, and the reply back as it comes.

        Args:
            request: The request.
            stack: Closes the reply.
            body: Its body.
            reason: Why it passes.
            take_reply: Takes what went out.
        """
        query = request.scope["query_string"].decode("latin-1")
        content = body if has_body(request) else None
        headers = _onward(request.headers.raw)
        if "transfer-encoding" in request.headers:  # which says where the body ends
            headers = _without(headers, frozenset([b"content-length"]))
        try:
            reply = await self._ask(request, query, headers, content)
        except httpx.TransportError as error:
            if take_reply is not None:
                take_reply(None, "")
            return _no_reply(error)
        stack.push_async_callback(reply.aclose)

        pieces = reply.aiter_raw()
        if take_reply is not None:
            pieces = _copied(pieces, reply, take_reply)
        response = StreamingResponse(pieces, reply.status_code)
        response.raw_headers = [*_onward(reply.headers.raw), outcome_header(f"passed; {reason}")]
        return response

    async def windows(
        self, request: Request, lines: Sequence[Any], patience: float | None = None
    ) -> tuple[httpx.Response, str]:
        """Ask for whole windows in place of pages.

        Args:
            request: The request, whose address and headers count.
            lines: The lines of the body.
            patience: The most seconds, or None if somebody waits for the reply as for any other.

        Returns:
            The reply, and its body.

        Raises:
            RefusedError: The cluster has too much to do, is broken, or cannot be reached.
            UnavailableError: It gives another error, perhaps because the window is too large for
                it, or the reply is too long, or not there yet.
        """
        query = _query_of_windows(request, has_several=len(lines) > 1)
        headers = _without(request.headers.raw, OF_BODY | {b"accept-encoding"})
        if "content-type" not in request.headers:
            headers.append((b"content-type", b"application/json"))
        body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        try:
            async with asyncio.timeout(patience):
                reply = await self._ask(request, query, headers, body)
                window = await _whole_body(reply)
        except httpx.ConnectTimeout as error:
            raise RefusedError(_no_reply(error)) from None
        except (httpx.TransportError, TimeoutError):  # such as a connection that was closed
            raise UnavailableError("cluster") from None

        if reply.status_code in OVERLOADED:
            raise RefusedError(answered(request, reply, window, "passed; cluster"))
        if reply.status_code != 200:
            raise UnavailableError("cluster")
        return reply, await self._finished(request, window)

    async def _finished(self, request: Request, window: bytes) -> str:
        """Return the text of a window, unless its search goes on.

        Raises:
            UnavailableError: It is no text, or not there yet.
        """
        try:
            text = window.decode()
        except UnicodeDecodeError:
            raise UnavailableError("reply") from None
        unfinished = KEPT.match(text)
        if unfinished:
            await self._end(request, unfinished[1])
            raise UnavailableError("async")
        return text

    async def _end(self, request: Request, id_: str) -> None:
        """End an asynchronous search for a window, which its client would take for a page."""
        ending = addressed(request, f"/_async_search/{quote(id_, safe='')}", method="DELETE")
        headers = _without(request.headers.raw, OF_BODY)
        with suppress(httpx.TransportError, TimeoutError):  # then it ends by its age
            async with asyncio.timeout(ENDING):
                reply = await self._ask(ending, "", headers, None)
                await reply.aread()

    async def _ask(
        self, request: Request, query: str, headers: Headers, body: Any
    ) -> httpx.Response:
        target = self._prefix + request.scope["raw_path"]
        if query:
            target += f"?{query}".encode("latin-1")
        to_cluster = httpx.Request(
            request.method,
            self._address,
            headers=headers,
            content=body,
            extensions={"target": target, "timeout": CONNECTING},
        )
        return await self.connections.handle_async_request(to_cluster)


def answered(request: Request, reply: httpx.Response, body: bytes, outcome: str) -> Response:
    """Return a response with a reply's headers and another body.

    Args:
        request: The request, which says whether its client unpacks gzip.
        reply: The reply.
        body: The body.
        outcome: What became of the request.
    """
    headers = [*_without(reply.headers.raw, OF_BODY), outcome_header(outcome)]
    accepted = request.headers.get("accept-encoding", "")
    if len(body) >= PACKED and UNPACKS.search(accepted):
        body = gzip.compress(body, compresslevel=FAST)
        headers.append((b"content-encoding", b"gzip"))
    headers.append((b"content-length", str(len(body)).encode()))
    response = Response(body, reply.status_code)
    response.raw_headers = headers
    return response


def addressed(
    request: Request, path: str, query: bytes = b"", method: str | None = None
) -> Request:
    """Return a request with the same headers and another address."""
    scope = {**request.scope, "raw_path": path.encode("latin-1"), "query_string": query}
    scope["method"] = method or request.method
    return Request(scope)


def outcome_header(outcome: str) -> tuple[bytes, bytes]:
    """Return the header that says what became of a request."""
    return b"fairqr", outcome.encode("ascii", "replace")


def has_body(request: Request) -> bool:
    """Return whether a request has a body."""
    return "content-length" in request.headers or "transfer-encoding" in request.headers


def parameters_of(request: Request) -> list[tuple[str, str]]:
    """Return the parameters in the address, as clusters read them."""
    query = request.scope["query_string"].decode("latin-1").replace(";", "&")
    return parse_qsl(query, keep_blank_values=True)


def _no_reply(error: httpx.TransportError) -> Response:
    reason = f"The cluster gave no reply: {type(error).__name__}."
    body = {"error": {"type": "fairqr_proxy", "reason": reason}, "status": 502}
    return JSONResponse(body, 502, {"fairqr": "passed; cluster"})


def _query_of_windows(request: Request, *, has_several: bool) -> str:
    """Return the query of the address at which windows are asked for.

    Args:
        request: The client's request.
        has_several: Whether it has several searches, whose pages their own bodies say.
    """
    left_out = {"filter_path"} if has_several else {"filter_path", *IN_BODY}
    parameters = [(name, value) for name, value in parameters_of(request) if name not in left_out]
    return urlencode(parameters, quote_via=quote)


async def _whole_body(reply: httpx.Response) -> bytes:
    """Read the body of a reply, and close that.

    Raises:
        UnavailableError: It is too long.
    """
    body = bytearray()
    async with aclosing(reply):
        async for piece in reply.aiter_raw():
            body += piece
            if len(body) > LONGEST:
                raise UnavailableError("long")
    return bytes(body)


def _without(headers: Headers, names: frozenset[bytes]) -> Headers:
    return [(name, value) for name, value in headers if name.lower() not in names]


def _onward(headers: Headers) -> Headers:
    """Return the headers that go on: not those that belong to this connection."""
    of_connection: set[bytes] = set()
    for name, value in headers:
        if name.lower() == b"connection":
            of_connection.update(entry.strip().lower() for entry in value.split(b","))
    return _without(headers, HOP | of_connection)


async def _copied(
    pieces: AsyncIterator[bytes], reply: httpx.Response, take_reply: TakeReply
) -> AsyncIterator[bytes]:
    """Yield the pieces of a reply, and hand the whole over once all are through."""
    copy = bytearray()
    is_whole = False
    try:
        async for piece in pieces:
            if len(copy) <= LONGEST:
                copy += piece
            yield piece
        is_whole = reply.status_code == 200 and len(copy) <= LONGEST
    finally:
        packing = reply.headers.get("content-encoding", "")
        take_reply(bytes(copy) if is_whole else None, packing)
