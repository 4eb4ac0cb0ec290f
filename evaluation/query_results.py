"""All that is known of one query when it is measured: rankings, judgements, groups, target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from fairqr.base.errors import InputError, TargetError, one_line
from fairqr.evaluation.collections.query_targets import (
    TREC_RULES,
    QueryTargets,
    TrecRule,
    resolve_target,
)
from fairqr.evaluation.expected_exposure import ExpectedExposure, expected_exposure
from fairqr.evaluation.memberships import Groups
from fairqr.evaluation.scores import Reason, Undefined
from fairqr.retrieval.dimension import Dimension
from fairqr.retrieval.exposure import Discount, FloatArray
from fairqr.retrieval.target import Target

__all__ = ["DEFAULT_TARGET", "QueryResults", "TargetRule", "as_target"]

T = TypeVar("T")

TargetRule = Target | TrecRule

DEFAULT_TARGET = Target(parts={"relevance": 0.5, "population": 0.5})


def as_target(target: TargetRule | str | Sequence[str]) -> TargetRule:
    """Read the target of an evaluation.

    Args:
        target: ``trec2022`` or ``trec2021`` for the track's own; or what
            :meth:`fairqr.retrieval.target.Target.parse` reads, of the parts ``relevance``,
            ``population``, ``uniform`` and ``corpus``.

    Raises:
        TargetError: It is no target, or has a part that is known while searching only.
    """
    if not isinstance(target, str | Target):
        target = target[0] if len(target) == 1 else Target.parse(target)
    if isinstance(target, str):
        for rule in TREC_RULES:
            if target.strip() == rule:
                return rule
        target = Target.parse(target)
    if "parts" not in target.model_fields_set:
        # Shares for some attributes alone: what they do not name has the default of evaluation.
        target = Target(parts=DEFAULT_TARGET.parts, shares=target.shares)
    if target.parts.get("retrieved"):
        raise TargetError(
            "The target part 'retrieved' is an estimate that a search makes of relevance; "
            "an evaluation has judgements, so write relevance instead."
        )
    return target


class QueryResults:
    """A query, its rankings, its judgements, and the groups of the documents.

    What several measures need is computed once.

    Args:
        query: Its id.
        rankings: The ids of one ranking, or of several that were sampled; none, or only empty ones,
            where the run lacks the query.
        judged: The grade of each judged document; above 0 is relevant.
        groups: The groups of the documents; None where no measure needs them.
        target: What exposure should be.
        computed: By dimension, targets that were computed already; they go before ``target``.
        others: Further rankings of the query, such as those of runs that this one is compared
            with: what they rank are items of the query too.
    """

    def __init__(
        self,
        query: str,
        rankings: Sequence[Sequence[str]],
        judged: Mapping[str, int],
        *,
        groups: Groups | None = None,
        target: TargetRule = DEFAULT_TARGET,
        computed: Mapping[str, QueryTargets] | None = None,
        others: Sequence[Sequence[str]] = (),
    ) -> None:
        self.query = query
        self.rankings = [ranking for ranking in rankings if ranking]
        self.judged = judged
        self.relevant = [id_ for id_, grade in judged.items() if grade > 0]
        self._groups = groups
        self._target = target
        self._computed = computed or {}
        self._others = others
        self._kept: dict[Any, Any] = {}

    @property
    def missing(self) -> bool:
        """Whether the run has no document for the query."""
        return not self.rankings

    @property
    def groups(self) -> Groups:
        """The groups of the documents."""
        if self._groups is None:
            raise InputError("The groups of the documents are not known; name the documents.")
        return self._groups

    @property
    def pool(self) -> frozenset[str]:
        """The ids of the query's items: those judged, and those that were ranked."""
        return self._once(
            "pool", lambda: frozenset(self.judged).union(*self._others, *self.rankings)
        )

    def grades(self, ranking: int) -> FloatArray:
        """Return the grade of the document at each rank, shape (n,); 0 for what is not judged."""
        return self._once(("grades", ranking), lambda: self._grades(self.rankings[ranking]))

    def relevance(self, ranking: int) -> FloatArray:
        """Return 1 where the document at that rank is relevant, else 0, shape (n,)."""
        return self._once(
            ("relevance", ranking), lambda: (self.grades(ranking) > 0).astype(np.float64)
        )

    def ideal_grades(self) -> FloatArray:
        """Return the grades of all relevant documents, highest first."""
        grades = (grade for grade in self.judged.values() if grade > 0)
        return self._once("ideal", lambda: np.array(sorted(grades, reverse=True), dtype=np.float64))

    def memberships(self, ranking: int, dimension: Dimension) -> FloatArray:
        """Return the memberships of the documents at each rank, shape (n, G)."""
        return self._once(
            ("memberships", ranking, *_key(dimension)),
            lambda: self.groups.memberships(dimension, self.rankings[ranking]),
        )

    def target(
        self, dimension: Dimension, rule: TargetRule | None = None
    ) -> FloatArray | Undefined:
        """Return ε* over the groups of a dimension, shape (G,), or why there is none.

        Relevant documents that the corpus lacks do not count.

        Args:
            dimension: The groups.
            rule: A measure's own target; that of the evaluation where None.
        """
        if rule is None and dimension.name in self._computed:
            return self._looked_up(dimension, self._computed[dimension.name])
        wanted = self._target if rule is None else rule
        return self._once(
            ("target", str(wanted), *_key(dimension)), lambda: self._resolve(dimension, wanted)
        )

    def expected_exposure(self, discount: Discount, k: int | None, items: str) -> ExpectedExposure:
        """Return the expected exposure of the query's items.

        Args:
            discount: The weight of each rank.
            k: The cut-off.
            items: ``pool``, or ``corpus`` for all documents of it and the pool.
        """
        return self._once(
            ("expected", discount, k, items), lambda: self._expected(discount, k, items)
        )

    def item_count(self, items: str) -> int:
        """Return how many items the query has."""
        if items == "pool":
            return len(self.pool)
        return self.groups.scan.documents + sum(id_ not in self.groups for id_ in self.pool)

    def forget(self) -> None:
        """Let go of what was kept for measures still to come."""
        self._kept.clear()

    def _grades(self, ids: Sequence[str]) -> FloatArray:
        found = np.array([self.judged.get(id_, 0) for id_ in ids], dtype=np.float64)
        return np.maximum(found, 0.0)

    def _looked_up(self, dimension: Dimension, computed: QueryTargets) -> FloatArray | Undefined:
        if dimension.groups != computed.dimension.groups:
            raise TargetError(
                f"The targets given for {dimension.name} are over "
                f"{', '.join(computed.dimension.groups)}, and the measure is over "
                f"{', '.join(dimension.groups)}; set the measure's 'unknown'."
            )
        if self.query in computed.targets:
            return computed.targets[self.query]
        if not self.relevant:
            return Undefined(Reason.NO_RELEVANT)
        why = computed.undefined.get(self.query, "the query is not among them")
        return Undefined(Reason.NO_TARGET, f"No target was given: {one_line(why)}.")

    def _resolve(self, dimension: Dimension, rule: TargetRule) -> FloatArray | Undefined:
        by_relevance = not isinstance(rule, Target) or (
            dimension.name not in rule.shares and rule.parts.get("relevance", 0) > 0
        )
        known = [id_ for id_ in self.relevant if id_ in self.groups]
        among = self.groups.memberships(dimension, known).sum(axis=0)
        if by_relevance and not self.relevant:
            return Undefined(Reason.NO_RELEVANT)
        if by_relevance and not among.any():
            return Undefined(Reason.NO_TARGET)
        if not isinstance(rule, Target):
            found = resolve_target(dimension, rule, self.groups.scan.labels, known)
            return found if found.any() else Undefined(Reason.NO_TARGET)
        estimates: dict[Any, FloatArray] = {"relevance": among} if by_relevance else {}
        if dimension.name not in rule.shares and rule.parts.get("corpus"):
            estimates["corpus"] = self.groups.corpus_shares(dimension)
        return rule.resolve(dimension.attribute, estimates)

    def _expected(self, discount: Discount, k: int | None, items: str) -> ExpectedExposure:
        place = {id_: position for position, id_ in enumerate(sorted(self.pool))}
        length = max(map(len, self.rankings))
        length = length if k is None else min(length, k)
        samples = np.full((len(self.rankings), length), -1)
        for row, ranking in enumerate(self.rankings):
            ids = ranking[:length]
            samples[row, : len(ids)] = [place[id_] for id_ in ids]
        useful = np.zeros(self.item_count(items), dtype=bool)
        useful[[place[id_] for id_ in self.relevant]] = True
        return expected_exposure(samples, useful, discount, k)

    def _once(self, key: object, compute: Callable[[], T]) -> T:
        if key not in self._kept:
            self._kept[key] = compute()
        found: T = self._kept[key]
        return found


def _key(dimension: Dimension) -> tuple[str, ...]:
    return (dimension.name, *(factor.unknown for factor in dimension.factors))
