"""What searches had round by round, as means over topics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fairqr.evaluation.experiments.measuring import Table
from fairqr.evaluation.experiments.specification import Experiment
from fairqr.evaluation.experiments.store import Record, Round

__all__ = ["Series", "Value", "by_topic", "refining", "series", "used"]

Value = Callable[[Record, Round], float | None]


@dataclass(frozen=True, slots=True)
class Series:
    """Means by round, each over the topics that still ran and had a value.

    Attributes:
        means: From round 0 on; None where no topic had a value.
        counts: Over how many topics each is.
    """

    means: tuple[float | None, ...]
    counts: tuple[int, ...]


def refining(experiment: Experiment, table: Table) -> dict[str, Sequence[Record]]:
    """Return the searches of the systems that refine, by system; failed ones are left out."""
    names = [system.name for system in experiment.all_systems() if system.asks_a_model]
    found = {
        name: [record for record in table.records[name] if record.rounds]
        for name in names
        if name in table.records
    }
    return {name: records for name, records in found.items() if records}


def by_topic(records: Sequence[Record], value: Value) -> list[dict[str, float]]:
    """Return for each round the value of each topic that has one, a mean where it has several.

    Several searches of a topic differ in their seed.
    """
    most = max((len(record.rounds) for record in records), default=0)
    found: list[dict[str, list[float]]] = [{} for _ in range(most)]
    for record in records:
        for number, one in enumerate(record.rounds):
            score = value(record, one)
            if score is not None:
                found[number].setdefault(record.topic, []).append(score)
    return [{topic: float(np.mean(v)) for topic, v in topics.items()} for topics in found]


def series(records: Sequence[Record], value: Value) -> Series:
    """Return the mean over topics by round."""
    rounds = by_topic(records, value)
    means = tuple(float(np.mean(list(topics.values()))) if topics else None for topics in rounds)
    return Series(means, tuple(map(len, rounds)))


def used(records: Sequence[Record]) -> list[int]:
    """Return how many rounds of refinement each search used; those that never began count 0."""
    return [len(record.rounds) - 1 for record in records]
