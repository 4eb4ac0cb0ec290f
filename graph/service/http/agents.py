"""The door for agents: MCP's Streamable HTTP at ``/mcp``, behind the guard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self, cast

from fastmcp.server.dependencies import get_http_request
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairqr.graph.service.engine.engine import Engine
from fairqr.graph.service.http.access import MCP_PATH, caller_of
from fairqr.graph.service.http.routes.asking import carrier_of
from fairqr.graph.service.mcp.tools import Origin, make_server
from fairqr.graph.service.runs.ephemeral import EphemeralRuns

__all__ = ["McpDoor"]

SESSIONS = 1000
"""How many sessions a worker keeps; each takes about 70 kB until it ends or is idle for long."""


class McpDoor:
    """Hands requests to the tools, and tells them who asks and when that client goes.

    Args:
        app: Speaks MCP over HTTP.

    Attributes:
        route: Leads here. There is no GET: the tools tell nothing that was not asked for.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.route = Route(MCP_PATH, self, methods=["POST", "DELETE"])

    @classmethod
    @asynccontextmanager
    async def opened(cls, engine: Engine, runs: EphemeralRuns) -> AsyncIterator[Self]:
        """Open the door, and end all its sessions at last.

        Args:
            engine: Of the service.
            runs: Of this process.
        """
        app = make_server(engine, runs, _origin).http_app(MCP_PATH)
        async with app.lifespan(app):
            speaker: Any = cast(Route, app.routes[0]).endpoint
            speaker.session_manager.max_sessions = SESSIONS
            yield cls(app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        caller, gone = caller_of(scope), asyncio.Event()
        # A session answers only the key that began it.
        token = AccessToken(token="", client_id=caller.id, scopes=[*caller.scopes])
        scope.update(user=AuthenticatedUser(token), route=self.route)
        scope["state"]["gone"] = gone

        async def receiving() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                gone.set()
            return message

        await self._app(scope, receiving, send)


def _origin() -> Origin:
    request = get_http_request()
    return Origin(caller_of(request.scope).id, carrier_of(request), request.scope["state"]["gone"])
