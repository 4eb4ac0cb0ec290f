"""The fair step, the ranking of the highest objective, and the exposure-aware step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.best_ranking import best_rankings
from fairqr.retrieval.fairness.dimension import TIMES, factors_of
from fairqr.retrieval.fairness.exposure import FloatArray, exposure
from fairqr.retrieval.fairness.limits import LimitedPool, Limits
from fairqr.retrieval.fairness.objective import DIGITS, Positions, Quality, RankingObjective
from fairqr.retrieval.fairness.relevance import LIKELY, relevance_by_rank
from fairqr.retrieval.rerankers.base import Candidates, RerankedList, Reranker
from fairqr.retrieval.sources.schema import OTHER

WithinGroups = Literal["engine", "estimated"]
"""The order of documents of the same groups."""

Ranks = Annotated[int, Field(ge=1, le=10_000)]
"""A number of ranks, counted from the first."""

OverAttributes = Literal["mean", "worst"]
"""What F is of several attributes: their mean, or the least of them and their intersections."""

PURSUED = tuple(4.0**power for power in range(8))
"""The weights of fairness with which a given target is pursued."""
NEAR = 0.01
"""How near the exposure of each group must then come to its target."""
UNEQUAL_CHANCE = (
    "No list found has equal_chance: in some of its first ranks, the groups have different shares "
    "of their expected relevance."
)
HEAVIEST = 1e6
"""Beyond this weight of fairness, relevance no longer counts."""


@dataclass(frozen=True, slots=True)
class FairOrder:
    """The result of the fair step.

    Attributes:
        positions: The first k candidates in their new order.
        weight: The weight of fairness that led to it, of the pursued dimensions if there are any.
        missed: By how many points a group of a pursued dimension is from its target; 0 if by at
            most one.
    """

    positions: Positions
    weight: float
    missed: int


class _Trial(NamedTuple):
    """The ranking of a weight, and how far a group of a pursued dimension is from its target."""

    miss: float
    weight: float
    positions: Positions
    objective: RankingObjective


class FairStep(Reranker):
    """The fair step: the ranking of the highest expected relevance × fairness (fairqr).

    Target, discount and relevance come with the candidates.
    """

    weight: float | None = Field(
        None,
        ge=0,
        le=HEAVIEST,
        description="The weight of fairness beside relevance; 1 by default, or as high as a target "
        "of your own needs.",
    )
    order: WithinGroups = Field(
        "engine",
        description="The order of documents of the same groups: the engine's, in which those that "
        "are probably not relevant come last, or the order of estimated relevance.",
    )
    fairness: OverAttributes = Field(
        "mean",
        description="The fairness of a list with several attributes: their mean, or that of the "
        "worst-off among them and their intersections in pairs, within .01 (worst).",
    )
    spread: tuple[Ranks, ...] = Field(
        (),
        description="Count the fairness of the first so many ranks, such as 5 and 10, as much as "
        "that of the whole list, so that no group has all its exposure from one document.",
    )
    at_most: float | None = Field(
        None,
        gt=0,
        le=1,
        description="The highest share of exposure that any group but other may have, such as .15, "
        "in attributes with enough groups; whatever the target. It is no part of fairness.",
    )
    equal_chance: bool = Field(
        False,
        description="Whether the first ranks, however many, have the same share of the expected "
        "relevance of each group, as nearly as whole documents allow (Rastogi & Joachims 2024), so "
        "that no group is passed over because its relevance is less certain. It is no part of "
        "fairness.",
    )
    pursue: tuple[str, ...] = Field(
        (),
        description="Without a weight, give these attributes (* for all) the lowest of 1, 4, 16 … "
        "16,384 that brings each of their groups within a point of its target, or else within a "
        "point of the nearest that any of these weights comes.",
    )

    async def rerank(
        self, engine: SearchEngine, query: str, candidates: Candidates, k: int
    ) -> RerankedList:
        """See :meth:`fairqr.retrieval.rerankers.base.Reranker.rerank`; warns of broken limits."""
        positions = self.positions(candidates, k)
        return candidates.taken(positions, tuple(self.broken(candidates, positions)))

    def positions(self, candidates: Candidates, k: int) -> Positions:
        """See :meth:`fairqr.retrieval.rerankers.base.Reranker.positions`."""
        return self.take(candidates, k).positions

    def order_within_groups(self, candidates: Candidates) -> Positions | None:
        """Return the order in which documents of the same groups are taken; None by relevance."""
        if self.order != "engine" or candidates.relevance is None:
            return None
        return np.argsort(candidates.relevance.round(DIGITS) < LIKELY, kind="stable")

    def objective(self, candidates: Candidates, weight: float, k: int) -> RankingObjective:
        """Return the objective of rankings of k candidates.

        Args:
            candidates: The documents that could be ranked.
            weight: The weight of fairness; where dimensions are pursued, and F is the mean, of
                these alone, and that of the others is 1.
            k: How many ranks there are to fill.
        """
        (objective,) = self.objectives(candidates, [weight], k)
        return objective

    def objectives(
        self, candidates: Candidates, weights: Sequence[float], k: int
    ) -> list[RankingObjective]:
        """Return the objective with each of these weights; see :meth:`objective`."""
        measured = self.with_all_dimensions(candidates)
        limits = self._limits(candidates)
        objectives = []
        for weight in weights:
            bounded = self.bounded_objective(measured, weight, k)
            objectives.append(replace(bounded, spread=self.spread, limits=limits))
        return objectives

    def with_all_dimensions(self, candidates: Candidates) -> Candidates:
        """Return candidates with all dimensions that F is of: if it is the least, intersections."""
        if self._is_least(candidates):
            return candidates.with_intersections()
        return candidates

    def bounded_objective(self, measured: Candidates, weight: float, k: int) -> RankingObjective:
        """Return the objective without what no bound counts; see :attr:`left_out_of_bounds`.

        Args:
            measured: What :meth:`with_all_dimensions` returns.
            weight: See :meth:`objective`.
            k: How many ranks there are to fill.
        """
        is_least = self._is_least(measured)
        weights = []
        for name in measured.dimensions:
            is_weighted = not self.pursue or _is_among(self.pursue, name)
            weights.append(weight if is_weighted else 1.0)
        return RankingObjective(
            relevance_probabilities(measured),
            measured.memberships,
            measured.targets,
            k,
            weight if is_least else weights,
            measured.discount,
            is_least=is_least,
        )

    def _is_least(self, candidates: Candidates) -> bool:
        """Return whether F is the least of several dimensions."""
        return self.fairness == "worst" and len(candidates.dimensions) > 1

    @property
    def has_limits(self) -> bool:
        """Whether lists obey limits, whatever their objective."""
        return self.at_most is not None or self.equal_chance

    def _limits(self, candidates: Candidates) -> Limits | None:
        """Return the limits that lists of these candidates obey, if there are any."""
        if not self.has_limits:
            return None
        caps = []
        uncapped = []
        dimensions = zip(
            candidates.dimensions, candidates.groups, candidates.memberships, strict=True
        )
        for name, groups, members in dimensions:
            for_many = _stand_for_many(name, groups)
            uncapped.append(for_many)
            caps.append(self._cap(members, for_many))
        return Limits(caps, self.equal_chance, uncapped)

    def _cap(self, members: FloatArray, uncapped: NDArray[np.bool_]) -> float | None:
        """Return the cap of an attribute; None if its groups are too few to obey it."""
        if self.at_most is None:
            return None
        is_present = np.asarray(members.any(axis=0))
        has_uncapped = bool((is_present & uncapped).any())
        highest_sum = np.count_nonzero(is_present) * self.at_most
        can_obey = has_uncapped or highest_sum >= 1 - 10**-DIGITS
        return self.at_most if can_obey else None

    def broken(self, candidates: Candidates, ranked: Sequence[int] | Positions) -> list[str]:
        """Return a sentence for each limit that a list does not obey.

        Args:
            candidates: The documents that could be ranked.
            ranked: The list, as positions of the candidates.
        """
        rows = np.asarray(ranked, dtype=np.intp)
        limits = self._limits(candidates)
        if limits is None or not len(rows):
            return []
        sentences: list[str] = []
        if self.at_most is not None:
            sentences += _say_above(self.at_most, candidates, rows, limits)
        probabilities = self.objective(candidates, 1.0, len(rows)).probabilities
        limited = LimitedPool(limits, candidates.memberships, probabilities)
        members = np.concatenate(candidates.memberships, axis=1, dtype=np.float64)[rows]
        if limited.unequal_chance(members, probabilities[rows]) > 0:
            sentences.append(UNEQUAL_CHANCE)
        return sentences

    @property
    def left_out_of_bounds(self) -> tuple[str, ...]:
        """The options in use that no bound of the objective counts; see ``relaxation.py``."""
        in_use = {
            "spread": bool(self.spread),
            "at_most": self.at_most is not None,
            "equal_chance": self.equal_chance,
        }
        return tuple(name for name, is_used in in_use.items() if is_used)

    def take(self, candidates: Candidates, k: int) -> FairOrder:
        """Take the step over candidates in the engine's order, to fill k ranks."""
        trials = self._trials(candidates, k)
        smallest_miss = min(trial.miss for trial in trials)
        enough = NEAR if smallest_miss <= NEAR else smallest_miss + NEAR
        chosen = next(trial for trial in trials if trial.miss <= enough)
        missed = 0
        if chosen.miss > NEAR:
            missed = max(2, round(100 * chosen.miss))
        return FairOrder(chosen.positions, chosen.weight, missed)

    def _trials(self, candidates: Candidates, k: int) -> list[_Trial]:
        """Return the rankings to choose from, in ascending order of their weights."""
        order = self.order_within_groups(candidates)
        if self.weight is not None:
            return self._with_weights(candidates, k, order, [self.weight])
        if not self.pursue:
            return self._with_weights(candidates, k, order, PURSUED[:1])

        # The lower half is mostly enough.
        half = len(PURSUED) // 2
        trials = self._with_weights(candidates, k, order, PURSUED[:half])
        if all(trial.miss > NEAR for trial in trials):
            trials += self._with_weights(candidates, k, order, PURSUED[half:])
        return trials

    def front(self, candidates: Candidates, k: int, weights: Sequence[float]) -> list[Quality]:
        """Return how good the ranking is that the step would make with each of these weights.

        A weight then counts for all attributes, and no target is pursued.
        """
        step = self.model_copy(update={"pursue": ()})
        order = self.order_within_groups(candidates)
        trials = step._with_weights(candidates, k, order, weights)
        return [trial.objective.quality(trial.positions) for trial in trials]

    def _with_weights(
        self, candidates: Candidates, k: int, order: Positions | None, weights: Sequence[float]
    ) -> list[_Trial]:
        """Return the best ranking with each of these weights."""
        objectives = self.objectives(candidates, weights, k)
        rankings = best_rankings(objectives, order)
        trials = []
        for weight, positions, objective in zip(weights, rankings, objectives, strict=True):
            miss = _miss(candidates, positions, self.pursue)
            trials.append(_Trial(miss, weight, positions, objective))
        return trials


def _say_above(
    most: float, candidates: Candidates, rows: Positions, limits: Limits
) -> Iterator[str]:
    """Yield a sentence for each attribute of which a group has more than ``at_most`` in a list.

    Attributes with too few groups have no cap, unless all have too few.
    """
    no_caps = all(cap is None for cap in limits.caps)
    subject = "no list" if no_caps else "no list found"
    dimensions = zip(
        candidates.dimensions,
        candidates.groups,
        candidates.memberships,
        limits.caps,
        limits.uncapped,
        strict=True,
    )
    for name, groups, members, cap, uncapped in dimensions:
        if cap is None and not no_caps:
            continue
        shares = np.where(uncapped, 0.0, exposure(members[rows], candidates.discount))
        if shares.max(initial=0.0) > most + 10**-DIGITS:
            group = groups[int(shares.argmax())]
            yield (
                f"{group} has {shares.max():.1%} of the exposure of {name}, more than at_most; "
                f"{subject} gives each of its groups at most {most:.1%}."
            )


def _stand_for_many(dimension: str, groups: Sequence[str]) -> NDArray[np.bool_]:
    """Return which groups stand for many that have no name of their own, shape (G,).

    Args:
        dimension: Its name; in a product of attributes each of them may have such a group.
        groups: Their names. A name with a sign of products in it stands for nobody else.
    """
    number_of_attributes = len(factors_of(dimension))
    stand_for_many = []
    for group in groups:
        factors = [group]
        if number_of_attributes > 1:
            factors = group.split(f" {TIMES} ")
        is_readable = len(factors) == number_of_attributes
        stand_for_many.append(is_readable and OTHER in factors)
    return np.array(stand_for_many, dtype=bool)


def relevance_probabilities(candidates: Candidates) -> FloatArray:
    """Return the probability that each candidate is relevant, by its rank if none is estimated."""
    if candidates.relevance is None:
        return relevance_by_rank(len(candidates))
    return candidates.relevance


def _is_among(pursued: Sequence[str], name: str) -> bool:
    """Return whether a dimension is pursued: by its name, or since all are."""
    return name in pursued or "*" in pursued


def _miss(candidates: Candidates, positions: Positions, pursued: Sequence[str]) -> float:
    """Return how far a group of the pursued dimensions is from its target, at most.

    Only dimensions with labels count: no weight brings an exposure to the others.
    """
    dimensions = zip(candidates.dimensions, candidates.memberships, candidates.targets, strict=True)
    largest = 0.0
    for name, members, target in dimensions:
        shares = exposure(members[positions], candidates.discount)
        if _is_among(pursued, name) and shares.any():
            miss = float(np.abs(shares - target).max().round(DIGITS))
            largest = max(largest, miss)
    return largest


class ExposureAwareStep(Reranker):
    """Fills the ranks one by one toward the target of exposure (after Singh & Joachims 2018).

    At each rank, the deficit of a group is its target share ε*_g of all exposure given out so far
    (including this rank), minus the exposure it has had. The rank goes to the first document whose
    groups have the largest deficit, summed over its groups and over the attributes. So the order of
    documents of the same groups stays, and documents without any label keep their place.
    """

    def positions(self, candidates: Candidates, k: int) -> Positions:
        """See :meth:`fairqr.retrieval.rerankers.base.Reranker.positions`."""
        members = np.concatenate(candidates.memberships, axis=1, dtype=np.float64)
        target = np.concatenate(candidates.targets)
        # By how much a document changes deficits: the target share of the exposure that it gives
        # out in each attribute, minus what it gives to the group itself.
        sizes = [len(target_of_attribute) for target_of_attribute in candidates.targets]
        first_groups = np.cumsum([0, *sizes[:-1]])
        labelled = np.add.reduceat(members, first_groups, axis=1)
        change = target * np.repeat(labelled, sizes, axis=1) - members

        order = np.arange(min(k, len(members)), dtype=np.intp)
        deficit = np.zeros(len(target))
        is_left = np.asarray(members.any(axis=1))
        ranks = np.flatnonzero(is_left[: len(order)])
        weights = candidates.discount.weights(len(order))[ranks]
        for rank, weight in zip(ranks, weights, strict=True):
            deficit_of_document = members @ (deficit + weight * target)
            deficit_of_document = np.where(is_left, deficit_of_document, -np.inf)
            # The first of those that only differ by rounding.
            is_largest = deficit_of_document >= deficit_of_document.max() - 1e-12
            best = int(is_largest.argmax())
            order[rank] = best
            is_left[best] = False
            deficit += weight * change[best]
        return order
