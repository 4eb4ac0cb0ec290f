"""Request bodies: they must be JSON, small enough, and arrive in time."""

from __future__ import annotations

import asyncio
import contextlib
import json

from pydantic_core import from_json
from starlette.requests import Request
from starlette.types import Message, Receive, Send

from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.http.answers import Refused
from fairqr.graph.service.problems import problem

# The most values in a body, if audits need no more: each takes memory, and time to check.
MOST_VALUES = 10_000

OF_A_QUERY = 4  # the most values that a query of an audit has: an object, with its weight

# How long, and for how many bytes, a refused client may go on sending before its connection closes.
_LINGERS, _DISCARDED = 2.0, 2**25


async def read_body(request: Request, settings: ServiceSettings) -> bytes:
    """Return the body of a request, checked before anything else happens.

    Raises:
        Refused: It is no JSON, too large, or too slow.
        ClientDisconnect: The client left.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # Web pages of other origins can send other types without the browser's check.
        wanted = "Send JSON with the header 'Content-Type: application/json'."
        title = "The media type is not supported"
        raise Refused(problem("media-type", 415, title, wanted), closes=True)
    most, seconds, body = settings.caps.body_bytes, settings.limits.body_seconds, bytearray()
    length = request.headers.get("content-length", "")
    size = int(length) if length.isdecimal() and len(length) < 20 else 0
    try:
        async with asyncio.timeout(seconds):
            if size <= most:
                async for piece in request.stream():
                    body += piece
                    if (size := len(body)) > most:
                        break
    except TimeoutError:
        late, title = (
            f"The body did not arrive within {seconds:g} s; send it faster.",
            "The body did not arrive in time",
        )
        raise Refused(problem("slow-body", 408, title, late), closes=True) from None
    if size > most:
        large = f"The body has more than {most:,} bytes, the limit (body_bytes); send less."
        title = "The body is too large"
        document = problem("over-cap", 413, title, large, cap="body_bytes", limit=most)
        raise Refused(document, closes=True)
    check_json(bytes(body), max(MOST_VALUES, OF_A_QUERY * settings.caps.audit_queries))
    return bytes(body)


def check_json(body: bytes, most: int = MOST_VALUES) -> None:
    """Check a body. We count its values before we parse it.

    Raises:
        Refused: It is no JSON, or holds too many values, NaN or infinity, a lone surrogate, or
            NUL, which databases refuse.
    """
    # Every second part between quotes that are not escaped is outside of strings.
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    values = unescaped.count(b'"') // 4  # a name and its value
    if values <= most:
        outside = b"".join(unescaped.split(b'"')[::2])
        values = sum(map(outside.count, (b",", b"[", b"{")))
    if values > most:
        many = f"The body has more than {most:,} values; send fewer."
        raise Refused(problem("input", 422, "A parameter is wrong", many))
    title, wrong = "The body cannot be read", "Leave the character NUL out of the body."
    try:
        text = json.dumps(from_json(body), allow_nan=False)
    except ValueError:
        wrong, text = "Send one JSON object in UTF-8.", "\\u0000"
    if "\\u0000" in text.replace("\\\\", ""):
        raise Refused(problem("malformed", 400, title, wrong))


def lingering(receive: Receive, send: Send) -> Send:
    """Return a `send` that ends a response only when its client has stopped sending.

    Where a connection closes on bytes that nobody read, the client's system throws the response
    away, and the client sees a broken connection instead of what is wrong with its request.
    """

    async def sending(message: Message) -> None:
        if message["type"] != "http.response.body" or message.get("more_body"):
            await send(message)
            return
        await send({**message, "more_body": True})
        left = _DISCARDED
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGERS):
                while left > 0 and (piece := await receive()).get("more_body"):
                    left -= len(piece["body"])
        await send({"type": "http.response.body"})

    return sending
