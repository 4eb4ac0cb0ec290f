"""Relevance from texts alone, with the real encoder: on human labels, and on an exported run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from fairqr.evaluation.collections.finding import find_collection
from fairqr.retrieval.encoders.minilm import MiniLmEncoder
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.engines.hybrid.texts import TextRelevance
from fairqr.retrieval.sources.catalog import Catalog
from tests.integration.graph.test_run_search import source
from tests.integration.model_server import clean_environment, people

__all__ = ["clean_environment", "people", "source"]

TOPICS, POOL = ("sculptor", "British actor"), 40

pytestmark = pytest.mark.model


@pytest.fixture(autouse=True)
def own_folders(clean_environment: Path, minilm_cache: Path) -> None:
    """Nothing of other tests, and MiniLM."""


async def test_it_tells_relevant_documents_from_others() -> None:
    """Over documents with the words of the query; docs/results/audits.md has all topics."""
    collection = find_collection("notables")
    engine = await Catalog().resolve("notables")
    relevance = await TextRelevance.open(engine, MiniLmEncoder())
    assert relevance.reference.texts > 100
    areas = []
    for topic in (topic for topic in collection.topics if topic.title in TOPICS):
        (hits,) = await engine.search([Query(topic.title, POOL)])
        estimates = await relevance.estimate_ids(topic.title, hits.ids)
        assert estimates is not None
        judged = np.isin(hits.ids, collection.relevant(topic.id))
        above = mannwhitneyu(estimates[judged], estimates[~judged]).statistic
        areas.append(above / (judged.sum() * (~judged).sum()))
    assert len(areas) == len(TOPICS)
    assert min(areas) > 0.7


async def test_a_run_gives_texts_and_too_few_queries_for_a_sample(source: Path) -> None:
    engine = await Catalog().resolve(str(source))
    relevance = await TextRelevance.open(engine, MiniLmEncoder(), queries=["q1"])
    assert relevance.reference.texts == 0
    (hits,) = await engine.search([Query("q1", 100)])
    physicists = await relevance.estimate_ids("physicist", hits.ids)
    painters = await relevance.estimate_ids("painter of landscapes", hits.ids)
    assert physicists is not None
    assert painters is not None
    assert (physicists > painters).all()


async def test_a_run_without_documents_says_nothing(source: Path) -> None:
    bare = source.with_name("bare.source.yaml")
    bare.write_text(
        "name: bare\nengine: run\nruns: bm25.run\n"
        "attributes:\n  gender: {labels: gender.csv, groups: [female, male]}\n"
    )
    engine = await Catalog().resolve(str(bare))
    relevance = await TextRelevance.open(engine, MiniLmEncoder(), queries=["q1"])
    (hits,) = await engine.search([Query("q1", 100)])
    assert await relevance.estimate_ids("physicist", hits.ids) is None
