"""Relevance feedback on a group's documents, over a real index."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairqr.agents.models.opening import open_model
from fairqr.agents.refiners.feedback import FeedbackRefiner
from fairqr.agents.refiners.refiner import GroupRequest
from fairqr.base.errors import ModelUnavailableError, UnsupportedError
from fairqr.retrieval.engines.engine import Query, SearchEngine
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.sources.schema import Schema
from tests.unit.engines import WatchedEngine
from tests.unit.retrieval.embedded import built

GROUPS = ["female", "male", "other"]
SCHEMA = Schema.model_validate({"attributes": {"gender": {"field": "gender", "groups": GROUPS}}})
FEMALE = GroupRequest(query="science", attribute="gender", group="female")


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[SearchEngine]:
    """Twenty men and ten women of science, and thirty others; 'person' stands in all texts."""
    texts = [(f"m{n:02}", "male", "science boat person") for n in range(20)]
    texts += [(f"w{n:02}", "female", "science garden person") for n in range(10)]
    texts += [(f"x{n:02}", None, "poetry boat person") for n in range(30)]
    people = [Document(id_, f"Ada {id_}", text, {"gender": group}) for id_, group, text in texts]
    engine = built(tmp_path / "index", people, SCHEMA)
    yield engine
    await engine.aclose()


async def test_words_are_typical_of_the_best_documents(
    engine: SearchEngine,
) -> None:
    """Not those of the query; a word that stands in every document comes last."""
    watched = WatchedEngine(engine)
    found = await FeedbackRefiner(watched).refine(FEMALE)
    assert found.status == "ok"
    assert found.keywords == ("garden", "person")
    assert watched.round_trips == 2
    assert len(watched.reads) == 1


async def test_all_groups_take_one_reading_and_one_count(
    engine: SearchEngine,
) -> None:
    """What each is given is what it would be given alone."""
    requests = [GroupRequest("science", "gender", group) for group in GROUPS]
    alone = [await FeedbackRefiner(engine).refine(request) for request in requests]
    (original,) = await engine.search([Query("science", 500)])
    watched = WatchedEngine(engine)
    assert await FeedbackRefiner(watched).refine_all(requests, original) == alone
    assert [found.status for found in alone] == ["ok", "ok", "unsupported"]
    assert alone[2].message == "The query finds no documents of other to learn from."
    assert watched.round_trips == len(watched.reads) == 1


async def test_it_needs_an_engine_that_counts_documents(engine: SearchEngine) -> None:
    blind = FeedbackRefiner(WatchedEngine(engine, without=["document_frequencies"]))
    with pytest.raises(UnsupportedError, match="'feedback' needs an engine that can count"):
        await blind.start()
    with pytest.raises(ModelUnavailableError, match="'feedback' needs an engine to learn from"):
        open_model("feedback")
    assert isinstance(open_model("feedback", engine=engine), FeedbackRefiner)
