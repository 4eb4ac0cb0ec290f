"""The endpoint for agents: MCP's Streamable HTTP at ``/mcp``, behind the guard."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib import import_module

from fastmcp.server.dependencies import get_http_request
from mcp.types import INVALID_REQUEST, jsonrpc_message_adapter
from pydantic import ValidationError
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairqr.graph.service.execution.executor import Executor
from fairqr.graph.service.http.access import MCP_PATH, access_key_of
from fairqr.graph.service.http.answers import Json
from fairqr.graph.service.http.runs import carrier_of
from fairqr.graph.service.mcp.server import make_server
from fairqr.graph.service.mcp.tools import ToolCaller
from fairqr.graph.service.runs.manager import EphemeralRuns

for module in ("key_value.aio.adapters.pydantic", "key_value.aio.stores.memory"):
    with suppress(ImportError):
        # FastMCP would load them at the first call, for a second in which nothing else goes on.
        import_module(module)

_EVENTS = re.compile(r"text/(event-stream|\*)")
"""What a client takes that reads events; for others there is one JSON object."""

_WRONG = "Send one message of JSON-RPC 2.0, with 'jsonrpc', 'method' and 'id'."
_NO_MESSAGE = {"jsonrpc": "2.0", "id": None, "error": {"code": INVALID_REQUEST, "message": _WRONG}}


@asynccontextmanager
async def mcp_app(executor: Executor, runs: EphemeralRuns) -> AsyncIterator[ASGIApp]:
    """Open the endpoint. It keeps no sessions, so any worker may answer any request.

    Args:
        executor: Checks and runs what a tool is asked for.
        runs: The ephemeral runs of this process.

    Yields:
        An application that passes requests to the tools, with their caller and a signal when the
        client leaves.
    """
    server = make_server(executor, runs, _tool_caller)
    in_events = server.http_app(MCP_PATH, stateless_http=True)
    in_json = server.http_app(MCP_PATH, stateless_http=True, json_response=True)

    async def with_caller(scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.get_running_loop().create_future()
        scope["state"]["gone"] = gone

        messages = [await receive()]  # the whole body, as the guard has read it
        body = messages[0].get("body", b"")
        if not _is_json_rpc(body):
            await Json(_NO_MESSAGE, 400)(scope, receive, send)
            return

        async def receive_or_leave() -> Message:
            message = messages.pop() if messages else await receive()
            if message["type"] == "http.disconnect" and not gone.done():
                gone.set_result(None)
            return message

        headers = MutableHeaders(raw=[*scope["headers"]])
        accepted = headers.get("accept") or "*/*"  # as HTTP has it
        headers["accept"] = accepted
        app = in_events if _EVENTS.search(accepted) else in_json
        inner_scope = {**scope, "path": MCP_PATH, "headers": headers.raw}
        await app(inner_scope, receive_or_leave, send)

    async with in_events.lifespan(in_events), in_json.lifespan(in_json):
        yield with_caller


def _is_json_rpc(body: bytes) -> bool:
    """Return whether a body is one message of JSON-RPC that we answer."""
    try:
        jsonrpc_message_adapter.validate_json(body, by_name=False)
    except ValidationError:
        return False
    message = json.loads(body)
    if "method" not in message:
        return True
    # MCP forbids other ids; a request that has one would pass as a notification.
    id_ = message.get("id", "")
    return isinstance(id_, str | int) and not isinstance(id_, bool)


def _tool_caller() -> ToolCaller:
    """Return the caller of the tool call that is answered now."""
    request = get_http_request()
    gone = request.scope["state"]["gone"]
    return ToolCaller(access_key_of(request.scope).id, carrier_of(request), gone)
