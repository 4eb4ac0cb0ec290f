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
from fairqr.retrieval.engines.engine import Query, SearchEngine, require
from fairqr.retrieval.table import DocumentTable

__all__ = ["FeedbackRefiner"]

_WORD = re.compile(r"[^\W\d_]{3,}")


class FeedbackRefiner:
    """Expands a query with words of the group's best documents.

    Args:
        engine: Where the documents are.
        depth: How many results of the query to look for the group in.
        documents: How many of the group's documents to learn from.
        candidates: How many words to look up in the index; the most frequent ones.
    """

    name = "feedback"
    prompt: PromptReference | None = None

    def __init__(
        self, engine: SearchEngine, *, depth: int = 500, documents: int = 10, candidates: int = 100
    ) -> None:
        self._engine = engine
        self._depth = depth
        self._documents = documents
        self._candidates = candidates

    async def start(self) -> None:
        """Check that the engine counts documents.

        Raises:
            UnsupportedError: It does not.
        """
        require(self._engine, "document_frequencies", "The refiner 'feedback'")

    async def refine(self, request: RefinementRequest, deadline: float | None = None) -> Refinement:
        """Choose the words with the largest Σ_d score(d)·tf(w,d)/|d| · ln(N/df(w)).

        The sum is over the group's best documents for the query, each document weighted by its
        retrieval score and by its membership in the group.
        """
        del deadline  # reading ten documents takes no time
        dimension = Dimension.named(self._engine.schema, request.attribute)
        (hits,) = await self._engine.search([Query(request.query, self._depth)])
        table = DocumentTable()
        table.add(hits.ids, hits.memberships)
        members = table.memberships(dimension, hits.ids)
        share = members[:, dimension.groups.index(request.group)]
        merit = share * np.asarray(hits.scores)
        best = [int(row) for row in np.argsort(-merit, kind="stable") if merit[row] > 0]
        best = best[: self._documents]
        if not best:
            message = f"The query retrieves no document of {request.group} to learn from."
            return Refinement("unsupported", message=message)
        merit_of = {hits.ids[row]: float(merit[row]) for row in best}
        # One that was deleted meanwhile is left out.
        documents = await self._engine.documents(list(merit_of))

        weight: defaultdict[str, float] = defaultdict(float)
        for document in documents:
            words = [word.casefold() for word in _WORD.findall(document.text)]
            # A name says who somebody is, not what the group's documents have in common.
            own_name = set(_WORD.findall(document.title.casefold()))
            for word, count in Counter(words).items():
                if word not in own_name:
                    weight[word] += merit_of[document.id] * count / len(words)
        frequent = sorted(weight, key=lambda word: (-weight[word], word))[: self._candidates]
        every, *found = await self._engine.search(
            [Query("", 0), *(Query(word, 0, every_word=True) for word in frequent)]
        )
        typical = {
            word: weight[word] * math.log((every.total or 1) / answer.total)
            for word, answer in zip(frequent, found, strict=True)
            if answer.total
        }
        ordered = sorted(typical, key=lambda word: (-typical[word], word))
        taken = clean_keywords(
            ordered, known=[request.query, *request.keywords], limit=MAX_KEYWORDS
        )
        return refinement_from(taken, request, who="Relevance feedback")
