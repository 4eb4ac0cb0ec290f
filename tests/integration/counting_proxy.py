"""A real HTTP proxy before a server, which counts what passes it."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from tests.patience import PATIENCE

_PER_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}


@dataclass(frozen=True, slots=True)
class Passed:
    """A request that passed; the path is without parameters."""

    method: str
    path: str
    body: bytes


class CountingProxy:
    """Hands requests on to a server, and keeps them in the order in which they came.

    Args:
        target: The server's address.
    """

    def __init__(self, target: str) -> None:
        self.passed: list[Passed] = []
        self._lock = threading.Lock()
        parts = urlsplit(target)
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.target = (parts.hostname or "", parts.port or 80)
        self._server.note = self._note
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def clear(self) -> None:
        """Forget what has passed."""
        with self._lock:
            self.passed.clear()

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _note(self, passed: Passed) -> None:
        with self._lock:
            self.passed.append(passed)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    target: tuple[str, int]
    note = staticmethod(lambda passed: None)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _hand_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.note(Passed(self.command, self.path.partition("?")[0], body))
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in _PER_CONNECTION
        }
        connection = http.client.HTTPConnection(*self.server.target, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request(self.command, self.path, body or None, headers)
            answer = connection.getresponse()
            content = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _PER_CONNECTION:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_POST = do_HEAD = do_PUT = do_DELETE = _hand_on  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def counting_proxy(target: str) -> Iterator[CountingProxy]:
    """Run a proxy before a server."""
    proxy = CountingProxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
