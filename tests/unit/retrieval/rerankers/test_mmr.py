"""Maximal marginal relevance against the definition, written out."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.rerankers.base import Candidates, min_max
from fairqr.retrieval.rerankers.mmr import (
    MmrOptions,
    MmrReranker,
    TfIdfSimilarity,
    maximal_marginal_relevance,
)
from fairqr.retrieval.texts.words import terms_of
from tests.unit.engines import ranked

Make = Callable[..., Candidates]
WORDS = st.lists(st.sampled_from(["river", "city", "city's", "running", "runs", "the"]))
TEXTS = st.lists(WORDS.map(" ".join), min_size=1, max_size=9)


def cosines(texts: list[str]) -> list[list[float]]:
    """TF-IDF cosines by the formula, a pair at a time."""
    counts = [Counter(terms_of(text)) for text in texts]
    df = Counter(term for count in counts for term in count)
    vectors = [
        {
            term: (1 + math.log(tf)) * math.log((1 + len(texts)) / (1 + df[term]))
            for term, tf in count.items()
        }
        for count in counts
    ]

    def cosine(a: dict[str, float], b: dict[str, float]) -> float:
        norms = math.hypot(*a.values()) * math.hypot(*b.values())
        return sum(a[t] * b[t] for t in a.keys() & b.keys()) / norms if norms else 0.0

    return [[cosine(a, b) for b in vectors] for a in vectors]


def greedy(
    relevance: list[float], similar: list[list[float]], trade_off: float, k: int
) -> list[int]:
    chosen: list[int] = []
    while len(chosen) < min(k, len(relevance)):
        left = [i for i in range(len(relevance)) if i not in chosen]
        chosen.append(
            max(
                left,
                key=lambda i: (
                    trade_off * relevance[i]
                    - (1 - trade_off) * max([0.0, *(similar[i][j] for j in chosen)])
                ),
            )
        )
    return chosen


@given(texts=TEXTS)
def test_the_similarity_is_the_cosine_of_tf_idf_vectors(texts: list[str]) -> None:
    found, expected = TfIdfSimilarity(texts), cosines(texts)
    for position in range(len(texts)):
        assert found(position) == pytest.approx(expected[position], abs=1e-12)


@given(data=st.data(), n=st.integers(1, 12), k=st.integers(1, 14), trade_off=st.floats(0, 1))
def test_it_chooses_what_the_definition_chooses(
    data: st.DataObject, n: int, k: int, trade_off: float
) -> None:
    """Numbers of few digits, so that equal values are equal in both."""
    grid = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])
    relevance = data.draw(st.lists(grid, min_size=n, max_size=n))
    half = data.draw(st.lists(grid, min_size=n * n, max_size=n * n))
    similar = [[half[min(i, j) * n + max(i, j)] for j in range(n)] for i in range(n)]
    trade_off = round(trade_off * 8) / 8
    order, values = maximal_marginal_relevance(
        np.array(relevance), lambda i: np.array(similar[i]), trade_off, k
    )
    assert order.tolist() == greedy(relevance, similar, trade_off, k)
    assert all(a >= b for a, b in itertools.pairwise(values.tolist()))


async def test_relevance_alone_leaves_the_order_and_novelty_alone_avoids_repeats(
    engine: SearchEngine, make_candidates: Make
) -> None:
    found = await ranked(engine, "physics chemistry", 40)
    candidates = replace(make_candidates("m" * len(found)), ranking=found)
    plain = await MmrReranker(MmrOptions(trade_off=1), engine).rerank("q", candidates, 40)
    assert plain.ranking.ids == found.ids
    assert plain.ranking.scores == pytest.approx(min_max(found.scores).tolist())
    # Most of the best documents are of one subject; a novel second one is of the other.
    novel = await MmrReranker(MmrOptions(trade_off=0.3), engine).rerank("q", candidates, 2)
    assert {id_[:-2] for id_ in novel.ranking.ids} == {"physics", "chemistry"}


async def test_it_is_the_brute_force_over_texts_of_an_index(
    engine: SearchEngine, make_candidates: Make
) -> None:
    found = await ranked(engine, "botany optics", 25)
    candidates = replace(make_candidates("m" * len(found)), ranking=found)
    by_id = sorted(zip(found.ids, found.scores, strict=True))
    texts = [f"{d.title} {d.text}" for d in await engine.documents([id_ for id_, _ in by_id])]
    expected = greedy(min_max([s for _, s in by_id]).tolist(), cosines(texts), 0.6, 10)
    result = await MmrReranker(MmrOptions(trade_off=0.6), engine).rerank("q", candidates, 10)
    assert result.ranking.ids == [by_id[position][0] for position in expected]


async def test_equal_values_stand_in_order_of_id_and_deleted_documents_are_kept(
    engine: SearchEngine, make_candidates: Make
) -> None:
    ranking = Ranking(["x", "b", "a"], [1.0, 1.0, 1.0])
    candidates = replace(make_candidates("mmm"), ranking=ranking)
    result = await MmrReranker(MmrOptions(), engine).rerank("q", candidates, 5)
    assert result.ranking.ids == ["a", "b", "x"]
    empty = await MmrReranker(MmrOptions(), engine).rerank("q", make_candidates(""), 5)
    assert empty.ranking == Ranking([], [])
