"""Pseudo-relevance feedback: the words that the best documents of a query have in common.

We take the top documents of a search as relevant. The *relevance model* of Lavrenko and Croft
(2001) gives each word the mean of its shares in these documents, weighted by how well each document
matches the query.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from fairqr.retrieval.engines.engine import Query, SearchEngine


def shares_of(words: Sequence[str]) -> dict[str, float]:
    """Return P(w|d) of a text: each word's share of all its words."""
    return {word: count / len(words) for word, count in Counter(words).items()}


def relevance_model(documents: Iterable[tuple[Mapping[str, float], float]]) -> dict[str, float]:
    """Return Σ_d P(w|d)·weight(d) of each word.

    Args:
        documents: The word shares of each document, and its weight.
    """
    model: dict[str, float] = defaultdict(float)
    for shares, weight in documents:
        for word, share in shares.items():
            model[word] += weight * share
    return model


def most_weighted(weights: Mapping[str, float], n: int) -> list[str]:
    """Return the n words with the highest weights, best first; ties in alphabetical order."""
    return sorted(weights, key=lambda word: (-weights[word], word))[:n]


async def document_frequencies(
    engine: SearchEngine, words: Sequence[str]
) -> tuple[int, dict[str, int]]:
    """Count the documents of an engine, and those with each word; one round trip.

    Returns:
        The number of all documents, and for each word the number of documents that have it. A
        phrase counts where all its words are; one that the engine analyzes to nothing, such as a
        stop word, has 0.
    """
    every, *counts = await engine.search(
        [Query("", 0), *(Query(word, 0, every_word=True) for word in words)]
    )
    found = {word: count.total or 0 for word, count in zip(words, counts, strict=True)}
    return every.total or 0, found
