"""A real HTTP proxy before a server, which counts what passes it."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class CountingProxy:
    """Hands requests on to a server, and keeps them in the order in which they came."""

    url: str
    passed: list[Passed] = field(default_factory=list)

    def clear(self) -> None:
        """Forget what has passed."""
        self.passed.clear()


@contextlib.contextmanager
def counting_proxy(target: str) -> Iterator[CountingProxy]:
    """Run a proxy before a server."""
    host = urlsplit(target).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def hand_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            proxy.passed.append(Passed(self.command, self.path.partition("?")[0], body))
            connection = http.client.HTTPConnection(host, timeout=PATIENCE)
            with contextlib.closing(connection):
                headers = passing(self.headers.items())
                connection.request(self.command, self.path, body or None, headers)
                answer = connection.getresponse()
                content = answer.read()
            self.send_response(answer.status)
            for name, value in passing(answer.getheaders()).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_POST = do_HEAD = do_PUT = do_DELETE = hand_on  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        proxy = CountingProxy(f"http://127.0.0.1:{server.server_port}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield proxy
        server.shutdown()


def passing(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the headers that are not about one connection."""
    return {name: value for name, value in headers if name.lower() not in _PER_CONNECTION}
