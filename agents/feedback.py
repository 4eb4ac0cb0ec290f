"""``feedback``: a refiner that uses relevance feedback from a group, without a language model.

It treats the group's best documents for the query as relevant, and adds the words that are typical
of them (pseudo-relevance feedback, Rocchio 1971, within a group).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fairqr.agents.refiner import Refinement, RefinementRequest, refinement_from
from fairqr.prompts.template import PromptReference
from fairqr.retrieval.engines.engine import Hits, Query, SearchEngine, require
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.table import DocumentTable
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.texts.evidence import (
    document_frequencies,
    most_weighted,
    relevance_model,
    shares_of,
)
from fairqr.retrieval.texts.words import words_in, words_without_digits

SHORTEST_WORD = 3


class FeedbackRefiner:
    """Expands a query with words of the group's best documents.

    Args:
        engine: The engine with the documents.
        depth: How many results of the query to search for the group's documents.
        documents: How many of the group's documents to learn from.
        candidates: How many of the most frequent words to look up in the index.
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
        """Check that the engine can count documents.

        Raises:
            UnsupportedError: The engine cannot.
        """
        require(self._engine, "document_frequencies", "The refiner 'feedback'")

    async def refine(self, request: RefinementRequest, deadline: float | None = None) -> Refinement:
        """Search for the query, and choose words for one group; see :meth:`refine_all`."""
        del deadline  # reading ten documents takes no time
        (original,) = await self._engine.search([Query(request.query, self._depth)])
        (refinement,) = await self.refine_all([request], original)
        return refinement

    async def refine_all(
        self, requests: Sequence[RefinementRequest], original: Hits
    ) -> list[Refinement]:
        """Choose for each group the words with the largest Σ_d score(d)·tf(w,d)/|d| · ln(N/df(w)).

        The sum is over the group's best documents for the query. Each is weighted by its retrieval
        score and by its membership in the group. The engine is asked once for the texts and once
        for the counts, for all groups together.
        """
        merits = [self._merits(request, original) for request in requests]
        wanted = list(dict.fromkeys(id_ for merit in merits for id_ in merit))
        # A document that was deleted meanwhile is missing here.
        shares = {it.id: _shares_without_name(it) for it in await self._engine.documents(wanted)}
        weights = [
            relevance_model((shares[id_], merit[id_]) for id_ in merit if id_ in shares)
            for merit in merits
        ]
        frequent = [most_weighted(weight, self._candidates) for weight in weights]
        words = list(dict.fromkeys(word for some in frequent for word in some))
        total, found = await document_frequencies(self._engine, words)
        rarity = {word: math.log(total / n) for word, n in found.items() if n}
        refinements = []
        for request, merit, weight, some in zip(requests, merits, weights, frequent, strict=True):
            typical = {word: weight[word] * rarity[word] for word in some if word in rarity}
            proposed = most_weighted(typical, len(typical))
            made = refinement_from(proposed, request, who="Relevance feedback")
            if not merit:
                said = f"The query finds no documents of {request.group} to learn from."
                made = Refinement("unsupported", message=said)
            refinements.append(made)
        return refinements

    def _merits(self, request: RefinementRequest, original: Hits) -> dict[str, float]:
        """Return the ids of the group's best documents, with score · membership."""
        dimension = Dimension.named(self._engine.schema, request.attribute)
        table = DocumentTable()
        table.add(original.ids, original.memberships)
        ids = original.ids[: self._depth]
        share = table.memberships(dimension, ids)[:, dimension.groups.index(request.group)]
        merit = share * np.asarray(original.scores[: self._depth])
        best = [int(row) for row in np.argsort(-merit, kind="stable") if merit[row] > 0]
        return {ids[row]: float(merit[row]) for row in best[: self._documents]}


def _shares_without_name(document: Document) -> dict[str, float]:
    """Return the share of each word in a text, without the words of its title.

    A name identifies one person; it is not typical of a group.
    """
    # In the text's own Unicode form, which is the one that its engine has indexed.
    words = words_without_digits(document.text.casefold())
    shares = shares_of([word for word in words if len(word) >= SHORTEST_WORD])
    own_name = set(words_in(document.title.casefold()))
    return {word: share for word, share in shares.items() if word not in own_name}
