"""Pairs of items to ask about, drawn from the list of a query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fairqr.agents.ranking.item_ranker import RankItem
from fairqr.base.statistics import stream
from fairqr.evaluation.probes.collection import Cell, ProbeItem, ProbeQuery
from fairqr.evaluation.probes.specification import PairwiseExperiment

__all__ = [
    "GroupKind",
    "Kind",
    "ProbePair",
    "group_pairs",
    "planned_pairs",
    "rank_item",
    "relevance_pairs",
]

GroupKind = Literal["relevant", "irrelevant"]
Kind = Literal["relevant", "irrelevant", "relevance"]

_CELLS: dict[GroupKind, tuple[Cell, Cell]] = {
    "relevant": ("relevant_protected", "relevant_unprotected"),
    "irrelevant": ("irrelevant_protected", "irrelevant_unprotected"),
}


@dataclass(frozen=True, slots=True)
class ProbePair:
    """Two items to be asked about in both orders.

    Attributes:
        kind: Of the pair.
        protected: The protected item; of ``relevance`` pairs the relevant one.
        unprotected: The other one.
    """

    kind: Kind
    protected: ProbeItem
    unprotected: ProbeItem


def planned_pairs(query: ProbeQuery, experiment: PairwiseExperiment) -> list[ProbePair]:
    """Return all pairs of a query that an experiment asks about: relevant, irrelevant, relevance.

    Args:
        query: Its items.
        experiment: Says how many of each, and the seed.
    """
    return [
        *group_pairs(query, "relevant", experiment.pairs, experiment.seed),
        *group_pairs(query, "irrelevant", experiment.pairs, experiment.seed),
        *relevance_pairs(query, experiment.relevance_pairs, experiment.seed),
    ]


def group_pairs(query: ProbeQuery, kind: GroupKind, limit: int, seed: int) -> list[ProbePair]:
    """Match protected with unprotected items that are alike in relevance, at random.

    No item is in two pairs. The draw depends on nothing but the items of the two cells, the seed
    and the query's id: neither on the order of the list nor on other queries; and fewer pairs are
    the first of more.

    Args:
        query: Its items.
        kind: Whether both items are relevant or both are not.
        limit: At most so many.
        seed: Of the draw.

    Returns:
        None where one of the two cells is empty.
    """
    protected, unprotected = _CELLS[kind]
    return [
        ProbePair(kind, one, other)
        for one, other in _matched(query, protected, unprotected, seed, kind)
    ][:limit]


def relevance_pairs(query: ProbeQuery, limit: int, seed: int) -> list[ProbePair]:
    """Match relevant with irrelevant items of the same side, at random.

    They tell whether a model judges relevance at all. The sides take turns as long as both have
    pairs, so that neither counts more; no item is in two pairs.

    Args:
        query: Its items.
        limit: At most so many.
        seed: Of the draw.

    Returns:
        Pairs whose relevant item stands as ``protected``.
    """
    sides = [
        _matched(query, "relevant_protected", "irrelevant_protected", seed, "relevance protected"),
        _matched(
            query, "relevant_unprotected", "irrelevant_unprotected", seed, "relevance unprotected"
        ),
    ]
    turns = [
        (turn, side, couple)
        for side, couples in enumerate(sides)
        for turn, couple in enumerate(couples)
    ]
    ordered = sorted(turns, key=lambda each: each[:2])
    return [ProbePair("relevance", *couple) for _, _, couple in ordered[:limit]]


def rank_item(item: ProbeItem) -> RankItem:
    """Return what a ranker may know of an item."""
    return RankItem(item.id, item.title, item.text)


def _matched(
    query: ProbeQuery, one: Cell, other: Cell, seed: int, what: str
) -> list[tuple[ProbeItem, ProbeItem]]:
    random = stream(seed, f"pairs, {what}: {query.id}")
    cells: list[Sequence[ProbeItem]] = []
    for cell in (one, other):
        items = sorted(query.of_cell(cell), key=lambda item: item.id)
        cells.append([items[place] for place in random.permutation(len(items))])
    return list(zip(*cells, strict=False))
