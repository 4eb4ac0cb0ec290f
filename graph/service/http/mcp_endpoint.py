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
from fairqr.graph.service.mcp.tools import ToolCaller, make_server
from fairqr.graph.service.runs.manager import EphemeralRuns

for name in ("key_value.aio.adapters.pydantic", "key_value.aio.stores.memory"):
    with suppress(ImportError):
        # FastMCP would load them at the first call, for a second in which nothing else goes on.
        import_module(name)

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
        What passes requests to the tools, with their caller and a signal when the client leaves.
    """
    server = make_server(executor, runs, _tool_caller)
    in_events = server.http_app(MCP_PATH, stateless_http=True)
    in_json = server.http_app(MCP_PATH, stateless_http=True, json_response=True)

    async def with_caller(scope: Scope, receive: Receive, send: Send) -> None:
        gone = scope["state"]["gone"] = asyncio.get_running_loop().create_future()

        messages = [await receive()]  # the whole body, as the guard has read it
        if not _is_json_rpc(messages[0].get("body", b"")):
            return await Json(_NO_MESSAGE, 400)(scope, receive, send)

        async def receiving() -> Message:
            message = messages.pop() if messages else await receive()
            if message["type"] == "http.disconnect" and not gone.done():
                gone.set_result(None)
            return message

        headers = MutableHeaders(raw=[*scope["headers"]])
        takes = headers["accept"] = headers.get("accept") or "*/*"  # as HTTP has it
        app = in_events if _EVENTS.search(takes) else in_json
        return await app({**scope, "path": MCP_PATH, "headers": headers.raw}, receiving, send)

    async with in_events.lifespan(in_events), in_json.lifespan(in_json):
        yield with_caller


def _is_json_rpc(body: bytes) -> bool:
    try:
        jsonrpc_message_adapter.validate_json(body, by_name=False)
    except ValidationError:
        return False
    message = json.loads(body)
    # MCP forbids other ids; a request that has one would pass as a notification.
    id_ = message.get("id", "")
    is_id = isinstance(id_, str | int) and not isinstance(id_, bool)
    return "method" not in message or is_id


def _tool_caller() -> ToolCaller:
    request = get_http_request()
    gone = request.scope["state"]["gone"]
    return ToolCaller(access_key_of(request.scope).id, carrier_of(request), gone)
