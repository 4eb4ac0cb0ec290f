"""The real ``fairqr proxy`` in front of a cluster, and a cluster that misbehaves."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socketserver
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from tests.patience import PATIENCE, until
from tests.servers.attached_people import ATTRIBUTES
from tests.servers.forked import ForkedCommand
from tests.servers.page_service import environment

QUERY = {"query": {"match": {"bio": "physicist"}}}
SOURCE = {"name": "people", "title": "headline", "text": ["bio"], "attributes": ATTRIBUTES}


@dataclass
class Proxied:
    """A proxy that runs.

    Attributes:
        process: Its process.
        client: Asks it.
        errors: The file of its log.
    """

    process: ForkedCommand
    client: httpx.Client
    errors: Path

    @property
    def url(self) -> str:
        return str(self.client.base_url)

    @property
    def log(self) -> str:
        return self.errors.read_text()

    def search(self, body: Any = QUERY, index: str = "people", **options: Any) -> httpx.Response:
        return self.client.post(f"/{index}/_search", json=body, **options)

    def outcome(self, **options: Any) -> str:
        """Search, and return what became of it."""
        reply = self.search(**options)
        assert reply.status_code == 200, reply.text
        return reply.headers["fairqr"]

    def ready(self) -> int:
        """Wait until searches are re-ranked, and return the id of the process that does it."""
        until(lambda: self.outcome().startswith("re-ranked"))
        (worker,) = [
            child for child in self.children() if "proxy.process" in " ".join(child.cmdline())
        ]
        return int(worker.pid)

    def children(self) -> list[psutil.Process]:
        """Return its processes: one for each index, and perhaps one that encodes texts."""
        return psutil.Process(self.process.pid).children()

    def end(self) -> int:
        """Tell it to end, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


@contextlib.contextmanager
def frozen(process: int) -> Iterator[None]:
    """Stop a process, as long as the block runs."""
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def write_settings(folder: Path, cluster: str, source: Any = None, **changes: Any) -> Path:
    """Write the files of a proxy; a change of an index's setting is in ``index``."""
    index = {"source": "people.yaml", "mode": "fair", **changes.pop("index", {})}
    index.setdefault("parameters", {"target": "gender=female:0.9,male:0.1"})
    described = {**SOURCE, "engine": "elasticsearch", "url": cluster, "index": "people"}
    (folder / "people.yaml").write_text(yaml.safe_dump(described | (source or {})))
    file = folder / "proxy.yaml"
    settings = {"cluster": cluster, "port": 0, "within": 5, "indexes": {"people": index}}
    file.write_text(yaml.safe_dump(settings | changes))
    return file


@contextlib.contextmanager
def proxied(folder: Path, cluster: str, verify: Any = True, **changes: Any) -> Iterator[Proxied]:
    """Run a proxy for as long as the block runs."""
    folder.mkdir(exist_ok=True)
    file = write_settings(folder, cluster, **changes)
    errors = folder / "errors.txt"
    # Without MiniLM; and the proxy minds no other proxy.
    folders = {
        "FAIRQR_DATA_DIR": str(folder / "DATA"),
        "FAIRQR_CACHE_DIR": str(folder / "CACHE"),
    }
    variables = environment(folders) | {"HTTP_PROXY": "http://127.0.0.1:1"}
    process = ForkedCommand(["proxy", str(file)], variables, errors)
    with process.stdout:
        try:
            greeting = re.match(r"fairqr stands at (\S+) ", process.stdout.readline().decode())
            assert greeting, errors.read_text()
            options: Any = {"timeout": PATIENCE, "trust_env": False, "verify": verify}
            with httpx.Client(base_url=greeting[1], **options) as client:
                yield Proxied(process, client, errors)
        finally:
            process.kill()
            process.wait(PATIENCE)


@dataclass
class RawCluster:
    """A server that keeps the bytes that it gets, and sends those it is told to.

    Attributes:
        replies: Sends something for a request; by default an empty object.
        asked: What each request was, as bytes.
        connections: How many there were; ``left`` counts those that the other side closed.
    """

    replies: Callable[[bytes, Any], None] = lambda asked, send: send(answer(b"{}"))
    asked: list[bytes] = field(default_factory=list)
    connections: int = 0
    left: int = 0
    url: str = ""


@contextlib.contextmanager
def raw_cluster() -> Iterator[RawCluster]:
    """Run such a server."""
    cluster = RawCluster()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            cluster.connections += 1
            with contextlib.suppress(OSError):
                while head := b"".join(iter(self.line, b"")):
                    cluster.asked.append(head + b"\r\n" + self.body(head))
                    cluster.replies(cluster.asked[-1], self.request.sendall)
                    if b"connection: close" in head.lower():
                        return
            cluster.left += 1

        def line(self) -> bytes:
            line = self.rfile.readline()
            return b"" if line == b"\r\n" else line

        def body(self, head: bytes) -> bytes:
            if length := re.search(rb"(?im)^content-length: *(\d+)", head):
                return self.rfile.read(int(length[1]))
            pieces = bytearray()
            if b"transfer-encoding: chunked" in head.lower():
                while size := int(self.rfile.readline(), 16):
                    pieces += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            return bytes(pieces)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = allow_reuse_address = True
        request_queue_size = 100

    with Server(("127.0.0.1", 0), Handler) as server:
        cluster.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield cluster
        server.shutdown()


def answer(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    """Return a reply as bytes."""
    return f"HTTP/1.1 {status}\r\n{headers}content-length: {len(body)}\r\n\r\n".encode() + body


def hits_of(reply: httpx.Response) -> list[Any]:
    """Return the hits of a reply, each as its text."""
    whole = reply.json()
    return [json.dumps(hit) for hit in whole.get("response", whole)["hits"]["hits"]]
