"""Measures the exposure and divergence of a list, and estimates the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fairqr.base.errors import TargetError
from fairqr.graph.search.context import Context
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import Discount, FloatArray
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.fairness.table import DocumentTable
from fairqr.retrieval.fairness.target import Part, retrieved_distribution

TARGET_DEPTH = 500
"""How many results of the original query the target part ``retrieved`` uses."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Exposure at k.

    Attributes:
        exposure: By dimension and group; zeros if no document has a label.
        divergences: By dimension, in nats; None if no document has a label.
        unknown: By dimension, the share of exposure that went to documents without a label.
    """

    exposure: dict[str, dict[str, float]]
    divergences: dict[str, float | None]
    unknown: dict[str, float]

    @property
    def divergence(self) -> float | None:
        """The mean over the dimensions that have one."""
        return mean_divergence(self.divergences)


def mean_divergence(divergences: Mapping[str, float | None]) -> float | None:
    """Return the mean of the defined divergences, or None if none is defined."""
    defined = [value for value in divergences.values() if value is not None]
    return sum(defined) / len(defined) if defined else None


def rank_key(divergences: Mapping[str, float | None]) -> tuple[int, float]:
    """Return a key that sorts measurements from best to worst; undefined divergences are worst."""
    undefined = sum(value is None for value in divergences.values())
    return undefined, mean_divergence(divergences) or 0.0


def discounted_mean(values: Sequence[float], discount: Discount) -> float:
    """Return the mean of the values of all ranks, weighted by the discount; 0 for an empty list."""
    weights = discount.weights(len(values))
    return float(weights @ np.array(values)) / float(weights.sum()) if len(values) else 0.0


def by_group(dimension: Dimension, vector: FloatArray) -> dict[str, float]:
    """Return the entries of a vector by the names of the groups."""
    return dict(zip(dimension.groups, vector.tolist(), strict=True))


def vector_of(dimension: Dimension, shares: Mapping[str, float]) -> FloatArray:
    """Return named shares as a vector over the groups."""
    return np.array([shares[group] for group in dimension.groups])


def estimate_target(
    table: DocumentTable,
    dimensions: Sequence[Dimension],
    original: Ranking,
    context: Context,
    corpus_shares: Mapping[str, FloatArray],
) -> dict[str, dict[str, float]]:
    """Compute ε* of each dimension from the results of the original query.

    Args:
        table: The groups of these results.
        dimensions: The attributes, or their product, that exposure is measured over.
        original: The results of the original query.
        context: The context of the run.
        corpus_shares: The share of each group in all documents, by attribute; needed for the target
            part ``corpus``.

    Raises:
        TargetError: The target is undefined, or needs shares that are unknown.
    """
    target: dict[str, dict[str, float]] = {}
    for dimension in dimensions:
        estimates: dict[Part, FloatArray] = {}
        if context.effective_target.parts.get("corpus"):
            if dimension.name not in corpus_shares:
                raise TargetError(
                    f"The share of each group of {dimension.name} in all documents is not known, "
                    "so the target cannot have the part 'corpus'; choose another part."
                )
            estimates["corpus"] = corpus_shares[dimension.name]
        if context.effective_target.parts.get("retrieved"):
            members = table.memberships(dimension, original.ids[:TARGET_DEPTH])
            scores = np.array(original.scores[:TARGET_DEPTH])
            estimates["retrieved"] = retrieved_distribution(members, scores)
        vector = context.effective_target.resolve(dimension.attribute, estimates)
        target[dimension.name] = by_group(dimension, vector)
    return target
