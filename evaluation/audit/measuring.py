"""From what an engine answered to all figures of an audit; no engine is needed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fairqr.base.statistics import stream, student_quantile
from fairqr.evaluation.audit.estimates import Estimate, effective_queries
from fairqr.evaluation.audit.exposures import Answer, Choices, Shown, shown_by
from fairqr.evaluation.audit.figures import ESTIMATE_ERROR, Gathered, GroupFigures, corrected
from fairqr.evaluation.audit.mending import CurvePoint, curve, mended
from fairqr.evaluation.audit.observations import Observation
from fairqr.evaluation.audit.queries import AuditQuery
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.retrieval.dimension import TIMES, Dimension
from fairqr.retrieval.exposure import Discount, FloatArray, intersection
from fairqr.retrieval.schema import Schema
from fairqr.retrieval.table import decoded
from fairqr.retrieval.target import Target

__all__ = [
    "AuditFigures",
    "ByQuery",
    "Contribution",
    "Counts",
    "OtherChoice",
    "Stability",
    "Unanswered",
    "dimensions_to_measure",
    "measure",
]

VARIED_OVER = 500
"""Other choices are measured over at most so many queries."""
CONTRIBUTIONS = 10
MENDED_STEP = 0.1
"""How much of today's divergence remains in the re-rankings that are shown."""
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
        effective: How many queries of equal weight would tell as much as those answered.
        relevance: What says what is relevant.
    """

    asked: int
    answered: int
    empty: int
    failed: int
    with_relevance: int
    failed_share: float
    empty_share: float
    effective: float
    relevance: str


@dataclass(frozen=True, slots=True)
class OtherChoice:
    """The lean of a group by another choice of ours.

    Attributes:
        choice: In words, such as ``k = 10``.
        attribute: The attribute.
        group: The group.
        lean: By that choice.
        is_other: Whether it points the other way than the audit's own.
    """

    choice: str
    attribute: str
    group: str
    lean: Estimate
    is_other: bool


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
class ByQuery:
    """The answered queries in one attribute; arrays have one row a query and one column a group.

    Attributes:
        attribute: The attribute.
        groups: Its groups.
        queries: The ids.
        weights: Of the queries, shape (n,).
        unknown: The share of each exposure that went to documents without a label, shape (n,).
        exposure: NaN where undefined, shape (n, G).
        target: The same.
        lean: The same; above 0 the ranking withholds exposure.
        selected: The candidates among the first k, shape (n, G); NaN where undefined.
        candidates: All candidates.
    """

    attribute: str
    groups: tuple[str, ...]
    queries: tuple[str, ...]
    weights: FloatArray
    unknown: FloatArray
    exposure: FloatArray
    target: FloatArray
    lean: FloatArray
    selected: FloatArray
    candidates: FloatArray


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
        detectable: The lean that an audit of as many queries finds in four of five cases, by
            attribute and group; NaN where it is not known.
        others: The leans by other choices.
        varied_over: Over how many queries these are.
        stability: None if no query was asked twice.
        costs: By attribute, the curve of relevance against divergence; may be empty.
        contributions: The queries that add most to the leans against groups that surely get less.
        by_query: Of each attribute.
        unanswered: The queries that found nothing or failed, by id.
        too_many_failed: Whether so much failed that no verdict is given.
    """

    counts: Counts
    groups: list[GroupFigures]
    tests: int
    unknown: dict[str, Estimate]
    unlabelled: dict[str, float]
    detectable: dict[tuple[str, str], float]
    others: list[OtherChoice]
    varied_over: int
    stability: Stability | None
    costs: dict[str, list[CurvePoint]]
    contributions: list[Contribution]
    by_query: list[ByQuery]
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
    is_judged = relevance == "judged"
    dimensions = dimensions_to_measure(schema, spec)
    found = _Measuring(spec, dimensions, queries, corpus_shares or {}, is_judged=is_judged)
    for observation in observations:
        found.add(observation)
    return found.figures(relevance)


class _Measuring:
    def __init__(
        self,
        spec: AuditSpec,
        dimensions: list[Dimension],
        queries: Mapping[str, AuditQuery],
        corpus_shares: Mapping[str, FloatArray],
        *,
        is_judged: bool,
    ) -> None:
        self.is_judged = is_judged
        self.spec, self.dimensions, self.queries = spec, dimensions, queries
        shares = {
            d.name: d.independent_shares(corpus_shares)
            for d in dimensions
            if all(factor.name in corpus_shares for factor in d.factors)
        }
        self.choices = replace(spec.choices(), corpus_shares=shares)
        self.gathered = {d.name: Gathered(d) for d in dimensions}
        self.others = dict(self._other_choices())
        # Combinations would need the supply by each target, which takes long for many groups.
        self.by_other = {
            (choice, d.name): Gathered(d)
            for choice in self.others
            for d in dimensions
            if len(d.factors) == 1
        }
        self.ids: list[str] = []
        self.unanswered: list[Unanswered] = []
        self.status = {"ok": 0, "empty": 0, "failed": 0}
        self.lost = {"empty": 0.0, "failed": 0.0}
        self.with_relevance = 0
        self.twice: list[tuple[float, bool, float]] = []
        order = stream(spec.seed, "order").permutation(len(queries))
        places = dict(zip(sorted(queries), order.tolist(), strict=True))
        self.is_varied = {id_ for id_, place in places.items() if place < VARIED_OVER}
        self.is_mended = {id_ for id_, place in places.items() if place < spec.mend}
        self.mendable: dict[str, list[tuple[Answer, FloatArray, float]]] = {
            d.name: [] for d in dimensions
        }
        self.kept: dict[tuple[str, str], list[tuple[float, str, Observation]]] = {}

    def _other_choices(self) -> Iterable[tuple[str, Choices]]:
        spec, own = self.spec, self.choices
        for k in dict.fromkeys((max(1, spec.k // 2), min(2 * spec.k, spec.depth - 1))):
            if k != spec.k:
                yield f"k = {k}", replace(own, k=k)
        for text in ("log2", "rbp(0.8)", f"top_k({spec.k})"):
            discount = Discount.parse(text)
            if discount != spec.discount:
                yield f"discount {text}", replace(own, discount=discount)
        targets = [Target(parts={"relevance": 1.0}), Target(parts={"uniform": 1.0})]
        if all(d.attribute.population is not None for d in self.dimensions):
            targets.insert(1, Target(parts={"population": 1.0}))
        for target in targets:
            if target != spec.target:
                yield f"target {next(iter(target.parts))}", replace(own, target=target)

    def add(self, observation: Observation) -> None:
        """Take in what was observed of a query."""
        query = self.queries[observation.query]
        self.status[observation.status] += 1
        if observation.status != "ok":
            self.lost[observation.status] += query.weight
        if observation.again is not None and observation.status == "ok":
            first, second = observation.ids[: self.spec.k], observation.again[: self.spec.k]
            shared = len(set(first) & set(second)) / max(len(first), len(second))
            self.twice.append((query.weight, first == second, shared))
        if observation.status != "ok":
            self.unanswered.append(Unanswered(query.id, observation.status, observation.message))
            return
        self.ids.append(query.id)
        answers = self._answers(observation)
        relevance = answers[0].relevance
        self.with_relevance += relevance is not None and bool((relevance > 0).any())
        for dimension, answer in zip(self.dimensions, answers, strict=True):
            shown = shown_by(answer, dimension, self.choices)
            self.gathered[dimension.name].add(query.weight, shown)
            if query.id in self.is_varied:
                for (choice, name), gathered in self.by_other.items():
                    if name == dimension.name:
                        other = shown_by(answer, dimension, self.others[choice])
                        gathered.add(query.weight, other)
            has_target = relevance is not None and not np.isnan(shown.target).any()
            if query.id in self.is_mended and has_target and len(dimension.factors) == 1:
                self.mendable[dimension.name].append((answer, shown.target, query.weight))
            self._keep(dimension, query, observation, shown)

    def _keep(
        self, dimension: Dimension, query: AuditQuery, observation: Observation, shown: Shown
    ) -> None:
        """Keep the observations that add most to a lean."""
        leans = query.weight * (np.fmin(shown.target, shown.supply) - shown.exposure)
        for group, lean in zip(dimension.groups, leans.tolist(), strict=True):
            if lean > 0:
                held = self.kept.setdefault((dimension.name, group), [])
                held.append((lean, query.id, observation))
                held.sort(key=lambda it: (-it[0], it[1]))
                del held[CONTRIBUTIONS:]

    def figures(self, relevance: str) -> AuditFigures:
        """Return all figures of what was taken in."""
        asked = len(self.queries)
        weight = sum(query.weight for query in self.queries.values())
        lost = {name: value / weight if weight else 0.0 for name, value in self.lost.items()}
        too_many = lost["failed"] > self.spec.failures
        groups: list[GroupFigures] = []
        for name, gathered in self.gathered.items():
            groups += gathered.listed(stream(self.spec.seed, f"tests {name}"))
        error = ESTIMATE_ERROR if relevance == "estimated" else 0.0
        groups = corrected(groups, error=error)
        tests = sum(getattr(it, it.tested).p is not None for it in groups)
        if too_many:
            groups = [replace(it, verdict="cannot_tell", flips=False) for it in groups]
        answered = np.array([self.queries[id_].weight for id_ in self.ids])
        return AuditFigures(
            counts=Counts(
                asked=asked,
                answered=self.status["ok"],
                empty=self.status["empty"],
                failed=self.status["failed"],
                with_relevance=self.with_relevance,
                failed_share=lost["failed"],
                empty_share=lost["empty"],
                effective=effective_queries(answered) if len(answered) else 0.0,
                relevance=relevance if self.with_relevance else "unknown",
            ),
            groups=groups,
            tests=tests,
            unknown={name: it.unknown_mean() for name, it in self.gathered.items()},
            unlabelled={name: it.unlabelled() for name, it in self.gathered.items()},
            detectable={(it.attribute, it.group): _detectable(it, error) for it in groups},
            others=self._by_other_choices(groups),
            varied_over=len(self.is_varied.intersection(self.ids)),
            stability=self._stability(),
            costs={
                name: curve(*_columns(held), self.choices)
                for name, held in self.mendable.items()
                if held
            },
            contributions=self._contributions(groups),
            by_query=self._by_query(),
            unanswered=sorted(self.unanswered, key=lambda it: it.query),
            too_many_failed=too_many,
        )

    def _by_other_choices(self, groups: list[GroupFigures]) -> list[OtherChoice]:
        own = {(it.attribute, it.group): getattr(it, it.tested).value for it in groups}
        found = []
        for (choice, name), gathered in self.by_other.items():
            for group, lean in zip(gathered.dimension.groups, gathered.lean_means(), strict=True):
                is_other = bool(np.sign(lean.value) == -np.sign(own[name, group]) != 0)
                found.append(OtherChoice(choice, name, group, lean, is_other))
        return found

    def _stability(self) -> Stability | None:
        if not self.twice:
            return None
        weights, same, overlap = (np.array(column) for column in zip(*self.twice, strict=True))
        total = weights.sum()
        return Stability(
            len(weights), float(weights @ same / total), float(weights @ overlap / total)
        )

    def _contributions(self, groups: list[GroupFigures]) -> list[Contribution]:
        found = []
        by_name = {d.name: d for d in self.dimensions}
        for it in groups:
            if it.verdict != "less":
                continue
            gathered = self.gathered[it.attribute]
            place = gathered.dimension.groups.index(it.group)
            leans = gathered.weights() * gathered.leans()[0][:, place]
            total = float(np.nansum(np.maximum(leans, 0.0)))
            for part, query, observation in self.kept.get((it.attribute, it.group), []):
                fair = self._fair(by_name[it.attribute], observation)
                found.append(
                    Contribution(
                        attribute=it.attribute,
                        group=it.group,
                        query=query,
                        share=part / total,
                        lean=part / self.queries[query].weight,
                        shown=observation.ids[: self.spec.k],
                        fair=fair,
                    )
                )
        return found

    def _answers(self, observation: Observation) -> list[Answer]:
        """Return what was observed, in each dimension."""
        members = {name: decoded(groups) for name, groups in observation.groups.items()}
        relevance = None if observation.relevance is None else np.array(observation.relevance)
        return [
            Answer(
                intersection([members[factor.name] for factor in dimension.factors]),
                len(observation.ids),
                relevance,
                self.is_judged,
                max(
                    (observation.levels.get(it.name, 0.0) for it in dimension.factors), default=0.0
                ),
            )
            for dimension in self.dimensions
        ]

    def _fair(self, dimension: Dimension, observation: Observation) -> tuple[str, ...]:
        answer = self._answers(observation)[self.dimensions.index(dimension)]
        target = shown_by(answer, dimension, self.choices).target
        if answer.relevance is None or np.isnan(target).any():
            return ()
        best = mended(answer, target, self.choices, MENDED_STEP)
        return tuple(observation.pool[row] for row in best.positions.tolist())

    def _by_query(self) -> list[ByQuery]:
        return [
            ByQuery(
                attribute=name,
                groups=gathered.dimension.groups,
                queries=tuple(self.ids),
                weights=gathered.weights(),
                unknown=gathered.unknown(),
                exposure=gathered.array("exposure"),
                target=gathered.array("target"),
                lean=gathered.leans()[0],
                selected=gathered.array("selected"),
                candidates=gathered.array("candidates"),
            )
            for name, gathered in self.gathered.items()
        ]


def _columns(
    held: list[tuple[Answer, FloatArray, float]],
) -> tuple[list[Answer], list[FloatArray], list[float]]:
    return [it[0] for it in held], [it[1] for it in held], [it[2] for it in held]


def _detectable(group: GroupFigures, error: float) -> float:
    """Return the lean that as many queries with this spread find in four of five cases.

    That is (t.975 + t.8)·standard error, by Student's quantiles, beyond what the estimate of
    relevance may be off by. The correction for the number of tests is left out.
    """
    test = getattr(group, group.tested)
    if np.isnan(test.low) or test.queries < 2:
        return float("nan")
    freedom = test.queries - 1
    half = student_quantile(0.95, freedom)
    spread = (test.high - test.low) / 2 / half
    by_chance = float(spread * (half + student_quantile(2 * POWER - 1, freedom)))
    return by_chance + (error if group.tested == "lean" else 0.0)
