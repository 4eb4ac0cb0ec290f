"""From what an engine answered to all figures of an audit, and conditions on these, for CI.

A condition is such as ``impact_ratio < 0.8``. No engine is needed.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, groupby
from operator import attrgetter, ge, gt, le, lt
from typing import NamedTuple

import numpy as np

from fairqr.agents.statistics import stream
from fairqr.base.errors import InputError, one_line
from fairqr.evaluation import estimates
from fairqr.evaluation.audit import exposures
from fairqr.evaluation.audit.bundle import Observation
from fairqr.evaluation.audit.calibration import Calibrating, Calibration
from fairqr.evaluation.audit.concentration import Concentration, GroupTotals, Shares, shares_of
from fairqr.evaluation.audit.exposures import Answer, Choices, Effect, Reranking, Weighted
from fairqr.evaluation.audit.figures import (
    ESTIMATES,
    REASONS,
    GroupFigures,
    QueryFigures,
    corrected,
    widened,
)
from fairqr.evaluation.audit.queries import AuditQuery
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.evaluation.estimates import divided, effective_queries, means
from fairqr.retrieval.fairness.claims import merits_of
from fairqr.retrieval.fairness.confusion import variances
from fairqr.retrieval.fairness.dimension import TIMES, Dimension
from fairqr.retrieval.fairness.exposure import FloatArray, intersection, normalise
from fairqr.retrieval.fairness.table import (
    CodedMemberships,
    decoded,
    largest_first,
    shares_in_groups,
    totals_by_group,
)
from fairqr.retrieval.sources.schema import OTHER, Schema

ESTIMATE_ERROR = 0.04
"""How far the estimate of relevance was found to put the share of a group too low or too high
(docs/results/audits.md). More queries do not make it smaller, so it widens intervals."""

MOST_GROUPS = 20
"""So many groups of an open attribute have figures, the largest; the others are one."""

CONTRIBUTIONS = 10
Observed = Callable[[Sequence[str]], Iterable[Observation]]
"""Reads what was observed of queries, given by their ids."""


OPERATORS = {"<=": le, "<": lt, ">=": ge, ">": gt}
_WRITTEN = re.compile(r"\s*([a-z_]+)\s*([<>]=?)\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d\d?)?)\s*")
GAPS = ("exposure_gap", "ranking_gap")
RATIOS = ("exposure_ratio", "impact_ratio")
RATES = (*RATIOS, "selection_rate", "precision", "ndcg")
TESTED = (*GAPS, *RATIOS)
"""The figures that a verdict is about: ratios follow the verdict on the gap."""
SHOWN = 5
"""How many groups one sentence names."""

MOST_EMPTY = 0.1
"""The share of queries without an answer that a sure check goes without."""

FLIPS = "missing labels could change that"
REACHES = "its interval reaches beyond the line"


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
    calibration: list[Calibration]
    fair_reranking: dict[str, Reranking]
    contributions: list[Contribution]
    by_query: list[QueryFigures]
    unanswered: dict[str, str]
    too_many_failed: bool
    concentrations: list[Concentration]

    @property
    def by_attribute(self) -> dict[str, list[GroupFigures]]:
        """The figures of the groups of each attribute, and of each combination."""
        return {name: [*of] for name, of in groupby(self.groups, attrgetter("attribute"))}


def dimensions_to_measure(schema: Schema, spec: AuditSpec) -> list[Dimension]:
    """Return the attributes of an audit, and then the combinations of each two.

    Raises:
        UnknownAttributeError: The schema lacks an attribute.
    """
    names = list(dict.fromkeys(spec.attributes)) or list(schema.attributes)
    pairs = combinations(names, 2) if spec.intersections else ()
    every = [*names, *(TIMES.join(pair) for pair in pairs if not any(TIMES in it for it in pair))]
    return [Dimension.named(schema, name) for name in every]


def _members(groups: Mapping[str, CodedMemberships], dimension: Dimension) -> FloatArray:
    arrays = []
    for factor in dimension.factors:
        array = decoded(groups[factor.name])
        arrays.append(shares_in_groups(array, factor) if factor.is_found else array)
    return intersection(arrays)


Sizes = dict[str, dict[str, float]]
"""By open attribute and group, the mean share of what the queries found."""


def sizes_of_groups(
    dimensions: Iterable[Dimension], queries: Mapping[str, AuditQuery], observed: Observed
) -> Sizes:
    """Return how large the groups of the open attributes of dimensions are."""
    opened = {factor.name: factor for it in dimensions for factor in it.factors if factor.open}
    if not opened:
        return {}
    sizes: Sizes = {name: defaultdict(float) for name in opened}
    whole = sum(query.weight for query in queries.values())
    for observation in observed([*queries]):
        weight = queries[observation.query].weight / whole / max(1, len(observation.pool))
        for name in opened.keys() & observation.groups.keys():
            totals = totals_by_group(opened[name], decoded(observation.groups[name]))
            for group, total in totals.items():
                sizes[name][group] += weight * total
    return sizes


def largest_groups(sizes: Sizes) -> dict[str, list[str]]:
    """Return the groups of open attributes that have figures of their own, the largest first."""
    return {name: largest_first(by_group)[:MOST_GROUPS] for name, by_group in sizes.items()}


def _answer(observation: Observation, dimension: Dimension, relevance: str) -> Answer:
    """Return what was observed of one query in a dimension."""
    probabilities = observation.relevance
    return Answer(
        _members(observation.groups, dimension),
        len(observation.ids),
        None if probabilities is None else np.array(probabilities),
        relevance == "judged",
        # The searches for one of the attributes find all of a combination, too.
        min(observation.levels.get(it.name, 0.0) for it in dimension.factors),
        np.array(observation.claims) if observation.claims else None,
        _even_shares(observation.groups, dimension),
    )


def _even_shares(groups: Mapping[str, CodedMemberships], dimension: Dimension) -> FloatArray | None:
    """Return the same share for each group that a query found, also for those in ``other``.

    None if the dimension lists its groups.
    """
    if not any(factor.is_found for factor in dimension.factors):
        return None
    counts = {factor.name: np.ones(len(factor.universe)) for factor in dimension.factors}
    for factor in dimension.factors:
        if factor.is_found:
            found = {group for shares in decoded(groups[factor.name]) for group in shares}
            named = np.array([float(group in found) for group in factor.universe])
            named[factor.universe.index(OTHER)] = len(found.difference(factor.universe))
            counts[factor.name] = named
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

    def found(self, observation: Observation) -> FoundGroups | None:
        """Return what an answer gives the groups that it found; None if no target is known."""
        name = self._dimension.name
        members = decoded(observation.groups[name])
        found = [*dict.fromkeys(group for shares in members for group in shares)]
        dimension = self._dimension.with_groups({name: found})
        answer = _answer(observation, dimension, self._choices.relevance)
        shares = shares_of(answer, dimension, self._choices, self._random)
        if shares is None:
            return None
        # All groups of the query have names, so what is behind them, other, has nothing.
        of_found = Shares(*(it[..., : len(found)] for it in shares))
        return FoundGroups(dimension.groups[: len(found)], of_found)

    def add(self, weight: float, found: FoundGroups | None) -> None:
        """Take in what the answer to a query of this weight gives its groups, if that is known."""
        if found is not None:
            self.totals.add(weight, found.groups, found.shares)


class _Measurement:
    """What is gathered of all answers in one dimension.

    Args:
        dimension: The groups.
        choices: What the audit measures by.
        reference: The group that ratios are to, if one was chosen.
    """

    def __init__(self, dimension: Dimension, choices: Choices, reference: str | None) -> None:
        self.dimension, self.choices = dimension, choices
        self._weight = choices.weight_of_relevance(dimension)
        is_counted = dimension.confusion is not None and "corpus" in choices.target.parts
        has_known_target = not (is_counted or self._weight)
        self.table = QueryFigures(dimension, reference, has_known_target)
        self.is_single = len(dimension.factors) == 1
        self.effects: list[tuple[float, Effect]] = []
        # By what differences of the share of relevant documents say how far an estimate is off.
        self.calibrating = Calibrating(dimension)
        self._differences = {"judged": list[Weighted](), "split": list[Weighted]()}
        # By segment: by document what rests on its label; and of queries the squares and weights.
        self._labels: dict[str, tuple[dict[str, FloatArray], FloatArray]] = {}

    def add(self, query: AuditQuery, observation: Observation, *, is_reranked: bool) -> None:
        """Take in the answer to a query, and re-rank it if that is asked."""
        answer = self.answer(observation)
        found = exposures.measure_answer(answer, self.dimension, self.choices)
        self.table.add(query.weight, found, query.id)
        has_target = answer.relevance is not None and not np.isnan(found.target).any()
        # What a re-ranking by wrong labels would give is not known.
        if is_reranked and has_target and self.is_single and self.dimension.confusion is None:
            effect = exposures.effect_of(answer, found.target, self.choices)
            self.effects += [] if effect is None else [(query.weight, effect)]
        if self.dimension.confusion is not None:
            self._add_documents(query, observation.pool, answer)
        estimated = answer.share_of_relevant
        judged = _members(observation.judged, self.dimension) if observation.judged else None
        if estimated is not None and judged is not None and judged.any():
            known = normalise(judged.sum(axis=0))
            self._differences["judged"].append((query.weight, estimated - known))
        if estimated is not None and self.choices.relevance == "estimated":
            relevance = np.asarray(answer.counted)
            by_judges = None if judged is None or not judged.any() else judged.sum(axis=0)
            self.calibrating.add(query.weight, relevance, answer.members, by_judges)
        if estimated is not None and observation.by_words and observation.by_similarity:
            is_counted = np.asarray(answer.counted) > 0
            halves = [
                merits_of(np.where(is_counted, half, 0.0), answer.claims) @ answer.members
                for half in (observation.by_words, observation.by_similarity)
            ]
            one, other = normalise(np.array(halves))
            self._differences["split"].append((query.weight, one - other))

    def _add_documents(self, query: AuditQuery, pool: Sequence[str], answer: Answer) -> None:
        """Note how much of the exposure, the target and the gap rests on each label."""
        shares = np.zeros((len(pool), 3))
        shown = min(self.choices.k, answer.answered)
        attention = self.choices.discount.weights(shown)
        shares[:shown, 0] = attention / attention.sum()
        is_known = answer.merits is not None and bool(answer.merits.any())
        if answer.merits is not None and is_known:
            shares[:, 1] = answer.merits / answer.merits.sum()
        has_gap = is_known or not self._weight
        if has_gap:
            shares[:, 2] = self._weight * shares[:, 1] - shares[:, 0]
        shares *= query.weight
        added = np.stack([(shares**2).sum(axis=0), query.weight * np.array([1, is_known, has_gap])])
        for segment in {"", query.segment}:
            documents, sums = self._labels.setdefault(segment, ({}, np.zeros((2, 3))))
            sums += added
            for id_, share in zip(pool, shares, strict=True):
                documents[id_] = documents.get(id_, 0.0) + share

    def _errors_of_labels(self, segment: str, mix: FloatArray) -> list[dict[str, float]]:
        """Return by group how far wrong labels of documents that many queries show move figures.

        A wrong label of a document is wrong in each query, so other queries do not make up for it.
        What one query alone says is in the spread of queries already.
        """
        confusion = self.dimension.confusion
        if confusion is None or segment not in self._labels:
            return [{}] * len(self.dimension.groups)
        documents, (squares, weights) = self._labels[segment]
        shared = np.maximum((np.array([*documents.values()]) ** 2).sum(axis=0) - squares, 0.0)
        spread = estimates.NORMAL * np.sqrt(np.outer(variances(confusion, mix), shared))
        return [
            {"target": target * self._weight, "attainable": target}
            | dict.fromkeys(("exposure_gap", "ranking_gap", "excess"), gap)
            | {"exposure": exposure}
            for exposure, target, gap in divided(spread, weights, otherwise=0.0).tolist()
        ]

    def answer(self, observation: Observation) -> Answer:
        """Return what was observed in this dimension."""
        return _answer(observation, self.dimension, self.choices.relevance)

    @cached_property
    def errors(self) -> tuple[list[float], int]:
        """How far the estimate of relevance may be off, by group, and how many queries say so.

        By judgements of some of the queries it is the further end of the interval of the mean
        difference. Without enough of them, and for a group that they never show, it is the same of
        what the two halves of the evidence say, the words and the similarity, and at least
        :data:`ESTIMATE_ERROR`: both may be off alike. It is 0 if relevance was judged.
        """
        size = len(self.dimension.groups)
        if self.choices.relevance != "estimated":
            return [0.0] * size, 0
        ends = dict[str, FloatArray]()
        for name, held in self._differences.items():
            weights, found = (np.array([it[place] for it in held]) for place in (0, 1))
            intervals = means(found.reshape(-1, size), weights)
            ends[name] = np.abs([(it.low, it.high) for it in intervals]).max(axis=1)
        is_unknown = np.isnan(ends["judged"])
        errors = np.where(is_unknown, np.fmax(ends["split"], ESTIMATE_ERROR), ends["judged"])
        return errors.tolist(), 0 if is_unknown.all() else len(self._differences["judged"])

    def figures(
        self, seed: int, segment: str, queries: Mapping[str, AuditQuery], tests: int
    ) -> list[GroupFigures]:
        """Return the figures of the queries of a segment, with some of so many tests."""
        own = {id_ for id_, query in queries.items() if query.segment == segment}
        table = self.table.of(own) if segment else self.table
        random = stream(seed, f"tests {self.dimension.name} {segment}".rstrip())
        of_labels = self._errors_of_labels(segment, table.mix())
        every = zip(table.figures(random, segment, tests), self.errors[0], of_labels, strict=True)
        return [
            replace(widened(it, by), error=error, error_of_target=error * self._weight)
            for it, error, by in every
        ]


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
    dimensions = [it.with_groups(largest) if it.is_open else it for it in to_measure]
    of_corpus = {
        it.name: it.independent_shares(corpus_shares)
        for it in dimensions
        if all(factor.name in corpus_shares for factor in it.factors)
    }
    choices = Choices(spec.k, spec.discount, spec.target, of_corpus, relevance)
    measured = {
        it.name: _Measurement(it, choices, spec.reference.get(it.name)) for it in dimensions
    }
    opened = [
        AllGroups(it, choices, spec.seed)
        for it in to_measure
        if it.is_open and len(it.factors) == 1
    ]
    order = stream(spec.seed, "order").permutation(len(queries))
    places = dict(zip(sorted(queries), order.tolist(), strict=True))
    tally: Counter[str] = Counter()
    weights: dict[str, float] = dict.fromkeys(("ok", "empty", "failed"), 0.0)
    unanswered: dict[str, str] = {}
    for observation in observed([*queries]):
        query, status = queries[observation.query], observation.status
        tally[status] += 1
        weights[status] += query.weight
        if status != "ok":
            unanswered[query.id] = status
            continue
        tally.update(hidden=observation.hidden, absent=observation.absent)
        relevant = sum(it > 0 for it in observation.relevance or ())
        tally.update(with_relevance=relevant > 0, relevant=relevant)
        for it in measured.values():
            it.add(query, observation, is_reranked=places[query.id] < spec.rerank)
        for all_groups in opened:
            all_groups.add(query.weight, all_groups.found(observation))
    total = sum(weights.values())
    failed, empty = (weights[it] / total if total else 0.0 for it in ("failed", "empty"))
    fair_reranking = {
        name: exposures.reranking_of(it.effects, it.dimension.groups)
        for name, it in measured.items()
        if it.effects
    }
    parts = [
        (it, segment)
        for segment in sorted({"", *(query.segment for query in queries.values())})
        for it in measured.values()
        if it.is_single or not segment
    ]
    tests = sum(len(it.dimension.groups) for it, _ in parts)
    figures = [
        group for it, segment in parts for group in it.figures(spec.seed, segment, queries, tests)
    ]
    figures = [
        completed(it, fair_reranking.get(it.attribute), spec.failures) for it in corrected(figures)
    ]
    if failed > spec.failures:
        figures = [replace(it, verdict="cannot_tell", could_flip=False) for it in figures]
    groups = [it for it in figures if not it.segment]
    return AuditFigures(
        counts=Counts(
            asked=len(queries),
            answered=tally["ok"],
            **{it: tally[it] for it in ("empty", "failed", "with_relevance", "absent", "hidden")},
            relevant=tally["relevant"] + tally["absent"] + tally["hidden"],
            error_from=max(it.errors[1] for it in measured.values()),
            failed_share=failed,
            empty_share=empty,
            effective=float(effective_queries(measured[dimensions[0].name].table.weights())),
            relevance=relevance if tally["with_relevance"] else "unknown",
        ),
        groups=groups,
        segments=[it for it in figures if it.segment],
        tests=tests,
        calibration=[
            group for it in measured.values() if it.is_single for group in it.calibrating.found()
        ],
        fair_reranking=fair_reranking,
        contributions=_contributions(measured, groups, observed),
        by_query=[it.table for it in measured.values()],
        unanswered=dict(sorted(unanswered.items())),
        too_many_failed=failed > spec.failures,
        concentrations=[found for it in opened if (found := it.totals.concentration())],
    )


def completed(
    group: GroupFigures, reranking: Reranking | None, most_saturated: float
) -> GroupFigures:
    """Add what a group would get, or take back what cannot be said.

    Args:
        group: The figures of a group.
        reranking: What fair re-ranking costs, if any query was re-ranked.
        most_saturated: The largest share of saturated queries with which a gap is known.
    """
    exposure_if_reranked = math.nan
    if reranking is not None and not group.segment:
        change = (
            reranking.exposure_if_reranked[group.group].value
            - reranking.exposure_today[group.group].value
        )
        exposure_if_reranked = float(np.clip(group.exposure.value + change, 0.0, 1.0))
    found = replace(group, exposure_if_reranked=exposure_if_reranked)
    # What a group lacks to a target without relevance is still known, by every query.
    is_known = group.tested == "exposure_gap" and group.known == 1
    if group.saturated > most_saturated and not is_known:
        return replace(found, verdict="saturated", could_flip=False, detectable_gap=math.nan)
    if _may_hide(found):
        return replace(found, verdict="unlabelled", detectable_gap=math.nan)
    return found


def _may_hide(group: GroupFigures) -> bool:
    """Return whether missing labels alone could hide a difference that would be found."""
    if group.verdict == "too_few" or math.isnan(group.exposure.value):
        return group.verdict in ("too_few", "unknown") and group.unknown > 0.5
    low, high = group.gap_bounds
    is_open = group.verdict in ("cannot_tell", "undecided")
    return is_open and low < high and max(-low, high) > group.detectable_gap


def _contributions(
    measured: Mapping[str, _Measurement], groups: Iterable[GroupFigures], observed: Observed
) -> list[Contribution]:
    """Return the queries that add most to the gaps against groups that surely get less."""
    found = []
    for it in groups:
        if it.verdict != "less":
            continue
        of = measured[it.attribute]
        gaps = of.table.tested_gaps()[0][:, of.dimension.groups.index(it.group)]
        # Machines add in different orders: what they print and choose goes by ten digits.
        parts = np.nan_to_num(np.maximum(of.table.weights() * gaps, 0.0)).round(10)
        order = sorted(np.flatnonzero(parts), key=lambda row: (-parts[row], of.table.queries[row]))
        seen = observed([of.table.queries[row] for row in order[:CONTRIBUTIONS]])
        for row, observation in zip(order, seen, strict=False):
            answer, target = of.answer(observation), of.table.by_label("target")[row]
            # Who has a gap has a target.
            known = answer.relevance is not None
            fair = exposures.rerank(answer, target, of.choices).tolist() if known else []
            share, gap = (round(float(n), 10) for n in (parts[row] / parts.sum(), gaps[row]))
            shown, query = observation.ids[: of.choices.k], observation.query
            better = tuple(observation.pool[place] for place in fair)
            found.append(Contribution(it.attribute, it.group, query, share, gap, shown, better))
    return found


@dataclass(frozen=True, slots=True)
class Condition:
    """What must not hold for any group.

    Attributes:
        figure: One of :data:`ESTIMATES`.
        comparison: One of :data:`OPERATORS`.
        line: What the figure is compared with.
    """

    figure: str
    comparison: str
    line: float

    def __str__(self) -> str:
        return f"{self.figure} {self.comparison} {self.line:g}"

    def holds(self, group: GroupFigures, *, sure: bool) -> bool:
        """Return whether the figure of a group meets it; one that is undefined does not.

        Args:
            group: The figures of the group.
            sure: Whether the whole interval must meet it, too, whatever missing labels are. For a
                figure that a verdict is about there must be one.
        """
        if self._passes_over(group):
            return False
        is_tested = self.figure in TESTED and not math.isnan(group.test.value)
        if sure and is_tested and (group.could_flip or not group.is_sure):
            return False
        ends = self._ends_by_labels(group) if sure else ()
        return all(map(self._meets, (getattr(group, self.figure).value, *ends)))

    def doubt(self, group: GroupFigures, *, sure: bool) -> str:
        """Return why it is undecided for a group where it does not surely hold; empty if it is not.

        Args:
            group: The figures of the group.
            sure: Whether an interval that reaches beyond the line, or a missing label, is a reason.
        """
        it = getattr(group, self.figure)
        is_ratio, is_tested = self.figure in RATIOS, self.figure in TESTED
        if self._passes_over(group):
            return ""
        if math.isnan(it.value):
            return REASONS["saturated"] if group.verdict == "saturated" else "there is no figure"
        # An exposure is over the queries that have a target, unless none has.
        is_over_all = self.figure == "absent" or (self.figure == "exposure" and not group.known)
        if group.verdict in ("saturated", "too_few") and not is_over_all:
            return REASONS[group.verdict]
        # A ratio that may be anything has an interval.
        if math.isnan(it.low) or (is_ratio and it.low <= 0 and it.high >= 1):
            return "too few queries tell of it"
        sides = {*map(self._meets, (it.value, it.low, it.high))}
        open_by = REACHES if len(sides) > 1 and not group.could_flip else FLIPS
        may_turn = sure and (group.verdict == "unlabelled" or (is_ratio and group.could_flip))
        if is_tested and (may_turn or self.holds(group, sure=False)):
            return REASONS.get(group.verdict, open_by)
        if group.known < 0.5 and not is_over_all:
            return "target shares are known for less than half of the queries by weight"
        sides |= {*map(self._meets, self._ends_by_labels(group))}
        return open_by if sure and True in sides else ""

    def _meets(self, value: float) -> bool:
        """Return whether a value is beyond the line; a comparison with NaN is never true."""
        return bool(OPERATORS[self.comparison](value, self.line))

    def _ends_by_labels(self, group: GroupFigures) -> tuple[float, float]:
        """Return the ends of the interval if missing labels were such that it is widest."""
        it = getattr(group, self.figure)
        low, high = it.low, it.high
        least, greatest = (end - group.test.value for end in group.gap_bounds)
        if self.figure in GAPS:
            return low + min(least, 0.0), high + max(greatest, 0.0)
        unlabelled = math.inf if group.unknown else 0.0
        span = unlabelled if math.isnan(least) else greatest - least
        span = {"exposure": group.unknown, "absent": unlabelled}.get(self.figure, span)
        if self.figure not in RATES:
            return low - span, high + span
        # Rates go with the group's share, and ratios also with another group's.
        share = np.nan_to_num(min(group.exposure.value, group.share_of_candidates)).clip(1e-9, 0.5)
        factor = (1 + span / share) * (1 + span / (1 - share))
        return low / factor, high * factor

    def _passes_over(self, group: GroupFigures) -> bool:
        """Return whether a group gets more than its target share, which no low ratio is about."""
        is_low = self.figure in RATIOS and self.comparison in ("<", "<=")
        return is_low and group.verdict == "more" and not group.could_flip


def parse_condition(text: str) -> Condition:
    """Read a condition.

    Raises:
        InputError: It is none.
    """
    found = _WRITTEN.fullmatch(text)
    if found is None:
        why = "write a figure, a comparison and a number, such as 'impact_ratio < 0.8'"
        raise InputError(f"'{one_line(text, 80)}' is not a condition; {why}.")
    if found[1] not in ESTIMATES:
        raise InputError(f"There is no figure '{found[1]}'; choose among {', '.join(ESTIMATES)}.")
    return Condition(found[1], found[2], float(found[3]))


def check(
    conditions: Sequence[Condition], figures: AuditFigures, *, sure: bool
) -> tuple[list[str], list[str]]:
    """Check conditions; one that is in neither list holds for no group of any attribute.

    Args:
        conditions: What must not hold.
        figures: The figures of the audit.
        sure: Whether only what is sure counts; see :meth:`Condition.holds`. A condition that the
            figure of a group meets, but not surely, is doubtful. In segments of the queries only
            what is sure counts.

    Returns:
        A sentence on each condition that holds for a group. A sentence with the reason on each
        condition that cannot be decided.
    """
    broken, doubtful = list[str](), list[str]()
    if conditions and (figures.too_many_failed or figures.counts.empty_share > 0.5):
        why = "too many queries failed" if figures.too_many_failed else "most queries found nothing"
        return [], [f"No condition was checked: {why}."]
    for it in conditions:
        met = [one for one in figures.groups if it.holds(one, sure=sure)]
        if met := met + [one for one in figures.segments if it.holds(one, sure=True)]:
            broken.append(f"'{it}' holds for {_named(it.figure, met)}.")
            continue
        doubts = defaultdict[str, list[GroupFigures]](list)
        for groups in figures.by_attribute.values():
            reasons = [it.doubt(one, sure=sure) for one in groups]
            for why, one in zip(reasons, groups, strict=True) if sure or all(reasons) else ():
                doubts[why].append(one)
        doubts.pop("", None)
        for why, named in doubts.items():
            doubtful.append(f"'{it}' may hold for {_named(it.figure, named)}: {why}.")
    if sure and figures.counts.empty_share > MOST_EMPTY:
        doubtful.append("Queries that found nothing are in no figure, and are more than a tenth.")
    return broken, doubtful


def _named(figure: str, groups: Sequence[GroupFigures]) -> str:
    named = []
    for group in groups[:SHOWN]:
        it = getattr(group, figure)
        ends = "" if math.isnan(it.low) else f", {it.low:.3g} to {it.high:.3g}"
        value = "" if math.isnan(it.value) else f" ({it.value:.3g}{ends})"
        where = f" in {group.segment}" if group.segment else ""
        named.append(f"{group.attribute}={group.group}{where}{value}")
    return ", ".join(named) + (f", and {len(groups) - SHOWN} more" if groups[SHOWN:] else "")
