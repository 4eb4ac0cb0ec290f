"""Whether the estimate of relevance is as sure of each group, and gives it what judgements do.

**Bias**: the share of a group in the estimated relevance, less its share in the documents that were
judged relevant to the same queries.

**Certainty**: c_g = Σ p²·m_g / Σ p·m_g over the documents that may be relevant, where p is the
estimated probability and m_g the membership: how likely a document is relevant that is drawn by its
p. A lower one is what Rastogi & Joachims (2024, arXiv:2309.01610) call disparate uncertainty: an
order by p then passes over relevant documents of the group more often than over others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairqr.evaluation.estimates import Estimate, divided, estimate, means
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import FloatArray, normalise


@dataclass(frozen=True, slots=True)
class GroupCalibration:
    """How the estimate of relevance treats a group.

    Attributes:
        attribute: The attribute.
        group: The group.
        estimated: Its share of the estimated relevance, over the judged queries.
        judged: Its share of the documents that were judged relevant to these.
        bias: Estimated less judged; the interval is corrected for all groups (Bonferroni).
        certainty: c_g, over all queries.
        other_certainty: The same of all other groups together.
        less_certain: The first less the second; the interval is corrected as that of the bias.
    """

    attribute: str
    group: str
    estimated: Estimate
    judged: Estimate
    bias: Estimate
    certainty: Estimate
    other_certainty: Estimate
    less_certain: Estimate

    @property
    def is_biased(self) -> bool:
        """Whether the interval of the bias lies on one side of 0."""
        return self.bias.low > 0 or self.bias.high < 0

    @property
    def is_less_certain(self) -> bool:
        """Whether the whole interval says that the estimate is less certain for the group."""
        return self.less_certain.high < 0


class Calibrating:
    """Gathers what calibration is computed from, query by query.

    Args:
        dimension: The groups.
    """

    def __init__(self, dimension: Dimension) -> None:
        self._dimension = dimension
        self._weights: list[float] = []
        self._expected: list[FloatArray] = []
        self._squared: list[FloatArray] = []
        self._judged: list[FloatArray] = []

    def add(
        self, weight: float, relevance: FloatArray, members: FloatArray, judged: FloatArray | None
    ) -> None:
        """Take in a query.

        Args:
            weight: Of the query.
            relevance: The estimate for each document, 0 for those that do not count, shape (n,).
            members: Their memberships, shape (n, G).
            judged: The memberships of the documents that were judged relevant, summed, shape (G,);
                None if there are none.
        """
        self._weights.append(weight)
        self._expected.append(relevance @ members)
        self._squared.append(relevance**2 @ members)
        unknown = np.full(members.shape[1], np.nan)
        self._judged.append(unknown if judged is None else judged)

    def found(self) -> list[GroupCalibration]:
        """Return the calibration of each group; nothing without queries."""
        if not self._weights:
            return []
        weights = np.array(self._weights)
        expected = np.array(self._expected)
        squared = np.array(self._squared)
        is_judged = ~np.isnan(self._judged).any(axis=1)
        judged = normalise(np.array(self._judged)[is_judged])
        estimated = normalise(expected[is_judged])
        of_judged = weights[is_judged]
        size = expected.shape[1]
        parts = np.concatenate([squared, expected], axis=1)

        def certainties(totals: FloatArray) -> FloatArray:
            above = totals[..., :size]
            below = totals[..., size:]
            others_above = above.sum(axis=-1, keepdims=True) - above
            others_below = below.sum(axis=-1, keepdims=True) - below
            of_groups = divided(above, below)
            return np.concatenate([of_groups, divided(others_above, others_below)], axis=-1)

        def differences(totals: FloatArray) -> FloatArray:
            of_groups, of_others = np.split(certainties(totals), 2, axis=-1)
            return np.asarray(of_groups - of_others)

        certain = estimate(parts, weights, certainties, scale="logit")
        less_certain = estimate(parts, weights, differences, comparisons=size)
        bias = estimate(
            np.column_stack([estimated - judged, np.ones(len(judged))]),
            of_judged,
            lambda totals: divided(totals[..., :-1], totals[..., -1:]),
            comparisons=size,
        )
        columns = zip(
            self._dimension.groups,
            means(estimated, of_judged),
            means(judged, of_judged),
            bias,
            certain[:size],
            certain[size:],
            less_certain,
            strict=True,
        )
        return [GroupCalibration(self._dimension.name, *column) for column in columns]
