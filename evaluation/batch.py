"""The queries, rankings, judgements and groups that measures read, as arrays over all rankings."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from fairqr.evaluation.collections import query_targets
from fairqr.evaluation.collections.labels import Groups
from fairqr.evaluation.expected_exposure import ExpectedExposure, expected_exposure
from fairqr.evaluation.scores import Reason
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import Discount, FloatArray

Targets = tuple[FloatArray, dict[int, Reason]]
"""ε* of each query, shape (Q, G), and by position why a query has none; its row is uniform."""


class Batch:
    """Queries with their rankings, their judgements, and the groups of the documents.

    A query can have several rankings, sampled from a policy. What several measures need is computed
    once. Q is the number of queries and R the number of their rankings. Arrays over ranks are
    padded with zeros up to the longest ranking.

    Args:
        queries: Their ids.
        rankings: For each query, its rankings as lists of ids; none, or only empty ones, if the run
            lacks the query.
        judged: For each query, the grade of each judged document; above 0 is relevant.
        groups: The groups of the documents; optional if no measure needs them.
        target: What exposure should be.

    Attributes:
        rankings: All rankings that are not empty, query by query.
        owner: The position of each ranking's query, shape (R,).
        lengths: The length of each ranking, shape (R,).
        relevant: For each query, the ids of the relevant documents.
        relevant_counts: The number of relevant documents, shape (Q,).
    """

    def __init__(
        self,
        queries: Sequence[str],
        rankings: Sequence[Sequence[Sequence[str]]],
        judged: Sequence[Mapping[str, int]],
        *,
        groups: Groups | None = None,
        target: query_targets.TargetRule = query_targets.DEFAULT_TARGET,
    ) -> None:
        self.queries = queries
        self.judged = judged
        by_query = [list(filter(None, of_query)) for of_query in rankings]
        self.rankings = list(itertools.chain.from_iterable(by_query))
        counts = np.array([len(of_query) for of_query in by_query], dtype=np.intp)
        self.owner = np.repeat(np.arange(len(queries)), counts)
        self.starts = np.concatenate(([0], counts.cumsum()))
        self.lengths = np.array([len(ranking) for ranking in self.rankings], dtype=np.intp)
        self.relevant = [_relevant(grades) for grades in judged]
        self.relevant_counts = np.array([len(ids) for ids in self.relevant], dtype=np.intp)
        # Measure.targeted has checked that there are groups if a measure needs them.
        self.groups = cast("Groups", groups)
        self._target = target
        self._kept: dict[Any, Any] = {}

    def of_query(self, query: int) -> range:
        """Return the positions of a query's rankings; empty where the run lacks the query."""
        return range(int(self.starts[query]), int(self.starts[query + 1]))

    def means(self, values: FloatArray, counted: Any) -> tuple[FloatArray, Any]:
        """Return the mean over each query's rankings that are counted, and how many these are.

        Args:
            values: The values of the rankings, shape (R, …).
            counted: Which of them count, shape (R,). A query without any has the mean 0.
        """
        counts = np.bincount(self.owner[counted], minlength=len(self.queries))
        sums = np.zeros((len(self.queries), *values.shape[1:]))
        np.add.at(sums, self.owner[counted], values[counted])
        return (sums.T / np.maximum(counts, 1)).T, counts

    def grades(self, k: int | None = None) -> FloatArray:
        """Return the grade of the document at each rank, shape (R, n); 0 if it is not judged."""

        def fill(depth: int) -> FloatArray:
            grades = np.zeros((len(self.rankings), depth))
            for row, ids in enumerate(self.rankings):
                judged = self.judged[self.owner[row]]
                of_ranking = [judged.get(id_, 0) for id_ in ids[:depth]]
                grades[row, : len(of_ranking)] = of_ranking
            return np.maximum(grades, 0.0, out=grades)

        return self._to_depth("grades", k, fill)

    def ideal_grades(self, k: int | None = None) -> FloatArray:
        """Return the grades of each query's relevant documents, highest first, shape (Q, m)."""
        most = int(self.relevant_counts.max(initial=0))
        depth = most if k is None else min(k, most)
        grades = np.zeros((len(self.queries), depth))
        for row, judged in enumerate(self.judged):
            positive = [grade for grade in judged.values() if grade > 0]
            best = sorted(positive, reverse=True)[:k]
            grades[row, : len(best)] = best
        return grades

    def memberships(self, dimension: Dimension, k: int | None = None) -> FloatArray:
        """Return the memberships of the document at each rank, shape (R, n, G)."""

        def fill(depth: int) -> FloatArray:
            prefixes = [ids[:depth] for ids in self.rankings]
            ids = list(itertools.chain.from_iterable(prefixes))
            is_ranked = np.arange(depth) < np.minimum(self.lengths, depth)[:, None]
            members = np.zeros((len(prefixes), depth, len(dimension.groups)))
            members[is_ranked] = self.groups.in_dimension(dimension, ids)
            return members

        return self._to_depth(_key(dimension), k, fill)

    def targets(
        self, dimension: Dimension, rule: query_targets.TargetRule | None = None
    ) -> Targets:
        """Return ε* of each query over the groups of a dimension.

        Relevant documents that the corpus lacks do not count.

        Args:
            dimension: The groups.
            rule: A measure's own target; defaults to the target of the evaluation.
        """
        wanted = rule or self._target

        def resolve() -> Targets:
            size = len(dimension.groups)
            reasons: dict[int, Reason] = {}
            targets = np.full((len(self.queries), size), 1 / size)
            for query, relevant in enumerate(self.relevant):
                target = query_targets.resolve_target(dimension, wanted, self.groups, relevant)
                if isinstance(target, Reason):
                    reasons[query] = target
                else:
                    targets[query] = target
            return targets, reasons

        resolved: Targets = self._once((str(wanted), *_key(dimension)), resolve)
        return resolved

    def expected_exposure(self, query: int, discount: Discount, k: int | None) -> ExpectedExposure:
        """Return the expected exposure of what is judged or ranked for a query.

        Args:
            query: Its position.
            discount: The weight of each rank.
            k: The cut-off.
        """

        def expect() -> ExpectedExposure:
            rankings = [self.rankings[row] for row in self.of_query(query)]
            pool = sorted(set(self.judged[query]).union(*rankings))
            positions = {id_: position for position, id_ in enumerate(pool)}
            samples = np.full((len(rankings), max(map(len, rankings))), -1)
            for row, ranking in enumerate(rankings):
                samples[row, : len(ranking)] = [positions[id_] for id_ in ranking]
            useful = np.zeros(len(pool), dtype=bool)
            useful[[positions[id_] for id_ in self.relevant[query]]] = True
            return expected_exposure(samples, useful, discount, k)

        exposure: ExpectedExposure = self._once((query, discount, k), expect)
        return exposure

    def _once(self, key: object, make: Callable[[], Any]) -> Any:
        """Return what was made for a key, which is done the first time."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def _to_depth(
        self, key: object, k: int | None, fill: Callable[[int], FloatArray]
    ) -> FloatArray:
        """Return an array over ranks, shape (R, n, …), filled as deep as any measure asked for."""
        longest = int(self.lengths.max(initial=0))
        depth = longest if k is None else min(k, longest)
        if key not in self._kept or self._kept[key].shape[1] < depth:
            self._kept[key] = fill(depth)
        array: FloatArray = self._kept[key][:, :depth]
        return array


def _relevant(grades: Mapping[str, int]) -> list[str]:
    """Return the ids of the documents with a grade above 0."""
    return [id_ for id_, grade in grades.items() if grade > 0]


def _key(dimension: Dimension) -> tuple[str, ...]:
    return (dimension.name, *(factor.unknown for factor in dimension.factors))
