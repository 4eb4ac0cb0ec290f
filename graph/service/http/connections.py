"""Connections of clients: what they may send, how long they may be silent, and how they end."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from typing import Any

import h11
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol

from fairqr.graph.service.problems import MEDIA_TYPE, problem

NO_HTTP = "This is no HTTP request that a server may answer; check what sends it."

LONGEST_HEADERS = 64 * 1024
"""Bytes of the headers of a request."""

READ_WITHIN = 60.0
"""Seconds in which a client has to read some of what we send."""

LAST_ANSWERS = 1.5
"""Seconds to receive the last requests and send their responses, once the server ends."""

_ABSOLUTE = re.compile(rb"https?://([^/?#@]+)(/[^?#]*)?(\?[^#]*)?", re.IGNORECASE)
"""A target with the address of the server: its authority, its path and its query."""


# Without warnings: a client that sends no HTTP gets an answer, and could otherwise fill the log.
log = logging.getLogger(__name__)
log.setLevel(logging.ERROR)


class RequestParser(h11.Connection):
    """Parses requests. Whoever looks at one sees a path, also if its target was a whole URI."""

    def next_event(self) -> Any:
        """Return what comes next.

        Raises:
            RemoteProtocolError: It is no HTTP.
        """
        event = super().next_event()
        return _in_origin_form(event) if isinstance(event, h11.Request) else event


def _in_origin_form(request: h11.Request) -> h11.Request:
    """Return a request whose target is a path and a query, as RFC 9112, 3.2 has it.

    The authority of a whole URI counts in the place of the header Host.

    Raises:
        RemoteProtocolError: The target is neither a path nor such a URI.
    """
    is_path = request.target.startswith(b"/")
    is_of_server = request.method == b"OPTIONS" and request.target == b"*"
    if is_path or is_of_server:
        return request

    match = _ABSOLUTE.fullmatch(request.target)
    if match is None:
        raise h11.RemoteProtocolError("The target is neither a path nor a URI.")
    authority, path, query = match.groups(default=b"")
    headers = [(b"host", authority)]
    for name, value in request.headers:
        if name != b"host":
            headers.append((name, value))
    return h11.Request(
        method=request.method,
        headers=headers,
        target=(path or b"/") + query,
        http_version=request.http_version,
    )


class Connection(H11Protocol):
    """A connection that ends if its client neither goes on with its headers, nor reads.

    uvicorn itself bounds only the silence after a response. To the application, the end looks as if
    the client had left.
    """

    _awaiting_headers: asyncio.TimerHandle | None = None
    _awaiting_reader: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.logger = log
        self.conn = RequestParser(h11.SERVER, LONGEST_HEADERS)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop_waiting_for_headers()
        self._stop_waiting_for_reader()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Go on waiting, unless a request is there. What comes bit by bit gains no time."""
        super().data_received(data)
        if self._is_answering:
            self._stop_waiting_for_headers()
        elif self._awaiting_headers is None:
            self._await_headers()

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        """Go on: it has read."""
        self._stop_waiting_for_reader()
        if not self._is_answering:
            self._await_reader()  # of the rest
        super().resume_writing()

    def on_response_complete(self) -> None:
        """Wait for the client to read the rest, which may be too small to pause for."""
        self._await_reader()
        super().on_response_complete()

    def _await_reader(self) -> None:
        self._stop_waiting_for_reader()
        unread = self.transport.get_write_buffer_size()
        self._awaiting_reader = self.loop.call_later(READ_WITHIN, self._check_reader, unread)

    def _check_reader(self, unread_before: int) -> None:
        """End the connection if its client has read nothing since; wait on if it has not read all.

        Args:
            unread_before: The bytes that it had not read when the wait began.
        """
        self._awaiting_reader = None
        unread = self.transport.get_write_buffer_size()
        if not unread:
            return
        if unread >= unread_before:
            self.transport.abort()
        else:
            self._await_reader()

    def _stop_waiting_for_reader(self) -> None:
        if self._awaiting_reader is not None:
            self._awaiting_reader.cancel()
            self._awaiting_reader = None

    @property
    def has_request(self) -> bool:
        """Whether a request has come, or a part of one, that is not answered to its end."""
        is_sending = self.transport.get_write_buffer_size() > 0
        return self._is_answering or is_sending or bool(self.conn.trailing_data[0])

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def answer_last(self) -> None:
        """Say in the response under way, if it has not begun, that it is the last."""
        if self._is_answering:
            self.cycle.keep_alive = False
            self.cycle.default_headers = [*self.cycle.default_headers, CLOSE_HEADER]

    def shutdown(self) -> None:
        """End with the response under way, or soon: as if the client had left."""
        super().shutdown()
        # uvicorn would cancel the application, and print where it was.
        self.loop.call_later(LAST_ANSWERS, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, as a problem of RFC 9457; end a response that has begun."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return

        document = problem("request", 400, "The request cannot be served", NO_HTTP)
        body = json.dumps(document).encode()
        headers = [
            ("content-type", MEDIA_TYPE),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        response: list[Any] = [
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ]
        for event in response:
            data = self.conn.send(event)
            if data is not None:
                self.transport.write(data)
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: a client that asks for another protocol is answered in this one."""

    def _await_headers(self) -> None:
        self._awaiting_headers = self.loop.call_later(self.timeout_keep_alive, self._end)

    def _stop_waiting_for_headers(self) -> None:
        if self._awaiting_headers is not None:
            self._awaiting_headers.cancel()
            self._awaiting_headers = None

    def _end(self) -> None:
        self._awaiting_headers = None
        self.transport.close()
