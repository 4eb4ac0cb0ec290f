"""The application: the routes and the middleware around them."""

from __future__ import annotations

import asyncio
import logging
import time
from importlib.metadata import version
from typing import TYPE_CHECKING

from anyio import BrokenResourceError
from fastapi import Depends, FastAPI
from starlette.datastructures import MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairqr.graph.service.http.access import Guard
from fairqr.graph.service.http.answers import ProblemResponse, handle_errors
from fairqr.graph.service.http.bodies import Bodies
from fairqr.graph.service.http.metrics import Metrics
from fairqr.graph.service.http.openapi import DESCRIPTION, KEY, PROBLEMS, TAGS
from fairqr.graph.service.http.pages import POLICY, add_pages
from fairqr.graph.service.http.parts import Parts
from fairqr.graph.service.http.routes import asking, audits, listing, openai, operation, reading
from fairqr.graph.service.http.throttle import Throttle
from fairqr.graph.service.problems import problem, problem_of, told_in_log

if TYPE_CHECKING:
    from fastapi.telemetry import TelemetryConfig

READ_WITHIN = 60.0
"""Seconds that a client has to read what we send; after that we close its connection."""

log = logging.getLogger(__name__)

_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": POLICY,
    # Browsers check each time, so that a new version of the service brings its page at once.
    "cache-control": "no-cache",
}
"""The headers of all responses that have no others. The policy is the strict one of the page."""

_AMBIGUOUS = problem(
    "malformed",
    400,
    "The request cannot be read",
    "Send either Content-Length or Transfer-Encoding, not both.",
)

_TELEMETRY: TelemetryConfig = {
    "exclude": lambda scope: scope["path"] in ("/healthz", "/readyz", "/metrics"),
    "operation_spans": False,
    # Logs would contain the texts of errors, which may quote the request.
    "logs": False,
    "auto_configure": False,
}
"""Settings of FastAPI's own spans of requests, which older versions do not have.

:mod:`fairqr.base.exporting` says where spans go.
"""


def create_app(parts: Parts) -> FastAPI:
    """Return the application.

    Args:
        parts: The parts of the service; the caller starts and ends them.
    """
    settings = parts.settings
    app = FastAPI(
        title="fairqr",
        version=version("fairqr"),
        description=DESCRIPTION,
        openapi_tags=TAGS,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        responses=PROBLEMS,
        # FastAPI's own pages load scripts from other hosts.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry=_TELEMETRY,
    )
    app.state.parts = parts
    handle_errors(app)
    for module in (asking, reading, audits, listing, openai):
        app.include_router(module.router, dependencies=[Depends(KEY)])
    app.include_router(operation.router)
    add_pages(app)
    # From the inside to the outside: each sees only what those after it let through.
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
    """Adds headers and metrics to all responses, and answers with a problem if we have a bug.

    Args:
        app: The application inside.
        metrics: Counts the responses.
        open_to_others: Whether pages of other origins may read the responses.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, open_to_others: bool) -> None:
        self._app = app
        self._metrics = metrics
        self._headers = {**_HEADERS}
        if open_to_others:
            self._headers["cross-origin-resource-policy"] = "cross-origin"

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
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
            async with asyncio.timeout(READ_WITHIN):
                await send(message)

        try:
            if _is_ambiguous(scope):
                await ProblemResponse(_AMBIGUOUS, {"Connection": "close"})(scope, receive, sending)
            else:
                try:
                    await self._app(scope, receive, sending)
                except* BrokenResourceError:
                    pass  # FastAPI's stream ends so if its client leaves while an event waits
        except Exception as error:
            # The text of an exception may quote a user; its class does not.
            log.error("A request failed because of a bug in fairqr: %s", told_in_log(error))
            log.debug("The request failed", exc_info=error)
            if status:
                raise ConnectionAbortedError from None  # the response has started already
            await ProblemResponse(problem_of(error))(scope, receive, sending)
        finally:
            seconds = time.perf_counter() - begun
            self._metrics.answered(scope["method"], _route(scope), status, seconds)
            if kind := scope.get("state", {}).get("problem"):
                self._metrics.problem(kind)


def _is_ambiguous(scope: Scope) -> bool:
    """Return whether a request gives its length in two ways.

    A proxy might believe the other one, and take the rest for somebody else's request.
    """
    return {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}


def _route(scope: Scope) -> str:
    """Return the template of the path: it has no ids, and there are only a few."""
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) else "none"
