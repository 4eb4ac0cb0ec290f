"""Expected and attributed exposure by group.

The document's exposure, its target and its use are summed over a group by membership, as task 2 of
TREC Fair 2022 does for relevance (see :mod:`fairqr.evaluation.measures.expected`). Nothing is
normalised: the exposures of all groups and of the unknown sum to k. Sums over groups leave out the
unknown, which stands apart, so documents without a label change no measure but by their absence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fairqr.evaluation.expected_exposure import target_exposure
from fairqr.evaluation.scores import Reason, Score, Undefined
from fairqr.retrieval.exposure import Discount, FloatArray
from fairqr.retrieval.schema import Attribute

__all__ = ["GroupExposure", "group_exposure", "memberships_of"]


@dataclass(frozen=True, slots=True)
class GroupExposure:
    """What the groups of an attribute get from a policy on one query, each of shape (G + 1,).

    The last place of each array is the unknown.

    Attributes:
        pool: The sum of memberships over the pool.
        useful: The same over useful documents.
        exposure: Σ_i ε_i·membership, in documents; sums to k.
        target: Σ_i ε*_i·membership: what the groups get if useful documents come first.
        useful_exposure: Exposure given to useful documents: the groups' share in what helps.
        answered: Exposure over the samples that were answered; zeros without answers.
        attributed: Σ_i ε^a_i·membership; sums to k·EAR.
    """

    pool: FloatArray
    useful: FloatArray
    exposure: FloatArray
    target: FloatArray
    useful_exposure: FloatArray
    answered: FloatArray
    attributed: FloatArray

    @property
    def disparity(self) -> float:
        """EE-D = Σ_g ε_g² over the known groups, in squared documents, in [0, k²].

        The low end is even between groups, whatever their sizes.
        """
        return float((self.exposure[:-1] ** 2).sum())

    @property
    def relevance(self) -> float:
        """EE-R = Σ_g ε_g·ε*_g over the known groups, in squared documents; high is good."""
        return float(self.exposure[:-1] @ self.target[:-1])

    @property
    def loss(self) -> float:
        """EE-L = Σ_g (ε_g − ε*_g)² over the known groups; 0 is fair: groups get their target."""
        return float(((self.exposure - self.target)[:-1] ** 2).sum())

    @property
    def attributed_disparity(self) -> float:
        """EAE-D = Σ_g (ε^a_g)² over the known groups, at most EE-D of the answered samples."""
        return float((self.attributed[:-1] ** 2).sum())

    def rates(self) -> list[Score]:
        """Return by group, the unknown last, the share of its exposure that was used, in [0, 1].

        The attribution rate of a group; a document without a verdict counts as not used. Undefined
        for a group that no answered sample exposed.
        """
        return [
            min(1.0, float(used / shown)) if shown > 0 else Undefined(Reason.EMPTY_GROUP)
            for used, shown in zip(self.attributed, self.answered, strict=True)
        ]


def memberships_of(
    attribute: Attribute, documents: Sequence[Mapping[str, Mapping[str, float]]]
) -> FloatArray:
    """Return the share of each group in each document, the unknown last, shape (n, G + 1).

    Each row sums to 1.

    Args:
        attribute: Of the collection's schema.
        documents: The groups of each document by attribute.
    """
    rows = np.zeros((len(documents), len(attribute.groups) + 1))
    known = len(attribute.groups)
    for row, groups in zip(rows, documents, strict=True):
        shares = attribute.membership(dict(groups.get(attribute.name, {})))
        row[:known] = shares[:known]
        row[known] = max(0.0, 1.0 - row[:known].sum())
    return rows


def group_exposure(
    memberships: FloatArray,
    exposure: FloatArray,
    useful: ArrayLike,
    k: int,
    answered: FloatArray | None = None,
    attributed: FloatArray | None = None,
) -> GroupExposure:
    """Sum what documents get over groups.

    Args:
        memberships: Shape (n, G + 1), the unknown last.
        exposure: ε, shape (n,).
        useful: Shape (n,).
        k: How many documents are read.
        answered: ε over the samples that were answered, shape (n,).
        attributed: ε^a, shape (n,).
    """
    labels = np.asarray(useful, dtype=bool)
    m, n = int(labels.sum()), labels.size
    wanted_useful, wanted_other = target_exposure(n, m, Discount("top_k", k), k)
    nothing = np.zeros(n)
    return GroupExposure(
        pool=memberships.sum(axis=0),
        useful=labels @ memberships,
        exposure=exposure @ memberships,
        target=np.where(labels, wanted_useful, wanted_other) @ memberships,
        useful_exposure=(exposure * labels) @ memberships,
        answered=(nothing if answered is None else answered) @ memberships,
        attributed=(nothing if attributed is None else attributed) @ memberships,
    )
