"""RM3: expands a query with words from the documents that match it best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fairqr.retrieval.analysis import term_of, terms_of
from fairqr.retrieval.encoders.encoder import text_of
from fairqr.retrieval.engines.engine import EngineOverWords, Hits, Query, SearchEngine, require
from fairqr.retrieval.feedback import (
    document_frequencies,
    most_weighted,
    relevance_model,
    shares_of,
)
from fairqr.retrieval.retriever_parameters import Rm3
from fairqr.retrieval.words import folded_words

__all__ = ["Rm3Engine"]

Expansion = tuple[tuple[str, float], ...]

CANDIDATES = 100
"""How many words we count in the index: those with the highest weights."""
LENGTHS = range(2, 21)
HIGHEST_SHARE = 0.1
"""Words in a larger share of all documents say little and are left out."""


class Rm3Engine(EngineOverWords):
    """Expands each query by pseudo-relevance feedback (Abdul-Jaleel et al. 2004), as in Anserini.

    The first documents of a query, weighted by their scores, give the relevance model P(w|R). Its
    best words, with weights that sum to 1, are added to those of the query: α·P(w|q) +
    (1 − α)·P(w|R). The engine scores documents by all these words. We multiply the weights by
    |q|/α, so that a word of the query weighs 1.

    Words are compared by their English stems. We do not add words of one letter, of more than 20
    letters, or in more than a tenth of all documents. We look up only the best 100 words in the
    index, so unlike in Anserini, frequent words count in the length of a document.

    Counts and groups are the engine's. A search takes three more round trips: for the first
    documents, their texts, and counts of words.
    """

    def __init__(self, lexical: SearchEngine, options: Rm3) -> None:
        """Expand the queries of an engine.

        Raises:
            UnsupportedError: The engine cannot count the documents that match.
        """
        require(lexical, "document_frequencies", "The retriever rm3", "use the retriever bm25")
        super().__init__(lexical)
        self.options = options
        self.retriever = options.named("rm3")
        self.capabilities = lexical.capabilities

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        """Answer all queries, expanding first those that rank by words."""
        wanted = {(q.text, q.boost) for q in queries if q.is_ranking}
        plain = [Query(text, self.options.documents, boost) for text, boost in sorted(wanted)]
        added = dict(zip(sorted(wanted), await self._expansions(plain), strict=True))
        return await self.lexical.search(
            [
                replace(query, expansion=added[query.text, query.boost])
                if query.is_ranking
                else query
                for query in queries
            ]
        )

    async def _expansions(self, queries: Sequence[Query]) -> list[Expansion]:
        """Return the words to add to each query, with their weights."""
        if not queries:
            return []
        found = await self.lexical.search(queries)
        ids = list(dict.fromkeys(id_ for hits in found for id_ in hits.ids))
        texts = {document.id: text_of(document) for document in await self.lexical.documents(ids)}
        models = [_relevance_model(hits, texts) for hits in found]
        likely = [most_weighted(model, CANDIDATES) for model in models]
        words = list(dict.fromkeys(word for some in likely for word in some))
        total, frequencies = await document_frequencies(self.lexical, words)
        rare = {word for word in words if 0 < frequencies[word] <= HIGHEST_SHARE * total}
        return [
            self._weighted(query, {word: model[word] for word in some if word in rare})
            for query, model, some in zip(queries, models, likely, strict=True)
        ]

    def _weighted(self, query: Query, model: Mapping[str, float]) -> Expansion:
        """Return the best words of a relevance model, with weights relative to query words at 1."""
        best = most_weighted(model, self.options.terms)
        total = sum(model[word] for word in best)
        scale = (1 / self.options.weight - 1) * len(terms_of(query.words))
        return tuple((word, scale * model[word] / total) for word in best if scale * total > 0)


def _relevance_model(hits: Hits, texts: Mapping[str, str]) -> dict[str, float]:
    """Return the relevance model of the hits whose texts we have.

    Words with the same stem count as one, named by the shortest of them.
    """
    forms: dict[str, str] = {}
    documents = []
    for id_, score in zip(hits.ids, hits.scores, strict=True):
        stems = []
        for word in folded_words(texts.get(id_, "")):
            if len(word) in LENGTHS and (stem := term_of(word)):
                stems.append(stem)
                forms[stem] = min(forms.get(stem, word), word, key=lambda form: (len(form), form))
        documents.append((shares_of(stems), score))
    return {forms[stem]: weight for stem, weight in relevance_model(documents).items()}
