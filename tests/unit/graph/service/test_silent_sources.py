"""A source that accepts connections and does not answer keeps no service from starting."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.execution import executor as execution
from fairqr.graph.service.execution.executor import Executor
from tests.patience import PATIENCE
from tests.servers.http_servers import Answer, Received, answering, of_json

MAPPING = {"properties": {"bio": {"type": "text"}, "sex": {"type": "keyword"}}}


@asynccontextmanager
async def closing(executor: Executor) -> AsyncIterator[Executor]:
    try:
        yield executor
    finally:
        await executor.close()


def people(_: int, request: Received) -> Answer:
    """Answer as an Elasticsearch with one index does, as far as opening it asks."""
    if request.path == "/":
        return of_json(200, {"version": {"number": "8.12.0"}})
    if request.path.startswith("/people?"):
        settings = {"index": {"uuid": "u"}}
        return of_json(200, {"people": {"mappings": MAPPING, "settings": settings}})
    body: dict[str, Any] = {"count": 20, "hits": {"total": {"value": 20}, "hits": []}}
    return of_json(200, body)


def source_file(folder: Path, url: str) -> Path:
    source = {"name": "silent", "engine": "elasticsearch", "url": url, "index": "people"}
    groups = {"gender": {"field": "sex", "groups": {"female": ["F"], "male": ["M"]}}}
    path = folder / "silent.source.yaml"
    path.write_text(json.dumps({**source, "text": ["bio"], "timeout": 600, "attributes": groups}))
    return path


async def test_a_silent_source_is_opened_when_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(execution, "REACHED_WITHIN", 0.3)
    may_answer = threading.Event()

    def answer(number: int, request: Received) -> Answer:
        may_answer.wait(PATIENCE)
        return people(number, request)

    with answering(answer) as (url, requests):
        settings = ServiceSettings(
            sources=(source_file(tmp_path, url),), corpora=("silent",), audits=tmp_path / "audits"
        )
        async with closing(Executor(settings, model="feedback")) as executor:
            with caplog.at_level(logging.WARNING):
                await executor.start()
            assert requests

            (line,) = [message for message in caplog.messages if "without a source" in message]
            assert "'silent' does not answer yet; it opens when it does" in line
            assert await executor.reached() == {"silent": None}

            may_answer.set()
            async with executor.lend_engine("silent") as engine:
                assert engine.name == "silent"

        openings = [request for request in requests if request.path.startswith("/people?")]
        assert len(openings) == 1
