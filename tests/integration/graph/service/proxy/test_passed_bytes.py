"""What is not re-ranked passes as it is, in both directions, whatever it is."""

from __future__ import annotations

import gzip
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.integration.graph.service.proxy.proxied import (
    Proxied,
    RawCluster,
    answer,
    proxied,
    raw_cluster,
)
from tests.patience import PATIENCE, until

pytestmark = pytest.mark.timeout(600)

SECRET = "CANARY-0123456789"
MEGABYTE = 2**20


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RawCluster, Proxied]]:
    with raw_cluster() as cluster:
        elsewhere = {"url": "http://127.0.0.1:1"}  # so that the worker does not ask it, too
        folder = tmp_path_factory.mktemp("raw")
        with proxied(folder, cluster.url, source=elsewhere, body=1000) as proxy:
            yield cluster, proxy


@pytest.fixture
def cluster(both: tuple[RawCluster, Proxied]) -> RawCluster:
    both[0].replies = RawCluster().replies
    both[0].asked.clear()
    return both[0]


@pytest.fixture
def proxy(both: tuple[RawCluster, Proxied]) -> Proxied:
    return both[1]


def exchanged(url: str, sent: bytes) -> bytes:
    """Send bytes, and return all that comes back."""
    host, port = url.rstrip("/").removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), PATIENCE) as connection:
        connection.sendall(sent)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def parts(message: bytes) -> tuple[bytes, list[bytes], bytes]:
    """Return the first line, the headers but those of the connection, and the body."""
    head, _, body = message.partition(b"\r\n\r\n")
    first, *headers = head.split(b"\r\n")
    pairs = [header.partition(b":") for header in headers]
    named = [name.lower() + b":" + value.strip() for name, _, value in pairs]
    changed = (b"host:", b"connection:", b"transfer-encoding:", b"fairqr:")
    return first, [header for header in named if not header.startswith(changed)], body


ZIPPED = gzip.compress(b'{"a": 1}')
REQUESTS = {
    "odd path": b"GET /a%2fb//c/../[x]/%zz?q=%20+a&&b;=%C3%a9 HTTP/1.1\r\n",
    "no query": b"DELETE /_search/scroll HTTP/1.1\r\n",
    "odd verb": b"PURGE / HTTP/1.1\r\n",
    "headers": b"GET / HTTP/1.1\r\nX-A: 1\r\nx-a: 2\r\nCookie: a=b\r\nAccept-Encoding: br\r\n",
    "bulk": b"POST /_bulk HTTP/1.1\r\ncontent-length: 6\r\n\r\n{}\n{}\n",
    "gzip": b"PUT /x/_doc/1 HTTP/1.1\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n%b"
    % (len(ZIPPED), ZIPPED),
    "chunked": b"POST /_bulk HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\n{}\n\r\n0\r\n\r\n",
    "sorted": b'POST /people/_search HTTP/1.1\r\ncontent-length: 14\r\n\r\n{"sort": ["a"]',
    "long": b"POST /people/_search HTTP/1.1\r\ncontent-length: 5000\r\n\r\n" + b" " * 5000,
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_arrives_as_it_was_sent(cluster: RawCluster, proxy: Proxied, name: str) -> None:
    first, _end, body = REQUESTS[name].partition(b"\r\n\r\n")
    sent = first.rstrip(b"\r\n") + b"\r\nhost: a\r\nconnection: close\r\n\r\n" + body
    exchanged(proxy.url, sent)
    exchanged(cluster.url, sent)
    (passed, direct) = cluster.asked

    assert parts(passed) == parts(direct)


REPLIES = {
    "plain": answer(b'{"a": 1.10}', headers="content-type: application/json\r\n"),
    "gzip": answer(ZIPPED, headers="content-encoding: gzip\r\nWarning: 299 old\r\n"),
    "error": answer(b'{"error": 1}', "503 Service Unavailable", "Retry-After: 3\r\n"),
    "of tomorrow": answer(b"\xff\x00", "299 Odd"),
    "redirect": answer(b"", "307 Temporary Redirect", "Location: http://127.0.0.1:1/\r\n"),
    "cookies": answer(b"{}", headers="Set-Cookie: a=1\r\nset-cookie: b=2\r\n"),
    "empty": b"HTTP/1.1 204 No Content\r\n\r\n",
}


@pytest.mark.parametrize("name", REPLIES)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_reply_arrives_as_it_was_sent(
    cluster: RawCluster, proxy: Proxied, name: str, method: str
) -> None:
    reply = REPLIES[name]
    if method == "HEAD":
        reply = reply.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    cluster.replies = lambda asked, send: send(reply)
    sent = f"{method} /x HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n".encode()
    first, headers, body = parts(exchanged(proxy.url, sent))

    assert first.split(b" ")[1] == reply.split(b" ")[1]
    assert (headers, body) == parts(reply)[1:]


def test_nothing_is_remembered_from_one_client_to_the_next(
    cluster: RawCluster, proxy: Proxied
) -> None:
    cluster.replies = lambda asked, send: send(answer(b"{}", headers="set-cookie: a=1\r\n"))
    httpx.get(proxy.url + "/x", headers={"authorization": SECRET}, trust_env=False)
    httpx.get(proxy.url + "/y", headers={"user-agent": ""}, trust_env=False)

    assert SECRET.encode() in cluster.asked[0]
    assert b"cookie" not in cluster.asked[1].lower()
    assert SECRET.encode() not in cluster.asked[1]


def test_large_streams_take_no_memory(cluster: RawCluster, proxy: Proxied) -> None:
    def stream(asked: bytes, send: Any) -> None:
        send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (100 * MEGABYTE))
        for _ in range(100):
            send(b"x" * MEGABYTE)

    process = psutil.Process(proxy.process.pid)
    proxy.client.get("/x")
    before = process.memory_info().rss
    most = 0
    received = 0
    cluster.replies = stream
    with proxy.client.stream("GET", "/_snapshot") as reply:
        for piece in reply.iter_raw():
            received += len(piece)
            most = max(most, process.memory_info().rss)
    cluster.replies = RawCluster().replies
    sent = proxy.client.post("/_bulk", content=(b"y" * MEGABYTE for _ in range(100)))
    most = max(most, process.memory_info().rss)

    assert received == 100 * MEGABYTE
    assert sent.status_code == 200
    assert most - before < 30 * MEGABYTE


def test_a_dead_cluster_is_told_by_a_sentence_and_nothing_secret(tmp_path: Path) -> None:
    path = f"/people/_search?q={SECRET}"
    with proxied(tmp_path, "http://127.0.0.1:1") as proxy:
        for method in ("GET", "POST"):
            reply = proxy.client.request(method, path, headers={"authorization": SECRET})
            assert reply.status_code == 502
            assert reply.headers["fairqr"] == "passed; cluster"

            reason = {"type": "fairqr_proxy", "reason": "The cluster gave no reply: ConnectError."}
            assert reply.json() == {"error": reason, "status": 502}

        until(lambda: "Nothing of 'people' is re-ranked at present" in proxy.log)
        assert proxy.end() == 0
        assert SECRET not in proxy.log
        assert "Traceback" not in proxy.log


@pytest.mark.parametrize("path", ["/x", "/people/_search"])
def test_a_reply_that_breaks_off_breaks_off(cluster: RawCluster, proxy: Proxied, path: str) -> None:
    def half(asked: bytes, send: Any) -> None:
        send(answer(b"x" * 1000)[:-500])
        raise OSError

    cluster.replies = half
    with pytest.raises(httpx.RemoteProtocolError):
        proxy.client.get(path)
    assert "Traceback" not in proxy.log


def test_a_reply_that_is_no_http_is_an_error(cluster: RawCluster, proxy: Proxied) -> None:
    cluster.replies = lambda asked, send: send(b"SSH-2.0\r\n\r\n")
    assert proxy.client.get("/x").status_code == 502
    assert "Traceback" not in proxy.log


@pytest.mark.parametrize("path", ["/x", "/people/_search", "/_bulk"])
def test_a_client_that_leaves_takes_its_request_along(
    cluster: RawCluster, proxy: Proxied, path: str
) -> None:
    hanging = threading.Event()
    before = cluster.left
    cluster.replies = lambda asked, send: hanging.wait(1)

    with pytest.raises(httpx.ReadTimeout):
        httpx.post(proxy.url + path, content=b"{}", timeout=0.5, trust_env=False)

    until(lambda: cluster.left > before)


ALL = json.dumps({"query": {"match_all": {}}}).encode()


@pytest.mark.parametrize(
    ("method", "path", "content", "reason"),
    [
        ("GET", "/_cat/indices", b"", "no search"),
        ("POST", "/people/_count", ALL, "no search"),
        ("POST", "/other/_search", ALL, "index"),
        ("POST", "/_search", ALL, "name"),
        ("POST", "/peop*,other/_search", ALL, "name"),
        ("POST", "/people/_search/template", ALL, "template"),
        ("POST", "/people/_async_search?keep_on_completion=true", ALL, "async"),
        ("POST", "/people/_async_search?wait_for_completion_timeout=0s", ALL, "async"),
        ("POST", "/people/_search", b" " * 2000, "body"),
        ("POST", "/people/_search", b'{"size": 1, "size": 2}', "body"),
        ("POST", "/people/_search", '{"a \\nb\u20ac": 1}'.encode(), "a_b_"),
        ("POST", "/people/_msearch", b"{}\n{}\n" * 60, "many"),
        ("POST", "/people/_search?size=1;sort=x", ALL, "sort"),
        ("POST", "/_msearch", b'{"index": "other"}\n{}\n', "index"),
    ],
    ids=[
        "other request",
        "count",
        "other index",
        "no index",
        "pattern",
        "template",
        "kept",
        "not waited for",
        "long",
        "name twice",
        "odd name",
        "many searches",
        "odd address",
        "other index in a line",
    ],
)
def test_each_request_ends_with_its_reason(
    cluster: RawCluster, proxy: Proxied, method: str, path: str, content: bytes, reason: str
) -> None:
    reply = proxy.client.request(method, path, content=content)
    assert reply.headers["fairqr"] == f"passed; {reason}"


def test_a_whole_uri_names_the_same_cluster(cluster: RawCluster, proxy: Proxied) -> None:
    """Its authority is the host that was asked for; the path is what goes on."""
    exchanged(
        proxy.url, b"GET http://other.example/x HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
    )
    (passed,) = cluster.asked
    assert passed.startswith(b"GET /x HTTP/1.1\r\n")
