"""What policies of one retriever say together: tests between α, slope and area, five intervals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairqr.base.statistics import corrected_by_holm, paired_t
from fairqr.evaluation.rag.analysis.frame import Frame, PolicyKey, QueryKey
from fairqr.evaluation.rag.analysis.names import Name
from fairqr.evaluation.scores import Undefined

__all__ = [
    "EDGES",
    "Curve",
    "IntervalCell",
    "IntervalRow",
    "PolicyTest",
    "compare_policies",
    "curve_of",
    "interval_rows",
]

EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Of the intervals of normalised EE-D; each takes its lower end in, and not its upper one."""

FIXED = 1e-9
"""A normalised EE-D that is nearer to 1 is that of a fixed ranking; rounding makes no interval."""


@dataclass(frozen=True, slots=True)
class PolicyTest:
    """A paired t test between two policies over the queries where both have a value.

    Attributes:
        one, other: The policies.
        difference: The mean of other − one; None where no query has both.
        count: Over how many queries.
        p: Two-sided, not corrected; None where the test has no value.
    """

    one: PolicyKey
    other: PolicyKey
    difference: float | None
    count: int
    p: float | None


def compare_policies(
    frame: Frame, name: Name, policies: Sequence[PolicyKey] | None = None
) -> list[PolicyTest]:
    """Test each two policies against each other (Student's paired t).

    Args:
        frame: Of one retriever.
        name: The measure.
        policies: Which ones; every α where None.

    Raises:
        InputError: scipy is not installed.
    """
    if policies is None:
        policies = [policy for policy in frame.policies if policy[0] == "plackett-luce"]
    values = {policy: frame.select(policy=policy).by_query(name) for policy in policies}
    found = []
    for one, other in itertools.combinations(policies, 2):
        differences = [
            value - values[one][query]
            for query, value in values[other].items()
            if query in values[one]
        ]
        mean = float(np.mean(differences)) if differences else None
        found.append(PolicyTest(one, other, mean, len(differences), paired_t(differences)))
    return found


@dataclass(frozen=True, slots=True)
class Curve:
    """A measure against another over the policies of a retriever.

    Attributes:
        slope: Of the least-squares line of y on x; None where all x are the same.
        area: Under the points joined in order of x (trapezoids), over the range of x there is;
            None where all x are the same.
        low, high: That range. Areas over different ranges cannot be compared: see ``height``.
        points: How many policies it is over.
    """

    slope: float | None
    area: float | None
    low: float
    high: float
    points: int

    @property
    def height(self) -> float | None:
        """The area by the width of the range: the mean of y."""
        return None if self.area is None else self.area / (self.high - self.low)


def curve_of(points: Sequence[tuple[float, float]]) -> Curve | None:
    """Return slope and area of points (x, y), as in Table 1 of "Towards Fair RAG".

    Points with the same x are averaged for the area. The paper says neither over which range its
    areas are nor how its lines are fitted (reconstructed).

    Returns:
        None without points.
    """
    if not points:
        return None
    x, y = np.array(sorted(points)).T
    low, high = float(x[0]), float(x[-1])
    if high - low <= FIXED:
        return Curve(None, None, low, high, len(points))
    centred = x - x.mean()
    slope = float(centred @ (y - y.mean()) / (centred @ centred))
    distinct, places = np.unique(x, return_inverse=True)
    heights = np.bincount(places, y) / np.bincount(places)
    area = float((np.diff(distinct) * (heights[1:] + heights[:-1]) / 2).sum())
    return Curve(slope, area, low, high, len(points))


@dataclass(frozen=True, slots=True)
class IntervalCell:
    """Random rankings of one interval of EE-D against the deterministic ranking.

    Attributes:
        difference: The mean over queries of utility − the deterministic ranking's; the pairs of
            one query, its policies and seeds in the interval, are averaged first, since they are
            not independent. None without pairs.
        pairs: How many there are.
        queries: Of how many queries.
        p: Of the paired t test over these queries; None where the test has no value.
        corrected: By Holm, for all cells of the table.
    """

    difference: float | None
    pairs: int
    queries: int
    p: float | None
    corrected: float | None = None


@dataclass(frozen=True, slots=True)
class IntervalRow:
    """One retriever with one generator on one collection.

    Attributes:
        collection, generator, retriever: Which ones.
        deterministic: The mean utility of the deterministic ranking; None where there is none.
        queries: Over how many queries that is.
        cells: One for each interval of :data:`EDGES`.
        fixed: Pairs whose rankings were all the same, so that EE-D is 1: outside all intervals.
        left_out: Pairs without EE-D, without utility, or without that of the deterministic ranking.
    """

    collection: str
    generator: str
    retriever: str
    deterministic: float | None
    queries: int
    cells: tuple[IntervalCell, ...]
    fixed: int
    left_out: int


def interval_rows(frame: Frame, disparity: Name, utility: Name) -> list[IntervalRow]:
    """Return the five-interval table (Table 2 of "Towards Fair RAG").

    Args:
        frame: All policies.
        disparity: Of which normalisation EE-D is.
        utility: Which utility is compared.

    Raises:
        InputError: scipy is not installed.
    """
    rows = []
    for collection in frame.collections:
        here = frame.select(collection=collection)
        for generator in here.generators:
            mine = here.select(generator=generator)
            rows += [
                _row(mine.select(retriever=r), (collection, generator, r), disparity, utility)
                for r in mine.retrievers
            ]
    corrected = iter(corrected_by_holm([cell.p for row in rows for cell in row.cells]))
    return [_corrected(row, [next(corrected) for _ in row.cells]) for row in rows]


def _row(frame: Frame, names: tuple[str, str, str], disparity: Name, utility: Name) -> IntervalRow:
    baseline = frame.select(kind="deterministic").by_query(utility)
    found: list[dict[QueryKey, list[float]]] = [{} for _ in EDGES[1:]]
    fixed = left_out = 0
    for cell in frame.select(kind="plackett-luce").cells:
        query = (cell.record.collection, cell.record.query)
        x, y = cell.values[disparity], cell.values[utility]
        if isinstance(x, Undefined) or isinstance(y, Undefined) or query not in baseline:
            left_out += 1
        elif x >= 1 - FIXED:
            fixed += 1
        else:
            # Rounding can leave −1e−17 for a uniform policy.
            place = min(len(found) - 1, max(0, math.floor(round(x, 12) * len(found))))
            found[place].setdefault(query, []).append(y - baseline[query])
    values = list(baseline.values())
    return IntervalRow(
        *names,
        deterministic=float(np.mean(values)) if values else None,
        queries=len(values),
        cells=tuple(map(_cell, found)),
        fixed=fixed,
        left_out=left_out,
    )


def _cell(found: dict[QueryKey, list[float]]) -> IntervalCell:
    if not found:
        return IntervalCell(None, 0, 0, None)
    means = [float(np.mean(differences)) for differences in found.values()]
    return IntervalCell(
        float(np.mean(means)), sum(map(len, found.values())), len(found), paired_t(means)
    )


def _corrected(row: IntervalRow, p_values: Sequence[float | None]) -> IntervalRow:
    cells = tuple(
        IntervalCell(cell.difference, cell.pairs, cell.queries, cell.p, p)
        for cell, p in zip(row.cells, p_values, strict=True)
    )
    return IntervalRow(
        row.collection,
        row.generator,
        row.retriever,
        row.deterministic,
        row.queries,
        cells,
        row.fixed,
        row.left_out,
    )
