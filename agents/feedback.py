"""``feedback``: a refiner without a language model, by relevance feedback on one group's documents.

It takes the best documents of the group for the query as if they were judged relevant, and adds
the words that are typical of them (pseudo-relevance feedback, Rocchio 1971, within a group).
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict

import numpy as np

from fairqr.agents.keywords import MAX_KEYWORDS, clean_keywords
from fairqr.agents.refiner import Refinement, RefinementRequest, refinement_from
from fairqr.prompts.template import PromptReference
from fairqr.retrieval.dimension import Dimension
from fairqr.retrieval.index import Index

__all__ = ["FeedbackRefiner"]

_WORD = re.compile(r"[^\W\d_]{3,}")


class FeedbackRefiner:
    """Expands a query with words of the group's best documents.

    Args:
        index: Where the documents are.
        depth: How many results of the query to look for the group in.
        documents: How many of the group's documents to learn from.
        candidates: How many words to look up in the index; the most frequent ones.
    """

    name = "feedback"
    prompt: PromptReference | None = None

    def __init__(
        self, index: Index, *, depth: int = 500, documents: int = 10, candidates: int = 100
    ) -> None:
        self._index = index
        self._depth = depth
        self._documents = documents
        self._candidates = candidates

    async def start(self) -> None:
        """Nothing is missing."""

    async def refine(self, request: RefinementRequest, deadline: float | None = None) -> Refinement:
        """Choose the words with the largest Σ_d score(d)·tf(w,d)/|d| · ln(N/df(w)).

        The sum is over the group's best documents for the query, each document weighted by its
        retrieval score and by its membership in the group.
        """
        del deadline  # reading ten documents takes no time
        dimension = Dimension.named(self._index.schema, request.attribute)
        ranking = await self._index.search(request.query, self._depth)
        members = await dimension.memberships(self._index, ranking.ids)
        share = members[:, dimension.groups.index(request.group)]
        merit = share * np.asarray(ranking.scores)
        best = [int(row) for row in np.argsort(-merit, kind="stable") if merit[row] > 0]
        best = best[: self._documents]
        if not best:
            message = f"The query retrieves no document of {request.group} to learn from."
            return Refinement("unsupported", message=message)
        texts = await self._index.documents([ranking.ids[row] for row in best])

        weight: defaultdict[str, float] = defaultdict(float)
        for row, document in zip(best, texts, strict=True):
            words = [word.casefold() for word in _WORD.findall(document.text)]
            # A name says who somebody is, not what the group's documents have in common.
            own_name = set(_WORD.findall(document.title.casefold()))
            for word, count in Counter(words).items():
                if word not in own_name:
                    weight[word] += float(merit[row]) * count / len(words)
        frequent = sorted(weight, key=lambda word: (-weight[word], word))[: self._candidates]
        frequencies = await self._index.document_frequencies(frequent)
        size = (await self._index.info()).documents
        typical = {
            word: weight[word] * math.log(size / frequency)
            for word, frequency in zip(frequent, frequencies, strict=True)
            if frequency
        }
        ordered = sorted(typical, key=lambda word: (-typical[word], word))
        taken = clean_keywords(
            ordered, known=[request.query, *request.keywords], limit=MAX_KEYWORDS
        )
        return refinement_from(taken, request, who="Relevance feedback")
