"""Pairs that are scored by a server that re-ranks: a real one that answers over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from fairqr.base.errors import IndexUnavailableError
from fairqr.evaluation.audit.pairs import Pairs, compare_versions, open_pairs, read_pairs
from fairqr.retrieval.engines.engine import SearchEngine
from tests.servers.http_servers import Answer, Received, answering, of_json

QUERIES = [f"query {number}" for number in range(8)]
NO_ENGINE = cast("SearchEngine", None)


@pytest.fixture
def pairs(tmp_path: Path) -> Pairs:
    path = tmp_path / "pairs.csv"
    rows = [
        f"{query},{version},A nurse: {version}." for query in QUERIES for version in ("he", "she")
    ]
    path.write_text("\n".join(["query,version,text", *rows]))
    return read_pairs(path)


def prefers_she(number: int, request: Received) -> Answer:
    """Give texts with "she" a higher score, by how much depends on the query."""
    body = json.loads(request.body)
    bonus = 0.2 + int(body["query"][-1]) / 100
    results: list[dict[str, Any]] = [
        {"index": index, "relevance_score": 0.5 + bonus * ("she" in text)}
        for index, text in enumerate(body["documents"])
    ]
    return of_json(200, {"results": results})


async def test_a_ranker_that_is_swayed_is_found(pairs: Pairs) -> None:
    with answering(prefers_she) as (url, _):
        scorer = await open_pairs(f"rerank:{url}/rerank", pairs, NO_ENGINE)
        done = [await scorer.do(task) for task in pairs]

    records = [record for outcome in done for record in outcome.records]
    (comparison,) = compare_versions(scorer.name, records, seed=0).comparisons
    assert scorer.name.startswith("rerank(http://127.0.0.1")
    assert (comparison.first, comparison.second) == ("he", "she")
    assert comparison.difference.value < 0
    assert comparison.higher.value == 0.0


@pytest.mark.parametrize(
    ("status", "is_away"), [(400, False), (503, True)], ids=["refused", "away"]
)
async def test_what_a_ranker_does_not_score_is_recorded(
    pairs: Pairs, status: int, is_away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairqr.evaluation.audit.pairs.DEFAULT_TIMEOUT", 1.0)
    with answering(lambda number, request: of_json(status, {})) as (url, _):
        scorer = await open_pairs(f"rerank:{url}/rerank", pairs, NO_ENGINE)
        done = await scorer.do(pairs[0])

    (record,) = done.records
    assert record.status == "failed"
    assert isinstance(done.away, IndexUnavailableError) is is_away
