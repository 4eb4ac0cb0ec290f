"""The tables of rounds, drift and costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from fairqr.base.statistics import mean_interval
from fairqr.evaluation.batch import Batch
from fairqr.evaluation.experiments.measuring import Measured, Table
from fairqr.evaluation.experiments.report import numbers, parts
from fairqr.evaluation.experiments.report.figures import drift_figure
from fairqr.evaluation.experiments.report.naming import headings, roles_of, title_of
from fairqr.evaluation.experiments.report.parts import Block, Cell, Paragraph
from fairqr.evaluation.experiments.report.published import PAPER_ROUNDS
from fairqr.evaluation.experiments.report.rounds import Series, by_topic, refining, used
from fairqr.evaluation.experiments.store import Record, Round
from fairqr.evaluation.scores import Undefined

__all__ = ["at_once", "cost_blocks", "drift_blocks", "rounds_table"]


def rounds_table(measured: Measured, table: Table) -> Iterator[Block]:
    """Yield the table of the rounds that searches used, and why they stopped."""
    systems = refining(measured.manifest.experiment, table)
    if not systems:
        yield Paragraph(f"{title_of(table)}: no system that refines has searched for all topics.")
        return
    stops = list(dict.fromkeys(r.stop_reason for records in systems.values() for r in records))
    rows = []
    for name, records in systems.items():
        rounds = used(records)
        reasons = Counter(record.stop_reason for record in records)
        rows.append(
            (
                Cell(name),
                Cell(str(len(rounds))),
                Cell(f"{np.mean(rounds):.2f}"),
                Cell(f"{np.percentile(rounds, 75):g}"),
                Cell(str(max(rounds))),
                *(Cell(str(reasons[stop])) for stop in stops),
            )
        )
    yield parts.Table(
        f"{title_of(table)}: rounds of refinement used, those that stopped before the first one "
        f"counted as 0, and how many searches stopped for which reason. For comparison, "
        f"{PAPER_ROUNDS}, on another collection and with another model.",
        (
            "system",
            "searches",
            "mean rounds",
            "75th percentile",
            "maximum",
            *(f"stopped: {stop.replace('_', ' ')}" for stop in stops),
        ),
        tuple(rows),
    )


def drift_blocks(measured: Measured, table: Table) -> Iterator[Block]:
    """Yield how the relevance of what is retrieved changes by round."""
    experiment, relevance = measured.manifest.experiment, roles_of(table).relevance
    systems = refining(experiment, table)
    if relevance is None or not systems:
        yield Paragraph(
            f"{title_of(table)}: there is no measure of relevance, or no system that refines has "
            "searched for all topics."
        )
        return
    measure = next(iter(table.evaluations.values())).results[relevance].measure

    def relevance_of(record: Record, one: Round) -> float | None:
        judged = measured.qrels[record.topic]
        (score,) = measure.values(Batch([record.topic], [[one.ids]], [judged])).listed()
        return None if isinstance(score, Undefined) else score

    values = {name: by_topic(records, relevance_of) for name, records in systems.items()}
    name = headings(experiment, table)[relevance]
    yield from drift_figure(table, {n: _series(found) for n, found in values.items()}, name)
    rows = []
    for system, rounds in values.items():
        for number, found in enumerate(rounds):
            if number and found:
                rows.append(_drift_row(system, number, found, rounds[0]))
    if not rows:
        yield Paragraph(f"{title_of(table)}: no search went beyond round 0.")
        return
    yield parts.Table(
        f"{title_of(table)}: {name} of each round's list, before any re-ranking, beside that of "
        "round 0 for the same topics, and the difference with its 95% interval. Later "
        "rounds are over fewer topics: those whose exposure was still far from the target.",
        ("system", "round", "topics", f"{name} of the round", "of round 0", "difference"),
        tuple(rows),
    )


def _series(rounds: Sequence[dict[str, float]]) -> Series:
    means = tuple(float(np.mean(list(found.values()))) if found else None for found in rounds)
    return Series(means, tuple(map(len, rounds)))


def _drift_row(
    system: str, number: int, found: dict[str, float], first: dict[str, float]
) -> tuple[Cell, ...]:
    before = [first[topic] for topic in found]
    changes = [value - first[topic] for topic, value in found.items()]
    interval = mean_interval(changes)
    return (
        Cell(system),
        Cell(str(number)),
        Cell(str(len(found))),
        Cell(numbers.value(float(np.mean(list(found.values()))))),
        Cell(numbers.value(float(np.mean(before)))),
        Cell(numbers.difference(float(np.mean(changes))), numbers.span(interval)),
    )


def cost_blocks(measured: Measured, table: Table) -> Iterator[Block]:
    """Yield what a search cost, by system."""
    told: tuple[tuple[str, Callable[[Record], float]], ...] = (
        ("model calls", lambda record: record.model_calls),
        ("tokens", lambda record: record.tokens),
        ("milliseconds", lambda record: record.milliseconds),
    )
    rows = []
    for name, records in table.records.items():
        done = [record for record in records if not record.error]
        cells = [_spread([value(record) for record in done]) for _, value in told]
        rows.append((Cell(name), Cell(str(len(done))), *cells))
    yield parts.Table(
        f"{title_of(table)}: cost of a search as mean / median / 95th percentile. A search that "
        "asks no model has one pass; searches that failed are left out.",
        ("system", "searches", *(name for name, _ in told)),
        tuple(rows),
    )


def at_once(measured: Measured) -> str:
    """Return how many searches were under way at the same time."""
    found = {
        record.at_once
        for table in measured.tables
        for records in table.records.values()
        for record in records
        if not record.error
    }
    return " or ".join(map(str, sorted(found))) or "none"


def _spread(values: Sequence[float]) -> Cell:
    if not values:
        return Cell("–")
    spread = (np.mean(values), np.median(values), np.percentile(values, 95))
    return Cell(numbers.spread([float(number) for number in spread]))
