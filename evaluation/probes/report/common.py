"""What the sections of the report share: names, and cells of tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from fairqr.agents.ranking.item_ranker import Asker
from fairqr.evaluation.experiments.report import numbers
from fairqr.evaluation.experiments.report.parts import Cell
from fairqr.evaluation.probes.collection import Order, ProbeManifest
from fairqr.evaluation.probes.measured import Average

__all__ = [
    "ORDERS",
    "REASONS",
    "asker_name",
    "average_cell",
    "counted",
    "grouped",
    "percent",
    "ranker_name",
    "why_left_out",
]

T = TypeVar("T")
K = TypeVar("K")

REASONS = {
    "failed": "no question was answered",
    "not_run": "not run yet",
    "empty_group": "one of the groups has no item",
    "nothing_relevant": "nothing is relevant",
}
"""Why a list has no value of a measure."""

ORDERS: dict[Order, str] = {
    "shuffled": "shuffled, by a seed for each query",
    "bm25": "by BM25",
    "discriminatory": (
        "discriminatory: relevant unprotected, relevant protected, irrelevant unprotected, "
        "irrelevant protected items"
    ),
}


def asker_name(asker: Asker, built: ProbeManifest) -> str:
    """Return for whom a model ranks, with the word that stands in the question."""
    if asker == "neutral":
        return "neutral"
    return f"{asker}: {built.protected if asker == 'protected' else built.unprotected}"


def ranker_name(ranker: str, window: str) -> str:
    """Return what ranks, with its window where it has one."""
    return f"{ranker}, {window}" if window else ranker


def percent(share: float | None) -> str:
    """Write a share."""
    return "–" if share is None else f"{100 * share:.1f}%"


def counted(counts: Mapping[str, int], names: Mapping[str, str] | None = None) -> str:
    """Write how often each thing was; ``none`` where none was."""
    names = names or {}
    told = (f"{count:,} × {names.get(name, name)}" for name, count in counts.items() if count)
    return "; ".join(told) or "none"


def average_cell(average: Average, *, signed: bool = False) -> Cell:
    """Return a mean with its interval and over how many queries it is."""
    text = numbers.difference(average.mean) if signed else numbers.value(average.mean)
    return Cell(text, " ".join(filter(None, (numbers.span(average.interval), f"n={average.n}"))))


def why_left_out(average: Average) -> Cell:
    """Return how many queries a mean is not over, and why."""
    left_out = sum(average.left_out.values())
    return Cell(str(left_out), counted(average.left_out, REASONS) if left_out else "")


def grouped(things: Iterable[tuple[K, T]]) -> Iterator[tuple[K, list[T]]]:
    """Yield things of equal keys together, keys in the order in which they come first."""
    found: dict[K, list[T]] = {}
    for key, thing in things:
        found.setdefault(key, []).append(thing)
    yield from found.items()
