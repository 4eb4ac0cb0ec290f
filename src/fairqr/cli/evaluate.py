"""The command ``fairqr evaluate``."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairqr.base.errors import InputError, one_line
from fairqr.cli.output import Printed, interval, literal, number, quantity, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fairqr.evaluation.results import Evaluation
    from fairqr.retrieval.sources.runs import SystemRun

RELEVANCE = "nDCG@20,P@20,AP"
"""The default measures."""

FAIRNESS = "AWRF@20,nDCG@20×AWRF@20"
"""The default measures besides, if there are groups."""


def evaluate(
    run_file: Annotated[Path | None, typer.Argument(help="A run file in TREC's format.")] = None,
    *,
    qrels: Annotated[
        Path | None,
        typer.Option("--qrels", help="Judgements in TREC's format; a grade above 0 is relevant."),
    ] = None,
    measures: Annotated[
        list[str] | None,
        typer.Option(
            "--measures",
            help="Measures, such as nDCG@20,AWRF@20(attribute=gender); 'help' lists them.",
        ),
    ] = None,
    corpus: Annotated[
        str | None,
        typer.Option(
            "--corpus",
            help=(
                "Where groups come from: a source, an index or a built-in corpus by name, or "
                "the path of a source file or of JSON Lines of documents."
            ),
        ),
    ] = None,
    attribute: Annotated[
        list[str] | None,
        typer.Option(
            "--attribute",
            help="The attribute of measures without one; gender×continent for a product.",
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            help=(
                "The target of fairness: relevance:0.5,population:0.5 (the default), or trec2022."
            ),
        ),
    ] = None,
    compare: Annotated[
        list[Path] | None,
        typer.Option(
            "--compare", help="Another run to compare with RUN_FILE by paired tests. Repeatable."
        ),
    ] = None,
    ties: Annotated[
        str,
        typer.Option(
            "--ties", help="How to order equal scores: rank (as in the file), id or trec_eval."
        ),
    ] = "rank",
    missing: Annotated[
        str,
        typer.Option(
            "--missing",
            help=(
                "The relevance of queries that a run lacks: zero, or undefined to leave them out."
            ),
        ),
    ] = "zero",
    by_query: Annotated[
        bool, typer.Option("--by-query", help="Show the value of each query too.")
    ] = False,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Write the value of each query to this file.")
    ] = None,
) -> Printed | None:
    """Measure the relevance and the fairness of a run, and compare it with others."""
    if measures and "help" in measures:
        return Printed(None, _measure_lines())
    if run_file is None:
        raise InputError("An evaluation needs a run; name a run file in TREC's format.")
    from fairqr.evaluation import results
    from fairqr.evaluation.collections.query_targets import DEFAULT_TARGET
    from fairqr.evaluation.evaluate import evaluate as evaluate_run
    from fairqr.evaluation.evaluate import ids_of
    from fairqr.evaluation.inputs import as_groups
    from fairqr.evaluation.measures.measure import parse_measures
    from fairqr.evaluation.qrels import read_qrels

    paths = [run_file, *(compare or [])]
    if len({*paths}) < len(paths):
        raise InputError("A run is named twice; name each once.")
    default_measures = RELEVANCE if corpus is None else f"{RELEVANCE},{FAIRNESS}"
    parsed_measures = parse_measures(measures or default_measures)
    runs = _read_runs(paths, ties)
    judgements = None if qrels is None else read_qrels(qrels)
    groups = as_groups(corpus, ids_of(runs, judgements))
    evaluations = [
        evaluate_run(
            run,
            judgements,
            parsed_measures,
            groups=groups,
            target=target or DEFAULT_TARGET,
            attributes=attribute or (),
            missing=missing,  # type: ignore[arg-type]
        )
        for run in runs
    ]
    first, *others = evaluations
    comparison = results.compare(first, others) if others else None

    if csv is not None:
        from fairqr.base.files import write_beside

        write_beside(csv, results.values_csv(evaluations))
    data = {
        "runs": [evaluation.as_json(by_query=by_query) for evaluation in evaluations],
        "comparisons": comparison.as_json() if comparison else None,
    }
    lines: list[RenderableType] = []
    warnings = []
    for evaluation in evaluations:
        lines += _lines(evaluation, by_query=by_query)
        warnings += [note.sentence for note in evaluation.notes]
    if comparison:
        lines.append("")
        for row, sentence in zip(comparison.rows, comparison.sentences(), strict=True):
            lines.append(literal(sentence, "bold" if row.holds else ""))
    # Several runs may have the same notes.
    return Printed(data, lines, warnings=dict.fromkeys(warnings))


def _read_runs(paths: Sequence[Path], ties: str) -> list[SystemRun]:
    """Read runs; those that share a name get the names of their files, too."""
    from fairqr.retrieval.sources.runs import read_run

    runs = [read_run(path, ties=ties) for path in paths]  # type: ignore[arg-type]
    counts = Counter(run.name for run in runs)
    for position, path in enumerate(paths):
        name = runs[position].name
        if counts[name] > 1:
            full_name = f"{name} ({one_line(path)})"
            runs[position] = dataclasses.replace(runs[position], name=full_name)
    return runs


def _lines(evaluation: Evaluation, *, by_query: bool) -> Iterator[RenderableType]:
    """Yield the means of a run, and the values of its queries if the user wants them."""
    queries = quantity(len(evaluation.queries), "query", "queries")
    yield f"{evaluation.run}  {queries}"
    yield _means(evaluation)
    if evaluation.by_group:
        yield _group_shares(evaluation)
    if by_query:
        rows = []
        for _, *row, reason in evaluation.rows():
            rows.append((*row, reason.replace("_", " ")))
        yield table(("query", "measure", "value", ""), rows, digits=4)
    yield "; ".join(_choices(evaluation))


def _means(evaluation: Evaluation) -> RenderableType:
    """Draw the mean of each measure, and over how many queries it is."""
    rows = []
    for result in evaluation.results.values():
        ends = ""
        if result.interval:
            ends = interval(result.interval.low, result.interval.high, 4)
        reasons = []
        for reason, count in result.undefined().items():
            reasons.append(f"{count} {reason.replace('_', ' ')}")
        measure = result.measure
        cells = (str(measure), result.mean, ends, result.count, measure.kind.best)
        rows.append((*cells, ", ".join(reasons)))
    heads = ("measure", "mean", number("95% interval"), "over", "best", "no value")
    return table(heads, rows, digits=4)


def _group_shares(evaluation: Evaluation) -> RenderableType:
    """Draw which share of the exposure and of the relevant documents each group has."""
    rows = []
    for group in evaluation.by_group:
        name = f"{group.attribute}: {group.group}"
        ends = interval(group.low, group.high)
        rows.append((name, group.exposure, group.relevant, group.ratio, ends, group.queries))
    heads = ("group", "share of exposure", "of the relevant", "ratio", number("95% interval"))
    return table((*heads, "over"), rows, digits=4)


def _choices(evaluation: Evaluation) -> Iterator[str]:
    """Yield by which choices an evaluation was made."""
    from fairqr.agents.statistics import too_few

    yield f"target {evaluation.target}"
    yield f"missing queries: {evaluation.missing}"
    policies = [f"{name} {policy}" for name, policy in evaluation.unknown.items()]
    if policies:
        yield f"unknown: {', '.join(policies)}"
    counts = [result.count for result in evaluation.results.values()]
    if any(count and too_few(count, 0.05) for count in counts):
        yield "too few queries for an interval"


def _measure_lines() -> Iterator[str]:
    """Yield which measures there are, with their parameters."""
    from fairqr.evaluation.measures.kinds import CHOICES, KINDS, PRODUCT
    from fairqr.evaluation.measures.measure import parse_measure

    for kind in (*KINDS.values(), PRODUCT):
        needs = ", ".join(sorted(parse_measure(kind.example).needs))
        yield f"{kind.example}  {kind.summary}"
        yield f"  range {kind.range}; {kind.best}; needs {needs}"
        for name in sorted(kind.takes):
            choices = "|".join(CHOICES.get(name, ()))
            yield f"  takes {name}={choices}" if choices else f"  takes {name}"
