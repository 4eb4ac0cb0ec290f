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


def source_of(server: ModelServer) -> HttpSource:
    """An endpoint that puts all men first."""
    groups = {"female": ["F"], "male": ["M"]}
    hits = [{"key": f"d{n:02}", "sex": "MF"[n > 9], "name": f"Person {n}"} for n in range(20)]
    server.does(Answer(body=json.dumps({"items": hits}).encode()))
    return HttpSource.model_validate(
        {
            "name": "people",
            "engine": "http",
            "url": f"{server.base_url}/search",
            "body": {"q": "{{query}}", "size": "{{size}}"},
            "hits": "items",
            "id": "key",
            "title": "name",
            "attributes": {"gender": {"field": "sex", "groups": groups}},
        }
    )


async def test_titles_come_with_the_answers_and_judged_documents_that_do_not_are_counted(
    model_server: ModelServer, tmp_path: Path
) -> None:
    """An endpoint reads nothing by id, so no request is added."""
    qrels = {word: {"d00": 1, "d15": 1, "elsewhere": 1} for word in WORDS}
    qrels[WORDS[0]] = {"d00": 1, "d15": 1}
    audit = await fairqr.audit(
        source_of(model_server),
        [{"id": word, "query": word} for word in WORDS],
        qrels=qrels,
        target="uniform:1",
        k=5,
        depth=20,
        folder=tmp_path / "out",
    )
    counts = audit.figures.counts
    assert (counts.answered, counts.failed, counts.with_relevance) == (12, 0, 12)
    assert counts.hidden == 11
    assert len(model_server.asked) == 12
    told = "11 judged relevant documents are left out"
    assert any(told in finding for finding in audit.findings)
    assert audit.titles["d00"] == "Person 0"
    report = (tmp_path / "out/report.md").read_text()
    assert told in report
    assert "Person 0" in report
    queries = json.loads((tmp_path / "out/audit.json").read_text())["queries"]
    assert queries["hidden"] == 11
    assert "server" not in audit.manifest.versions
