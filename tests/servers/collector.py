"""A collector for OpenTelemetry, and a server that plays LangSmith: it keeps what it is sent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.servers.http_servers import Received, answering


@dataclass(frozen=True, slots=True)
class Collector:
    """The running server.

    Attributes:
        url: Where it is.
        requests: All requests so far. The words of a body stand in its ``repr``, too.
    """

    url: str
    requests: list[Received]

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
        from google.protobuf.json_format import MessageToDict
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )

        exported = [ExportTraceServiceRequest.FromString(it.body) for it in self.requests]
        return [group for it in exported for group in MessageToDict(it).get("resourceSpans", [])]


def _attributes(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    return {pair["key"]: next(iter(pair["value"].values())) for pair in pairs}


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector of the test's own, which answers every request with an empty object."""
    empty = 200, {"content-type": "application/json"}, b"{}"
    with answering(lambda *_: empty) as (url, requests):
        yield Collector(url, requests)
