"""The server: it listens, guards against clients that are slow or many, and ends in good order."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from fairqr.base.errors import BusyError, ConfigError
from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.http.answers import problem_response
from fairqr.graph.service.problems import problem, problem_of

__all__ = ["Server", "bound", "url_of"]

HEADERS_WITHIN = 20.0
"""Seconds that the headers of a request may take."""

KEPT_ALIVE = 30
"""Seconds that a connection may be without a request."""

READ_WITHIN = 60.0
"""Seconds in which a client has to read what it is sent; one that does not is let go."""

LONGEST_HEADERS = 64 * 1024
"""Bytes."""

LAST_ANSWERS = 2
"""Seconds to send what is to be sent, once nothing runs any more."""

SPARE = 50
"""Connections above the limit that are told so; those beyond are closed without a word."""

_CLOSING = {"Connection": "close"}
_NO_HTTP = problem(
    "malformed",
    400,
    "The request cannot be read",
    f"Send a request of HTTP/1.1, with at most {LONGEST_HEADERS:,} bytes of headers.",
)


class _Protocol(H11Protocol):
    """HTTP/1.1, where a client is let go that does not finish what it sends, or does not read."""

    _late: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Who is one too many is told so by the server; see Server. A flood is not: each connection
        # takes a file, and the index and the database need files too.
        most, self.limit_concurrency = self.config.limit_concurrency, None
        if most is not None and len(self.connections) > most + SPARE:
            transport.abort()
            return
        # Whatever the system does not take at once is waited for, however little it is.
        transport.set_write_buffer_limits(high=0)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        self._is_read()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(READ_WITHIN, self.transport.abort)

    def resume_writing(self) -> None:
        self._is_read()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP as all errors are answered; not in the middle of an answer."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            answer = problem_response(_NO_HTTP, _CLOSING)
            for event in (
                h11.Response(status_code=answer.status_code, headers=answer.raw_headers),
                h11.Data(data=bytes(answer.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _watch(self) -> None:
        """Run the clock while headers are under way, or the rest of a body that was answered."""
        waited_for = self.conn.their_state is h11.IDLE or self.conn.our_state is h11.DONE
        if not waited_for or self.timeout_keep_alive_task is not None:
            self._unwatch()
        elif self._late is None:
            self._late = self.loop.call_later(HEADERS_WITHIN, self.transport.abort)

    def _unwatch(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _is_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


class Server(uvicorn.Server):
    """Serves an application until it is told to end.

    Args:
        app: The application.
        settings: Of the service.
        drain: Awaited when the server is told to end, before it stops to listen.
    """

    def __init__(
        self, app: ASGIApp, settings: ServiceSettings, drain: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__(
            uvicorn.Config(
                self._within_limit,
                interface="asgi3",
                http=_Protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                limit_concurrency=settings.limits.connections,
                timeout_keep_alive=KEPT_ALIVE,
                timeout_graceful_shutdown=LAST_ANSWERS,
                h11_max_incomplete_event_size=LONGEST_HEADERS,
            )
        )
        self._app = app
        self._drain = drain
        self._started: Callable[[], None] = lambda: None
        self._ending: asyncio.Task[None] | None = None

    async def _within_limit(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse at once where there are too many connections."""
        most = self.config.limit_concurrency or 0
        if len(self.server_state.connections) <= most or scope["path"] == "/healthz":
            return await self._app(scope, receive, send)
        error = BusyError(
            f"The service has more than {most:,} connections; close some, or try again later.",
            retry_after=2.0,
            own=False,
        )
        return await problem_response(problem_of(error, scope["path"]), _CLOSING)(
            scope, receive, send
        )

    async def run_on(self, listener: socket.socket, started: Callable[[], None]) -> None:
        """Serve on a socket, until SIGTERM or SIGINT; a second one ends at once.

        Args:
            listener: See :func:`bound`.
            started: Called when requests are taken.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.end)
        self._started = started
        try:
            await self._serve([listener])
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            if self._ending is not None:
                self._ending.cancel()
                await asyncio.wait({self._ending})

    def end(self) -> None:
        """End when all work is done or given back; at once where that was asked for before."""
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
        """Begin to listen, and say so."""
        await super().startup(sockets)
        self._started()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals to :meth:`run_on`."""
        yield


def bound(settings: ServiceSettings) -> socket.socket:
    """Return a socket that has the address; it takes connections only when it is served on.

    Raises:
        ConfigError: The address is not of this machine, is in use, or may not be used.
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
    """Return the address that a browser on this machine takes."""
    host, port, *_ = listener.getsockname()
    named: Any = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"http://[{named}]:{port}" if ":" in named else f"http://{named}:{port}"
