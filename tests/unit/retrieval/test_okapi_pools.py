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
    words = [text.split() for text in TEXTS]
    frequency = Counter(word for own in words for word in set(own))
    idf = {it: math.log((5 - n + 0.5) / (n + 0.5)) for it, n in frequency.items()}
    mean = sum(idf.values()) / len(idf)
    idf = {word: weight if weight >= 0 else 0.25 * mean for word, weight in idf.items()}
    length = sum(map(len, words)) / 5
    expected = []
    for own in words:
        norm = 1.5 * (0.25 + 0.75 * len(own) / length)
        counts = Counter(own)
        terms = ["bridge", "The", "absent"]
        score = sum(
            idf.get(it, 0) * counts[it] * 2.5 / (counts[it] + norm) for it in terms if counts[it]
        )
        expected.append(score)
    found = await open_pool_retriever("bm25okapi").scores("bridge The absent", TEXTS)
    np.testing.assert_allclose(found, expected)
    assert found[0] != found[2]


def test_it_takes_no_model() -> None:
    with pytest.raises(InputError, match="choose bm25, bm25okapi"):
        open_pool_retriever("bm25okapi:other")
