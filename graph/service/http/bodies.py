"""What comes in: bodies that are JSON, no longer than allowed, and there in time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any, NoReturn

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.http.answers import problem_response
from fairqr.graph.service.problems import problem

__all__ = ["Bodies", "check_json"]

DEEPEST = 32
"""Levels of objects and lists in a body."""


class Bodies:
    """Reads the body of each POST before anything is done, and refuses what it may not be.

    Args:
        app: Is given the body as it came.
        settings: Of the service.
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
                    "The body did not come in time",
                    f"The body was not there within {self._seconds:g} s; send it faster.",
                )
            else:
                if found is None:
                    return None  # the client is gone
                body = found
                refused = _too_large(len(body), self._most) or check_json(body)
        if refused is not None:
            # What else is under way of the body is not waited for.
            closing = {"Connection": "close"} if refused["status"] in (408, 413, 415) else {}
            return await problem_response(refused, closing)(scope, receive, send)
        given = False

        async def replay() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        return await self._app(scope, replay, send)

    async def _read(self, receive: Receive) -> bytes | None:
        """Return the body, or more of it than is allowed; None where the client has gone."""
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

    JSON has neither NaN nor numbers without end, and a text has neither halves of characters nor
    NUL, which databases do not take.
    """
    try:
        value = json.loads(body, parse_constant=_refuse, parse_float=_finite)
        if _is_deeper(value, DEEPEST):
            return problem(
                "malformed",
                400,
                "The body is no JSON",
                f"The body has more than {DEEPEST} levels of objects and lists; send a flat one.",
            )
        text = json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return problem("malformed", 400, "The body is no JSON", "Send one JSON object in UTF-8.")
    if b"\\u0000" in text.replace(b"\\\\", b""):
        return problem(
            "malformed", 400, "The body is no JSON", "Leave the character NUL out of the body."
        )
    return None


def _is_deeper(value: Any, most: int) -> bool:
    """Tell whether objects and lists stand in one another more often than that."""
    level = _nested([value])
    for _ in range(most):
        level = _nested(
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        )
        if not level:
            return False
    return True


def _nested(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if isinstance(value, dict | list)]


def _refused_by_headers(headers: Headers, most: int) -> dict[str, Any] | None:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # A page of another origin can send other kinds without asking the browser's leave.
        return problem(
            "media-type",
            415,
            "The body is of another kind",
            "Send JSON, and say so: 'Content-Type: application/json'.",
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
        f"The body has more than {most:,} bytes, which are allowed at the most (body_bytes).",
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
