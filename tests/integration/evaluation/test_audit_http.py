"""An audit of an endpoint that answers by words alone, over HTTP."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fairqr
from fairqr.retrieval.sources.source import HttpSource
from tests.integration.model_server import Answer, ModelServer, clean_environment, model_server

__all__ = ["clean_environment", "model_server"]

pytestmark = pytest.mark.usefixtures("clean_environment")

WORDS = [f"word{number}" for number in range(12)]


async def test_titles_come_with_the_answers_and_judged_documents_that_do_not_are_counted(
    model_server: ModelServer, tmp_path: Path
) -> None:
    """An endpoint that puts all men first reads nothing by id, so no request is added."""
    hits = [{"key": f"d{n:02}", "sex": "MF"[n > 9], "name": f"Person {n}"} for n in range(20)]
    model_server.does(Answer(body=json.dumps({"items": hits}).encode()))
    groups = {"female": ["F"], "male": ["M"]}
    source = {
        "name": "people",
        "engine": "http",
        "url": f"{model_server.base_url}/search",
        "body": {"q": "{{query}}", "size": "{{size}}"},
        "hits": "items",
        "id": "key",
        "title": "name",
        "attributes": {"gender": {"field": "sex", "groups": groups}},
    }
    qrels = {word: {"d00": 1, "d15": 1, "elsewhere": 1} for word in WORDS[1:]}
    audit = await fairqr.audit(
        HttpSource.model_validate(source),
        [{"id": word, "query": word} for word in WORDS],
        qrels=qrels | {WORDS[0]: {"d00": 1, "d15": 1}},
        target="uniform:1",
        k=5,
        depth=20,
        folder=tmp_path / "out",
    )
    counts = audit.figures.counts
    assert (counts.answered, counts.failed, counts.with_relevance) == (12, 0, 12)
    assert (counts.hidden, len(model_server.asked)) == (11, 12)
    report = (tmp_path / "out/report.md").read_text()
    assert "11 judged relevant documents are left out" in report
    assert "Person 0" in report
    assert audit.titles["d00"] == "Person 0"
    assert "server" not in audit.manifest.versions
