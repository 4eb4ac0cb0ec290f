"""The application: it joins the routes of the other files, the page, and the middleware."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import mimetypes
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import cache
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from anyio import BrokenResourceError
from fastapi import Depends, FastAPI
from fastapi.security import HTTPBearer
from starlette.datastructures import MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.http import (
    audits,
    listings,
    openai,
    openai_responses,
    rerank,
    runs,
)
from fairqr.graph.service.http.access import MCP_PATH, Guard
from fairqr.graph.service.http.answers import HANDLERS, PROBLEMS, PlainErrors, refusal
from fairqr.graph.service.http.below import Below
from fairqr.graph.service.http.parts import Metrics, ServiceParts
from fairqr.graph.service.problems import class_and_place, problem_of

log = logging.getLogger(__name__)

_DESCRIPTION = (
    "Fair search, fair answers, and probes of language models as rankers. The requests and results "
    "are those of the Python API. Errors are problem documents (RFC 9457) of the types "
    "`urn:fairqr:error:…`; below `/openai/` they have OpenAI's form. Streams are server-sent "
    "events: `id` is the number of the event, `event` one of `run` (its summary), `step` (its "
    "outcome), `token` (`text`, a piece of an answer), `end` (the id as `run`, and the `result`) "
    "and `error` (the problem), and `data` a JSON object. A `token` has no id, since it is sent "
    "only once. Comments show that a stream is alive."
)
# It only describes the keys: the guard checks them.
_KEY = HTTPBearer(
    scheme_name="key",
    description=(
        "An access key from `fairqr keys create`. Its scope is `read`, `run` (which includes "
        "`read`) or `admin` (which includes both). On loopback no key is needed, unless the "
        "service requires one."
    ),
    auto_error=False,
)

# The headers of all responses that have no others.
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",  # pages of cors_origins are not affected
    # The page may load its own files, and nothing else.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; frame-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    # Browsers check each time, so that a new version of the service brings its page at once.
    "cache-control": "no-cache",
}

# FastAPI's own spans of requests; :mod:`fairqr.base.exporting` says where they go. Its logs would
# contain the texts of errors, which may quote the request.
_TELEMETRY: Any = {
    "exclude": lambda scope: scope["path"] in ("/healthz", "/readyz", "/metrics"),
    "operation_spans": False,
    "logs": False,
    "auto_configure": False,
}


def create_app(parts: ServiceParts) -> FastAPI:
    """Return the application.

    Args:
        parts: The parts of the service; the caller starts and ends them.
    """
    settings = parts.settings
    app = FastAPI(
        title="fairqr",
        version=version("fairqr"),
        description=_DESCRIPTION,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        responses=PROBLEMS,
        exception_handlers=HANDLERS,
        # FastAPI would write it for each request; its own pages load scripts from other hosts.
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry=_TELEMETRY,
        servers=[{"url": settings.root_path}] if settings.root_path else None,
    )
    app.state.parts = parts
    for module in (runs, audits, rerank, listings, openai, openai_responses):
        app.include_router(module.router, dependencies=[Depends(_KEY)])
    app.include_router(listings.operation)
    _add_pages(app)
    # From the inside to the outside: a request passes the last one first.
    app.add_middleware(Guard, settings=settings, store=parts.store)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["Location", "Retry-After"],
        )
    if settings.root_path:
        app.add_middleware(Below, root=settings.root_path)
    app.add_middleware(PlainErrors)
    app.add_middleware(Edge, metrics=parts.metrics)
    return app


@contextlib.asynccontextmanager
async def running(
    settings: ServiceSettings, *options: Any
) -> AsyncIterator[tuple[FastAPI, Callable[[], Awaitable[None]]]]:
    """Start a service, and stop it in the end.

    Args:
        settings: The settings of the service.
        options: See :meth:`ServiceParts.started`.

    Yields:
        The application, and a function that drains it within the grace time: it accepts no more
        runs, and the runs under way end or are handed back.
    """
    async with (
        ServiceParts.started(settings, *options, listens=True) as parts,
        contextlib.AsyncExitStack() as stack,
    ):
        app = create_app(parts)
        if find_spec("fastmcp") is not None:
            endpoint = await stack.enter_async_context(contextlib.aclosing(McpEndpoint(parts)))
            app.router.routes.append(endpoint.route)
        yield app, lambda: parts.runs.drain(settings.grace)


class McpEndpoint:
    """The endpoint for agents. Its first request opens it: its libraries take a second to load.

    It keeps no sessions, so there is nothing to delete.

    Args:
        parts: The parts of the service.

    Attributes:
        route: The route to it. It has no GET, since the tools send nothing unasked.
    """

    def __init__(self, parts: ServiceParts) -> None:
        self.route = Route(MCP_PATH, self, methods=["POST"])
        self._parts = parts
        self._is_wanted = asyncio.Event()
        self._mcp_app = asyncio.get_running_loop().create_future()
        self._keeping = asyncio.create_task(self._keep_open())

    async def _keep_open(self) -> None:
        await self._is_wanted.wait()
        try:
            module = await asyncio.to_thread(
                import_module, "fairqr.graph.service.http.mcp_endpoint"
            )
            async with module.mcp_app(self._parts.executor, self._parts.runs) as mcp_app:
                self._mcp_app.set_result(mcp_app)
                await asyncio.Event().wait()  # until it is closed
        except Exception as error:
            self._mcp_app.set_exception(error)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        self._is_wanted.set()
        scope["route"] = self.route
        mcp_app = await asyncio.shield(self._mcp_app)
        await mcp_app(scope, receive, send)

    async def aclose(self) -> None:
        """Close it."""
        self._keeping.cancel()
        await asyncio.wait({self._keeping})


class _Files(StaticFiles):
    """The files of the page, without the file that makes their folder a Python package."""

    def lookup_path(self, path: str) -> tuple[str, Any]:
        """Find a file; an empty path and None if there is none."""
        if "__" in path:
            return "", None
        return super().lookup_path(path)


def _add_pages(app: FastAPI) -> None:
    """Add the page and its files; they need no key."""
    for ending, media_type in ((".js", "text/javascript"), (".css", "text/css")):
        mimetypes.add_type(media_type, ending)  # some systems call them plain text
    # In a checkout, the glossary is a link to the documentation's.
    files = _Files(packages=[("fairqr.graph.service", "page")], follow_symlink=True)
    app.mount("/page", files)

    @cache
    def schema() -> bytes:
        return json.dumps(app.openapi()).encode()

    @app.api_route("/openapi.json", methods=["GET", "HEAD"], include_in_schema=False)
    async def openapi() -> Response:
        return Response(schema(), media_type="application/json")

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)


class Edge:
    """Adds headers and metrics to all responses, and answers with a problem if we have a bug.

    Args:
        app: The application inside.
        metrics: Counts the responses.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        started = time.perf_counter()
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            try:
                await self._app(scope, receive, send_with_headers)
            except* BrokenResourceError:
                pass  # FastAPI's stream ends so if its client leaves while an event waits
        except Exception as error:
            # The text of an exception may quote a user; its class does not.
            log.error("A request failed because of a bug in fairqr: %s", class_and_place(error))
            if status:
                raise ConnectionAbortedError from None  # the response has started already
            response = refusal(scope, problem_of(error))
            await response(scope, receive, send_with_headers)
        finally:
            seconds = time.perf_counter() - started
            problem = scope.get("state", {}).get("problem")
            # The template of the path: it has no ids, and there are only a few.
            route = str(getattr(scope.get("route"), "path", "none"))
            self._metrics.answered(scope["method"], route, status, seconds, problem)
