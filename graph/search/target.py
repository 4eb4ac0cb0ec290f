"""The target of a search: the exposure that each group should get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fairqr.base.errors import TargetError
from fairqr.graph.search.context import Context
from fairqr.graph.search.result import Shares
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import FloatArray, normalise
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.fairness.table import DocumentTable
from fairqr.retrieval.fairness.target import Part, retrieved_distribution

TARGET_DEPTH = 500
"""How many results of the original query the target part ``retrieved`` uses."""


def estimate_target(
    table: DocumentTable,
    dimensions: Sequence[Dimension],
    original: Ranking,
    context: Context,
    corpus_shares: Mapping[str, FloatArray],
    merits: Mapping[str, float],
) -> Shares:
    """Compute ε* of each dimension from the results of the original query.

    Args:
        table: The groups of these results.
        dimensions: The attributes, or their product, that exposure is measured over.
        original: The results of the original query.
        context: The context of the run.
        corpus_shares: The share of each group in all documents, by attribute; needed for the target
            part ``corpus``.
        merits: What each document found merits, by id; see
            :func:`fairqr.retrieval.fairness.claims.merits_of`.

    Raises:
        TargetError: The target is undefined, or needs shares that are unknown.
    """
    effective_target = context.effective_target
    parts = effective_target.parts
    target: Shares = {}
    for dimension in dimensions:
        estimates: dict[Part, FloatArray] = {}
        if parts.get("corpus"):
            if dimension.name not in corpus_shares:
                raise TargetError(
                    f"The share of each group of {dimension.name} in all documents is not known, "
                    "so the target cannot have the part 'corpus'; choose another part."
                )
            estimates["corpus"] = corpus_shares[dimension.name]

        if parts.get("retrieved"):
            members = table.memberships(dimension, original.ids[:TARGET_DEPTH])
            scores = np.array(original.scores[:TARGET_DEPTH])
            estimates["retrieved"] = retrieved_distribution(members, scores)

        if parts.get("merit"):
            members = table.memberships(dimension, list(merits))
            weights = np.array(list(merits.values()))
            estimates["merit"] = normalise(weights @ members)

        shares = effective_target.resolve(dimension, estimates)
        target[dimension.name] = by_group(dimension, shares)
    return target


def by_group(dimension: Dimension, vector: FloatArray) -> dict[str, float]:
    """Return the entries of a vector by the names of the groups."""
    return dict(zip(dimension.groups, vector.tolist(), strict=True))


def vector_of(dimension: Dimension, shares: Mapping[str, float]) -> FloatArray:
    """Return named shares as a vector over the groups."""
    return np.array([shares[group] for group in dimension.groups])
