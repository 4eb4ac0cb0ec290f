"""Gathers what the answers to all queries say, query by query, in one dimension."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairqr.agents.statistics import stream
from fairqr.evaluation.audit import exposures
from fairqr.evaluation.audit.bundle import Observation
from fairqr.evaluation.audit.calibration import Calibrating
from fairqr.evaluation.audit.concentration import GroupTotals, Shares, shares_of
from fairqr.evaluation.audit.exposures import Answer, Choices, Effect, Weighted
from fairqr.evaluation.audit.figures import GroupFigures, widened
from fairqr.evaluation.audit.label_errors import SharedLabels
from fairqr.evaluation.audit.queries import AuditQuery
from fairqr.evaluation.audit.query_figures import QueryFigures
from fairqr.evaluation.estimates import means
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import FloatArray, intersection, normalise
from fairqr.retrieval.fairness.table import CodedMemberships, decoded, shares_in_groups
from fairqr.retrieval.sources.schema import OTHER

ESTIMATE_ERROR = 0.04
"""How far the estimate of relevance was found to put the share of a group too low or too high
(docs/results/audits.md). More queries do not make it smaller, so it widens intervals."""


def answer_to(observation: Observation, dimension: Dimension, relevance: str) -> Answer:
    """Return what was observed of one query in a dimension.

    Args:
        observation: What the engine answered.
        dimension: The groups.
        relevance: What says what is relevant: ``judged``, ``estimated`` or ``unknown``.
    """
    probabilities = observation.relevance
    # The searches for one of the attributes find all of a combination, too.
    level = min(observation.levels.get(factor.name, 0.0) for factor in dimension.factors)
    return Answer(
        members=_members(observation.groups, dimension),
        answered=len(observation.ids),
        relevance=None if probabilities is None else np.array(probabilities),
        is_judged=relevance == "judged",
        level=level,
        even=_even_shares(observation.groups, dimension),
    )


def _members(groups: Mapping[str, CodedMemberships], dimension: Dimension) -> FloatArray:
    """Return the share of each group in each document, shape (P, G)."""
    arrays = []
    for factor in dimension.factors:
        array = decoded(groups[factor.name])
        arrays.append(shares_in_groups(array, factor) if factor.is_found else array)
    return intersection(arrays)


def _even_shares(groups: Mapping[str, CodedMemberships], dimension: Dimension) -> FloatArray | None:
    """Return the same share for each group that a query found, also for those in ``other``.

    None if the dimension lists its groups.
    """
    if not any(factor.is_found for factor in dimension.factors):
        return None
    counts = {}
    for factor in dimension.factors:
        if not factor.is_found:
            counts[factor.name] = np.ones(len(factor.universe))
            continue
        names = {name for shares in decoded(groups[factor.name]) for name in shares}
        count = np.array([float(group in names) for group in factor.universe])
        count[factor.universe.index(OTHER)] = len(names.difference(factor.universe))
        counts[factor.name] = count
    return dimension.independent_shares(counts)


class FoundGroups(NamedTuple):
    """The groups that a query found, and their shares."""

    groups: tuple[str, ...]
    shares: Shares


class AllGroups:
    """What is gathered of all groups of an open attribute.

    Args:
        dimension: The attribute.
        choices: What the audit measures by.
        seed: The seed of the audit, to draw lists by lot.

    Attributes:
        totals: What the groups got and should get so far.
    """

    def __init__(self, dimension: Dimension, choices: Choices, seed: int) -> None:
        self.totals = GroupTotals(dimension.name)
        self._dimension = dimension
        self._choices = choices
        self._random = stream(seed, f"lots {dimension.name}")

    def groups_in(self, observation: Observation) -> FoundGroups | None:
        """Return what an answer gives the groups that it found; None if no target is known."""
        name = self._dimension.name
        members = decoded(observation.groups[name])
        names = [*dict.fromkeys(group for shares in members for group in shares)]
        dimension = self._dimension.with_groups({name: names})
        answer = answer_to(observation, dimension, self._choices.relevance)
        shares = shares_of(answer, dimension, self._choices, self._random)
        if shares is None:
            return None
        # All groups of the query have names, so what is behind them, other, has nothing.
        size = len(names)
        of_names = Shares(*(array[..., :size] for array in shares))
        return FoundGroups(dimension.groups[:size], of_names)

    def add(self, weight: float, found: FoundGroups | None) -> None:
        """Take in what the answer to a query of this weight gives its groups, if that is known."""
        if found is not None:
            self.totals.add(weight, found.groups, found.shares)


class EstimateErrors:
    """How far the estimate of relevance may be off, by group.

    Args:
        size: How many groups there are.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        # By how much shares of the relevant documents differ, of each query.
        self._from_judged: list[Weighted] = []
        self._between_halves: list[Weighted] = []

    def add_judged(self, weight: float, difference: FloatArray) -> None:
        """Take in by how much estimated shares exceed those by judgements, shape (G,)."""
        self._from_judged.append((weight, difference))

    def add_halves(self, weight: float, difference: FloatArray) -> None:
        """Take in how shares by words and by similarity differ, shape (G,)."""
        self._between_halves.append((weight, difference))

    @cached_property
    def by_group(self) -> list[float]:
        """The error of each group.

        By judgements of some of the queries it is the further end of the interval of the mean
        difference. Without enough of them, and for a group that they never show, it is the same of
        what the two halves of the evidence say, the words and the similarity, and at least
        :data:`ESTIMATE_ERROR`: both may be off alike.
        """
        by_halves = np.fmax(self._furthest(self._between_halves), ESTIMATE_ERROR)
        errors = np.where(self._lacks_judgements, by_halves, self._by_judgements)
        as_list: list[float] = errors.tolist()
        return as_list

    @property
    def judged_queries(self) -> int:
        """For how many queries judgements say it; 0 if there are none, or too few."""
        return 0 if self._lacks_judgements.all() else len(self._from_judged)

    @cached_property
    def _by_judgements(self) -> FloatArray:
        return self._furthest(self._from_judged)

    @property
    def _lacks_judgements(self) -> NDArray[np.bool_]:
        return np.isnan(self._by_judgements)

    def _furthest(self, differences: list[Weighted]) -> FloatArray:
        """Return the ends of intervals that are further from 0, shape (G,)."""
        weights = np.array([weight for weight, _ in differences])
        values = np.array([difference for _, difference in differences])
        intervals = means(values.reshape(-1, self._size), weights)
        ends = [(interval.low, interval.high) for interval in intervals]
        return np.asarray(np.abs(ends).max(axis=1))


class Measurement:
    """What is gathered of all answers in one dimension.

    Args:
        dimension: The groups.
        choices: What the audit measures by.
        reference: The group that ratios are to, if one was chosen.

    Attributes:
        dimension: The groups.
        choices: What the audit measures by.
        table: The figures by query.
        effects: What fair re-rankings of some queries would give, each with the query's weight.
        calibrating: How the estimate of relevance treats the groups.
    """

    def __init__(self, dimension: Dimension, choices: Choices, reference: str | None) -> None:
        self.dimension = dimension
        self.choices = choices
        self._weight = choices.weight_of_relevance(dimension)
        is_counted = dimension.confusion is not None and "corpus" in choices.target.parts
        has_known_target = not (is_counted or self._weight)
        self.table = QueryFigures(dimension, reference, has_known_target)
        self.effects: list[tuple[float, Effect]] = []
        self.calibrating = Calibrating(dimension)
        self._estimate_errors = EstimateErrors(len(dimension.groups))
        self._shared_labels = SharedLabels(self._weight)

    @property
    def is_single(self) -> bool:
        """Whether the dimension is one attribute, and no combination."""
        return len(self.dimension.factors) == 1

    def answer_to(self, observation: Observation) -> Answer:
        """Return what was observed in this dimension."""
        return answer_to(observation, self.dimension, self.choices.relevance)

    def add(self, query: AuditQuery, observation: Observation, *, is_reranked: bool) -> None:
        """Take in the answer to a query, and re-rank it where that is wanted."""
        answer = self.answer_to(observation)
        figures = exposures.measure_answer(answer, self.dimension, self.choices)
        self.table.add(query.weight, figures, query.id)
        if is_reranked:
            self._add_effect(query.weight, answer, figures.target)
        if self.dimension.confusion is not None:
            shown = min(self.choices.k, answer.answered)
            attention = self.choices.discount.weights(shown)
            self._shared_labels.add(
                query.segment, query.weight, observation.pool, attention, answer.counted
            )
        self._add_evidence(query.weight, answer, observation)

    def _add_effect(self, weight: float, answer: Answer, target: FloatArray) -> None:
        """Re-rank an answer, where the target is known and labels count as right."""
        has_target = answer.relevance is not None and not np.isnan(target).any()
        # What a re-ranking by wrong labels would give is not known.
        has_right_labels = self.dimension.confusion is None
        if not (has_target and self.is_single and has_right_labels):
            return
        effect = exposures.effect_of(answer, target, self.choices)
        if effect is not None:
            self.effects.append((weight, effect))

    def _add_evidence(self, weight: float, answer: Answer, observation: Observation) -> None:
        """Compare the estimated shares of relevant documents with what else is known of them."""
        estimated = answer.share_of_relevant
        if estimated is None:
            return
        judged = self._judged_relevant(observation)
        counted = np.asarray(answer.counted)
        if judged is not None:
            self._estimate_errors.add_judged(weight, estimated - normalise(judged))
        if self.choices.relevance == "estimated":
            self.calibrating.add(weight, counted, answer.members, judged)
        if observation.by_words and observation.by_similarity:
            halves = [
                np.where(counted > 0, half, 0.0) @ answer.members
                for half in (observation.by_words, observation.by_similarity)
            ]
            by_words, by_similarity = normalise(np.array(halves))
            self._estimate_errors.add_halves(weight, by_words - by_similarity)

    def _judged_relevant(self, observation: Observation) -> FloatArray | None:
        """Return how many documents of each group were judged relevant beside an estimate."""
        if not observation.judged:
            return None
        members = _members(observation.judged, self.dimension)
        return members.sum(axis=0) if members.any() else None

    @property
    def errors(self) -> list[float]:
        """How far the estimate of relevance may be off, by group; 0 if relevance was judged."""
        if self.choices.relevance != "estimated":
            return [0.0] * len(self.dimension.groups)
        return self._estimate_errors.by_group

    @property
    def judged_queries(self) -> int:
        """For how many queries judgements say how far the estimate is off."""
        if self.choices.relevance != "estimated":
            return 0
        return self._estimate_errors.judged_queries

    def figures(
        self, seed: int, segment: str, queries: Mapping[str, AuditQuery], tests: int
    ) -> list[GroupFigures]:
        """Return the figures of the queries of a segment, with uncorrected p values.

        Args:
            seed: The seed of the audit.
            segment: The segment; empty for all queries.
            queries: All that were asked, by id.
            tests: How many tests the audit has.
        """
        table = self.table
        if segment:
            table = table.of({id_ for id_, query in queries.items() if query.segment == segment})
        random = stream(seed, f"tests {self.dimension.name} {segment}".rstrip())
        of_labels = self._shared_labels.errors(self.dimension, segment, table.mix())
        groups = table.figures(random, segment, tests)
        figures = []
        for group, error, label_errors in zip(groups, self.errors, of_labels, strict=True):
            wide = widened(group, label_errors)
            figures.append(replace(wide, error=error, error_of_target=error * self._weight))
        return figures
