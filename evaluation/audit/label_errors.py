"""What wrong labels do to the figures of an audit, where a source states how often they are wrong.

Figures that are linear in the labels are corrected, and their intervals grow by what the checked
samples leave open (:mod:`fairqr.retrieval.fairness.confusion`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from fairqr.evaluation import estimates
from fairqr.evaluation.estimates import divided
from fairqr.retrieval.fairness.confusion import by_group, drawn_inverses, variances
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import FloatArray


class LabelErrors:
    """Corrects figures by label for how often the labels of a dimension are wrong.

    Args:
        dimension: The groups.

    Attributes:
        confusion: P(label | group), shape (G, G); None if all labels count as right.
    """

    def __init__(self, dimension: Dimension) -> None:
        self.confusion = dimension.confusion
        self._dimension = dimension

    @cached_property
    def inverses(self) -> FloatArray:
        """Inverse confusion matrices that fit the checked samples, drawn; shape (D, G, G)."""
        return drawn_inverses(self._dimension.counted, np.random.default_rng(0))

    def corrected(self, by_label: FloatArray) -> FloatArray:
        """Return by group what labels say, shape (…, G)."""
        return by_group(by_label, self.confusion)

    def rates(self, totals: FloatArray) -> FloatArray:
        """Return Σ above / Σ below of each group, shape (…, G), from both sums, shape (…, 2G)."""
        above, below = np.split(totals, 2, axis=-1)
        return divided(self.corrected(above), self.corrected(below))

    def drawn_rates(self, totals: FloatArray) -> FloatArray:
        """Return the same by each of the drawn inverses, shape (D, G), of sums of shape (2G,)."""
        above, below = np.split(totals, 2)
        return divided(above @ self.inverses, below @ self.inverses)


@dataclass
class _SharedLabels:
    """What rests on the labels of the documents of some queries.

    The columns of all arrays are the exposure, the target, and the gap.

    Attributes:
        documents: How much rests on the label of each document, by its id, shape (3,).
        squares: The sum over queries of the squares of that, shape (3,).
        weights: The weight of the queries that have the figure, shape (3,).
    """

    documents: dict[str, FloatArray] = field(default_factory=dict)
    squares: FloatArray = field(default_factory=lambda: np.zeros(3))
    weights: FloatArray = field(default_factory=lambda: np.zeros(3))

    def add(self, pool: Sequence[str], shares: FloatArray, weights: FloatArray) -> None:
        """Add a query: by document and figure what rests on its label, shape (P, 3)."""
        self.squares += (shares**2).sum(axis=0)
        self.weights += weights
        for id_, share in zip(pool, shares, strict=True):
            self.documents[id_] = self.documents.get(id_, 0.0) + share

    def shared(self) -> FloatArray:
        """Return the sum of squares that exceeds what single queries explain, shape (3,)."""
        by_document = np.array([*self.documents.values()])
        return np.asarray(np.maximum((by_document**2).sum(axis=0) - self.squares, 0.0))


class SharedLabels:
    """Gathers how far wrong labels of documents that many queries show move figures.

    A wrong label of a document is wrong in each query, so other queries do not make up for it.
    What one query alone says is in the spread of queries already.

    Args:
        weight_of_relevance: How much relevance counts in the target, in [0, 1].
    """

    def __init__(self, weight_of_relevance: float) -> None:
        self._weight = weight_of_relevance
        self._by_segment: dict[str, _SharedLabels] = {}

    def add(
        self,
        segment: str,
        weight: float,
        pool: Sequence[str],
        attention: FloatArray,
        relevance: FloatArray | None,
    ) -> None:
        """Take in a query.

        Args:
            segment: Of the query.
            weight: Of the query.
            pool: The ids of its documents, those first that are shown.
            attention: The weights of the ranks that are shown.
            relevance: How much each document counts for the target, if that is known, shape (P,).
        """
        exposures = np.zeros(len(pool))
        exposures[: len(attention)] = attention / attention.sum()
        targets = np.zeros(len(pool))
        is_known = relevance is not None and bool(relevance.any())
        if relevance is not None and is_known:
            targets = relevance / relevance.sum()
        gaps = np.zeros(len(pool))
        has_gap = is_known or not self._weight
        if has_gap:
            gaps = self._weight * targets - exposures
        shares = weight * np.column_stack([exposures, targets, gaps])
        weights = weight * np.array([1, is_known, has_gap])
        for name in {"", segment}:
            labels = self._by_segment.setdefault(name, _SharedLabels())
            labels.add(pool, shares, weights)

    def errors(
        self, dimension: Dimension, segment: str, mix: FloatArray
    ) -> list[Mapping[str, float]]:
        """Return by group how far wrong labels move its figures in a segment of the queries.

        Args:
            dimension: The groups.
            segment: The segment; empty for all queries.
            mix: The share of each group in the exposure, above 0, shape (G,).
        """
        confusion = dimension.confusion
        if confusion is None or segment not in self._by_segment:
            return [{}] * len(dimension.groups)
        labels = self._by_segment[segment]
        by_group_and_figure = np.outer(variances(confusion, mix), labels.shared())
        spread = estimates.NORMAL * np.sqrt(by_group_and_figure)
        errors: list[Mapping[str, float]] = []
        for exposure, target, gap in divided(spread, labels.weights, otherwise=0.0).tolist():
            of_group = {
                "target": target * self._weight,
                "attainable": target,
                "exposure_gap": gap,
                "ranking_gap": gap,
                "excess": gap,
                "exposure": exposure,
            }
            errors.append(of_group)
        return errors
