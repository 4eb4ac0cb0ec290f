"""Request bodies: they must be JSON, small enough, and arrive in time."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NoReturn

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.http.answers import ProblemResponse
from fairqr.graph.service.problems import problem

DEEPEST = 32
"""The most levels of objects and lists in a body."""


class Bodies:
    """Reads and checks the body of each POST before anything else happens.

    Args:
        app: The application inside; it gets the unchanged body.
        settings: The settings of the service.
    """

    def __init__(self, app: ASGIApp, settings: ServiceSettings) -> None:
        self._app = app
        self._most = settings.caps.body_bytes
        self._seconds = settings.limits.body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self._app(scope, receive, send)
        refused = _refused_by_headers(Headers(scope=scope), self._most)
        body = b""
        if refused is None:
            try:
                async with asyncio.timeout(self._seconds):
                    found = await self._read(receive)
            except TimeoutError:
                refused = problem(
                    "slow-body",
                    408,
                    "The body did not arrive in time",
                    f"The body did not arrive within {self._seconds:g} s; send it faster.",
                )
            else:
                if found is None:
                    return None  # the client disconnected
                body = found
                refused = _too_large(len(body), self._most) or check_json(body)
        if refused is not None:
            # Do not wait for the rest of the body.
            closing = {"Connection": "close"} if refused["status"] in (408, 413, 415) else {}
            return await ProblemResponse(refused, closing)(scope, receive, send)
        given = False

        async def replay() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        return await self._app(scope, replay, send)

    async def _read(self, receive: Receive) -> bytes | None:
        """Return the body, or slightly more than allowed; None if the client disconnected."""
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if not message.get("more_body") or len(body) > self._most:
                return bytes(body)


def check_json(body: bytes) -> dict[str, Any] | None:
    """Return what is wrong with a body, or None.

    We refuse NaN and infinity, which are not JSON, lone surrogates, and NUL, which databases
    refuse.
    """
    try:
        value = json.loads(body, parse_constant=_refuse, parse_float=_finite)
        if _is_deeper(value, DEEPEST):
            return _malformed(
                f"The body has more than {DEEPEST} levels of objects and lists; send a flatter one."
            )
        # Only an escape can be a lone surrogate or NUL.
        text = json.dumps(value, ensure_ascii=False).encode() if b"\\u" in body else b""
    except (ValueError, RecursionError):
        return _malformed("Send one JSON object in UTF-8.")
    if b"\\u0000" in text.replace(b"\\\\", b""):
        return _malformed("Leave the character NUL out of the body.")
    return None


def _malformed(detail: str) -> dict[str, Any]:
    return problem("malformed", 400, "The body is not JSON", detail)


def _is_deeper(value: Any, most: int) -> bool:
    """Return whether objects and lists are nested deeper than that."""
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return most == 0 or any(_is_deeper(each, most - 1) for each in inner)


def _refused_by_headers(headers: Headers, most: int) -> dict[str, Any] | None:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # Web pages of other origins can send other types without the browser's check.
        return problem(
            "media-type",
            415,
            "The media type is not supported",
            "Send JSON with the header 'Content-Type: application/json'.",
        )
    length = headers.get("content-length", "")
    return _too_large(int(length), most) if length.isdecimal() and len(length) < 20 else None


def _too_large(size: int, most: int) -> dict[str, Any] | None:
    if size <= most:
        return None
    return problem(
        "over-cap",
        413,
        "The body is too large",
        f"The body has more than {most:,} bytes, the limit (body_bytes); send a smaller one.",
        cap="body_bytes",
        limit=most,
    )


def _refuse(text: str) -> NoReturn:
    raise ValueError(text)


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(text)
    return value
