"""The values of many policies on many queries, and their means over queries.

A mean is always over queries: several seeds of a policy on a query are averaged first, and so are
generators and retrievers where a table joins them. A query without a value is left out, and every
mean says over how many queries it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fairqr.base.statistics import Interval, mean_interval
from fairqr.evaluation.rag.analysis.cells import Cell
from fairqr.evaluation.rag.analysis.names import Name
from fairqr.evaluation.rag.records import Policy
from fairqr.evaluation.scores import Reason, Undefined

__all__ = ["Frame", "Mean", "PolicyKey", "QueryKey", "mean_of", "policy_name"]

QueryKey = tuple[str, str]
"""The names of the collection and of the query."""

PolicyKey = tuple[Policy, float | None]
"""A policy and its α."""

_ORDER: tuple[Policy, ...] = ("plackett-luce", "deterministic", "oracle")


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over queries.

    Attributes:
        value: None where no query has a value.
        interval: The 95% interval over queries; None where there are too few to tell.
        count: Over how many queries it is.
    """

    value: float | None
    interval: Interval | None
    count: int


class _Part(NamedTuple):
    """What cells have in common but for the query and the seed."""

    collection: str
    generator: str
    retriever: str
    kind: Policy
    alpha: float | None


def policy_name(policy: PolicyKey) -> str:
    """Return what tables call a policy, e.g. ``α = 4``."""
    kind, alpha = policy
    return kind if alpha is None else f"α = {alpha:g}"


def mean_of(values: Sequence[float]) -> Mean:
    """Return the mean of one value for each query."""
    if not values:
        return Mean(None, None, 0)
    return Mean(float(np.mean(values)), mean_interval(values), len(values))


class Frame:
    """Cells, to be selected from and averaged.

    Args:
        cells: In the order in which tables name what they are of.
    """

    def __init__(self, cells: Iterable[Cell]) -> None:
        self._parts: dict[_Part, list[Cell]] = {}
        for cell in cells:
            record = cell.record
            part = _Part(
                record.collection, record.generator, record.retriever, record.policy, record.alpha
            )
            self._parts.setdefault(part, []).append(cell)

    def select(
        self,
        *,
        collection: str | None = None,
        generator: str | None = None,
        retriever: str | None = None,
        policy: PolicyKey | None = None,
        kind: Policy | None = None,
    ) -> Frame:
        """Return the cells that agree with all that is named."""
        found = Frame(())
        found._parts = {
            part: cells
            for part, cells in self._parts.items()
            if (collection is None or part.collection == collection)
            and (generator is None or part.generator == generator)
            and (retriever is None or part.retriever == retriever)
            and (kind is None or part.kind == kind)
            and (policy is None or (part.kind, part.alpha) == policy)
        }
        return found

    @cached_property
    def cells(self) -> list[Cell]:
        """All of them, those of one policy together."""
        return [cell for cells in self._parts.values() for cell in cells]

    @property
    def collections(self) -> list[str]:
        """Those there are, in order."""
        return list(dict.fromkeys(part.collection for part in self._parts))

    @property
    def generators(self) -> list[str]:
        """Those there are, in order."""
        return list(dict.fromkeys(part.generator for part in self._parts))

    @property
    def retrievers(self) -> list[str]:
        """Those there are, in order; the oracle has none."""
        return list(dict.fromkeys(part.retriever for part in self._parts if part.retriever))

    @property
    def policies(self) -> list[PolicyKey]:
        """Those there are: by α, then the deterministic one and the oracle."""
        found = {(part.kind, part.alpha) for part in self._parts}
        return sorted(found, key=lambda p: (_ORDER.index(p[0]), p[1] or 0.0))

    def by_query(self, name: Name) -> dict[QueryKey, float]:
        """Return the value of each query that has one: the mean over its cells with one."""
        found: dict[QueryKey, list[float]] = {}
        for cell in self.cells:
            score = cell.values[name]
            if not isinstance(score, Undefined):
                found.setdefault(_query(cell), []).append(score)
        return {query: sum(values) / len(values) for query, values in found.items()}

    def mean(self, name: Name) -> Mean:
        """Return the mean over queries of a measure."""
        return mean_of(list(self.by_query(name).values()))

    def undefined(self, name: Name) -> dict[Reason, int]:
        """Return how many cells have no value, by reason."""
        scores = (cell.values[name] for cell in self.cells)
        found = Counter(score.reason for score in scores if isinstance(score, Undefined))
        return dict(sorted(found.items()))


def _query(cell: Cell) -> QueryKey:
    return cell.record.collection, cell.record.query
