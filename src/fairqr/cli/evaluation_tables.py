"""Evaluations on the terminal."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.table import Column

from fairqr.agents.statistics import too_few
from fairqr.cli.terminal import Output, counted, decimal, number, table
from fairqr.evaluation.measures.base import Measure
from fairqr.evaluation.measures.product import Product
from fairqr.evaluation.measures.text import MEASURES, parse_measure
from fairqr.evaluation.scores import Undefined

if TYPE_CHECKING:
    from fairqr.evaluation.by_group import GroupShare
    from fairqr.evaluation.results import Comparisons, Evaluation, MeasureResult

_SHORT = {"the high end is best": "high", "the group's target is fair": "target"}


def print_evaluation(evaluation: Evaluation, *, by_query: bool = False) -> None:
    """Print the means of a run, and the values of its queries if asked for."""
    console = Output()
    results = list(evaluation.results.values())
    level = next((r.interval.level for r in results if r.interval), None)
    size = counted(len(evaluation.queries), "query", "queries")
    console.say((evaluation.run, "bold"), f"  {size}")
    heads: list[str | Column] = [
        "measure",
        number("mean"),
        number("interval" if level is None else f"{level:.0%} interval"),
        number("over"),
        Column("best", no_wrap=True, style="dim"),
    ]
    if any(result.undefined() for result in results):
        heads.append(Column("no value", overflow="fold", style="yellow"))
    console.print(table(heads, (_cells(result)[: len(heads)] for result in results)))
    if evaluation.by_group:
        names = ("share of exposure", "of the relevant", "ratio", "95% interval", "over")
        heads = ["group", *map(number, names)]
        console.print(table(heads, map(_group_cells, evaluation.by_group)))
    if by_query:
        heads = ["query", "measure", number("value"), Column("", style="yellow", overflow="fold")]
        console.print(table(heads, _values(evaluation)))
    console.say(_footer(evaluation), style="dim")


def print_comparisons(comparisons: Comparisons) -> None:
    """Print which differences hold."""
    console = Output()
    console.print()
    for row, sentence in zip(comparisons.rows, comparisons.sentences(), strict=True):
        style = "bold" if row.holds(comparisons.alpha) else ""
        console.say(sentence, style=style)


def print_measures() -> None:
    """Print what measures there are, with their parameters."""
    console = Output()
    measures: tuple[type[Measure], ...] = (*MEASURES, Product)
    for measure in measures:
        example = parse_measure(measure.example)
        console.say((measure.example, "bold"), f"  {measure.summary}")
        needs = ", ".join(sorted(example.needs))
        console.say(f"  range {measure.range}; {measure.best}; needs {needs}")
        taken = []
        for field in dataclasses.fields(measure):
            if field.name not in ("k", "factors"):
                choices = "|".join(measure.choices.get(field.name, ()))
                taken.append(f"{field.name}={choices}" if choices else field.name)
        if taken:
            console.say(f"  takes {', '.join(taken)}", style="dim")
    console.print("docs/explanation/measures.md has formulas and conventions.", style="dim")


def _cells(result: MeasureResult) -> tuple[str, ...]:
    interval = result.interval
    undefined = result.undefined().items()
    return (
        str(result.measure),
        decimal(result.mean, 4),
        "" if interval is None else f"{interval.low:.4f} to {interval.high:.4f}",
        str(result.count),
        _SHORT.get(result.measure.best, result.measure.best.split()[0]),
        ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in undefined),
    )


def _group_cells(share: GroupShare) -> tuple[str, ...]:
    interval = "" if share.low is None else f"{share.low:.2f} to {share.high:.2f}"
    return (
        f"{share.attribute}: {share.group}",
        f"{share.exposure:.4f}",
        f"{share.relevant:.4f}",
        decimal(share.ratio, 2),
        interval,
        str(share.queries),
    )


def _values(evaluation: Evaluation) -> Iterator[tuple[str, ...]]:
    for query in evaluation.queries:
        for measure, result in evaluation.results.items():
            score = result.values[query]
            if isinstance(score, Undefined):
                yield query, measure, "", str(score.reason).replace("_", " ")
            else:
                yield query, measure, f"{score:.4f}", ""


def _footer(evaluation: Evaluation) -> str:
    told = f"target {evaluation.target}; missing queries: {evaluation.missing}"
    if evaluation.unknown:
        listed = ", ".join(f"{name} {policy}" for name, policy in evaluation.unknown.items())
        told += f"; unknown: {listed}"
    if any(too_few(r.count, 0.05) and r.count for r in evaluation.results.values()):
        told += "; too few queries for an interval"
    return told
