"""From what an engine answered to all figures of an audit. No engine is needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter

import numpy as np

from fairqr.agents.statistics import stream
from fairqr.evaluation.audit import exposures
from fairqr.evaluation.audit.bundle import Observation
from fairqr.evaluation.audit.calibration import GroupCalibration
from fairqr.evaluation.audit.concentration import Concentration
from fairqr.evaluation.audit.dimensions import (
    Observed,
    dimensions_to_measure,
    largest_groups,
    sizes_of_groups,
)
from fairqr.evaluation.audit.exposures import Choices, FairRerankings
from fairqr.evaluation.audit.figures import GroupFigures
from fairqr.evaluation.audit.gathering import AllGroups, Measurement
from fairqr.evaluation.audit.queries import AuditQuery
from fairqr.evaluation.audit.query_figures import QueryFigures
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.evaluation.audit.verdicts import judge
from fairqr.evaluation.estimates import effective_queries
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.sources.schema import Schema

CONTRIBUTIONS = 10
"""How many queries that add most to a gap are kept for each group."""


@dataclass(frozen=True, slots=True)
class Counts:
    """How many queries an audit rests on.

    Attributes:
        asked: All of them.
        answered: With at least one document.
        empty: Answered with nothing.
        failed: The engine failed.
        with_relevance: Answered, with a relevant document that is known or estimated.
        failed_share: The weight of the failed ones, as a share.
        empty_share: The same of the empty ones.
        relevant: How many documents were judged relevant to answered queries.
        absent: How many of them the engine does not hold.
        hidden: How many judged relevant documents are left out of answered queries, since the
            engine does not give them and their groups are not known.
        error_from: For how many queries judgements say how far the estimate of relevance is off; 0
            if there are none, or too few.
        effective: How many queries of equal weight would tell as much as those answered.
        relevance: What says what is relevant.
    """

    asked: int
    answered: int
    empty: int
    failed: int
    with_relevance: int
    relevant: int
    absent: int
    hidden: int
    error_from: int
    failed_share: float
    empty_share: float
    effective: float
    relevance: str


@dataclass(frozen=True, slots=True)
class Contribution:
    """A query that adds much to the gap against a group.

    Attributes:
        attribute: The attribute.
        group: The group that gets less.
        query: The id of the query.
        share: Its part of the sum of all gaps against the group.
        gap: What was tested, of this query.
        shown: The ids that are shown today.
        fair: The ids that a fair re-ranking would show.
    """

    attribute: str
    group: str
    query: str
    share: float
    gap: float
    shown: tuple[str, ...]
    fair: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AuditFigures:
    """All figures of an audit.

    Attributes:
        counts: The counts of queries.
        groups: The groups of each attribute, with corrected tests.
        segments: The same of each segment of the queries, but for combinations.
        tests: How many tests were declared: one for each group, over all queries and in segments.
        calibration: How the estimate of relevance treats each group of the attributes, where
            relevance is estimated.
        fair_reranking: What fair re-ranking would give and cost, by attribute; may be empty.
        contributions: The queries that add most to the gaps against groups that surely get less.
        by_query: The figures by query of each attribute.
        unanswered: The status of the queries that found nothing or failed, by their ids.
        too_many_failed: Whether so much failed that no verdict is given.
        concentrations: How exposure is shared among all groups of each attribute whose groups
            nobody lists.
    """

    counts: Counts
    groups: list[GroupFigures]
    segments: list[GroupFigures]
    tests: int
    calibration: list[GroupCalibration]
    fair_reranking: dict[str, FairRerankings]
    contributions: list[Contribution]
    by_query: list[QueryFigures]
    unanswered: dict[str, str]
    too_many_failed: bool
    concentrations: list[Concentration]

    @property
    def by_attribute(self) -> dict[str, list[GroupFigures]]:
        """The figures of the groups of each attribute, and of each combination."""
        by_name = groupby(self.groups, attrgetter("attribute"))
        return {name: [*groups] for name, groups in by_name}


class _Gathered:
    """What is gathered of all queries, in all dimensions.

    Args:
        measurements: What is gathered of the answers, by dimension.
        all_groups: What is gathered of all groups of the open attributes.

    Attributes:
        tally: How many queries have each status, and how many documents there are of each kind.
        unanswered: The status of the queries that found nothing or failed, by their ids.
    """

    def __init__(
        self, measurements: Sequence[Measurement], all_groups: Sequence[AllGroups]
    ) -> None:
        self.tally: Counter[str] = Counter()
        self.unanswered: dict[str, str] = {}
        self._measurements = measurements
        self._all_groups = all_groups
        self._weights = {"ok": 0.0, "empty": 0.0, "failed": 0.0}

    def add(self, query: AuditQuery, observation: Observation, *, is_reranked: bool) -> None:
        """Take in what was observed of a query."""
        status = observation.status
        self.tally[status] += 1
        self._weights[status] += query.weight
        if status != "ok":
            self.unanswered[query.id] = status
            return
        relevant = sum(probability > 0 for probability in observation.relevance or ())
        self.tally["relevant"] += relevant
        self.tally["with_relevance"] += relevant > 0
        self.tally["hidden"] += observation.hidden
        self.tally["absent"] += observation.absent
        for measurement in self._measurements:
            measurement.add(query, observation, is_reranked=is_reranked)
        for all_groups in self._all_groups:
            all_groups.add(query.weight, all_groups.groups_in(observation))

    def share(self, status: str) -> float:
        """Return the weight of the queries with a status, as a share; 0 without queries."""
        total = sum(self._weights.values())
        return self._weights[status] / total if total else 0.0

    def counts(self, asked: int, relevance: str) -> Counts:
        """Return how many queries the audit rests on."""
        tally = self.tally
        weights = self._measurements[0].table.weights()
        return Counts(
            asked=asked,
            answered=tally["ok"],
            empty=tally["empty"],
            failed=tally["failed"],
            with_relevance=tally["with_relevance"],
            relevant=tally["relevant"] + tally["absent"] + tally["hidden"],
            absent=tally["absent"],
            hidden=tally["hidden"],
            error_from=max(measurement.judged_queries for measurement in self._measurements),
            failed_share=self.share("failed"),
            empty_share=self.share("empty"),
            effective=float(effective_queries(weights)),
            relevance=relevance if tally["with_relevance"] else "unknown",
        )

    def calibration(self) -> list[GroupCalibration]:
        """Return how the estimate of relevance treats each group of each single attribute."""
        groups: list[GroupCalibration] = []
        for measurement in self._measurements:
            if measurement.is_single:
                groups += measurement.calibrating.found()
        return groups

    def fair_reranking(self) -> dict[str, FairRerankings]:
        """Return what fair re-ranking would give, by attribute, where queries were re-ranked."""
        by_attribute = {}
        for measurement in self._measurements:
            if measurement.effects:
                groups = measurement.dimension.groups
                reranking = exposures.reranking_of(measurement.effects, groups)
                by_attribute[measurement.dimension.name] = reranking
        return by_attribute

    def concentrations(self) -> list[Concentration]:
        """Return how exposure is shared among all groups of each open attribute."""
        concentrations = [all_groups.totals.concentration() for all_groups in self._all_groups]
        return [concentration for concentration in concentrations if concentration]


def measure(
    spec: AuditSpec,
    schema: Schema,
    queries: Mapping[str, AuditQuery],
    observed: Observed,
    *,
    corpus_shares: Mapping[str, FloatArray] = {},
    relevance: str = "estimated",
    largest: Mapping[str, Sequence[str]] | None = None,
) -> AuditFigures:
    """Compute all figures.

    Args:
        spec: What to measure.
        schema: The attributes, as the engine gave memberships in.
        queries: All that were asked, by id.
        observed: Reads what was observed of them; all are read once, and a few once more.
        corpus_shares: The shares of the groups in the whole corpus, for targets that name it.
        relevance: What says what is relevant: ``judged``, ``estimated`` or ``unknown``.
        largest: By open attribute, the groups with figures of their own; by default the largest.
    """
    to_measure = dimensions_to_measure(schema, spec)
    if largest is None:
        largest = largest_groups(sizes_of_groups(to_measure, queries, observed))
    dimensions = [
        dimension.with_groups(largest) if dimension.is_open else dimension
        for dimension in to_measure
    ]
    of_corpus = {}
    for dimension in dimensions:
        if all(factor.name in corpus_shares for factor in dimension.factors):
            of_corpus[dimension.name] = dimension.independent_shares(corpus_shares)
    choices = Choices(spec.k, spec.discount, spec.target, of_corpus, relevance)
    measurements = [
        Measurement(dimension, choices, spec.reference.get(dimension.name))
        for dimension in dimensions
    ]
    all_groups = [
        AllGroups(dimension, choices, spec.seed)
        for dimension in to_measure
        if dimension.is_open and len(dimension.factors) == 1
    ]

    collected = _Gathered(measurements, all_groups)
    reranked = _reranked(queries, spec)
    for observation in observed([*queries]):
        query = queries[observation.query]
        collected.add(query, observation, is_reranked=query.id in reranked)

    figures = _figures(measurements, queries, spec.seed)
    too_many_failed = collected.share("failed") > spec.failures
    fair_reranking = collected.fair_reranking()
    judged = judge(figures, spec.failures, too_many_failed=too_many_failed)
    groups = [
        _if_reranked(group, fair_reranking.get(group.attribute))
        for group in judged
        if not group.segment
    ]
    return AuditFigures(
        counts=collected.counts(len(queries), relevance),
        groups=groups,
        segments=[group for group in judged if group.segment],
        tests=len(figures),
        calibration=collected.calibration(),
        fair_reranking=fair_reranking,
        contributions=_contributions(measurements, groups, observed),
        by_query=[measurement.table for measurement in measurements],
        unanswered=dict(sorted(collected.unanswered.items())),
        too_many_failed=too_many_failed,
        concentrations=collected.concentrations(),
    )


def _reranked(queries: Iterable[str], spec: AuditSpec) -> set[str]:
    """Draw the queries whose answers are re-ranked, as many as the spec says."""
    ids = sorted(queries)
    order = stream(spec.seed, "order").permutation(len(ids))
    return {
        id_ for id_, position in zip(ids, order.tolist(), strict=True) if position < spec.rerank
    }


def _figures(
    measurements: Sequence[Measurement], queries: Mapping[str, AuditQuery], seed: int
) -> list[GroupFigures]:
    """Return the figures of all groups, over all queries first and then in each segment.

    Combinations have no figures in segments. The p values are not corrected.
    """
    segments = sorted({"", *(query.segment for query in queries.values())})
    parts = []
    for segment in segments:
        parts += [(part, segment) for part in measurements if part.is_single or not segment]
    tests = sum(len(part.dimension.groups) for part, _ in parts)
    figures: list[GroupFigures] = []
    for part, segment in parts:
        figures += part.figures(seed, segment, queries, tests)
    return figures


def _if_reranked(group: GroupFigures, reranking: FairRerankings | None) -> GroupFigures:
    """Add the exposure that a group would get, if any query was re-ranked."""
    if reranking is None:
        return group
    after = reranking.exposure_if_reranked[group.group]
    today = reranking.exposure_today[group.group]
    change = after.value - today.value
    exposure = float(np.clip(group.exposure.value + change, 0.0, 1.0))
    return replace(group, exposure_if_reranked=exposure)


def _contributions(
    measurements: Sequence[Measurement], groups: Iterable[GroupFigures], observed: Observed
) -> list[Contribution]:
    """Return the queries that add most to the gaps against groups that surely get less."""
    by_attribute = {measurement.dimension.name: measurement for measurement in measurements}
    contributions: list[Contribution] = []
    for group in groups:
        if group.verdict == "less":
            contributions += _contributions_to(group, by_attribute[group.attribute], observed)
    return contributions


def _contributions_to(
    group: GroupFigures, measurement: Measurement, observed: Observed
) -> list[Contribution]:
    """Return the queries that add most to the gap against a group, the greatest part first."""
    table = measurement.table
    column = measurement.dimension.groups.index(group.group)
    gaps = table.tested_gaps()[0][:, column]
    # Machines add in different orders, which shows in the last digits: nothing is printed or chosen
    # by more than ten of them.
    parts = np.nan_to_num(np.maximum(table.weights() * gaps, 0.0)).round(10)
    rows = sorted(np.flatnonzero(parts), key=lambda row: (-parts[row], table.queries[row]))
    rows = rows[:CONTRIBUTIONS]
    observations = observed([table.queries[row] for row in rows])
    contributions = []
    for row, observation in zip(rows, observations, strict=False):
        target = table.by_label("target")[row]
        contribution = Contribution(
            attribute=group.attribute,
            group=group.group,
            query=observation.query,
            share=round(float(parts[row] / parts.sum()), 10),
            gap=round(float(gaps[row]), 10),
            shown=observation.ids[: measurement.choices.k],
            fair=_fair_ranking(observation, measurement, target),
        )
        contributions.append(contribution)
    return contributions


def _fair_ranking(
    observation: Observation, measurement: Measurement, target: FloatArray
) -> tuple[str, ...]:
    """Return the ids of a fair re-ranking; none where nobody knows what is relevant."""
    answer = measurement.answer_to(observation)
    if answer.relevance is None:
        return ()
    positions = exposures.rerank(answer, target, measurement.choices)
    return tuple(observation.pool[position] for position in positions.tolist())
