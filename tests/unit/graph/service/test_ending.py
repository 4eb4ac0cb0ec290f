"""A server that ends answers who has connected, even if it has not accepted the connection yet."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from fairqr.graph.service.http.serving import Server, bound, new_loop

REQUEST = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"answered"})


class LateServer(Server):
    """Has clients that connect and ask in the moment in which it ends."""

    clients: list[socket.socket]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets
        address = sockets[0].getsockname()
        self.clients = [socket.create_connection(address) for _ in range(10)]
        for client in self.clients:
            client.sendall(REQUEST)
        await super().shutdown(sockets)


async def serve_to_the_end() -> LateServer:
    server = LateServer(answer, lambda: asyncio.sleep(0))
    await server.run_on(bound("127.0.0.1", 0), server.end)
    return server


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, new_loop], ids=["asyncio", "uvloop"])
def test_who_connects_in_the_last_moment_is_answered(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        server = runner.run(serve_to_the_end())
    for client in server.clients:
        with client:
            reply = client.makefile("rb").read()
        assert reply.startswith(b"HTTP/1.1 200")
        assert b"answered" in reply
        assert b"connection: close" in reply.lower()
