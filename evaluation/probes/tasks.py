"""The single things that a probe has to do: lists to be ranked, and pairs to be asked about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fairqr.agents.ranking.item_ranker import Asker, group_of
from fairqr.evaluation.probes.collection import ProbeCollection, ProbeQuery
from fairqr.evaluation.probes.pairs import ProbePair, planned_pairs
from fairqr.evaluation.probes.specification import ListwiseExperiment, PairwiseExperiment

__all__ = ["ListTask", "PairTask", "list_tasks", "pair_tasks"]


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

    def key(self, model: str) -> tuple[str, ...]:
        """Return the key of its record."""
        one, other = self.pair.protected.id, self.pair.unprotected.id
        return (self.collection, model, self.query.id, self.pair.kind, one, other)


def list_tasks(
    experiment: ListwiseExperiment, collections: Sequence[ProbeCollection]
) -> list[ListTask]:
    """Return the lists that each ranker has to rank, by collection and asker."""
    return [
        ListTask(each.manifest.name, asker, group_of(asker, _words(each)), query)
        for each in collections
        for asker in experiment.askers
        for query in each.queries
    ]


def pair_tasks(
    experiment: PairwiseExperiment, collections: Sequence[ProbeCollection]
) -> list[PairTask]:
    """Return the pairs that each model has to be asked about, by collection."""
    return [
        PairTask(each.manifest.name, group_of(experiment.asker, _words(each)), query, pair)
        for each in collections
        for query in each.queries
        for pair in planned_pairs(query, experiment)
    ]


def _words(collection: ProbeCollection) -> tuple[str, str]:
    return collection.manifest.protected, collection.manifest.unprotected
