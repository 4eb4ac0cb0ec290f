"""Relevance feedback: words of a group's best documents, without a language model."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from fairqr.agents.refiners.cleaning import Limit, clean_words, make_empty_refinement
from fairqr.agents.refiners.refiner import GroupRequest, Refinement
from fairqr.prompts.template import PromptReference
from fairqr.retrieval.engines.engine import Hits, Query, SearchEngine, require
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.table import DocumentTable
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.texts.words import words_in

SHORTEST_WORD = 3
"""The least letters of a word that relevance feedback learns from a text."""

RESULTS = 500
"""How many results of a query it searches for a group's documents."""

TEACHERS = 10
"""How many of a group's documents it learns from."""

CANDIDATES = 100
"""How many of the most frequent words it looks up in the index."""

CHOSEN = Limit(entries=8, characters=40, words=4)
"""How many of the most typical words it proposes."""


class FeedbackRefiner:
    """Expands a query with words of the group's best documents, without a language model.

    It treats the group's best documents for the query as relevant, and adds the words that are
    typical of them (pseudo-relevance feedback, Rocchio 1971, within a group).

    Args:
        engine: The engine with the documents.
    """

    name = "feedback"
    prompts: Sequence[PromptReference] = ()

    def __init__(self, engine: SearchEngine) -> None:
        self._engine = engine

    async def start(self) -> None:
        """Check that the engine can count documents.

        Raises:
            UnsupportedError: The engine cannot.
        """
        require(self._engine, "document_frequencies", "The refiner 'feedback'")

    async def refine(self, request: GroupRequest, deadline: float | None = None) -> Refinement:
        """Search for the query, and choose words for one group; see :meth:`refine_all`."""
        del deadline  # reading ten documents takes no time
        (original,) = await self._engine.search([Query(request.query, RESULTS)])
        (refinement,) = await self.refine_all([request], original)
        return refinement

    async def refine_all(
        self, requests: Sequence[GroupRequest], original: Hits
    ) -> list[Refinement]:
        """Choose for each group the words with the largest Σ_d score(d)·tf(w,d)/|d| · ln(N/df(w)).

        The sum is over the group's best documents for the query. Each is weighted by its retrieval
        score and by its membership in the group. The engine is asked once for the texts and once
        for the counts, for all groups together.
        """
        merits = [self._weigh_documents(request, original) for request in requests]
        shares = await self._read_word_shares(merits)
        frequent_words = []
        for merit in merits:
            weights = _mix(shares, merit)
            frequent_words.append(_pick_heaviest(weights, CANDIDATES))
        rarity = await self._measure_rarity(frequent_words)

        refinements: list[Refinement] = []
        for request, merit, weights in zip(requests, merits, frequent_words, strict=True):
            typical = {}
            for word, weight in weights.items():
                if word in rarity:
                    typical[word] = weight * rarity[word]
            candidates = list(_pick_heaviest(typical, len(typical)))
            refinements.append(_make_refinement(request, candidates, learnt=bool(merit)))
        return refinements

    def _weigh_documents(self, request: GroupRequest, original: Hits) -> dict[str, float]:
        """Return the ids of the group's best documents, with score · membership."""
        dimension = Dimension.named(self._engine.schema, request.attribute)
        dimension = dimension.with_groups_of([request.group])
        table = DocumentTable()
        table.add(original.ids, original.memberships)
        members = table.memberships(dimension, original.ids)
        group = dimension.groups.index(request.group)
        merits = members[:RESULTS, group] * np.asarray(original.scores[:RESULTS])

        weighed: dict[str, float] = {}
        for row in np.argsort(-merits, kind="stable")[:TEACHERS].tolist():
            if merits[row] > 0:
                weighed[original.ids[row]] = float(merits[row])
        return weighed

    async def _read_word_shares(
        self, merits: Sequence[Mapping[str, float]]
    ) -> dict[str, dict[str, float]]:
        """Return the share of each word in the texts of documents, by their ids."""
        ids: dict[str, None] = {}
        for merit in merits:
            ids |= dict.fromkeys(merit)
        # A document that was deleted meanwhile is missing here.
        documents = await self._engine.documents(list(ids))
        return {document.id: _share_words(document) for document in documents}

    async def _measure_rarity(self, weights: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Return ln(N/df) of each word that a document of the engine has."""
        words: dict[str, None] = {}
        for weight_of in weights:
            words |= dict.fromkeys(weight_of)
        everything = Query("", 0)
        queries = [Query(word, 0, every_word=True) for word in words]
        all_hits, *hits_of_words = await self._engine.search([everything, *queries])

        rarity: dict[str, float] = {}
        for word, hits in zip(words, hits_of_words, strict=True):
            # A word that the engine analyzes to nothing, such as a stop word, is in no document.
            if hits.total:
                rarity[word] = math.log((all_hits.total or 0) / hits.total)
        return rarity


def _make_refinement(
    request: GroupRequest, candidates: Sequence[str], *, learnt: bool
) -> Refinement:
    """Return the best of the candidates for a group, or why there are none.

    Args:
        request: The query and the group.
        candidates: The words of the group's documents, the most typical first.
        learnt: Whether there were documents to learn from.
    """
    if not learnt:
        message = f"The query finds no documents of {request.group} to learn from."
        return Refinement("unsupported", message=message)
    chosen = clean_words(candidates, CHOSEN, query=request.query, in_use=request.keywords)
    if chosen.kept:
        return Refinement("ok", keywords=chosen.kept)
    return make_empty_refinement(
        chosen.left_out, subject=request.group, proposer="Relevance feedback"
    )


def _share_words(document: Document) -> dict[str, float]:
    """Return the share of each word in a text, without digits and the words of its title.

    A name identifies one person; it is not typical of a group.
    """
    # In the text's own Unicode form, which is the one that its engine has indexed.
    words = list(filter(_can_be_learnt, words_in(document.text.casefold())))
    title_words = set(words_in(document.title.casefold()))
    shares = {}
    for word, count in Counter(words).items():
        if word not in title_words:
            shares[word] = count / len(words)
    return shares


def _can_be_learnt(word: str) -> bool:
    """Return whether a word is long enough, and without digits."""
    has_digit = any(map(str.isdigit, word))
    return len(word) >= SHORTEST_WORD and not has_digit


def _mix(shares: Mapping[str, Mapping[str, float]], merit: Mapping[str, float]) -> dict[str, float]:
    """Return the sum of the word shares of documents by their merit (Lavrenko & Croft 2001)."""
    weights: dict[str, float] = defaultdict(float)
    for id_, score in merit.items():
        for word, share in shares.get(id_, {}).items():
            weights[word] += score * share
    return weights


def _pick_heaviest(weights: Mapping[str, float], n: int) -> dict[str, float]:
    """Return the n words with the highest weights, best first; ties in alphabetical order."""
    best = sorted(weights, key=lambda word: (-weights[word], word))[:n]
    return {word: weights[word] for word in best}
