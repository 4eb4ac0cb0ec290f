"""A fair search through an object of LangChain, with a model, and an answer from it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from langchain_core.documents import Document

from fairqr import FairSearch, SyncFairSearch, from_langchain, open_model
from fairqr.base.errors import InputError
from tests.integration.model_server import (
    ModelServer,
    clean_environment,
    model_server,
    people,
    says,
)
from tests.unit.retrieval.test_langchain_engine import WordRetriever

__all__ = ["clean_environment", "model_server", "people"]


@pytest.fixture
def retriever(people: Path) -> WordRetriever:
    documents = []
    for line in people.read_text().splitlines():
        row = json.loads(line)
        metadata = {"name": row["title"], "about": {"gender": row["gender"]}}
        documents.append(Document(row["text"], id=row["id"], metadata=metadata))
    return WordRetriever(documents=documents)


@pytest.fixture
def search(retriever: WordRetriever, model_server: ModelServer) -> Iterator[SyncFairSearch]:
    population = {"female": 0.5, "male": 0.5}
    gender = {"field": "about.gender", "groups": ["female", "male"], "population": population}
    engine = from_langchain(
        retriever, schema={"attributes": {"gender": gender}}, name="people", title="name"
    )
    model = open_model("openai:fake", base_url=model_server.base_url)
    with FairSearch.open(engine, model) as search:
        yield search


def test_keywords_are_held_against_what_was_retrieved(
    search: SyncFairSearch, retriever: WordRetriever, model_server: ModelServer
) -> None:
    """Two words stand in texts of the group, and one nowhere."""
    model_server.does(says({"keywords": ["woman", "Atlantis", "laboratory"]}))
    result = search.search("physicist", attribute="gender", k=10, ask="always")
    assert retriever.asked[0] == "physicist"
    assert set(retriever.asked[1:]) == {"physicist woman laboratory"}
    assert result.divergence < result.baseline.divergence / 100
    assert {group for hit in result.ranking[:5] for group in hit.groups["gender"]} == {
        "female",
        "male",
    }
    assert result.ranking[0].title.startswith("Person ")
    assert result.corpus == "people"
    assert retriever.k == 4


def test_what_cannot_be_done_is_said_before_anything_is_asked(
    search: SyncFairSearch, retriever: WordRetriever, model_server: ModelServer
) -> None:
    with pytest.raises(InputError, match="'original_query' needs an engine that can"):
        search.search("physicist", rerank="original_query")
    with pytest.raises(InputError, match="the target cannot have the part"):
        search.search("physicist", target="corpus:1")
    assert model_server.asked == []
