"""A real HTTP proxy before a server, which counts what passes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import httpx

from tests.patience import PATIENCE
from tests.servers.http_servers import Answer, Received, answering

# What is about one connection, or about how httpx was sent the body that it has unpacked.
_NOT_PASSED = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}
_NOT_PASSED |= {"content-encoding"}


class CountingProxy(NamedTuple):
    """Hands requests on to a server.

    Attributes:
        url: Where it is.
        passed: The method and the path, without parameters, of each request, in order.
        sizes: How many bytes the body of each reply had, in the order of the replies.
    """

    url: str
    passed: list[tuple[str, str]]
    sizes: list[int]


@contextmanager
def counting_proxy(target: str) -> Iterator[CountingProxy]:
    """Run a proxy before a server."""
    passed: list[tuple[str, str]] = []
    sizes: list[int] = []

    def hand_on(_: int, asked: Received) -> Answer:
        passed.append((asked.method, asked.path.partition("?")[0]))
        headers = _passing(asked.headers)
        reply = client.request(asked.method, asked.path, content=asked.body, headers=headers)
        sizes.append(len(reply.content))
        return reply.status_code, _passing(reply.headers), reply.content

    with (
        httpx.Client(base_url=target, timeout=PATIENCE, trust_env=False) as client,
        answering(hand_on) as (url, _),
    ):
        yield CountingProxy(url, passed, sizes)


def _passing(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _NOT_PASSED}
