"""A collector for OpenTelemetry, and a server that plays LangSmith: one process that writes down.

As a script, ``collector.py FILE`` prints its port, answers every request with ``{}``, and writes
each as a line of JSON before it answers; what is OTLP is decoded first.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True, slots=True)
class Collector:
    """The running process."""

    url: str
    file: Path

    @property
    def requests(self) -> list[dict[str, Any]]:
        """All requests so far: method, path, headers, and the body in ``text``."""
        if not self.file.exists():
            return []
        return [json.loads(line) for line in self.file.read_text().splitlines()]

    @property
    def processes(self) -> list[dict[str, Any]]:
        """The different attributes of the resources; a slow process sends its own several times."""
        found = [_attributes(group["resource"]["attributes"]) for group in self._groups]
        return [it for number, it in enumerate(found) if it not in found[:number]]

    @property
    def spans(self) -> list[dict[str, Any]]:
        """All spans that were exported, with their attributes as a mapping."""
        return [
            {**span, "attributes": _attributes(span.get("attributes", []))}
            for group in self._groups
            for scope in group["scopeSpans"]
            for span in scope["spans"]
        ]

    @property
    def _groups(self) -> list[dict[str, Any]]:
        return [
            group for request in self.requests for group in request["otlp"].get("resourceSpans", [])
        ]


def _attributes(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    return {pair["key"]: next(iter(pair["value"].values())) for pair in pairs}


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    """A collector of the test's own, in another process."""
    file = tmp_path / "collected.jsonl"
    command = [sys.executable, __file__, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield Collector(f"http://127.0.0.1:{int(process.stdout.readline())}", file)
        process.kill()


def _serve(file: Path) -> None:
    from google.protobuf.json_format import MessageToDict
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            line: dict[str, Any] = {
                "method": self.command,
                "path": self.path,
                "headers": {name.lower(): value for name, value in self.headers.items()},
                "text": body.decode("utf-8", "replace"),
                "bytes": base64.b64encode(body).decode(),
            }
            if self.path == "/v1/traces":
                line["otlp"] = MessageToDict(ExportTraceServiceRequest.FromString(body))
            with file.open("a") as stream:
                stream.write(json.dumps(line) + "\n")
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        do_GET = do_POST = do_PATCH = handle_any  # noqa: N815 - named by http.server

        def log_message(self, format: str, *args: object) -> None:
            """Keep silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
