"""The features that a trained re-ranker sees of a document, besides its groups."""

from __future__ import annotations

import numpy as np

from fairqr.retrieval.engines.engine import Query, SearchEngine, lexical_of, require
from fairqr.retrieval.engines.tantivy.analysis import terms_of
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.rerankers.base import min_max

FEATURES = (
    "bm25_min_max",
    "bm25_log",
    "reciprocal_rank",
    "title_coverage",
    "text_length_log",
)
"""The names of the columns of :func:`features`."""


async def features(engine: SearchEngine, query: str, ranking: Ranking) -> FloatArray:
    """Return the features of a ranking's documents, shape (n, 5).

    ===================  =====================================================================
    ``bm25_min_max``     BM25 of the document for the query, min-max over the n
    ``bm25_log``         ln(1 + BM25)
    ``reciprocal_rank``  1/rank in the ranking, which may come from another retriever
    ``title_coverage``   the share of the query's distinct words that the title has
    ``text_length_log``  ln(1 + the number of words in the text), stop words left out
    ===================  =====================================================================

    A document that has since been deleted has zeros in place of missing texts and scores.

    Args:
        engine: The engine that has the documents.
        query: The original query.
        ranking: The n documents, from best to worst.
    """
    lexical = lexical_of(engine)
    require(lexical, "rescore", "A trained re-ranker")
    (rescored,) = await lexical.search([Query(query, len(ranking), only=tuple(ranking.ids))])
    score_of = dict(zip(rescored.ids, rescored.scores, strict=True))
    scores = np.array([max(0.0, score_of.get(id_, 0.0)) for id_ in ranking.ids])
    found = {document.id: document for document in await engine.documents(ranking.ids)}
    wanted = set(terms_of(query))
    coverage, lengths = np.zeros(len(ranking)), np.zeros(len(ranking))
    for row, id_ in enumerate(ranking.ids):
        if id_ in found:
            lengths[row] = len(terms_of(found[id_].text))
            if wanted:
                coverage[row] = len(wanted & set(terms_of(found[id_].title))) / len(wanted)
    ranks = np.arange(1, len(ranking) + 1)
    columns = [min_max(scores), np.log1p(scores), 1 / ranks, coverage, np.log1p(lengths)]
    return np.column_stack(columns)
