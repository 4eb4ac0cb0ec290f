"""The queries, rankings, judgements and groups that measures read, as arrays over all rankings."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from fairqr.base.errors import TargetError, one_line
from fairqr.evaluation.collections.labels import Groups
from fairqr.evaluation.collections.query_targets import (
    DEFAULT_TARGET,
    QueryTargets,
    TargetRule,
    resolve_target,
)
from fairqr.evaluation.expected_exposure import ExpectedExposure, expected_exposure
from fairqr.evaluation.scores import Reason, Undefined
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import Discount, FloatArray
from fairqr.retrieval.fairness.ranking import OrderedView
from fairqr.retrieval.fairness.target import Target


class Batch:
    """Queries with their rankings, their judgements, and the groups of the documents.

    A query can have several rankings, sampled from a policy. What several measures need is computed
    once. Q is the number of queries and R the number of their rankings. Arrays over ranks are
    padded with zeros up to the longest ranking.

    Args:
        queries: Their ids.
        rankings: By query, its rankings as lists of ids; none, or only empty ones, if the run lacks
            the query.
        judged: By query, the grade of each judged document; above 0 is relevant.
        groups: The groups of the documents; optional if no measure needs them.
        target: What exposure should be.
        computed: By dimension, targets computed beforehand; they replace ``target``.

    Attributes:
        rankings: All rankings that are not empty, query by query.
        owner: The position of each ranking's query, shape (R,).
        lengths: The length of each ranking, shape (R,).
        relevant: By query, the ids of the relevant documents.
        relevant_counts: The number of relevant documents, shape (Q,).
    """

    def __init__(
        self,
        queries: Sequence[str],
        rankings: Sequence[Sequence[Sequence[str]]],
        judged: Sequence[Mapping[str, int]],
        *,
        groups: Groups | None = None,
        target: TargetRule = DEFAULT_TARGET,
        computed: Mapping[str, QueryTargets] | None = None,
    ) -> None:
        self.queries = queries
        self.judged = judged
        kept = [[ranking for ranking in own if ranking] for own in rankings]
        self.rankings = [ranking for own in kept for ranking in own]
        counts = np.array([len(own) for own in kept], dtype=np.intp)
        self.owner = np.repeat(np.arange(len(queries)), counts)
        self.starts = np.concatenate(([0], counts.cumsum()))
        self.lengths = np.array([len(ranking) for ranking in self.rankings], dtype=np.intp)
        self.relevant = [[id_ for id_, grade in own.items() if grade > 0] for own in judged]
        self.relevant_counts = np.array([len(ids) for ids in self.relevant], dtype=np.intp)
        # Measure.targeted has checked that there are groups if a measure needs them.
        self.groups = cast("Groups", groups)
        self._target = target
        self._computed = computed or {}
        self._kept: dict[Any, Any] = {}

    def of_query(self, query: int) -> range:
        """Return the positions of a query's rankings; empty where the run lacks the query."""
        return range(int(self.starts[query]), int(self.starts[query + 1]))

    def missing(self) -> list[int]:
        """Return the positions of the queries that the run lacks."""
        absent: list[int] = np.flatnonzero(np.diff(self.starts) == 0).tolist()
        return absent

    def depth(self, k: int | None) -> int:
        """Return how many ranks the arrays hold at a cut-off."""
        longest = int(self.lengths.max(initial=0))
        return longest if k is None else min(k, longest)

    def grades(self, k: int | None = None) -> FloatArray:
        """Return the grade of the document at each rank, shape (R, n); 0 if it is not judged."""

        def fill(depth: int) -> FloatArray:
            grades = np.zeros((len(self.rankings), depth))
            for row, ids in enumerate(self.rankings):
                found = _grades(ids, self.judged[self.owner[row]], depth)
                grades[row, : len(found)] = found
            return np.maximum(grades, 0.0, out=grades)

        return self._to_depth("grades", k, fill)

    def ideal_grades(self, k: int | None = None) -> FloatArray:
        """Return the grades of each query's relevant documents, highest first, shape (Q, m)."""
        most = int(self.relevant_counts.max(initial=0))
        grades = np.zeros((len(self.queries), most if k is None else min(k, most)))
        for row, own in enumerate(self.judged):
            best = sorted((g for g in own.values() if g > 0), reverse=True)[:k]
            grades[row, : len(best)] = best
        return grades

    def memberships(self, dimension: Dimension, k: int | None = None) -> FloatArray:
        """Return the memberships of the document at each rank, shape (R, n, G)."""

        def fill(depth: int) -> FloatArray:
            shown = [ids[:depth] for ids in self.rankings]
            rows = self.groups.in_dimension(dimension, list(itertools.chain.from_iterable(shown)))
            members = np.zeros((len(shown), depth, len(dimension.groups)))
            members[np.arange(depth) < np.minimum(self.lengths, depth)[:, None]] = rows
            return members

        return self._to_depth(("memberships", *_key(dimension)), k, fill)

    def targets(
        self, dimension: Dimension, rule: TargetRule | None = None
    ) -> tuple[FloatArray, dict[int, Undefined]]:
        """Return ε* of each query over the groups of a dimension.

        Targets computed beforehand take precedence. Relevant documents that the corpus lacks do not
        count.

        Args:
            dimension: The groups.
            rule: A measure's own target; defaults to the target of the evaluation.

        Returns:
            Shape (Q, G), and by position why a query has no target; its row is uniform.
        """
        wanted, computed = rule or self._target, self._computed.get(dimension.name)
        key = ("targets", str(wanted), *_key(dimension))
        if key not in self._kept:
            self._kept[key] = self._targets(dimension, wanted, computed)
        found: tuple[FloatArray, dict[int, Undefined]] = self._kept[key]
        return found

    def relevant_shares(self, dimension: Dimension) -> tuple[FloatArray, dict[int, Undefined]]:
        """Return the share of each group among a query's relevant documents, as targets are."""
        return self._targets(dimension, Target(parts={"relevance": 1.0}), None)

    def expected_exposure(
        self, query: int, discount: Discount, k: int | None, items: str
    ) -> ExpectedExposure:
        """Return the expected exposure of a query's items.

        Args:
            query: Its position.
            discount: The weight of each rank.
            k: The cut-off.
            items: ``pool`` for documents that are judged or ranked for the query, ``corpus`` for
                all documents and the pool.
        """
        key = ("expected", query, discount, k, items)
        if key not in self._kept:
            useful, samples = self._items(query, k, items)
            self._kept[key] = expected_exposure(samples, useful, discount, k)
        found: ExpectedExposure = self._kept[key]
        return found

    def _items(self, query: int, k: int | None, items: str) -> tuple[Any, Any]:
        """Return which items are useful, shape (n,), and the rankings as their positions."""
        own = [self.rankings[place] for place in self.of_query(query)]
        pool = sorted(set(self.judged[query]).union(*own))
        place = {id_: number for number, id_ in enumerate(pool)}
        length = max(map(len, own))
        samples = np.full((len(own), length if k is None else min(length, k)), -1)
        for row, ranking in enumerate(own):
            ids = ranking[: samples.shape[1]]
            samples[row, : len(ids)] = [place[id_] for id_ in ids]
        count = len(pool)
        if items == "corpus":
            count = self.groups.documents + len(pool) - len(self.groups.known(pool))
        useful = np.zeros(count, dtype=bool)
        useful[[place[id_] for id_ in self.relevant[query]]] = True
        return useful, samples

    def _targets(
        self, dimension: Dimension, rule: TargetRule, computed: QueryTargets | None
    ) -> tuple[FloatArray, dict[int, Undefined]]:
        if computed is not None and dimension.groups != computed.dimension.groups:
            raise TargetError(
                f"The targets given for {dimension.name} are over "
                f"{', '.join(computed.dimension.groups)}, and the measure is over "
                f"{', '.join(dimension.groups)}; set the measure's 'unknown'."
            )
        size = len(dimension.groups)
        targets = np.full((len(self.queries), size), 1 / size)
        why = {}
        groups = self.groups
        for place, relevant in enumerate(self.relevant):
            if computed is not None:
                found = self._looked_up(place, computed)
            else:
                found = resolve_target(dimension, rule, groups, relevant)
            if isinstance(found, Undefined):
                why[place] = found
            else:
                targets[place] = found
        return targets, why

    def _looked_up(self, query: int, computed: QueryTargets) -> FloatArray | Undefined:
        name = self.queries[query]
        if name in computed.targets:
            return computed.targets[name]
        if not self.relevant[query]:
            return Undefined(Reason.NO_RELEVANT)
        why = computed.undefined.get(name, "the query is not among them")
        return Undefined(Reason.NO_TARGET, f"No target was given: {one_line(why)}.")

    def _to_depth(
        self, key: object, k: int | None, fill: Callable[[int], FloatArray]
    ) -> FloatArray:
        """Return an array over ranks, shape (R, n, …), filled as deep as any measure asked for."""
        depth = self.depth(k)
        if key not in self._kept or self._kept[key].shape[1] < depth:
            self._kept[key] = fill(depth)
        found: FloatArray = self._kept[key][:, :depth]
        return found


def _grades(ids: Sequence[str], judged: Mapping[str, int], depth: int) -> FloatArray:
    """Return the grades of the first documents of a ranking; 0 if they are not judged."""
    # To put all documents in order takes longer than to look them up, so that we order the grades.
    if isinstance(ids, OrderedView) and len(ids) < 2 * depth:
        return _grades(ids.items, judged, len(ids.items))[ids.order[:depth]]
    shown = ids[:depth]
    return np.fromiter(map(judged.get, shown, itertools.repeat(0)), np.float64, len(shown))


def _key(dimension: Dimension) -> tuple[str, ...]:
    return (dimension.name, *(factor.unknown for factor in dimension.factors))
