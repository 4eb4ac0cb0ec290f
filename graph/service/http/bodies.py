"""Request bodies: they must be JSON, small enough, and arrive in time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.http.answers import ProblemResponse
from fairqr.graph.service.problems import problem

MOST_VALUES = 10_000
"""The most values in a body, if audits need no more: each takes memory, and time to check."""

OF_A_QUERY = 4
"""The most values that a query of an audit has: an object, with its weight."""


class Bodies:
    """Reads and checks the body of each POST before anything else happens.

    Args:
        app: The application inside; it gets the unchanged body.
        settings: The settings of the service.
    """

    def __init__(self, app: ASGIApp, settings: ServiceSettings) -> None:
        self._app = app
        self._most = settings.caps.body_bytes
        self._values = max(MOST_VALUES, OF_A_QUERY * settings.caps.audit_queries)
        self._seconds = settings.limits.body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self._app(scope, receive, send)
        refused, body = self._wrong_headers(Headers(scope=scope)), b""
        if refused is None:
            try:
                async with asyncio.timeout(self._seconds):
                    body = await self._read(receive)
            except ClientDisconnect:
                return None
            except TimeoutError:
                late = f"The body did not arrive within {self._seconds:g} s; send it faster."
                refused = problem("slow-body", 408, "The body did not arrive in time", late)
            else:
                refused = self._too_large(len(body)) or check_json(body, self._values)
        if refused is not None:
            # Do not wait for the rest of the body.
            closing = {"Connection": "close"} if refused["status"] in (408, 413, 415) else {}
            return await ProblemResponse(refused, closing)(scope, receive, send)
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        return await self._app(scope, replay, send)

    async def _read(self, receive: Receive) -> bytes:
        """Return the body, or slightly more than allowed."""
        body, more = bytearray(), True
        while more and len(body) <= self._most:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            body += message.get("body", b"")
            more = message.get("more_body", False)
        return bytes(body)

    def _wrong_headers(self, headers: Headers) -> dict[str, Any] | None:
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            # Web pages of other origins can send other types without the browser's check.
            wanted = "Send JSON with the header 'Content-Type: application/json'."
            return problem("media-type", 415, "The media type is not supported", wanted)
        length = headers.get("content-length", "")
        return self._too_large(int(length)) if length.isdecimal() and len(length) < 20 else None

    def _too_large(self, size: int) -> dict[str, Any] | None:
        if size <= self._most:
            return None
        return problem(
            "over-cap",
            413,
            "The body is too large",
            f"The body has more than {self._most:,} bytes, the limit (body_bytes); send a smaller "
            "one.",
            cap="body_bytes",
            limit=self._most,
        )


def check_json(body: bytes, most: int = MOST_VALUES) -> dict[str, Any] | None:
    """Return what is wrong with a body, or None.

    We count its values before we parse it. We refuse NaN and infinity, which are not JSON, lone
    surrogates, and NUL, which databases refuse.
    """
    # Every second part between quotes that are not escaped is outside of strings.
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    values = unescaped.count(b'"') // 4  # a name and its value
    if values <= most:
        outside = b"".join(unescaped.split(b'"')[::2])
        values = sum(map(outside.count, (b",", b"[", b"{")))
    if values > most:
        many = f"The body has more than {most:,} values; send fewer."
        return problem("input", 422, "A parameter is wrong", many)
    try:
        text = json.dumps(from_json(body), allow_nan=False)
    except ValueError:
        return _malformed("Send one JSON object in UTF-8.")
    if "\\u0000" in text.replace("\\\\", ""):
        return _malformed("Leave the character NUL out of the body.")
    return None


def _malformed(detail: str) -> dict[str, Any]:
    return problem("malformed", 400, "The body cannot be read", detail)
