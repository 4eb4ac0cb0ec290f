"""BM25 as LaMP has it: its formula, over words between white space."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from fairqr.base.errors import InputError
from fairqr.retrieval.pools.retrievers import open_pool_retriever

TEXTS = ["The bridge of steel", "a Bridge , a bridge", "the steel of the bridge", "boats", "a mill"]


async def test_scores_are_those_of_the_formula() -> None:
    """Case counts; k1 is 1.5 and b .75; a word in more than half of the texts has ε · mean idf."""
    texts = [text.split() for text in TEXTS]
    frequencies = Counter[str]()
    for words in texts:
        frequencies.update(set(words))
    idf = {word: math.log((5 - n + 0.5) / (n + 0.5)) for word, n in frequencies.items()}
    mean_idf = sum(idf.values()) / len(idf)
    mean_length = sum(map(len, texts)) / 5
    expected = []
    for words in texts:
        norm = 1.5 * (0.25 + 0.75 * len(words) / mean_length)
        score = 0.0
        for term in ("bridge", "The"):
            count = words.count(term)
            weight = idf[term] if idf[term] >= 0 else 0.25 * mean_idf
            score += weight * count * 2.5 / (count + norm)
        expected.append(score)

    scores = await open_pool_retriever("bm25okapi").scores("bridge The absent", TEXTS)
    np.testing.assert_allclose(scores, expected)
    assert scores[0] != scores[2]


def test_bm25_of_lamp_takes_no_model() -> None:
    with pytest.raises(InputError, match="choose bm25, bm25okapi"):
        open_pool_retriever("bm25okapi:other")
