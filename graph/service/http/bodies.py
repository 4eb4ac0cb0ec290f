"""The bodies of requests: read whole, and checked before anything else happens."""

from __future__ import annotations

import asyncio
import codecs
import json

from fastapi import HTTPException
from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.requests import Request

from fairqr.base.errors import InputError
from fairqr.graph.service.configuration import ServiceLimits, ServiceSettings
from fairqr.graph.service.http.answers import CLOSES

MOST_VALUES = 5_000
"""The most values in a body, if audits need no more: each takes memory, and time to check."""

RERANK = ("/v1/rerank", "/v2/rerank", "/rerank")
"""The paths of re-ranking, whose clients always send a token."""

OF_A_DOCUMENT = 25
"""The most values that a document to re-rank may have."""

OF_A_QUERY = 4
"""The most values that a query of an audit has: an object, with its weight."""

_DISCARDED = 2**25
"""How many bytes beyond the limit we read and throw away.

Who sends all before it reads an answer would see a broken connection, and not what is wrong with
its request.
"""


async def read_body(request: Request, settings: ServiceSettings) -> bytes:
    """Return the body of a request, checked before anything else happens.

    Raises:
        HTTPException: It is no JSON, too large, or too slow.
        InputError: It has too many values.
        ClientDisconnect: The client left.
    """
    body = await _receive(request, settings)
    _require_json(request.headers)

    # Some programs put a byte order mark in front of what they write.
    unmarked = body.removeprefix(codecs.BOM_UTF8)
    check_json(unmarked, _most_values(request.scope["path"], settings.limits))
    return unmarked


async def _receive(request: Request, settings: ServiceSettings) -> bytes:
    """Return the body of a request.

    Raises:
        HTTPException: It is too large, or too slow.
        ClientDisconnect: The client left.
    """
    limit = settings.limits.body_bytes
    seconds = settings.traffic.body_seconds
    body = bytearray()
    size = 0
    try:
        async with asyncio.timeout(seconds):
            async for piece in request.stream():
                size += len(piece)
                if size <= limit:
                    body += piece
                elif size > limit + _DISCARDED:
                    break
    except TimeoutError:
        sentence = f"The body did not arrive within {seconds:g} s; send it faster."
        raise HTTPException(408, {"detail": sentence}, CLOSES) from None

    if size > limit:
        sentence = f"The body has more than {limit:,} bytes, the limit (body_bytes); send less."
        detail = {"detail": sentence, "limit": "body_bytes", "most": limit}
        raise HTTPException(413, detail, CLOSES)
    return bytes(body)


def _require_json(headers: Headers) -> None:
    """Check what the headers say of a body.

    Raises:
        HTTPException: It is no JSON, or it is encoded.
    """
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        # Web pages of other origins can send other types without the browser's check.
        sentence = "Send JSON with the header 'Content-Type: application/json'."
        raise HTTPException(415, {"detail": sentence})

    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise HTTPException(415, {"detail": "Send the body as it is, without Content-Encoding."})


def _most_values(path: str, limits: ServiceLimits) -> int:
    """Return how many values the body of a request to a path may have."""
    limit = max(MOST_VALUES, OF_A_QUERY * limits.audit_queries)
    if path in RERANK:
        limit = max(limit, OF_A_DOCUMENT * limits.depth)
    return limit


def check_json(body: bytes, limit: int = MOST_VALUES) -> None:
    """Check a body. We count its values before we parse it.

    Raises:
        HTTPException: It is no JSON, or holds NaN or infinity, a lone surrogate, or NUL, which
            databases refuse.
        InputError: It holds too many values, or an object that has two members of one name.
    """
    unescaped = _unescaped(body)
    members = unescaped.count(b'"') // 4  # a name and its value
    _require_few(members, limit)
    outside = _outside_of_strings(unescaped)
    values = sum(map(outside.count, (b",", b"[", b"{")))
    _require_few(values, limit)

    try:
        text = json.dumps(from_json(body), allow_nan=False)
    except ValueError:
        raise HTTPException(400, {"detail": "Send one JSON object in UTF-8."}) from None
    if "\\u0000" in text.replace("\\\\", ""):
        raise HTTPException(400, {"detail": "Leave the character NUL out of the body."})

    # Of members with the same name, the parser has kept the last one.
    kept_members = _outside_of_strings(_unescaped(text.encode())).count(b":")
    if kept_members < outside.count(b":"):
        raise InputError("An object in the body has a name twice; send each name once.")


def _require_few(values: int, limit: int) -> None:
    """Refuse a body with too many values.

    Raises:
        InputError: It has more than the most.
    """
    if values > limit:
        raise InputError(f"The body has more than {limit:,} values; send fewer.")


def _unescaped(body: bytes) -> bytes:
    """Return JSON without escaped quotes, which would look like the ends of strings."""
    return body.replace(b"\\\\", b"").replace(b'\\"', b"")


def _outside_of_strings(unescaped: bytes) -> bytes:
    """Return what is outside of the strings of JSON: every second part between quotes."""
    return b"".join(unescaped.split(b'"')[::2])
