"""The endpoint for agents: MCP's Streamable HTTP at ``/mcp``, behind the guard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from fastmcp.server.dependencies import get_http_request
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairqr.graph.service.engine.engine import Engine
from fairqr.graph.service.http.access import MCP_PATH, caller_of
from fairqr.graph.service.http.runs import carrier_of
from fairqr.graph.service.mcp.tools import Origin, make_server
from fairqr.graph.service.runs.manager import EphemeralRuns

# The most sessions of a worker; each takes about 70 kB until it ends or times out.
SESSIONS = 1000


@asynccontextmanager
async def mcp_app(engine: Engine, runs: EphemeralRuns) -> AsyncIterator[ASGIApp]:
    """Open the endpoint; close all its sessions in the end.

    Args:
        engine: The engine of the service.
        runs: The ephemeral runs of this process.

    Yields:
        What passes requests to the tools, with their caller and a signal when the client leaves.
    """
    app = make_server(engine, runs, _origin).http_app(MCP_PATH)

    async def with_caller(scope: Scope, receive: Receive, send: Send) -> None:
        caller, gone = caller_of(scope), asyncio.get_running_loop().create_future()
        # A session only answers the key that opened it.
        token = AccessToken(token="", client_id=caller.id, scopes=[*caller.scopes])
        scope["user"] = AuthenticatedUser(token)
        scope["state"]["gone"] = gone

        async def receiving() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect" and not gone.done():
                gone.set_result(None)
            return message

        await app(scope, receiving, send)

    async with app.lifespan(app):
        speaker: Any = cast(Route, app.routes[0]).endpoint
        speaker.session_manager.max_sessions = SESSIONS
        yield with_caller


def _origin() -> Origin:
    request = get_http_request()
    return Origin(caller_of(request.scope).id, carrier_of(request), request.scope["state"]["gone"])
