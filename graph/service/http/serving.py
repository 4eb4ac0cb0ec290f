"""The server: it listens, limits the requests under way, and stops gracefully."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from fairqr.base.errors import BusyError, ConfigError
from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.http.answers import ProblemResponse
from fairqr.graph.service.problems import problem_of

KEPT_ALIVE = 30
"""Seconds that a connection may be idle after a request."""

LONGEST_HEADERS = 64 * 1024
"""The most bytes of a request's headers."""

LAST_ANSWERS = 2
"""Seconds to send the last responses after all runs have ended."""

_CLOSING = {"Connection": "close"}


class Server(uvicorn.Server):
    """Serves an application until it is told to stop.

    Args:
        app: The application.
        settings: The settings of the service.
        drain: Awaited before the server stops listening.
    """

    def __init__(
        self, app: ASGIApp, settings: ServiceSettings, drain: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__(
            uvicorn.Config(
                self._within_limit,
                interface="asgi3",
                http="h11",  # strict about where a request ends
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEPT_ALIVE,
                timeout_graceful_shutdown=LAST_ANSWERS,
                h11_max_incomplete_event_size=LONGEST_HEADERS,
            )
        )
        self._app = app
        self._most = settings.limits.requests
        self._under_way = 0
        self._drain = drain
        self._started: Callable[[], None] = lambda: None
        self._ending: asyncio.Task[None] | None = None

    async def _within_limit(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it if too many are under way."""
        if self._under_way >= self._most and scope["path"] != "/healthz":
            error = BusyError(
                f"The service has {self._most:,} requests under way; try again later.",
                retry_after=2.0,
                own=False,
            )
            answer = ProblemResponse(problem_of(error, scope["path"]), _CLOSING)
            return await answer(scope, receive, send)
        self._under_way += 1
        try:
            return await self._app(scope, receive, send)
        finally:
            self._under_way -= 1

    async def run_on(self, listener: socket.socket, started: Callable[[], None]) -> None:
        """Serve on a socket until SIGTERM or SIGINT; a second signal stops at once.

        A signal that is ignored stays ignored, as SIGINT is in the background of a shell's script.

        Args:
            listener: The socket; see :func:`bound`.
            started: Called when the server takes requests.
        """
        let_open_files_be_many()
        loop = asyncio.get_running_loop()
        # asyncio's own way to handle signals does not exist on Windows.
        before = {
            number: signal.signal(number, lambda *_: loop.call_soon_threadsafe(self.end))
            for number in (signal.SIGTERM, signal.SIGINT)
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        self._started = started
        try:
            await self._serve([listener])
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            if self._ending is not None:
                self._ending.cancel()
                await asyncio.wait({self._ending})

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
            self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, and report it."""
        await super().startup(sockets)
        self._started()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals to :meth:`run_on`."""
        yield


def let_open_files_be_many() -> None:
    """Raise the limit of open files as far as allowed: each connection needs one."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # some systems allow less than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def bound(settings: ServiceSettings) -> socket.socket:
    """Return a socket bound to the address; it does not listen yet.

    Raises:
        ConfigError: The address is not on this machine, is in use, or may not be used.
    """
    host, port = settings.host.strip("[]"), settings.port
    where = f"{settings.host}, port {port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise ConfigError(f"There is no address '{host}'; name one of this machine.") from None
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        why = (error.strerror or "it cannot be used").lower()
        raise ConfigError(
            f"The service cannot listen on {where}: {why}; choose another one with --port."
        ) from None
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the address to open in a browser on this machine."""
    host, port, *_ = listener.getsockname()
    named: Any = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"http://[{named}]:{port}" if ":" in named else f"http://{named}:{port}"
