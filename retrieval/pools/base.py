"""What a retriever over a small pool is, and what all of them do with texts that say nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import numpy as np

from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.sendable import sendable

__all__ = ["PoolRetriever", "scores_of_spoken"]


class PoolRetriever(Protocol):
    """Scores the texts of a pool for a query; nothing of the pool is kept.

    Texts that say nothing are defined alike for all: a blank text gets the least of the other
    scores, or 0 if that is less. Where the query is blank, or all texts are, all scores are 0. A
    neural retriever reads a text, and a query, up to its model's limit and no further.
    """

    @property
    def name(self) -> str:
        """What scored, as it stands in results, e.g. ``bm25`` or ``splade:org/model``."""
        ...

    async def start(self) -> None:
        """Make ready; raises ModelUnavailableError where something is missing."""
        ...

    async def scores(self, query: str, texts: Sequence[str]) -> FloatArray:
        """Return a score for each text, shape (n,), finite; higher is better."""
        ...


async def scores_of_spoken(
    query: str, texts: Sequence[str], score: Callable[[str, list[str]], Awaitable[FloatArray]]
) -> FloatArray:
    """Score the texts that say something, and give the others what :class:`PoolRetriever` says.

    Args:
        query: Of the user.
        texts: Of the pool.
        score: Scores texts of which none is blank for a query that is not. Both are valid Unicode:
            halves of surrogate pairs, which tokenizers refuse, are replaced before.

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
