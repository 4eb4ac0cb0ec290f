"""The application: routes over the graph, and what stands around them."""

from __future__ import annotations

import logging
import time
from importlib.metadata import version
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairqr.graph.service.http.access import Guard, needs_keys
from fairqr.graph.service.http.answers import handle_errors, problem_response
from fairqr.graph.service.http.bodies import Bodies
from fairqr.graph.service.http.metrics import Metrics
from fairqr.graph.service.http.openapi import describe
from fairqr.graph.service.http.pages import POLICY, pages
from fairqr.graph.service.http.parts import Parts
from fairqr.graph.service.http.routes import asking, audits, listing, openai, operation, reading
from fairqr.graph.service.http.throttle import Throttle
from fairqr.graph.service.problems import problem, problem_of, told_in_log

if TYPE_CHECKING:
    from fastapi.telemetry import TelemetryConfig

__all__ = ["create_app"]

log = logging.getLogger(__name__)

_HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"x-frame-options": b"DENY",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"content-security-policy": POLICY.encode(),
}
"""Of all answers that do not have their own. The policy is that of the page, which is strict."""

_AMBIGUOUS = problem(
    "malformed",
    400,
    "The request cannot be read",
    "Send either Content-Length or Transfer-Encoding, not both.",
)

_TELEMETRY: TelemetryConfig = {
    "exclude": lambda scope: scope["path"] in ("/healthz", "/readyz", "/metrics"),
    "operation_spans": False,
    # They would have the texts of errors, which may quote what was asked.
    "logs": False,
    "auto_configure": False,
}
"""Of FastAPI's own span of a request, which older versions do not have.

Where spans go is said by :mod:`fairqr.base.exporting`.
"""


def create_app(parts: Parts) -> FastAPI:
    """Return the application.

    Args:
        parts: Of the service; they are started and ended by whoever made them.
    """
    settings = parts.settings
    app = FastAPI(
        title="fairqr",
        version=version("fairqr"),
        # These pages load scripts from other hosts.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry=_TELEMETRY,
    )
    app.state.parts = parts
    handle_errors(app)
    describe(app, keys=needs_keys(settings))
    for module in (asking, reading, audits, listing, openai, operation):
        app.include_router(module.router)
    app.include_router(pages())
    # From the inside to the outside: what is refused by one is not seen by those before it.
    app.add_middleware(Bodies, settings=settings)
    app.add_middleware(
        Guard, settings=settings, store=parts.store, throttle=Throttle(settings.limits)
    )
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=[*settings.cors_origins],
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=[
                "Authorization",
                "Content-Type",
                "Last-Event-ID",
                "Mcp-Protocol-Version",
                "Mcp-Session-Id",
            ],
            expose_headers=["Location", "Mcp-Session-Id", "Retry-After"],
        )
    app.add_middleware(Edge, metrics=parts.metrics, open_to_others=bool(settings.cors_origins))
    return app


class Edge:
    """What all answers have: figures, headers, and an end even where we made a mistake.

    Args:
        app: Answers.
        metrics: Told of each answer.
        open_to_others: Whether pages of other origins may read the answers.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, open_to_others: bool) -> None:
        self._app = app
        self._metrics = metrics
        self._headers = {**_HEADERS}
        if open_to_others:
            self._headers[b"cross-origin-resource-policy"] = b"cross-origin"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        begun = time.perf_counter()
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": self._with_own(message["headers"])}
            await send(message)

        try:
            if _is_ambiguous(scope):
                await problem_response(_AMBIGUOUS, {"Connection": "close"})(scope, receive, sending)
            else:
                await self._app(scope, receive, sending)
        except Exception as error:
            # The text of an exception may hold what a user wrote; the class does not.
            log.error("A request failed by a mistake of fairqr: %s", told_in_log(error))
            log.debug("The request failed", exc_info=error)
            if status:
                raise ConnectionAbortedError from None  # what was begun cannot be taken back
            await problem_response(problem_of(error))(scope, receive, sending)
        finally:
            seconds = time.perf_counter() - begun
            self._metrics.answered(scope["method"], _route(scope), status, seconds)
            if kind := scope.get("state", {}).get("problem"):
                self._metrics.problem(kind)

    def _with_own(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        there = {name.lower() for name, _ in headers}
        more = [(name, value) for name, value in self._headers.items() if name not in there]
        return [*headers, *more]


def _is_ambiguous(scope: Scope) -> bool:
    """Tell whether a request says in two ways how long it is.

    A proxy may believe the other one, and take what follows for a request of somebody else.
    """
    return {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}


def _route(scope: Scope) -> str:
    """Return the template of the path, which has no ids and of which there are few."""
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) else "none"
