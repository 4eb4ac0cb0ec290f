"""Small real HTTP servers that answer as a test says."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, dict[str, str], bytes | Iterable[bytes]]
ELASTICSEARCH = {"x-elastic-product": "Elasticsearch", "content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class Received:
    """A request as it came; names of headers are lower-case, and ``at`` is a monotonic time."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at: float


def of_json(status: int, content: Any, **headers: str) -> Answer:
    """An answer of Elasticsearch."""
    return status, {**ELASTICSEARCH, **headers}, json.dumps(content).encode()


@contextmanager
def answering(
    answer: Callable[[int, Received], Answer],
) -> Iterator[tuple[str, list[Received]]]:
    """Serve what ``answer(number of the request from 0, the request)`` says; keep the requests."""
    asked: list[Received] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Be silent."""

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            named = {key.lower(): value for key, value in self.headers.items()}
            request = Received(self.command, self.path, named, body, time.monotonic())
            number = len(asked)
            asked.append(request)
            status, headers, content = answer(number, request)
            self.send_response(status)
            if isinstance(content, bytes):
                headers = {"content-length": str(len(content)), **headers}
                content = [content]
            for key, value in headers.items():
                self.send_header(key, value)
            with suppress(ConnectionError):  # a client that did not wait
                self.end_headers()
                for part in content:
                    self.wfile.write(part)

        do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = handle_any  # noqa: N815

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
