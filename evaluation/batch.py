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
                found = [judged.get(id_, 0) for id_ in ids[:depth]]
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
            size, why = len(dimension.groups), dict[int, Reason]()
            targets = np.full((len(self.queries), size), 1 / size)
            for place, relevant in enumerate(self.relevant):
                found = query_targets.resolve_target(dimension, wanted, self.groups, relevant)
                if isinstance(found, Reason):
                    why[place] = found
                else:
                    targets[place] = found
            return targets, why

        found: Targets = self._once((str(wanted), *_key(dimension)), resolve)
        return found

    def expected_exposure(self, query: int, discount: Discount, k: int | None) -> ExpectedExposure:
        """Return the expected exposure of what is judged or ranked for a query.

        Args:
            query: Its position.
            discount: The weight of each rank.
            k: The cut-off.
        """

        def expect() -> ExpectedExposure:
            own = [self.rankings[place] for place in self.of_query(query)]
            pool = sorted(set(self.judged[query]).union(*own))
            place = {id_: number for number, id_ in enumerate(pool)}
            samples = np.full((len(own), max(map(len, own))), -1)
            for row, ranking in enumerate(own):
                samples[row, : len(ranking)] = [place[id_] for id_ in ranking]
            useful = np.zeros(len(pool), dtype=bool)
            useful[[place[id_] for id_ in self.relevant[query]]] = True
            return expected_exposure(samples, useful, discount, k)

        found: ExpectedExposure = self._once((query, discount, k), expect)
        return found

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
        found: FloatArray = self._kept[key][:, :depth]
        return found


def _key(dimension: Dimension) -> tuple[str, ...]:
    return (dimension.name, *(factor.unknown for factor in dimension.factors))
