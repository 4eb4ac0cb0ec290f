"""Asking an engine: what it answers, and what it could have answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fairqr.base.errors import IndexUnavailableError, QueryError
from fairqr.evaluation.audit.asking import WIDENED_BY, Asker, Pace
from fairqr.evaluation.audit.queries import AuditQuery
from fairqr.retrieval.documents import Document
from fairqr.retrieval.engines.engine import Hits, Query
from fairqr.retrieval.engines.tantivy import TantivyEngine
from fairqr.retrieval.exposure import FloatArray
from tests.unit.engines import WatchedEngine, hits_of
from tests.unit.retrieval.embedded import GENDER, built

QUERY = AuditQuery("q1", "physics")
GENDERS = (GENDER.attribute("gender"),)
GROUPS = (("gender", "female"), ("gender", "male"))


@pytest.fixture
def engine(tmp_path: Path) -> TantivyEngine:
    """Thirty men in physics, and 25 women whose texts are longer, so that they stand lower."""
    documents = [Document(f"m{i:02}", f"Man {i}", "physics", {"gender": "male"}) for i in range(30)]
    documents += [
        Document(f"w{i:02}", f"Woman {i}", f"physics atom x{i}", {"gender": "female"})
        for i in range(25)
    ]
    documents.append(Document("s00", "A singer", "opera", {"gender": "female"}))
    return built(tmp_path / "v1", documents)


class ByRank:
    """Estimates relevance by the number in the id, whatever the engine says."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def estimate_ids(self, query: str, ids: Sequence[str]) -> FloatArray | None:
        self.asked.append(query)
        return np.array([1 - int(id_[1:]) / 40 for id_ in ids])


async def test_what_the_engine_answers_comes_first_and_in_its_order(engine: TantivyEngine) -> None:
    done = await Asker(engine, GENDERS, 10).observe(QUERY)
    found, hits = done.record, await hits_of(engine, "physics", 10)
    assert (found.status, list(found.ids), list(found.scores)) == ("ok", hits.ids, hits.scores)
    assert (found.pool, found.relevance, found.again) == (found.ids, None, None)
    assert done.replies == (None,)


async def test_the_pool_is_widened_for_each_group_and_compared_where_all_were_looked_for(
    engine: TantivyEngine,
) -> None:
    texts = ByRank()
    asker = Asker(engine, GENDERS, 10, texts=texts, widened=GROUPS)
    found = (await asker.observe(QUERY)).record
    assert {id_[0] for id_ in found.ids} == {"m"}
    assert sum(id_.startswith("w") for id_ in found.pool) == WIDENED_BY
    assert len(found.pool) == len(set(found.pool))
    assert texts.asked == ["physics"]
    # Both searches were cut off at 20 documents; the last ten of each have 10 to 19 in their ids.
    assert found.levels == {"gender": pytest.approx(1 - 14.5 / 40)}
    wide = Asker(engine, GENDERS, 100, texts=texts, widened=(("gender", "male"),))
    assert (await wide.observe(AuditQuery("q", "opera"))).record.levels == {}


async def test_judgements_bring_the_relevant_documents_that_were_not_answered(
    engine: TantivyEngine,
) -> None:
    qrels = {"q1": {"m00": 1, "w07": 2, "w08": 0, "gone": 1}}
    asker = Asker(engine, GENDERS, 5, qrels=qrels, texts=ByRank(), widened=GROUPS)
    found = (await asker.observe(QUERY)).record
    assert found.pool == (*found.ids, "w07")
    assert found.relevance == tuple(float(id_ in ("m00", "w07")) for id_ in found.pool)
    assert found.levels == {}
    unjudged = (await asker.observe(AuditQuery("q2", "physics"))).record
    assert unjudged.relevance is None


async def test_some_queries_are_asked_twice(engine: TantivyEngine) -> None:
    watched = WatchedEngine(engine)
    asker = Asker(watched, GENDERS, 5, twice={"q1"})
    first = (await asker.observe(QUERY)).record
    assert first.again == first.ids
    assert watched.round_trips == 2
    assert (await asker.observe(AuditQuery("q2", "physics"))).record.again is None


async def test_nothing_found_is_an_observation(engine: TantivyEngine) -> None:
    found = (await Asker(engine, GENDERS, 5).observe(AuditQuery("q", "zebra"))).record
    assert (found.status, found.ids, found.pool) == ("empty", (), ())


class Failing(WatchedEngine):
    """Fails in one of two ways."""

    error: Exception

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        raise self.error


async def test_a_refused_query_is_an_observation_and_an_engine_that_is_away_ends_the_run(
    engine: TantivyEngine,
) -> None:
    failing = Failing(engine)
    failing.error = QueryError("The query is too long; shorten it.")
    refused = await Asker(failing, GENDERS, 5).observe(QUERY)
    assert (refused.record.status, refused.replies) == ("failed", (None,))
    assert "too long" in refused.record.message
    failing.error = IndexUnavailableError("Nobody answers.")
    away = await Asker(failing, GENDERS, 5).observe(QUERY)
    assert away.record.status == "failed"
    assert [it.status for it in away.replies if it is not None] == ["unavailable"]


async def test_requests_begin_at_their_pace() -> None:
    pace, begun = Pace(rate=50), time.monotonic()
    await asyncio.gather(*(pace.wait() for _ in range(6)))
    assert time.monotonic() - begun >= 5 / 50
