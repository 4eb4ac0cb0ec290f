"""Training data for re-rankers: the candidates of topics, with judgements."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairqr.base.errors import InputError
from fairqr.retrieval.engines.engine import Query, SearchEngine
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import LOG2, Discount, FloatArray
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.fairness.table import DocumentTable
from fairqr.retrieval.rerankers.base import Candidates, candidates_of
from fairqr.retrieval.rerankers.features import FEATURES, features

TargetOf = Callable[[Ranking, DocumentTable], Sequence[FloatArray]]
"""Returns the targets of the dimensions for the retrieved documents and their groups."""


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
