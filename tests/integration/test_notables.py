"""The whole thing for real: notables, the embedded model, and both indexes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairqr import FairSearch, open_model
from fairqr.retrieval.catalog import Catalog, Choice
from fairqr.retrieval.corpus import BUILT_IN
from fairqr.retrieval.index import Index
from tests.integration.local_model import MODEL

TOPICS = [json.loads(line) for line in (BUILT_IN["notables"] / "topics.jsonl").open()]


@pytest.fixture
async def tantivy(tmp_path: Path) -> AsyncIterator[Index]:
    index = await Catalog(tmp_path).resolve("notables", Choice("tantivy"))
    yield index
    await index.close()


@pytest.fixture
async def elasticsearch(tmp_path: Path, elasticsearch_url: str) -> AsyncIterator[Index]:
    catalog, choice = Catalog(tmp_path), Choice("elasticsearch", elasticsearch_url)
    index = await catalog.resolve("notables", choice)
    yield index
    await index.close()
    await catalog.delete("notables", choice)


@pytest.mark.elasticsearch
async def test_both_indexes_retrieve_nearly_the_same(tantivy: Index, elasticsearch: Index) -> None:
    """Over all topics, at least 95 % of the top 20 are the same, and so are the corpus shares."""
    shared = 0
    for topic in TOPICS:
        ours = await tantivy.search(topic["title"], 20)
        theirs = await elasticsearch.search(topic["title"], 20)
        shared += len(set(ours.ids) & set(theirs.ids))
    assert shared / (20 * len(TOPICS)) >= 0.95
    for attribute in ("gender", "continent"):
        assert await tantivy.corpus_shares(attribute) == pytest.approx(
            await elasticsearch.corpus_shares(attribute)
        )


async def lowered(index: Index, attribute: str, topics: int = 10) -> int:
    """Search the first topics with the embedded model, and count those it made fairer."""
    search = FairSearch(index, open_model(f"local:{MODEL}", timeout=240))
    better = 0
    for topic in TOPICS[:topics]:
        result = await search.asearch(topic["title"], attribute=attribute)
        assert result.model == f"local:{MODEL}"
        assert result.usage.model_calls + result.usage.cached_calls > 0 or (
            result.stop_reason == "converged"
        )
        assert result.divergence is not None
        assert result.baseline.divergence is not None
        assert result.divergence <= result.baseline.divergence
        better += result.divergence < result.baseline.divergence
    return better


@pytest.mark.model
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("model_cache")
@pytest.mark.parametrize("attribute", ["gender", "continent"])
async def test_the_local_model_lowers_the_divergence_on_nine_of_ten_topics(
    tantivy: Index, attribute: str
) -> None:
    assert await lowered(tantivy, attribute) >= 9


@pytest.mark.model
@pytest.mark.elasticsearch
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("model_cache")
async def test_and_over_elasticsearch_too(elasticsearch: Index) -> None:
    assert await lowered(elasticsearch, "gender") >= 9
