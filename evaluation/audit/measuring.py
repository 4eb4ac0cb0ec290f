"""From what an engine answered to all figures of an audit; no engine is needed."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from fairqr.base.statistics import stream, student_quantile
from fairqr.evaluation.audit.estimates import Estimate, effective_queries
from fairqr.evaluation.audit.exposures import Answer, Choices, shown_by
from fairqr.evaluation.audit.figures import ESTIMATE_ERROR, Gathered, GroupFigures, corrected
from fairqr.evaluation.audit.mending import (
    MENDED_WEIGHT,
    CurvePoint,
    Mendable,
    after_mending,
    curve,
    mended,
)
from fairqr.evaluation.audit.queries import AuditQuery
from fairqr.evaluation.audit.records import Observation
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.retrieval.dimension import TIMES, Dimension
from fairqr.retrieval.exposure import FloatArray, intersection
from fairqr.retrieval.schema import Schema
from fairqr.retrieval.table import decoded

CONTRIBUTIONS = 10
POWER = 0.8


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
        hidden: How many judged relevant documents are left out of answered queries, since the
            engine does not give them and their groups are not known.
        with_hidden: In how many queries there are such documents.
        effective: How many queries of equal weight would tell as much as those answered.
        relevance: What says what is relevant.
    """

    asked: int
    answered: int
    empty: int
    failed: int
    with_relevance: int
    hidden: int
    with_hidden: int
    failed_share: float
    empty_share: float
    effective: float
    relevance: str


@dataclass(frozen=True, slots=True)
class Stability:
    """What the engine answers when it is asked the same again.

    Attributes:
        queries: How many were asked twice.
        same: The share of them with the same first k documents in the same order.
        overlap: The mean share of the first k documents that are the same.
    """

    queries: int
    same: float
    overlap: float


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A query that has no figures.

    Attributes:
        query: Its id.
        status: Whether the engine found nothing, or failed.
        message: Why it failed.
    """

    query: str
    status: Literal["empty", "failed"]
    message: str


@dataclass(frozen=True, slots=True)
class Contribution:
    """A query that adds much to the lean against a group.

    Attributes:
        attribute: The attribute.
        group: The group that gets less.
        query: The id of the query.
        share: Its part of the sum of all leans against the group.
        lean: Of this query.
        shown: The ids that are shown today.
        fair: The ids that a fair re-ranking would show.
    """

    attribute: str
    group: str
    query: str
    share: float
    lean: float
    shown: tuple[str, ...]
    fair: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AuditFigures:
    """All figures of an audit.

    Attributes:
        counts: Of queries.
        groups: Of each attribute, with corrected tests.
        tests: How many tests were corrected for: the declared family.
        unknown: The share of the exposure that went to documents without a label, by attribute.
        unlabelled: How many candidates have no label, by attribute.
        stability: None if no query was asked twice.
        costs: By attribute, the curve of relevance against divergence; may be empty.
        contributions: The queries that add most to the leans against groups that surely get less.
        by_query: Of each attribute.
        saturated: By attribute, the weight of the queries that have more relevant documents than
            were looked at, as a share of those answered. These are in no lean.
        unanswered: The queries that found nothing or failed, by id.
        too_many_failed: Whether so much failed that no verdict is given.
    """

    counts: Counts
    groups: list[GroupFigures]
    tests: int
    unknown: dict[str, Estimate]
    unlabelled: dict[str, float]
    stability: Stability | None
    costs: dict[str, list[CurvePoint]]
    contributions: list[Contribution]
    saturated: dict[str, float]
    by_query: list[Gathered]
    unanswered: list[Unanswered]
    too_many_failed: bool


def dimensions_to_measure(schema: Schema, spec: AuditSpec) -> list[Dimension]:
    """Return the attributes of an audit, and then the combinations of each two.

    Raises:
        UnknownAttributeError: The schema lacks an attribute.
    """
    names = list(dict.fromkeys(spec.attributes)) or list(schema.attributes)
    pairs = itertools.combinations(names, 2) if spec.intersections else ()
    every = [*names, *(TIMES.join(pair) for pair in pairs if not any(TIMES in it for it in pair))]
    return [Dimension.named(schema, name) for name in every]


def choices_of(
    spec: AuditSpec, dimensions: Iterable[Dimension], corpus_shares: Mapping[str, FloatArray]
) -> Choices:
    """Return what to measure by, with the shares of the corpus where they are known."""
    shares = {
        d.name: d.independent_shares(corpus_shares)
        for d in dimensions
        if all(factor.name in corpus_shares for factor in d.factors)
    }
    return replace(spec.choices(), corpus_shares=shares)


def answers_of(
    observation: Observation, dimensions: Iterable[Dimension], *, is_judged: bool
) -> list[Answer]:
    """Return what was observed, in each dimension."""
    members = {name: decoded(groups) for name, groups in observation.groups.items()}
    relevance = None if observation.relevance is None else np.array(observation.relevance)
    return [
        Answer(
            intersection([members[factor.name] for factor in dimension.factors]),
            len(observation.ids),
            relevance,
            is_judged,
            # The searches for one of the attributes find all of a combination, too.
            min(observation.levels.get(it.name, 0.0) for it in dimension.factors),
        )
        for dimension in dimensions
    ]


def measure(
    spec: AuditSpec,
    schema: Schema,
    queries: Mapping[str, AuditQuery],
    observations: Iterable[Observation],
    *,
    corpus_shares: Mapping[str, FloatArray] | None = None,
    relevance: str = "estimated",
) -> AuditFigures:
    """Compute all figures.

    Args:
        spec: What to measure.
        schema: The attributes, as the engine gave memberships in.
        queries: All that were asked, by id.
        observations: One for each query; they may come in any order, and are read once.
        corpus_shares: The shares of the groups in the whole corpus, for targets that name it.
        relevance: What says what is relevant: ``judged``, ``estimated`` or ``unknown``.
    """
    dimensions = dimensions_to_measure(schema, spec)
    choices = choices_of(spec, dimensions, corpus_shares or {})
    measured = [_Dimension(it, choices, spec.reference.get(it.name)) for it in dimensions]
    order = stream(spec.seed, "order").permutation(len(queries))
    places = dict(zip(sorted(queries), order.tolist(), strict=True))
    tally: Counter[str] = Counter()
    lost = {"empty": 0.0, "failed": 0.0}
    weights: list[float] = []
    unanswered: list[Unanswered] = []
    twice: list[tuple[float, bool, float]] = []
    for observation in observations:
        query, status = queries[observation.query], observation.status
        tally[status] += 1
        if status != "ok":
            lost[status] += query.weight
            unanswered.append(Unanswered(query.id, status, observation.message))
            continue
        weights.append(query.weight)
        if observation.again is not None:
            first, second = observation.ids[: spec.k], observation.again[: spec.k]
            shared = len(set(first) & set(second)) / max(len(first), len(second))
            twice.append((query.weight, first == second, shared))
        tally["hidden"] += observation.hidden
        tally["with_hidden"] += observation.hidden > 0
        tally["with_relevance"] += any(it > 0 for it in observation.relevance or ())
        is_mended = places[query.id] < spec.mend
        answers = answers_of(observation, dimensions, is_judged=relevance == "judged")
        for it, answer in zip(measured, answers, strict=True):
            it.add(query, observation, answer, is_mended=is_mended)
    weight = sum(query.weight for query in queries.values())
    failed, empty = (lost[it] / weight if weight else 0.0 for it in ("failed", "empty"))
    error = ESTIMATE_ERROR if relevance == "estimated" else 0.0
    costs = {it.name: it.curve() for it in measured if it.mendable}
    uncorrected = [group for it in measured for group in it.groups(spec.seed)]
    groups = [
        replace(
            it,
            detectable=_detectable(it),
            if_mended=_if_mended(it, costs.get(it.attribute, [])),
        )
        for it in corrected(uncorrected, error=error)
    ]
    if failed > spec.failures:
        groups = [replace(it, verdict="cannot_tell", flips=False) for it in groups]
    saturated = {it.name: it.saturated / sum(weights) if weights else 0.0 for it in measured}
    without = {name for name, share in saturated.items() if share > spec.failures}
    groups = [_unknown(it) if it.attribute in without else it for it in groups]
    return AuditFigures(
        counts=Counts(
            asked=len(queries),
            answered=tally["ok"],
            empty=tally["empty"],
            failed=tally["failed"],
            with_relevance=tally["with_relevance"],
            hidden=tally["hidden"],
            with_hidden=tally["with_hidden"],
            failed_share=failed,
            empty_share=empty,
            effective=float(effective_queries(np.array(weights))),
            relevance=relevance if tally["with_relevance"] else "unknown",
        ),
        groups=groups,
        tests=sum(it.test.p is not None for it in groups),
        unknown={it.name: it.gathered.unknown_mean() for it in measured},
        unlabelled={it.name: it.gathered.unlabelled() for it in measured},
        stability=_stability(twice),
        costs=costs,
        saturated=saturated,
        contributions=[found for it in measured for found in it.contributions(groups)],
        by_query=[it.gathered for it in measured],
        unanswered=sorted(unanswered, key=lambda it: it.query),
        too_many_failed=failed > spec.failures,
    )


def _stability(twice: list[tuple[float, bool, float]]) -> Stability | None:
    if not twice:
        return None
    weights, same, overlap = (np.array(column) for column in zip(*twice, strict=True))
    total = weights.sum()
    shares = (weights @ np.stack([same, overlap], axis=1) / total).round(10)
    return Stability(len(weights), *shares.tolist())


class _Dimension:
    """What is gathered of all answers in one dimension.

    Args:
        dimension: The groups.
        choices: What the audit measures by.
        reference: The group that ratios are to, if one was chosen.

    Attributes:
        name: Of the dimension.
        gathered: The figures of each query.
        mendable: The answers to re-rank.
        saturated: The weight of the queries with more relevant documents than were looked at.
    """

    def __init__(self, dimension: Dimension, choices: Choices, reference: str | None) -> None:
        self.name, self.gathered = dimension.name, Gathered(dimension, reference)
        self.mendable: list[Mendable] = []
        self.saturated = 0.0
        self._dimension, self._choices = dimension, choices
        self._is_single = len(dimension.factors) == 1
        self._kept: dict[tuple[str, bool], list[_Kept]] = {}

    def add(
        self,
        query: AuditQuery,
        observation: Observation,
        answer: Answer,
        *,
        is_mended: bool,
    ) -> None:
        """Take in the answer to a query.

        Args:
            query: The query.
            observation: What was observed of it.
            answer: The same in this dimension.
            is_mended: Whether to re-rank it.
        """
        shown = shown_by(answer, self._dimension, self._choices)
        self.gathered.add(query.weight, shown, query.id)
        self.saturated += query.weight * answer.is_saturated
        has_target = answer.relevance is not None and not np.isnan(shown.target).any()
        if is_mended and has_target and self._is_single:
            self.mendable.append(Mendable(answer, shown.target, query.weight))
        # Where the supply of other queries is known, one without it is in no lean.
        has_supply = not np.isnan(shown.supply).any()
        # Machines add in different orders: what they print and choose goes by ten digits.
        leans = (query.weight * (np.fmin(shown.target, shown.supply) - shown.exposure)).round(10)
        for group, lean in zip(self._dimension.groups, leans.tolist(), strict=True):
            if lean > 0:
                held = self._kept.setdefault((group, has_supply), [])
                held.append(_Kept(-lean, query.id, query.weight, shown.target, answer, observation))
                held.sort(key=lambda it: it[:2])
                del held[CONTRIBUTIONS:]

    def groups(self, seed: int) -> list[GroupFigures]:
        """Return the figures of all groups, with uncorrected tests."""
        return self.gathered.listed(stream(seed, f"tests {self.name}"))

    def curve(self) -> list[CurvePoint]:
        """Return what mending costs."""
        return curve(self.mendable, self._choices, self._dimension.groups)

    def contributions(self, groups: Iterable[GroupFigures]) -> Iterator[Contribution]:
        """Yield the queries that add most to the leans against groups that surely get less."""
        by_query, by_supply = self.gathered.leans()
        sums = np.nansum(np.maximum(self.gathered.weights()[:, None] * by_query, 0.0), axis=0)
        totals = dict(zip(self._dimension.groups, sums.tolist(), strict=True))
        for it in groups:
            if it.attribute != self.name or it.verdict != "less":
                continue
            for kept in self._kept.get((it.group, by_supply), []):
                yield Contribution(
                    attribute=self.name,
                    group=it.group,
                    query=kept.query,
                    share=round(-kept.part / totals[it.group], 10),
                    lean=round(-kept.part / kept.weight, 10),
                    shown=kept.observation.ids[: self._choices.k],
                    fair=self._fair(kept),
                )

    def _fair(self, kept: _Kept) -> tuple[str, ...]:
        if kept.answer.relevance is None or np.isnan(kept.target).any():
            return ()
        best = mended(kept.answer, kept.target, self._choices, MENDED_WEIGHT)
        return tuple(kept.observation.pool[row] for row in best.positions.tolist())


class _Kept(NamedTuple):
    """A query that adds much to a lean: its part of it, below 0 so that the greatest is first."""

    part: float
    query: str
    weight: float
    target: FloatArray
    answer: Answer
    observation: Observation


def _if_mended(group: GroupFigures, points: list[CurvePoint]) -> float:
    """Return what a group would get if rankings were mended; NaN where nothing was mended."""
    point = after_mending(points)
    if point is None:
        return math.nan
    change = point.exposure[group.group].value - points[0].exposure[group.group].value
    share = group.exposure.value + change
    return share if math.isnan(share) else min(max(share, 0.0), 1.0)


def _unknown(group: GroupFigures) -> GroupFigures:
    """Take back what was said by the queries whose relevant documents were all looked at.

    What a group lacks to a target without relevance is still known.
    """
    if group.tested == "lack" and not math.isnan(group.lack.value):
        return group
    return replace(group, verdict="saturated", flips=False, detectable=math.nan)


def _detectable(group: GroupFigures) -> float:
    """Return the lean that as many queries with this spread find in four of five cases.

    That is (t.975 + t.8)·standard error, by Student's quantiles, where the error of an estimate of
    relevance counts as chance. The correction for the number of tests is left out.
    """
    test = group.test
    if np.isnan(test.low) or test.queries < 2:
        return float("nan")
    freedom = test.queries - 1
    wider = student_quantile(2 * POWER - 1, freedom) / student_quantile(0.95, freedom)
    return (test.high - test.low) / 2 * (1 + wider)
