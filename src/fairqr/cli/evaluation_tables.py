"""Evaluations on the terminal."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from fairqr.cli.common import printable as plain
from fairqr.cli.terminal import Output
from fairqr.evaluation.measures.base import Measure
from fairqr.evaluation.measures.product import Product
from fairqr.evaluation.measures.text import MEASURES, parse_measure
from fairqr.evaluation.scores import Undefined

if TYPE_CHECKING:
    from fairqr.evaluation.comparison import Comparisons
    from fairqr.evaluation.results import Evaluation, MeasureResult

__all__ = ["plain", "print_comparisons", "print_evaluation", "print_measures"]


_SHORT = {"the high end is best": "high", "the group's target is fair": "target"}


def print_evaluation(evaluation: Evaluation, *, by_query: bool = False) -> None:
    """Print the means of a run, and the values of its queries if asked for."""
    console = Output()
    results = list(evaluation.results.values())
    level = next((r.interval.level for r in results if r.interval), None)
    title = Text.assemble((plain(evaluation.run), "bold"), f"  {_count(len(evaluation.queries))}")
    console.print(title)
    table = _table()
    table.add_column("measure", overflow="fold")
    table.add_column("mean", justify="right", no_wrap=True)
    interval = "interval" if level is None else f"{level:.0%} interval"
    table.add_column(interval, justify="right", no_wrap=True)
    table.add_column("over", justify="right", no_wrap=True)
    table.add_column("best", no_wrap=True, style="dim")
    if any(result.undefined() for result in results):
        table.add_column("no value", overflow="fold", style="yellow")
    for result in results:
        table.add_row(*map(Text, _cells(result)[: len(table.columns)]))
    console.print(table)
    if by_query:
        _print_queries(console, evaluation)
    console.print(_footer(evaluation), style="dim", markup=False)


def print_comparisons(comparisons: Comparisons) -> None:
    """Print which differences hold."""
    console = Output()
    console.print()
    for row, sentence in zip(comparisons.rows, comparisons.sentences(), strict=True):
        style = "bold" if row.holds(comparisons.alpha) else ""
        console.print(Text(plain(sentence), style=style))


def print_measures() -> None:
    """Print what measures there are, with their parameters."""
    console = Output()
    measures: tuple[type[Measure], ...] = (*MEASURES, Product)
    for measure in measures:
        example = parse_measure(measure.example)
        console.print(Text.assemble((measure.example, "bold"), f"  {measure.summary}"))
        needs = ", ".join(sorted(need for need in example.needs))
        console.print(f"  range {measure.range}; {measure.best}; needs {needs}", markup=False)
        taken = []
        for field in dataclasses.fields(measure):
            if field.name not in ("k", "factors"):
                choices = "|".join(measure.choices.get(field.name, ()))
                taken.append(f"{field.name}={choices}" if choices else field.name)
        if taken:
            console.print(f"  takes {', '.join(taken)}", style="dim", markup=False)
    console.print("docs/measures.md has formulas, defaults and conventions.", style="dim")


def _cells(result: MeasureResult) -> tuple[str, ...]:
    interval = result.interval
    undefined = result.undefined().items()
    return (
        plain(str(result.measure)),
        "–" if result.mean is None else f"{result.mean:.4f}",
        "" if interval is None else f"{interval.low:.4f} to {interval.high:.4f}",
        str(result.count),
        _SHORT.get(result.measure.best, result.measure.best.split()[0]),
        ", ".join(f"{number} {reason.replace('_', ' ')}" for reason, number in undefined),
    )


def _print_queries(console: Output, evaluation: Evaluation) -> None:
    table = _table()
    for name in ("query", "measure"):
        table.add_column(name, overflow="fold")
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("", style="yellow", overflow="fold")
    for query in evaluation.queries:
        for measure, result in evaluation.results.items():
            score = result.values[query]
            missing = isinstance(score, Undefined)
            value = "" if isinstance(score, Undefined) else f"{score:.4f}"
            why = str(score.reason).replace("_", " ") if isinstance(score, Undefined) else ""
            table.add_row(*map(Text, (plain(query), plain(measure), value, why if missing else "")))
    console.print(table)


def _footer(evaluation: Evaluation) -> str:
    made = next((r.interval.resamples for r in evaluation.results.values() if r.interval), None)
    told = f"target {evaluation.target}; missing queries: {evaluation.missing}"
    if evaluation.unknown:
        listed = ", ".join(f"{name} {policy}" for name, policy in evaluation.unknown.items())
        told += f"; unknown: {listed}"
    return told if made is None else f"{told}; bootstrap of {made}, seed {evaluation.seed}"


def _table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))


def _count(number: int) -> str:
    return "1 query" if number == 1 else f"{number} queries"
