"""The server: it listens, limits the requests under way, and stops gracefully.

It knows nothing of the application, so that the proxy need not load it.
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

KEPT_ALIVE = 30
"""Seconds that a connection may be idle, or may take to send headers."""

AGAIN = 1.0
"""Seconds until a killed worker is replaced."""

LAST_REQUESTS = 2
"""Seconds for the requests under way, once connections are to end."""

TICK = 0.02
"""Seconds between two looks whether all requests are answered."""

QUIET = 0.5
"""Seconds without a request after which the last connections are closed."""

new_loop = auto_loop_factory()
"""Returns an event loop: uvloop's, which takes a quarter less of a search, but on Windows."""

log = logging.getLogger(__name__)


class Server(uvicorn.Server):
    """Serves an application until it is stopped.

    Args:
        app: The application.
        drain: Awaited before the server stops listening.
        last_requests: Seconds for the requests under way, once it does not listen any more.
        options: More of uvicorn's options.
    """

    def __init__(
        self,
        app: ASGIApp,
        drain: Callable[[], Awaitable[None]],
        last_requests: float = LAST_REQUESTS,
        **options: Any,
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
            **options,
        )
        super().__init__(config)
        self._drain = drain
        self._last_requests = last_requests
        self._ending: asyncio.Task[None] | None = None
        self._accepting: list[asyncio.Task[None]] = []

    async def run_on(self, listener: socket.socket, started: Callable[[], None]) -> None:
        """Serve on a socket until SIGTERM or SIGINT; a second signal stops at once.

        A signal that is ignored stays ignored, as SIGINT is in the background of a shell's script.

        Args:
            listener: The socket; see :func:`bound`.
            started: Called when the server takes requests.
        """
        let_open_files_be_many()
        self._announce = started
        self._loop = asyncio.get_running_loop()
        self._ignored = {sig for sig in SIGNALS if signal.getsignal(sig) is signal.SIG_IGN}
        await self.serve([listener])
        if self._ending is not None:
            await asyncio.wait({self._ending})

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what clients have sent, unless it is to stop at once."""
        self._stop_listening(sockets or [])
        state = self.server_state
        state.default_headers = [*state.default_headers, CLOSE_HEADER]
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
        """Accept clients that have connected already, since closing a socket resets them."""
        for listener in sockets:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:  # nobody waits
                    break
                accepting = self._loop.create_task(self._accept(client))
                self._accepting.append(accepting)
        for server in self.servers:
            server.close()

    async def _accept(self, client: socket.socket) -> None:
        def make_connection() -> Connection:
            return Connection(
                config=self.config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
                _loop=self._loop,
            )

        with contextlib.suppress(OSError):  # it has left
            await self._loop.connect_accepted_socket(make_connection, client, ssl=self.config.ssl)

    async def _answer_all(self) -> None:
        """Wait until no more requests come and all are answered, or until it takes too long."""
        started = self._loop.time()
        while not self.force_exit:
            if not self._accepting and not self.server_state.connections:
                return
            await asyncio.sleep(TICK)
            self._accepting = [task for task in self._accepting if not task.done()]

            passed = self._loop.time() - started
            has_requests = any(connection.has_request for connection in self._connections())
            is_quiet = not has_requests and passed > QUIET
            if is_quiet or passed > self._last_requests:
                return

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to take requests, and say so."""
        await super().startup(sockets)
        self._announce()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop because of a signal, unless it was ignored when we started."""
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
        resolved = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, *_, address = resolved[0]
        return _bind(family, address, socket.SO_REUSEADDR)
    except (OSError, UnicodeError) as error:
        reason = (getattr(error, "strerror", None) or "there is no such address").lower()
        raise ConfigError(
            f"The service cannot listen on {host}, port {port}: {reason}; choose another host or "
            "port."
        ) from None


def _bind(family: int, address: Any, *options: int) -> socket.socket:
    """Return a socket with these options, bound to an address; it is closed if that fails."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(family))
        for option in options:
            listener.setsockopt(socket.SOL_SOCKET, option, 1)
        listener.bind(address)
        listener.setblocking(False)
        stack.pop_all()
    return listener


class _Workers:
    """The processes that this one has forked and waits for.

    It hands SIGTERM and SIGINT on to them. A signal that is ignored stays ignored, as SIGINT is in
    the background of a shell's script.

    Attributes:
        children: The ids of the processes that live.
        code: The exit code, once all are to end; None until then.
    """

    def __init__(self) -> None:
        self.children: set[int] = set()
        self.code: int | None = None
        handlers = {sig: signal.getsignal(sig) for sig in SIGNALS}
        self._earlier_handlers = {
            sig: handler for sig, handler in handlers.items() if handler is not signal.SIG_IGN
        }

    def fork(self) -> bool:
        """Start one more process; return whether this is the new one."""
        signals = self._earlier_handlers.keys()
        # Until both processes know which one they are, no signal may come.
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        child = os.fork()
        is_child = child == 0
        for sig, handler in self._earlier_handlers.items():
            signal.signal(sig, handler if is_child else self.end)
        if not is_child:
            self.children.add(child)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        return is_child

    def end(self, *_: object) -> None:
        """End all of them."""
        self.code = self.code or 0
        for child in self.children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)

    def wait_for_one(self) -> None:
        """Wait until one has ended. If it was not killed, the others end, too."""
        child, status = os.wait()
        self.children.discard(child)
        forget_worker(child)
        if self.code is not None:
            return

        if os.WIFEXITED(status):
            self.code = os.WEXITSTATUS(status)
            self.end()
        else:
            log.warning(
                "A worker was killed by signal %d; another one starts.", os.WTERMSIG(status)
            )
            time.sleep(AGAIN)


def fork(number: int, listener: socket.socket) -> tuple[bool, socket.socket]:
    """Start processes for an address, and return in each of them; one that is killed is replaced.

    Each gets a socket of its own, and the system distributes connections over the sockets. If all
    listened on one socket, the process that wakes first would take all waiting connections.

    This process never returns. It waits for the others, hands SIGTERM and SIGINT on, and then
    exits: with 0, or with the code of the first that ended alone, whereupon the others are ended.
    If it is killed, they end.

    Args:
        number: The number of processes.
        listener: The socket; see :func:`bound`. It keeps the port from other programs.

    Returns:
        Whether this is the first process, and the socket to listen on.

    Raises:
        ConfigError: This system has no fork.
    """
    if not hasattr(os, "fork"):
        raise ConfigError("Several workers need a system like Linux; leave out --workers.")
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)

    workers = _Workers()
    is_first = True
    ending, never_written = os.pipe()  # the pipe ends with this process
    while workers.code is None or workers.children:
        while workers.code is None and len(workers.children) < number:
            is_child = workers.fork()
            if is_child:
                os.close(never_written)
                threading.Thread(target=_end_after, args=(ending,), daemon=True).start()
                # Ctrl-C in a terminal reaches this process through its parent alone, and so once.
                os.setpgrp()
                options = (socket.SO_REUSEADDR, socket.SO_REUSEPORT)
                return is_first, _bind(listener.family, listener.getsockname(), *options)
            is_first = False
        workers.wait_for_one()
    raise SystemExit(workers.code)


def _end_after(pipe: int) -> None:
    """Tell this process to end when the other end of a pipe is closed."""
    os.read(pipe, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def url_of(listener: socket.socket) -> str:
    """Return the address to open in a browser on this machine."""
    host, port, *_ = listener.getsockname()
    loopback_of = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
    name = loopback_of.get(host, host)
    if ":" in name:
        name = f"[{name}]"
    return f"http://{name}:{port}"
