"""Clients lose no search when a proxy ends, or dies behind the balancer of our page."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.graph.service.proxy.proxied import QUERY, answer, proxied, raw_cluster
from tests.patience import PATIENCE, until
from tests.ports import free_port
from tests.servers.nginx import around, running_nginx, with_nginx

PAGE = Path(__file__).parents[5] / "docs" / "explanation" / "in-front.md"
CLIENTS = 6
RESTARTS = 4

pytestmark = pytest.mark.timeout(900)


@contextlib.contextmanager
def balancer(folder: Path, proxy: int, cluster: str, change: Callable[[str], str]) -> Iterator[str]:
    """Run nginx with the page's settings, with other addresses."""
    match = re.search(r"```nginx\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert match
    port = free_port()
    page = change(match[1])
    for old, new in {
        "listen 9220": f"listen 127.0.0.1:{port}",
        "127.0.0.1:9201": f"127.0.0.1:{proxy}",
        "127.0.0.1:9200": cluster.removeprefix("http://"),
    }.items():
        assert page.count(old) == 1
        page = page.replace(old, new)
    with running_nginx(around(page, folder), folder):
        yield f"http://127.0.0.1:{port}"


class Clients:
    """Clients that search one after the other until they are stopped.

    Attributes:
        outcomes: How often each status was, or each error.
    """

    def __init__(self, url: str) -> None:
        self.outcomes = Counter[Any]()
        self._url = url
        self._over = threading.Event()

    def search(self) -> None:
        """Search over a connection that is kept."""
        how: Any = {"base_url": self._url, "timeout": PATIENCE, "trust_env": False}
        with httpx.Client(**how) as client:
            while not self._over.is_set():
                try:
                    outcome: Any = client.post("/people/_search", json=QUERY).status_code
                except httpx.TransportError as error:
                    outcome = repr(error)
                self.outcomes[outcome] += 1

    @contextlib.contextmanager
    def searching(self) -> Iterator[None]:
        with ThreadPoolExecutor(CLIENTS) as pool:
            asking = [pool.submit(self.search) for _ in range(CLIENTS)]
            try:
                yield
            finally:
                self._over.set()
            for one in asking:
                one.result()

    def go_on(self) -> None:
        """Wait until more searches are answered."""
        before = self.outcomes[200]
        until(lambda: self.outcomes[200] > before + 20 * CLIENTS)


def slowly(_: bytes, send: Any) -> None:
    """Reply as a cluster does that has to think."""
    threading.Event().wait(0.01)
    send(answer(b"{}"))


def unrepeated(page: str) -> str:
    """Keep connections to the proxy, and let no search be sent twice."""
    kept = page.replace("backup;", "backup; keepalive 16;")
    return kept.replace("non_idempotent", "")


@with_nginx
@pytest.mark.parametrize(
    ("end", "change"),
    [(signal.SIGTERM, unrepeated), (signal.SIGTERM, str), (signal.SIGKILL, str)],
    ids=["ended, nothing sent twice", "ended", "killed"],
)
def test_no_search_is_lost_behind_the_balancer_of_the_page(
    tmp_path: Path, end: signal.Signals, change: Callable[[str], str]
) -> None:
    port = free_port()
    with raw_cluster() as raw, balancer(tmp_path, port, raw.url, change) as url:
        raw.replies = slowly
        clients = Clients(url)
        with clients.searching():
            for _ in range(RESTARTS):
                with proxied(
                    tmp_path, raw.url, source={"url": "http://127.0.0.1:1"}, port=port
                ) as proxy:
                    until(lambda p=proxy: p.client.get("/").status_code == 200)
                    clients.go_on()
                    proxy.process.send_signal(end)
                    proxy.process.wait(PATIENCE)
                clients.go_on()
    assert clients.outcomes.keys() == {200}


def test_what_arrives_once_the_proxy_is_to_end_is_answered_and_the_last_of_its_connection(
    tmp_path: Path,
) -> None:
    begin = b"POST /x HTTP/1.1\r\nhost: x\r\n"
    rest = b"content-length: 2\r\n\r\n{}"
    with (
        raw_cluster() as raw,
        proxied(tmp_path, raw.url, source={"url": "http://127.0.0.1:1"}) as proxy,
        contextlib.ExitStack() as stack,
    ):
        url = httpx.URL(proxy.url)
        address = (url.host, url.port or 0)
        clients = [stack.enter_context(socket.create_connection(address)) for _ in range(60)]
        for client in clients[::2]:  # these are kept
            client.sendall(begin + rest)
            assert b"connection: close" not in reply_on(client).lower()
        for client in clients:
            client.sendall(begin)
        proxy.process.send_signal(signal.SIGTERM)
        until(lambda: refuses(address))
        for client in clients:
            client.sendall(rest)
        for client in clients:
            reply = reply_on(client)
            assert reply.startswith(b"HTTP/1.1 200")
            assert b"connection: close" in reply.lower()
            assert client.recv(1) == b""
        assert proxy.process.wait(PATIENCE) == 0


def reply_on(client: socket.socket) -> bytes:
    reply = b""
    while not reply.endswith(b"\r\n\r\n{}"):
        piece = client.recv(4096)
        assert piece, reply
        reply += piece
    return reply


def refuses(address: tuple[str, int]) -> bool:
    with socket.socket() as probe:
        return bool(probe.connect_ex(address))
