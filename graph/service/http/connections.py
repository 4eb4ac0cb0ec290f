"""Connections of clients: how long they may be silent, and what those that break HTTP hear."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from fairqr.graph.service.problems import MEDIA_TYPE, problem

NO_HTTP = "This is no HTTP request that a server may answer; check what sends it."


class Connection(H11Protocol):
    """A connection that ends if its client is silent before a request is whole to its headers.

    uvicorn itself bounds only the silence after a response.
    """

    _awaiting_headers: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Go on waiting, unless a request is there. What comes bit by bit gains no time."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._awaiting_headers is None:
            self._await_headers()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, as a problem of RFC 9457."""
        body = json.dumps(problem("request", 400, "The request cannot be served", NO_HTTP)).encode()
        headers = [
            ("content-type", MEDIA_TYPE),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        answer: list[Any] = [
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ]
        for event in answer:
            if (sent := self.conn.send(event)) is not None:
                self.transport.write(sent)
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: whoever asks for another protocol is answered in this one."""

    def _await_headers(self) -> None:
        self._awaiting_headers = self.loop.call_later(self.timeout_keep_alive, self._end)

    def _stop_waiting(self) -> None:
        if self._awaiting_headers is not None:
            self._awaiting_headers.cancel()
            self._awaiting_headers = None

    def _end(self) -> None:
        self._awaiting_headers = None
        self.transport.close()
