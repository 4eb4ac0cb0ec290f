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
FAIRNESS = "AWRF@20,nDCG@20×AWRF@20"


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
    from fairqr.evaluation import evaluate as measuring
    from fairqr.evaluation import results
    from fairqr.evaluation.collections.query_targets import DEFAULT_TARGET
    from fairqr.evaluation.inputs import as_groups
    from fairqr.evaluation.measures.measure import parse_measures
    from fairqr.evaluation.qrels import read_qrels

    paths = [run_file, *(compare or [])]
    if len({*paths}) < len(paths):
        raise InputError("A run is named twice; name each once.")
    usual = RELEVANCE if corpus is None else f"{RELEVANCE},{FAIRNESS}"
    asked = parse_measures(measures or usual)
    runs = _read_runs(paths, ties)
    judged = None if qrels is None else read_qrels(qrels)
    groups = as_groups(corpus, measuring.ids_of(runs, judged))
    evaluations = [
        measuring.evaluate(
            found,
            judged,
            asked,
            groups=groups,
            target=target or DEFAULT_TARGET,
            attributes=attribute or (),
            missing=missing,  # type: ignore[arg-type]
        )
        for found in runs
    ]
    first, *others = evaluations
    found = results.compare(first, others) if others else None
    if csv is not None:
        from fairqr.base.files import write_beside

        write_beside(csv, results.values_csv(evaluations))
    told = (note.sentence for evaluation in evaluations for note in evaluation.notes)
    data = {
        "runs": [evaluation.as_json(by_query=by_query) for evaluation in evaluations],
        "comparisons": found.as_json() if found else None,
    }
    lines = [line for each in evaluations for line in _lines(each, by_query=by_query)]
    if found:
        lines.append("")
        for row, sentence in zip(found.rows, found.sentences(), strict=True):
            lines.append(literal(sentence, "bold" if row.holds else ""))
    return Printed(data, lines, warnings=dict.fromkeys(told))


def _read_runs(paths: Sequence[Path], ties: str) -> list[SystemRun]:
    """Read runs; those of one name get the names of their files, too."""
    from fairqr.retrieval.sources.runs import read_run

    runs = [read_run(path, ties=ties) for path in paths]  # type: ignore[arg-type]
    names = Counter(run.name for run in runs)
    for place, path in enumerate(paths):
        if names[name := runs[place].name] > 1:
            runs[place] = dataclasses.replace(runs[place], name=f"{name} ({one_line(path)})")
    return runs


def _lines(evaluation: Evaluation, *, by_query: bool) -> Iterator[RenderableType]:
    """Yield the means of a run, and the values of its queries if asked for."""
    from fairqr.agents.statistics import too_few

    results = evaluation.results.values()
    yield f"{evaluation.run}  {quantity(len(evaluation.queries), 'query', 'queries')}"
    rows = []
    for each in results:
        found = each.interval
        ends = interval(found.low, found.high, 4) if found else ""
        why = ", ".join(f"{n} {it.replace('_', ' ')}" for it, n in each.undefined().items())
        rows.append((str(each.measure), each.mean, ends, each.count, each.measure.kind.best, why))
    heads = ("measure", "mean", number("95% interval"), "over", "best", "no value")
    yield table(heads, rows, digits=4)
    if evaluation.by_group:
        names = ("group", "share of exposure", "of the relevant", "ratio", number("95% interval"))
        shares = (
            (name, it.exposure, it.relevant, it.ratio, interval(it.low, it.high), it.queries)
            for it in evaluation.by_group
            for name in [f"{it.attribute}: {it.group}"]
        )
        yield table((*names, "over"), shares, digits=4)
    if by_query:
        values = ((*row, why.replace("_", " ")) for _, *row, why in evaluation.rows())
        yield table(("query", "measure", "value", ""), values, digits=4)
    unknown = ", ".join(f"{name} {policy}" for name, policy in evaluation.unknown.items())
    told = [f"target {evaluation.target}", f"missing queries: {evaluation.missing}"]
    told += [f"unknown: {unknown}"] if unknown else []
    if any(too_few(each.count, 0.05) and each.count for each in results):
        told.append("too few queries for an interval")
    yield "; ".join(told)


def _measure_lines() -> Iterator[str]:
    """Yield what measures there are, with their parameters."""
    from fairqr.evaluation.measures.kinds import CHOICES, KINDS, PRODUCT
    from fairqr.evaluation.measures.measure import parse_measure

    for kind in (*KINDS.values(), PRODUCT):
        needs = ", ".join(sorted(parse_measure(kind.example).needs))
        yield f"{kind.example}  {kind.summary}"
        yield f"  range {kind.range}; {kind.best}; needs {needs}"
        for name in sorted(kind.takes):
            yield f"  takes {name}={'|'.join(CHOICES.get(name, ()))}".rstrip("=")
