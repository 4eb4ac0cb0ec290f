"""BM25 and encoders over a pool, and opening retrievers by name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqr.base.errors import InputError, ModelUnavailableError
from fairqr.retrieval.pools.base import scores_of_spoken
from fairqr.retrieval.pools.bm25 import Bm25PoolRetriever, MemoryIndex
from fairqr.retrieval.pools.open import POOL_RETRIEVERS, open_pool_retriever
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.corpus import find_corpus
from tests.integration.local_model import minilm_cache, pulled_minilm
from tests.unit.engines import ranked

__all__ = ["minilm_cache", "pulled_minilm"]

WORDS = ["fair", "ranking", "rankings", "exposure", "of", "the", "groups", "1984", "naïve"]
texts = st.lists(st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join), min_size=1, max_size=9)
queries = st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(" ".join)


async def test_bm25_scores_as_an_index_of_the_pool_does(tmp_path: Path) -> None:
    """The embedded index of the same texts gives the same scores to the last bit."""
    pool = [f"{' '.join(WORDS[i % 9 :])} person{i} " + "ranking " * (i % 4) for i in range(40)]
    lines = (json.dumps({"id": f"d{i}", "text": text}) for i, text in enumerate(pool))
    (tmp_path / "documents.jsonl").write_text("\n".join(lines))
    (tmp_path / "schema.yaml").write_text("attributes: {g: {field: g, groups: [a, b]}}")
    engine = await Catalog(tmp_path / "indexes").create("pool", find_corpus(tmp_path))
    for query in ("rankings of groups", "the", "naïve person7 person7 fair", "absent"):
        found = await ranked(engine, query, len(pool))
        expected = np.zeros(len(pool))
        for id_, score in zip(found.ids, found.scores, strict=True):
            expected[int(id_[1:])] = score
        assert (await Bm25PoolRetriever().scores(query, pool) == expected).all(), query
    await engine.aclose()


@settings(max_examples=40)
@given(texts, queries)
def test_bm25_is_0_where_no_term_is_shared_and_positive_elsewhere(
    pool: list[str], query: str
) -> None:
    stems = {"rankings": "ranking", "of": "", "the": ""}
    terms = {stems.get(word, word) for word in query.split()} - {""}
    scores = MemoryIndex(pool).scores(query)
    for text, score in zip(pool, scores, strict=True):
        shared = terms & {stems.get(word, word) for word in text.split()}
        assert (score > 0) == bool(shared)


async def test_each_retriever_defines_what_is_empty(minilm_cache: Path) -> None:
    for name in ("bm25", "dense:minilm"):
        retriever = open_pool_retriever(name)
        await retriever.start()
        scores = await retriever.scores("fair ranking", ["ranking", "", "  ", "bread\ud800"])
        assert scores[0] == scores.max() > 0, name
        assert scores[1] == scores[2] == min(0.0, scores[0], scores[3])
        assert np.isfinite(scores).all()
        assert not (await retriever.scores("", ["ranking"])).any()
        assert not (await retriever.scores("fair", ["", " "])).any()
        assert (await retriever.scores("fair", [])).shape == (0,)
    assert MemoryIndex([]).scores("fair").shape == (0,)


async def test_blank_texts_are_below_negative_scores() -> None:
    async def score(_query: str, spoken: list[str]) -> np.ndarray:
        return np.array([-2.0, 3.0, -1.0])[: len(spoken)]

    found = await scores_of_spoken("q", ["a", " ", "b", "c", ""], score)
    assert found.tolist() == [-2, -2, 3, -1, -2]


def test_retrievers_are_opened_by_name() -> None:
    assert open_pool_retriever(" bm25 ").name == "bm25"
    assert open_pool_retriever("splade").name == "splade:naver/splade_v2_max"
    assert open_pool_retriever("contriever").name == "contriever:facebook/contriever"
    assert open_pool_retriever("contriever:org/own").name == "contriever:org/own"
    assert open_pool_retriever("dense").name == "dense:minilm"
    assert {name.partition("[")[0] for name in POOL_RETRIEVERS} == {
        "bm25",
        "splade",
        "contriever",
        "dense",
    }
    for wrong in ("", "bm26", "bm25:x", "splade:", ":x"):
        with pytest.raises(InputError, match="choose bm25, splade"):
            open_pool_retriever(wrong)
    with pytest.raises(ModelUnavailableError, match="There is no encoder 'none'"):
        open_pool_retriever("dense:none")
