"""The whole thing for real: notables, the embedded model, and two engines."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fairqr import FairSearch, open_model
from fairqr.retrieval.engines.engine import Query, SearchEngine
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.corpus import BUILT_IN, find_corpus
from tests.servers.filled_elasticsearch import fill
from tests.servers.local_model import MODEL

TOPICS = [json.loads(line) for line in (BUILT_IN["notables"] / "topics.jsonl").open()]


@pytest.fixture
async def tantivy(tmp_path: Path) -> AsyncIterator[SearchEngine]:
    engine = await Catalog(tmp_path).resolve("notables")
    yield engine
    await engine.aclose()


@pytest.fixture
async def elasticsearch(tmp_path: Path, elasticsearch_url: str) -> AsyncIterator[SearchEngine]:
    with ExitStack() as stack:
        corpus = find_corpus(BUILT_IN["notables"])
        source = fill(stack, elasticsearch_url, "notables-there", corpus)
        engine = await Catalog(tmp_path).resolve(source)
        yield engine
        await engine.aclose()


@pytest.mark.elasticsearch
async def test_both_engines_retrieve_nearly_the_same(
    tantivy: SearchEngine, elasticsearch: SearchEngine
) -> None:
    """Over all topics, at least 95 % of the top 20 are the same, and so are the corpus shares."""
    queries = [Query(topic["title"], 20) for topic in TOPICS]
    pairs = zip(await tantivy.search(queries), await elasticsearch.search(queries), strict=True)
    shared = sum(len({*ours.ids} & {*theirs.ids}) for ours, theirs in pairs)
    assert shared / (20 * len(TOPICS)) >= 0.95
    ours, theirs = await tantivy.corpus_shares(), await elasticsearch.corpus_shares()
    assert ours.keys() == theirs.keys() == {"gender", "continent"}
    for attribute, shares in ours.items():
        assert shares == pytest.approx(theirs[attribute])


@pytest.mark.model
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("shared_model_cache")
async def test_the_local_model_lowers_divergence_on_most_topics(
    tantivy: SearchEngine,
) -> None:
    search = FairSearch(tantivy, open_model(f"local:{MODEL}", timeout=240))
    better = 0
    for topic in TOPICS[:10]:
        result = await search.search(topic["title"], attribute="gender", ask="always")
        assert result.model == f"local:{MODEL}"
        assert result.usage.model_calls + result.usage.cached_calls > 0
        assert result.objective is not None
        assert result.baseline.objective is not None
        assert result.objective.value >= result.baseline.objective.value
        better += result.objective.fairness > result.baseline.objective.fairness
    assert better >= 9
