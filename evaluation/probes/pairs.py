"""What a probe asks: lists to be ranked, and pairs of items drawn from the list of a query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fairqr.agents.ranking.pairwise import PairwiseJudge
from fairqr.agents.ranking.rankers import Asker, Cost, ItemRanker, RankItem, group_of
from fairqr.agents.statistics import stream
from fairqr.evaluation.probes.collection import Cell, ProbeCollection, ProbeItem, ProbeQuery
from fairqr.evaluation.probes.specification import ListwiseExperiment, PairwiseExperiment

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
        kind: The kind of the pair.
        protected: The protected item; of ``relevance`` pairs the relevant one.
        unprotected: The other one.
    """

    kind: Kind
    protected: ProbeItem
    unprotected: ProbeItem


def planned_pairs(query: ProbeQuery, limit: int, relevance: int, seed: int) -> list[ProbePair]:
    """Return all pairs of a query that are asked about: relevant, irrelevant, relevance.

    Args:
        query: Its items.
        limit: The most relevant pairs, and the most irrelevant ones.
        relevance: The most pairs that show whether a model judges relevance at all.
        seed: The seed of the draws.
    """
    return [
        *group_pairs(query, "relevant", limit, seed),
        *group_pairs(query, "irrelevant", limit, seed),
        *relevance_pairs(query, relevance, seed),
    ]


def group_pairs(query: ProbeQuery, kind: GroupKind, limit: int, seed: int) -> list[ProbePair]:
    """Match protected with unprotected items that are alike in relevance, at random.

    No item is in two pairs. The draw depends on nothing but the items of the two cells, the seed
    and the query's id: neither on the order of the list nor on other queries; and fewer pairs are
    the first of more.

    Args:
        query: Its items.
        kind: Whether both items are relevant or both are not.
        limit: The most pairs.
        seed: The seed of the draw.

    Returns:
        None if one of the two cells is empty.
    """
    protected, unprotected = _CELLS[kind]
    return [
        ProbePair(kind, one, other)
        for one, other in _matched(query, protected, unprotected, seed, kind)
    ][:limit]


def relevance_pairs(query: ProbeQuery, limit: int, seed: int) -> list[ProbePair]:
    """Match relevant with irrelevant items of the same side, at random.

    They show whether a model judges relevance at all. The sides take turns as long as both have
    pairs, so that neither counts more; no item is in two pairs.

    Args:
        query: Its items.
        limit: The most pairs.
        seed: The seed of the draw.

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


@dataclass(frozen=True, slots=True)
class ListTask:
    """A list to be ranked.

    Attributes:
        collection: Its name.
        asker: For whom.
        group: What stands before those who ask.
        query: Its items.
    """

    collection: str
    asker: Asker
    group: str
    query: ProbeQuery

    def key(self, ranker: str, window: str) -> tuple[str, ...]:
        """Return the key of its record."""
        return (self.collection, ranker, window, self.asker, self.query.id)

    @property
    def items(self) -> list[RankItem]:
        """What a ranker may know of its items."""
        return [rank_item(item) for item in self.query.items]

    def cost(self, ranker: ItemRanker) -> Cost:
        """Return what it costs at most to have it ranked."""
        return ranker.cost(self.query.query, self.items, self.group)


@dataclass(frozen=True, slots=True)
class PairTask:
    """A pair to be asked about.

    Attributes:
        collection: Its name.
        group: What stands before those who ask.
        query: Where it is from.
        pair: Both items.
    """

    collection: str
    group: str
    query: ProbeQuery
    pair: ProbePair

    def key(self, model: str, window: str = "") -> tuple[str, ...]:
        """Return the key of its record; pairs have no window."""
        one, other = self.pair.protected.id, self.pair.unprotected.id
        return (self.collection, model, self.query.id, self.pair.kind, one, other)

    @property
    def items(self) -> tuple[RankItem, RankItem]:
        """What a judge may know of its items, the protected one first."""
        return rank_item(self.pair.protected), rank_item(self.pair.unprotected)

    def cost(self, judge: PairwiseJudge) -> Cost:
        """Return what it costs at most to ask about it."""
        return judge.cost(self.query.query, self.items, self.group)


def tasks_of(
    experiment: ListwiseExperiment | PairwiseExperiment, collections: Sequence[ProbeCollection]
) -> list[ListTask] | list[PairTask]:
    """Return what each ranker has to rank or each model is asked about, by collection."""
    if isinstance(experiment, PairwiseExperiment):
        drawn = (experiment.pairs, experiment.relevance_pairs, experiment.seed)
        return [
            PairTask(each.manifest.name, group_of(experiment.asker, _words(each)), query, pair)
            for each in collections
            for query in each.queries
            for pair in planned_pairs(query, *drawn)
        ]
    return [
        ListTask(each.manifest.name, asker, group_of(asker, _words(each)), query)
        for each in collections
        for asker in experiment.askers
        for query in each.queries
    ]


def _words(collection: ProbeCollection) -> tuple[str, str]:
    return collection.manifest.protected, collection.manifest.unprotected
