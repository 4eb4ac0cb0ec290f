"""The interface of retrievers over a small pool, and their common handling of blank texts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import numpy as np

from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.texts.sendable import sendable


class PoolRetriever(Protocol):
    """Scores the texts of a pool for a query; it keeps nothing of the pool.

    All treat blank texts alike: a blank text gets the lowest of the other scores, or 0 if that is
    lower. If the query or all texts are blank, all scores are 0. A neural retriever reads a text,
    and a query, only up to its model's limit.
    """

    @property
    def name(self) -> str:
        """The name in results, such as ``bm25`` or ``splade:org/model``."""
        ...

    async def start(self) -> None:
        """Prepare for use; raises ModelUnavailableError if something is missing."""
        ...

    async def scores(self, query: str, texts: Sequence[str]) -> FloatArray:
        """Return a score for each text, shape (n,), finite; higher is better."""
        ...


async def scores_of_spoken(
    query: str, texts: Sequence[str], score: Callable[[str, list[str]], Awaitable[FloatArray]]
) -> FloatArray:
    """Score the texts that are not blank, and treat the others as :class:`PoolRetriever` says.

    Args:
        query: The user's query.
        texts: The texts of the pool.
        score: Scores non-blank texts for a non-blank query. Both are valid Unicode: lone
            surrogates, which tokenizers refuse, are replaced first.

    Returns:
        Scores of all texts, shape (n,).
    """
    clean = [sendable(text) for text in texts]
    spoken = [place for place, text in enumerate(clean) if text.strip()]
    scores = np.zeros(len(texts))
    wanted = sendable(query)
    if not spoken or not wanted.strip():
        return scores
    found = await score(wanted, [clean[place] for place in spoken])
    scores += min(0.0, float(found.min()))
    scores[spoken] = found
    return scores
