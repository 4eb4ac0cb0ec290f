"""The server: it listens, limits the requests under way, and stops gracefully.

It knows nothing of the application, so that the proxy, which has none, loads none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from types import FrameType
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.loops.auto import auto_loop_factory
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.server import HANDLED_SIGNALS as SIGNALS

from fairqr.base.errors import ConfigError
from fairqr.graph.service.http.connections import Connection
from fairqr.graph.service.http.shared_metrics import forget_worker

KEPT_ALIVE = 30  # seconds that a connection may be idle, or may take to send headers
AGAIN = 1.0  # seconds until a killed worker is replaced
LAST_REQUESTS = 2  # seconds for the requests under way, once connections are told to end
TICK = 0.02  # seconds until it looks again whether all is answered
QUIET = 0.5  # seconds in which nothing may come on connections that are closed at the end

new_loop = auto_loop_factory()
"""Returns an event loop: uvloop's, which takes a quarter less of a search, but on Windows."""

log = logging.getLogger(__name__)


class Server(uvicorn.Server):
    """Serves an application until it is told to stop.

    Args:
        app: The application.
        drain: Awaited before the server stops listening.
        last_requests: Seconds for the requests under way, once it does not listen any more.
        how: More of uvicorn's options.
    """

    def __init__(
        self,
        app: ASGIApp,
        drain: Callable[[], Awaitable[None]],
        last_requests: float = LAST_REQUESTS,
        **how: Any,
    ) -> None:
        config = uvicorn.Config(
            app,
            interface="asgi3",
            http=Connection,  # h11 is strict about where a request ends
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEPT_ALIVE,
            timeout_graceful_shutdown=LAST_REQUESTS,
            **how,
        )
        super().__init__(config)
        self._drain = drain
        self._last_requests = last_requests
        self._ending: asyncio.Task[None] | None = None
        self._taken: list[asyncio.Task[None]] = []

    async def run_on(self, listener: socket.socket, started: Callable[[], None]) -> None:
        """Serve on a socket until SIGTERM or SIGINT; a second signal stops at once.

        A signal that is ignored stays ignored, as SIGINT is in the background of a shell's script.

        Args:
            listener: The socket; see :func:`bound`.
            started: Called when the server takes requests.
        """
        let_open_files_be_many()
        self._announce, self._loop = started, asyncio.get_running_loop()
        self._ignored = {sig for sig in SIGNALS if signal.getsignal(sig) is signal.SIG_IGN}
        await self.serve([listener])
        if self._ending is not None:
            await asyncio.wait({self._ending})

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what clients have sent, unless it is to stop at once."""
        self._stop_listening(sockets or [])
        self.server_state.default_headers = [*self.server_state.default_headers, CLOSE_HEADER]
        for connection in self._connections():
            connection.answer_last()
        await self._answer_all()
        if self.force_exit:
            for connection in self._connections():
                connection.transport.abort()
        await super().shutdown(sockets)

    def _connections(self) -> list[Connection]:
        return [*cast(set[Connection], self.server_state.connections)]

    def _stop_listening(self, sockets: Sequence[socket.socket]) -> None:
        """Take those who have connected already, since closing a socket resets them."""
        for listener in sockets:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:  # nobody waits
                    break
                self._taken.append(self._loop.create_task(self._take(client)))
        for server in self.servers:
            server.close()

    async def _take(self, client: socket.socket) -> None:
        def protocol() -> Connection:
            return Connection(
                config=self.config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
                _loop=self._loop,
            )

        with contextlib.suppress(OSError):  # it has left
            await self._loop.connect_accepted_socket(protocol, client, ssl=self.config.ssl)

    async def _answer_all(self) -> None:
        """Wait until nothing comes any more and all that came is answered."""
        started = self._loop.time()
        while (self._taken or self.server_state.connections) and not self.force_exit:
            await asyncio.sleep(TICK)
            self._taken = [task for task in self._taken if not task.done()]
            passed = self._loop.time() - started
            is_quiet = not any(it.has_request for it in self._connections())
            if passed > self._last_requests or (is_quiet and passed > QUIET):
                return

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to take requests, and say so."""
        await super().startup(sockets)
        self._announce()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop because of a signal."""
        if sig not in self._ignored:
            self._loop.call_soon_threadsafe(self.end)

    def end(self) -> None:
        """Stop when all work is done or handed back; the second call stops at once."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        else:
            self._ending.cancel()
            self.force_exit = True

    async def _end(self) -> None:
        try:
            await self._drain()
        finally:
            self.should_exit = True  # only now: MCP's streams end with it


def let_open_files_be_many() -> None:
    """Raise the limit of open files as far as allowed: each connection needs one."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # some systems allow less than they say
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def bound(host: str, port: int) -> socket.socket:
    """Return a socket bound to the address; it does not listen yet.

    Args:
        host: A name or an address of this machine.
        port: The port; 0 for any that is free.

    Raises:
        ConfigError: The address is not on this machine, is in use, or may not be used.
    """
    try:
        name, kind, passive = host.strip("[]"), socket.SOCK_STREAM, socket.AI_PASSIVE
        family, *_, address = socket.getaddrinfo(name, port, type=kind, flags=passive)[0]
        return _bound(family, address, socket.SO_REUSEADDR)
    except (OSError, UnicodeError) as error:
        why = (getattr(error, "strerror", None) or "there is no such address").lower()
        raise ConfigError(
            f"The service cannot listen on {host}, port {port}: {why}; choose another host or port."
        ) from None


def _bound(family: int, address: Any, *options: int) -> socket.socket:
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(socket.socket(family))
        for option in options:
            made.setsockopt(socket.SOL_SOCKET, option, 1)
        made.bind(address)
        made.setblocking(False)
        stack.pop_all()
    return made


def fork(number: int, listener: socket.socket) -> tuple[bool, socket.socket]:
    """Return in so many new processes at the address; those that are killed come back.

    Each gets a socket of its own, among which the system shares connections out: of one that all
    listen on, whoever wakes first takes all connections that wait.

    This process waits for them, hands SIGTERM and SIGINT on, and then exits: with 0, or with the
    code of the first that ended alone, whereupon the others are ended. If it is killed, they
    end.

    Args:
        number: The number of processes.
        listener: The socket; see :func:`bound`. It keeps the port from other programs.

    Returns:
        Whether this is the first of them, and the socket to listen on.

    Raises:
        ConfigError: This system has no fork.
    """
    if not hasattr(os, "fork"):
        raise ConfigError("Several workers need a system like Linux; leave out --workers.")
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    # What is ignored stays so, as SIGINT is in the background of a shell's script.
    taken = [sig for sig in SIGNALS if signal.getsignal(sig) is not signal.SIG_IGN]
    before = {sig: signal.getsignal(sig) for sig in taken}
    children: set[int] = set()
    code: int | None = None

    def end(*_: object) -> None:
        nonlocal code
        code = code or 0
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)

    is_first = True
    ending, never_written = os.pipe()  # it ends with this process
    while code is None or children:
        while code is None and len(children) < number:
            signal.pthread_sigmask(signal.SIG_BLOCK, taken)  # it is not known yet whose child it is
            child = os.fork()
            for sig in taken:
                signal.signal(sig, end if child else before[sig])
            if child:
                children.add(child)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, taken)
            if not child:
                os.close(never_written)
                threading.Thread(target=_end_after, args=(ending,), daemon=True).start()
                os.setpgrp()  # a terminal's Ctrl-C comes by the parent alone, and so but once
                options = (socket.SO_REUSEADDR, socket.SO_REUSEPORT)
                return is_first, _bound(listener.family, listener.getsockname(), *options)
            is_first = False
        child, status = os.wait()
        children.discard(child)
        forget_worker(child)
        if code is None and os.WIFEXITED(status):
            code = os.WEXITSTATUS(status)
            end()
        elif code is None:
            log.warning(
                "A worker was killed by signal %d; another one starts.", os.WTERMSIG(status)
            )
            time.sleep(AGAIN)
    raise SystemExit(code)


def _end_after(pipe: int) -> None:
    os.read(pipe, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def url_of(listener: socket.socket) -> str:
    """Return the address to open in a browser on this machine."""
    host, port, *_ = listener.getsockname()
    named: Any = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"http://[{named}]:{port}" if ":" in named else f"http://{named}:{port}"
