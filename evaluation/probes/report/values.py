"""The values behind a report, as a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator

from fairqr.agents.ranking.lean import PairFigures
from fairqr.base.statistics import Interval
from fairqr.evaluation.probes.measured import (
    MeasuredListwise,
    MeasuredPairwise,
    QueryValues,
)
from fairqr.evaluation.probes.tuning_changes import Change
from fairqr.evaluation.probes.tuning_records import MeasuredLora

__all__ = ["as_csv", "figure_values", "listwise_values", "lora_values", "pairwise_values"]

LISTWISE = ("collection", "ranker", "window", "asker", "query", "measure", "value", "undefined")

PAIRWISE = ("collection", "model", "pairs", "measure", "value", "low", "high", "count", "of")

LORA = ("collection", "pairs", "when", "measure", "value", "low", "high", "count", "of")


def as_csv(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a CSV file; None is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def listwise_values(measured: MeasuredListwise, k: int) -> str:
    """Return the measures of every list, or the reason why there is none."""
    return as_csv(LISTWISE, _lists(measured, k))


def _lists(measured: MeasuredListwise, k: int) -> Iterator[tuple[object, ...]]:
    for row in measured.rows:
        for one in row.by_query:
            names = (row.collection, row.ranker, row.window, row.asker, one.query)
            for measure, value, why in (
                (f"P@{k}", one.precision, ""),
                (f"nDCG@{k}", one.ndcg, "nothing_relevant"),
                ("exposure ratio", one.ratio, "empty_group"),
            ):
                yield (*names, measure, value, _why(one, why) if value is None else "")


def _why(one: QueryValues, otherwise: str) -> str:
    return "failed" if one.status == "failed" else otherwise


def pairwise_values(measured: MeasuredPairwise) -> str:
    """Return the figures of every kind of pairs; the pairs themselves are in ``pairs.jsonl``."""
    return as_csv(
        PAIRWISE,
        (
            (row.collection, row.model, row.kind, *values)
            for row in measured.rows
            for values in figure_values(row.figures)
        ),
    )


def figure_values(figures: PairFigures) -> Iterator[tuple[object, ...]]:
    """Yield name, value, both ends of the interval, count and total of each figure."""
    for name, share in (
        ("protected", figures.protected),
        ("unprotected", figures.unprotected),
        ("flips", figures.flips),
        ("protected of consistent", figures.consistent),
        ("votes for protected", figures.votes),
        ("averaged protected", figures.averaged.protected),
    ):
        low, high = _ends(share.interval)
        yield name, share.value, low, high, share.count, share.of
    yield "ratio", figures.ratio, *_ends(figures.ratio_interval), None, None
    yield "p over pairs", figures.p, None, None, None, figures.consistent.of
    over = figures.over_queries
    yield "p over queries", over and over.p, None, None, None, figures.consistent_queries
    yield "p of position", figures.position_p, None, None, None, figures.flips.count
    for status, count in figures.failures.items():
        yield f"failed: {status}", None, None, None, count, figures.replies


def lora_values(measured: MeasuredLora) -> str:
    """Return the figures of the held-out pairs before and after, and what changed."""
    return as_csv(LORA, _changes(measured))


def _changes(measured: MeasuredLora) -> Iterator[tuple[object, ...]]:
    for one in measured.groups:
        for when, figures in (("before", one.before), ("after", one.after)):
            for values in figure_values(figures):
                yield (one.collection, one.kind, when, *values)
        names = (one.collection, one.kind, "change")
        ends = _ends(one.ratio.interval)
        yield (*names, "ratio nearer to 1", one.ratio.moved, *ends, None, one.pairs)
        yield (*names, *_change("consistent", one.consistent))
        ends = _ends(one.lean.interval)
        yield (*names, "log-odds nearer to 0", one.lean.shrunk, *ends, None, one.lean.pairs)
    for found in measured.relevance:
        for name, change in (("both orders", found.both_orders), ("averaged", found.averaged)):
            for when, share in (("before", change.before), ("after", change.after)):
                values = (share.value, *_ends(share.interval), share.count, share.of)
                yield (found.collection, "relevance", when, name, *values)
            yield (found.collection, "relevance", "change", *_change(name, change))


def _change(name: str, change: Change) -> tuple[object, ...]:
    return name, change.difference, *_ends(change.interval), None, change.before.of


def _ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return (interval.low, interval.high) if interval else (None, None)
