"""What trained re-rankers see: the features of documents, and judged candidates of topics."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairqr.base.errors import InputError
from fairqr.retrieval.engines.engine import Query, SearchEngine, lexical_of, require
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import LOG2, Discount, FloatArray
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.fairness.table import DocumentTable
from fairqr.retrieval.rerankers.base import Candidates, candidates_of, min_max
from fairqr.retrieval.texts.words import terms_of

TargetOf = Callable[[Ranking, DocumentTable], Sequence[FloatArray]]
"""Returns the targets of the dimensions for the retrieved documents and their groups."""


FEATURES = (
    "bm25_min_max",
    "bm25_log",
    "reciprocal_rank",
    "title_coverage",
    "text_length_log",
)
"""The names of the columns of :func:`features`."""


@dataclass(frozen=True, slots=True)
class Example:
    """One topic.

    Attributes:
        topic: The topic's id.
        candidates: The documents retrieved for it.
        features: The features of the documents, shape (n, F).
        grades: The grades, at least 0, shape (n,); an unjudged document has 0.
    """

    topic: str
    candidates: Candidates
    features: FloatArray
    grades: FloatArray


@dataclass(frozen=True, slots=True)
class Examples:
    """Topics that share the same dimensions.

    Attributes:
        items: The examples in order of topic, so that the same topics always give the same weights.
        feature_names: The names of the F columns.
    """

    items: Sequence[Example]
    feature_names: tuple[str, ...] = FEATURES

    def only(self, topics: Collection[str]) -> Examples:
        """Return the examples of these topics, for instance of a fold."""
        wanted = set(topics)
        return replace(self, items=[item for item in self.items if item.topic in wanted])

    def check(self) -> None:
        """Refuse examples that nothing can be learned from.

        Raises:
            InputError: There are no examples, or none with both relevant and other candidates.
        """
        if not any(
            item.grades.min() < item.grades.max() for item in self.items if len(item.grades)
        ):
            raise InputError(
                "There is nothing to train on: no topic has both relevant and other documents "
                "among its candidates; check that the judgements fit the topics and the corpus."
            )

    def sha256(self) -> str:
        """Return a hash of everything that training sees, in hexadecimal."""
        digest = hashlib.sha256("\x00".join(self.feature_names).encode())
        for item in self.items:
            digest.update(f"\x00{item.topic}\x00{item.candidates.dimensions}".encode())
            arrays = [item.features, item.grades]
            for array in [*arrays, *item.candidates.memberships, *item.candidates.targets]:
                digest.update(np.ascontiguousarray(array, dtype="<f8").tobytes())
        return digest.hexdigest()


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


async def gather_examples(
    engine: SearchEngine,
    topics: Mapping[str, str],
    qrels: Mapping[str, Mapping[str, int]],
    dimensions: Sequence[Dimension],
    target_of: TargetOf,
    *,
    depth: int = 200,
    target_depth: int = 500,
    discount: Discount = LOG2,
) -> Examples:
    """Run a search for each topic, and look up everything that training needs.

    We leave out a topic that retrieves nothing, or has no relevant judged document.

    Args:
        engine: The engine to search.
        topics: The query of each topic.
        qrels: The grade of each judged document, by topic.
        dimensions: The dimensions to measure exposure over.
        target_of: Returns ε* of a topic; in training it should be estimated as at query time.
        depth: How many documents to learn from.
        target_depth: How many documents to estimate the target from.
        discount: The weight of each rank.

    Raises:
        InputError: No topic is left.
    """
    items = []
    for topic in sorted(topics):
        judged = qrels.get(topic, {})
        if not any(grade > 0 for grade in judged.values()):
            continue
        (hits,) = await engine.search([Query(topics[topic], max(depth, target_depth))])
        if not hits.ids:
            continue
        table = DocumentTable()
        table.add(hits.ids, hits.memberships)
        retrieved = Ranking(hits.ids, hits.scores)
        ranking, targets = retrieved.top(depth), target_of(retrieved, table)
        items.append(
            Example(
                topic,
                candidates_of(table, ranking, dimensions, targets, discount),
                await features(engine, topics[topic], ranking),
                np.array([max(0, judged.get(id_, 0)) for id_ in ranking.ids], dtype=np.float64),
            )
        )
    examples = Examples(items)
    examples.check()
    return examples
