"""Methods that diversify search results: MMR by texts, xQuAD and PM-2 by groups as aspects.

They place one document at a time: the one with the largest value, given those above it.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.rerankers.base import Candidates, RerankedList, Reranker, min_max
from fairqr.retrieval.texts.words import terms_of

Similarity = Callable[[int], FloatArray]
"""Returns the similarity, in [−1, 1], of the document at a position to each, shape (n,)."""


class Mmr(Reranker):
    """MMR, which avoids near-duplicates and ignores groups (Carbonell & Goldstein 1998).

    Relevance is the current score, min-max normalised over the pool; similarity is the cosine of
    TF-IDF vectors of title and text. The scores of the result are the marginal relevances at which
    documents were chosen; they never increase.
    """

    trade_off: float = Field(
        0.7, ge=0, le=1, description="λ: 1 ranks by relevance alone, 0 by novelty alone."
    )

    async def rerank(
        self, engine: SearchEngine, query: str, candidates: Candidates, k: int
    ) -> RerankedList:
        """See :meth:`fairqr.retrieval.rerankers.base.Reranker.rerank`."""
        # The first of equal marginal relevances wins, and that must be the first id.
        pairs = sorted(zip(candidates.ranking.ids, candidates.ranking.scores, strict=True))
        ids = [id_ for id_, _ in pairs]
        relevance = min_max([score for _, score in pairs])

        text_of = {}
        for document in await engine.documents(ids):
            text_of[document.id] = f"{document.title} {document.text}"
        texts = [text_of.get(id_, "") for id_ in ids]

        def choose() -> tuple[NDArray[np.intp], FloatArray]:
            similarity = tf_idf_similarity(texts)
            return maximal_marginal_relevance(relevance, similarity, self.trade_off, k)

        order, scores = await asyncio.to_thread(choose)
        return RerankedList(Ranking([ids[position] for position in order], scores.tolist()))


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
    order = np.empty(count, dtype=np.intp)
    values = np.empty(count)
    gain = trade_off * relevance
    closest = np.zeros_like(gain)
    is_free = np.ones(len(gain), dtype=bool)
    for position in range(count):
        marginal = np.where(is_free, gain - (1 - trade_off) * closest, -np.inf)
        best = int(marginal.argmax())
        order[position] = best
        values[position] = marginal[best]
        is_free[best] = False
        is_last = position + 1 == count
        if not is_last:
            closest = np.maximum(closest, similarity(best))
    return order, values


def tf_idf_similarity(texts: Sequence[str]) -> Similarity:
    """Return the cosines between the TF-IDF vectors of texts, in [0, 1].

    The weight of a term is (1 + ln tf)·ln((1+n)/(1+df)), with words stemmed as in the index.
    Document frequencies are counted in the pool: a word that all candidates have, such as one of
    the query, says nothing about their differences, and we need no request to the index.

    Args:
        texts: The n texts. One without words has similarity 0 to all, including itself.
    """
    # A matrix of documents by terms, of which we only keep the cells that are not 0.
    number_of: dict[str, int] = {}
    term_numbers: list[int] = []
    lengths: list[int] = []
    for text in texts:
        terms = terms_of(text)
        term_numbers += [number_of.setdefault(term, len(number_of)) for term in terms]
        lengths.append(len(terms))
    n = len(texts)
    size = max(len(number_of), 1)
    documents = np.repeat(np.arange(n), lengths)
    occurrences = documents * size + np.array(term_numbers, dtype=np.intp)
    cells, frequency = np.unique(occurrences, return_counts=True)
    rows, columns = np.divmod(cells, size)

    idf = np.log((1 + n) / (1 + np.bincount(columns, minlength=size)))
    weights = (1 + np.log(frequency)) * idf[columns]
    norms = np.sqrt(np.bincount(rows, weights=weights**2, minlength=n))
    # Zero if all of a document's terms are in every document.
    weights /= np.where(norms > 0, norms, 1.0)[rows]

    def similarity_to_all(position: int) -> FloatArray:
        is_of_document = rows == position
        vector = np.zeros(size)
        vector[columns[is_of_document]] = weights[is_of_document]
        products = weights * vector[columns]
        return np.bincount(rows, weights=products, minlength=n).astype(np.float64)

    return similarity_to_all


@dataclass(frozen=True)
class Aspects:
    """The groups of all attributes, side by side.

    With A attributes, each has 1/A of the weight. So the aspects are a sum over attributes, just as
    the divergence is a mean over them. One aspect for each combination of groups would need a
    target for the combinations: ``intersect`` makes such an attribute.

    Attributes:
        relevance: The min-max normalised scores of the n documents, shape (n,).
        memberships: The share of each group in each document, shape (n, G).
        weights: P(a|q), the target's share of each group divided by A, shape (G,).
    """

    relevance: FloatArray
    memberships: FloatArray
    weights: FloatArray

    @classmethod
    def of(cls, candidates: Candidates) -> Aspects:
        """Return the aspects of candidates."""
        weights = np.concatenate(candidates.targets) / len(candidates.targets)
        members = np.concatenate(candidates.memberships, axis=1)
        return cls(min_max(candidates.ranking.scores), members, weights)

    @cached_property
    def coverage(self) -> FloatArray:
        """P(d|a), shape (n, G).

        A document serves a group as much as it is relevant and belongs to the group.
        """
        return self.relevance[:, np.newaxis] * self.memberships


class Diversifier(Reranker):
    """Gives each rank to the document with the largest value; the scores are 1/rank."""

    @abstractmethod
    def values(self, aspects: Aspects, above: list[int], is_left: NDArray[np.bool_]) -> FloatArray:
        """Return the value of each document for the next rank, shape (n,).

        Args:
            aspects: The groups.
            above: The positions of the labelled documents above, from the first rank on.
            is_left: Whether a document can still be placed, shape (n,).
        """

    def order(self, aspects: Aspects, k: int) -> NDArray[np.intp]:
        """Return the positions of min(k, n) documents in their new order.

        Ties go to the first position. A document without any label keeps its place, as in the
        exposure-aware step: missing knowledge must not count against it.
        """
        is_left = np.asarray(aspects.memberships.any(axis=1))
        order = np.arange(min(k, len(is_left)), dtype=np.intp)
        above: list[int] = []
        for rank in np.flatnonzero(is_left[: len(order)]):
            values = self.values(aspects, above, is_left)
            best = int(np.where(is_left, values, -np.inf).argmax())
            order[rank] = best
            is_left[best] = False
            above.append(best)
        return order

    def positions(self, candidates: Candidates, k: int) -> NDArray[np.intp]:
        """See :meth:`fairqr.retrieval.rerankers.base.Reranker.positions`."""
        return self.order(Aspects.of(candidates), k)


class Xquad(Diversifier):
    """xQuAD, which favours relevant documents of groups not yet shown (Santos et al. 2010).

    The papers tune λ and state no default. With S the documents above, the next one is argmax_d of

        (1−λ)·P(d|q) + λ·Σ_a P(a|q)·P(d|a)·Π_{s∈S} (1 − P(s|a)).

    The product says how little S covers a group. It falls fast: one document that is certainly
    relevant and in the group makes it 0, so the target decides which groups come first, not how
    many documents each gets. Here P(d|q) is the relevance, and P(d|a) is relevance × membership.
    """

    diversity: float = Field(
        0.5,
        ge=0,
        le=1,
        description="λ: 0 ranks by relevance alone, 1 by the coverage of groups alone.",
    )

    def values(self, aspects: Aspects, above: list[int], is_left: NDArray[np.bool_]) -> FloatArray:
        """See :meth:`fairqr.retrieval.rerankers.diversification.Diversifier.values`."""
        weights = self.diversity * aspects.weights
        covered = aspects.coverage[above]
        uncovered = np.multiply.reduce(np.concatenate([weights[None], 1 - covered]))
        by_relevance = (1 - self.diversity) * aspects.relevance
        return np.asarray(by_relevance + (aspects.coverage * uncovered).sum(axis=1))


class Pm2(Diversifier):
    """PM-2, which shares out ranks like seats in an election (Dang & Croft 2012).

    It builds on Sainte-Laguë's method; the paper tunes λ and states no default. A rank is a seat,
    and v_a = P(a|q) are the votes of a group that has s_a seats so far. The next seat goes to the
    group a* with the largest quotient q_a = v_a/(2·s_a + 1), and goes to

        argmax_d λ·q_a*·P(d|a*) + (1−λ)·Σ_{a≠a*} q_a·P(d|a),

    Then each s_a grows by the share of the seat that the document takes for the group. Here P(d|a)
    is relevance × membership, and that share is the membership; the unknown part of a document
    takes its part of the seat for no group. No seat goes to a group without remaining documents
    of relevance above 0, as a party gets no more seats once its list is used up.
    """

    focus: float = Field(
        0.5,
        ge=0,
        le=1,
        description="λ: at 1, each rank goes to the group whose turn it is; below 1, a more "
        "relevant document of another group can win.",
    )

    def values(self, aspects: Aspects, above: list[int], is_left: NDArray[np.bool_]) -> FloatArray:
        """See :meth:`fairqr.retrieval.rerankers.diversification.Diversifier.values`."""
        seats = aspects.memberships[above].sum(axis=0)
        quotients = aspects.weights / (2 * seats + 1)
        has_documents = aspects.coverage[is_left].any(axis=0)
        next_seat = np.where(has_documents, quotients, -1).argmax()
        factors = (1 - self.focus) * quotients
        factors[next_seat] = self.focus * quotients[next_seat]
        return np.asarray((aspects.coverage * factors).sum(axis=1))
