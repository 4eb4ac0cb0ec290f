"""Maximal marginal relevance: relevance minus the similarity to documents already chosen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.rerankers.base import Candidates, Reranked, RerankOptions, min_max
from fairqr.retrieval.texts.words import terms_of

Similarity = Callable[[int], FloatArray]
"""Returns the similarity, in [−1, 1], of the document at a position to each, shape (n,)."""


class MmrOptions(RerankOptions):
    """Options of MMR."""

    trade_off: float = Field(
        0.7, ge=0, le=1, description="λ: 1 ranks by relevance alone, 0 by novelty alone."
    )
    similarity: Literal["tfidf"] = Field(
        "tfidf",
        description="The similarity of documents: cosine of TF-IDF vectors of title and text.",
    )


class MmrReranker:
    """MMR (Carbonell & Goldstein 1998).

    Relevance is the current score, min-max normalised over the pool. The scores of the result are
    the marginal relevances at which documents were chosen; they never increase.
    """

    name = "mmr"

    def __init__(self, options: MmrOptions, engine: SearchEngine) -> None:
        self._options = options
        self._engine = engine

    async def rerank(self, query: str, candidates: Candidates, k: int) -> Reranked:
        """See :meth:`fairqr.retrieval.rerankers.base.Reranker.rerank`."""
        # The first of equal marginal relevances wins, and that must be the first id.
        pairs = sorted(zip(candidates.ranking.ids, candidates.ranking.scores, strict=True))
        ids = [id_ for id_, _ in pairs]
        found = {document.id: document for document in await self._engine.documents(ids)}
        texts = [f"{found[id_].title} {found[id_].text}" if id_ in found else "" for id_ in ids]
        relevance = min_max([score for _, score in pairs])
        order, scores = await asyncio.to_thread(
            lambda: maximal_marginal_relevance(
                relevance, TfIdfSimilarity(texts), self._options.trade_off, k
            )
        )
        return Reranked(Ranking([ids[position] for position in order], scores.tolist()))


def maximal_marginal_relevance(
    relevance: FloatArray, similarity: Similarity, trade_off: float, k: int
) -> tuple[NDArray[np.intp], FloatArray]:
    """Choose one by one argmax_i λ·rel_i − (1−λ)·max_{j chosen} sim(i, j).

    The maximum is at least 0, also over no documents. Ties go to the first position. The values
    never increase.

    Args:
        relevance: The relevance on the same scale as the similarity, shape (n,).
        similarity: The similarity between documents; called once for each chosen document.
        trade_off: λ in [0, 1].
        k: How many to choose.

    Returns:
        The positions of min(k, n) documents in the order of choice, and their values.
    """
    count = min(k, len(relevance))
    order, values = np.empty(count, dtype=np.intp), np.empty(count)
    gain = trade_off * relevance
    closest = np.zeros_like(gain)
    left = np.ones(len(gain), dtype=bool)
    for place in range(count):
        marginal = np.where(left, gain - (1 - trade_off) * closest, -np.inf)
        best = int(marginal.argmax())
        order[place], values[place] = best, marginal[best]
        left[best] = False
        if place + 1 < count:
            closest = np.maximum(closest, similarity(best))
    return order, values


class TfIdfSimilarity:
    """Cosine between the TF-IDF vectors of texts.

    The weight of a term is (1 + ln tf)·ln((1+n)/(1+df)), with words stemmed as in the index.
    Document frequencies are counted in the pool: a word that all candidates have, such as one of
    the query, says nothing about their differences, and we need no request to the index.

    Args:
        texts: The n texts. One without words has similarity 0 to all, including itself.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._n = len(texts)
        numbers: dict[str, int] = {}
        terms: list[int] = []
        lengths = []
        for text in texts:
            own = terms_of(text)
            terms += [numbers.setdefault(term, len(numbers)) for term in own]
            lengths.append(len(own))
        size = max(len(numbers), 1)
        rows = np.repeat(np.arange(self._n), np.array(lengths, dtype=np.intp))
        cells, frequency = np.unique(
            rows * size + np.array(terms, dtype=np.intp), return_counts=True
        )
        self._rows, self._terms = np.divmod(cells, size)
        document_frequency = np.bincount(self._terms, minlength=size)
        idf = np.log((1 + self._n) / (1 + document_frequency))
        weights = (1 + np.log(frequency)) * idf[self._terms]
        norms = np.sqrt(np.bincount(self._rows, weights=weights**2, minlength=self._n))
        # Zero if all of a document's terms are in every document.
        safe = np.where(norms > 0, norms, 1.0)
        self._weights: FloatArray = weights / safe[self._rows]
        self._starts = np.searchsorted(self._rows, np.arange(self._n + 1))
        self._filled = np.flatnonzero(np.diff(self._starts))
        self._size = size

    def __call__(self, position: int) -> FloatArray:
        """Return the cosine of this document with each, in [0, 1], shape (n,)."""
        own = slice(self._starts[position], self._starts[position + 1])
        dense = np.zeros(self._size)
        dense[self._terms[own]] = self._weights[own]
        cosines = np.zeros(self._n)
        if len(self._filled):
            # Sums over rows; here no row may be empty.
            products = self._weights * dense[self._terms]
            cosines[self._filled] = np.add.reduceat(products, self._starts[self._filled])
        return cosines
