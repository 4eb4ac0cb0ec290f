"""How far a list can be from the best order of its documents, and what exposure costs there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fairqr.retrieval.fairness.best_ranking import (
    falls_in_relevance,
    highest_exposure,
    keeps_order,
)
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.fairness.objective import DIGITS, Positions, RankingObjective
from fairqr.retrieval.fairness.relaxation import POINT, Relaxation, relax
from fairqr.retrieval.rerankers.base import Candidates
from fairqr.retrieval.rerankers.fair import FairStep

Among = Literal["engine_order", "labelled_exposure"]
"""What orders have in common that are bounded."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """What the relaxation of :mod:`fairqr.retrieval.fairness.relaxation` says of a list.

    Attributes:
        bound: No order of the candidates that is ``among`` those bounded has a J above it; in
            [0, 1].
        price: By attribute and group, what one more point of exposure costs of V, near the best
            order. It is negative for groups with more than their target. Without groups of which
            the candidates cannot give a point more, or not at the price of all relevance.
        bounded: J of the list as the bound counts it, without what is left out.
        leaves_out: The options of the step that the bound and the prices leave out.
        among: What the orders that are bounded have in common, if they are not all:
            ``engine_order``, that documents of the same groups keep the engine's order, where that
            is not the order of relevance; ``labelled_exposure``, that labelled documents get as
            much exposure as in the list, where some documents lack labels.
    """

    bound: float
    price: dict[str, dict[str, float]]
    bounded: float
    leaves_out: tuple[str, ...] = ()
    among: tuple[Among, ...] = ()


def _order_that_bounds(
    order: Positions | None, objective: RankingObjective, ranked: Sequence[int]
) -> Positions | None:
    """Return the order within groups that all bounded lists keep; None if they may have any.

    An order that falls in relevance is the best of any, and needs no bound of its own. Where the
    list does not keep the order, lists that do say nothing about it.
    """
    if order is None or falls_in_relevance(objective, order):
        return None
    return order if keeps_order(objective, ranked, order) else None


def certify(
    candidates: Candidates, step: FairStep, weight: float, k: int, ranked: Sequence[int]
) -> Certificate | None:
    """Return the certificate of a list; None if it leaves ranks empty that it could fill.

    Args:
        candidates: All documents that could be ranked.
        step: What made the list. The order that it keeps counts only if the list keeps it, too.
        weight: The weight of fairness in J.
        k: How many ranks there are to fill.
        ranked: The list, as positions of the candidates.
    """
    if not 0 < len(ranked) == min(k, len(candidates)):
        return None
    candidates = candidates.with_absent_groups_as_one()
    measured = step.with_all_dimensions(candidates)
    objective = step.bounded_objective(measured, weight, k)
    order = _order_that_bounds(step.order_within_groups(candidates), objective, ranked)
    relaxation = relax(objective, ranked, order)

    among: list[Among] = []
    if order is not None:
        among.append("engine_order")
    if any(_lacks_labels(members) for members in measured.memberships):
        among.append("labelled_exposure")
    return Certificate(
        relaxation.bound,
        _prices(measured, objective, relaxation, len(ranked)),
        bounded=objective.quality(ranked).value,
        leaves_out=step.left_out_of_bounds,
        among=tuple(among),
    )


def _lacks_labels(memberships: FloatArray) -> bool:
    """Return whether some documents have less of a label than others."""
    return bool(np.ptp(memberships.sum(axis=1)) > 10**-DIGITS)


def _prices(
    candidates: Candidates, objective: RankingObjective, relaxation: Relaxation, length: int
) -> dict[str, dict[str, float]]:
    """Return what one more point of exposure costs; see :attr:`Certificate.price`."""
    prices: dict[str, dict[str, float]] = {}
    dimensions = zip(
        candidates.dimensions,
        candidates.groups,
        candidates.memberships,
        relaxation.exposures,
        relaxation.cost_of_a_point(),
        strict=True,
    )
    for name, groups, members, exposures, costs in dimensions:
        highest = highest_exposure(members, objective.discount, length)
        can_have_more = highest - exposures >= POINT
        # Where another attribute stands in the way, the slope says nothing of a whole point.
        is_plausible = np.abs(costs) <= relaxation.relevance
        is_possible = (can_have_more | (costs < 0)) & is_plausible
        is_priced = np.asarray(members.any(axis=0) & is_possible)
        prices[name] = {
            groups[group]: float(costs[group]) for group in np.flatnonzero(is_priced).tolist()
        }
    return prices
